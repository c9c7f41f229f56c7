"""A compiled library as an operator: `op: fingerprints:differing_bits` in a spec.

The library lies beside this module, on Spark's workers too: `--py-files fingerprints.py --files
libfingerprints.so`. It is loaded when the first batch comes, as the driver of a Spark run only
reads what is declared here and may not have it.
"""

import ctypes
import functools
from pathlib import Path

import pyarrow as pa

import featstore

_ARROW_ARRAY_BYTES = 80  # sizeof(struct ArrowArray) where pointers have 8 bytes


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(__file__).with_name("libfingerprints.so")))
    library.differing_bits.argtypes = [ctypes.c_void_p] * 3
    return library


@featstore.operator(inputs=[pa.int64(), pa.int64()], result=pa.int64())
def differing_bits(left: pa.Array, right: pa.Array) -> pa.Array:
    """How many of the 64 bits differ; missing where either is missing."""
    structs = [ctypes.create_string_buffer(_ARROW_ARRAY_BYTES) for _ in range(3)]
    addresses = [ctypes.addressof(struct) for struct in structs]
    left._export_to_c(addresses[0])
    right._export_to_c(addresses[1])
    if _library().differing_bits(*addresses):
        raise MemoryError("differing_bits: no memory for the result")
    return pa.Array._import_from_c(addresses[2], pa.int64())
