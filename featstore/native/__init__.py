"""Compiled kernels, and Parquet at the level of bytes: Thrift, and footers that are checked before
Arrow sees them.

A kernel is a C function over plain memory, in a header of its own. `kernels.c` passes it the
buffers of Python objects, and releases the interpreter's lock while it runs. tests/native compares
each on random input with what numpy, Arrow or plain Python make of it.
"""

from importlib import import_module
from pathlib import Path

try:
    import_module("featstore.native.kernels")
except ImportError as error:
    raise ImportError(
        f"expected featstore's compiled kernels in {Path(__file__).parent}, found none that this "
        f"Python can load ({error}): install featstore again, and leave its source tree if Python "
        "imports that instead"
    ) from error
