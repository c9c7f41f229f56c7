"""The compiled part of the package, and its page for a package index; all else is in
pyproject.toml, and the compiler in release/backend.py.
"""

import runpy
import tomllib
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent
# By its path: a build does not have this folder on its path, and another package may be `release`.
README = runpy.run_path(str(ROOT / "release" / "readme.py"))

ABI = "0x030B0000"  # Python 3.11's stable ABI: one build for every later version
FOLDER = "featstore/native"
HEADERS = (
    "chunk_checks",
    "chunks",
    "columns",
    "crc32",
    "deltas",
    "distinct",
    "footer",
    "histories",
    "marks",
    "once",
    "orders",
    "pages",
    "rows",
    "snappy",
    "threads",
    "thrift",
    "wide",
    "xxh64",
)

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

setup(ext_modules=[KERNELS], options={"bdist_wheel": {"py_limited_api": "cp311"}}, **PAGE)
