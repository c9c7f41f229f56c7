"""The compiled part of the package; all else is in pyproject.toml. Where no C compiler is found it
is left out.
"""

from setuptools import Extension, setup

ABI = "0x030B0000"  # Python 3.11's stable ABI: one build for every later version
FOLDER = "featstore/_native"
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
    "thrift",
    "xxh64",
)

setup(
    ext_modules=[
        Extension(
            "featstore._native.kernels",
            [f"{FOLDER}/kernels.c"],
            depends=[f"{FOLDER}/{name}.h" for name in HEADERS],
            define_macros=[("Py_LIMITED_API", ABI)],
            extra_compile_args=["-O3", "-pthread"],
            extra_link_args=["-pthread"],
            py_limited_api=True,
            optional=True,
        )
    ],
)
