"""The compiled part of the package, and its page for a package index; all else is in
pyproject.toml.

Where no C compiler works, the package is built without it: its wheel is then for every platform
(py3-none-any), and the build says so. A compiler that works and cannot compile the kernels is an
error of the kernels, which ends the build; `CC=false` builds without them.
"""

import runpy
import sys
import tempfile
import tomllib
from pathlib import Path

from setuptools import Extension, setup

# Only after setuptools, which brings its own distutils.
from distutils.ccompiler import new_compiler  # isort: skip
from distutils.errors import CCompilerError, DistutilsError  # isort: skip
from distutils.sysconfig import customize_compiler, get_python_inc  # isort: skip

ROOT = Path(__file__).parent
# By its path: a build does not have this folder on its path, and another package may be `release`.
README = runpy.run_path(str(ROOT / "release" / "readme.py"))

ABI = "0x030B0000"  # Python 3.11's stable ABI: one build for every later version
FOLDER = "featstore/native"
HEADERS = (
    "chunks",
    "crc32",
    "distinct",
    "footer",
    "marks",
    "once",
    "pages",
    "rows",
    "snappy",
    "threads",
    "thrift",
    "xxh64",
)


def compiles() -> bool:
    """Whether the C compiler (of the environment variable CC, if set) and Python's headers work."""
    compiler = new_compiler()
    customize_compiler(compiler)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "empty.c"
        source.write_text("#include <Python.h>\n")
        try:
            compiler.compile([str(source)], output_dir=folder, include_dirs=[get_python_inc()])
        except (CCompilerError, DistutilsError, OSError) as error:
            print(
                f"featstore: no C compiler works ({error}): building without the compiled kernels; "
                "results are the same, but hashing and decoding take several times as long",
                file=sys.stderr,
            )
            return False
    return True


KERNELS = Extension(
    "featstore.native.kernels",
    [f"{FOLDER}/kernels.c"],
    depends=[f"{FOLDER}/{name}.h" for name in HEADERS],
    define_macros=[("Py_LIMITED_API", ABI)],
    extra_compile_args=["-O3", "-pthread"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
REPOSITORY = PYPROJECT["tool"]["featstore"]["repository"]
PAGE = {
    "long_description": README["standalone"]((ROOT / "README.md").read_text("utf-8"), REPOSITORY),
    "long_description_content_type": "text/markdown",
    "project_urls": README["project_urls"](REPOSITORY),
}

if compiles():
    setup(ext_modules=[KERNELS], options={"bdist_wheel": {"py_limited_api": "cp311"}}, **PAGE)
else:
    setup(**PAGE)
