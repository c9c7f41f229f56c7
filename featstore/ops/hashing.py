"""The sign: 64-bit hashes of values, and 63-bit ids of values in slots.

    h(value) = xxhash64(canonical UTF-8 text)
    sign(slot, v1, v2, ...) = xxhash64(int slot, h(v1), h(v2), ...) & (2**63 - 1)

A sign of 0 becomes 1, because 0 stands for missing.

`xxhash64` is Spark SQL's function of that name: XXH64
(https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md) with seed 42. An int is hashed as 4
little-endian bytes and a bigint as 8. The hash of one argument is the seed of the next. Changing
any of this changes every id ever stored: see docs/contracts.md.
"""

import functools
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from featstore.native import kernels
from featstore.ops.arrays import (
    Integers,
    array_of,
    bytes_of,
    microseconds,
    stored_offsets_of,
    validity_of,
    values_of,
)

Hashes = NDArray[np.uint64]

SEED = 42
MISSING = 0
KEY_SLOT = 0
_MISSING_MARK = bytes(8)
_MANY = 4_096  # values, for fewer of which no table of known hashes is made: it has 65,536


def value_hash(array: pa.Array) -> pa.Array:
    """Hashes each value; a null stays null.

    Strings are hashed as their bytes, integers as their shortest decimal, booleans as `1` or `0`,
    and timestamps as the decimal of their int64 microseconds since 1970 UTC.

    Args:
        array: Strings, integers, booleans or timestamps, or a dictionary array of these.

    Returns:
        h(value): int64 `(len(array),)`, the bits of the unsigned hash.

    Raises:
        TypeError: The values are of any other type.
    """
    if pa.types.is_dictionary(array.type):
        return value_hash(array.dictionary).take(array.indices)
    if pa.types.is_string(array.type):
        hashes = xxh64(bytes_of(array), stored_offsets_of(array))
        return array_of(hashes.view(np.int64), validity_of(array))
    if pa.types.is_timestamp(array.type):
        integers = microseconds(array).view(pa.int64())
    elif pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
        integers = array.cast(pa.int64())
    else:
        raise TypeError(
            f"expected strings, integers, booleans or timestamps to hash, found {array.type}"
        )
    known = _known_decimals() if len(array) >= _MANY else b""
    hashes = _hash_decimals(values_of(integers), known)
    return array_of(hashes.view(np.int64), validity_of(integers))


def sign(slot: int, *hashes: pa.Array) -> pa.Array:
    """The ids in one slot of values, or of crosses of several values.

    Args:
        slot: The slot number.
        hashes: The value hashes of each member in declared order, int64 `(num_rows,)`, null where
            the member is missing.

    Returns:
        int64 `(num_rows,)` without nulls; 0 where a member is missing.
    """
    signs = np.empty(len(hashes[0]), np.uint64)
    kernels.sign_rows(tuple(map(values_of, hashes)), signs, _hash_int(slot), False)
    for member in hashes:
        if member.null_count:
            kernels.fill_nulls(signs, member.buffers()[0], member.offset, _MISSING_MARK)
    return array_of(signs.view(np.int64))


def key_signs(keys: pa.Array) -> pa.Array:
    """The signs of keys, by which rows and events of one key are told: those of slot 0, which no
    slot has.

    Args:
        keys: What `value_hash` takes.

    Returns:
        int64 `(len(keys),)` without nulls; 0 where the key is missing.
    """
    return sign(KEY_SLOT, value_hash(keys))


def _hash_decimals(values: Integers, known: Hashes | bytes = b"") -> Hashes:
    hashes = np.empty(len(values), np.uint64)
    kernels.hash_decimals(values, hashes, SEED, known)
    return hashes


@functools.cache
def _known_decimals() -> Hashes:
    """The hashes of small integers: counts, hours, buckets, many ids. A look-up takes a fraction of
    the time of a hash, as long as the table fits the second-level cache.
    """
    return _hash_decimals(np.arange(1 << 16))


@functools.lru_cache(maxsize=65_536)
def _hash_int(value: int) -> int:
    """xxhash64(int value): 4 bytes, seed 42."""
    data = int(value).to_bytes(4, "little", signed=True)
    return int(xxh64(data, np.array([0, len(data)], np.int32))[0])


def xxh64(data: NDArray[Any] | bytes, offsets: NDArray[np.int32], seed: int = SEED) -> Hashes:
    """The XXH64 of many ranges of one byte array.

    Args:
        data: The bytes of all values.
        offsets: int32 `(num_values + 1,)`; value `i` is `data[offsets[i]:offsets[i + 1]]`.
        seed: The seed of all hashes, 64 bits.

    Returns:
        uint64 `(num_values,)`.
    """
    hashes = np.empty(len(offsets) - 1, np.uint64)
    kernels.hash_texts(data, offsets, hashes, seed, False)
    return hashes
