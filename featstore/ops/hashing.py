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
from collections.abc import Sequence
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
    nulls_of,
    stored_offsets_of,
    validity_of,
    values_of,
)

Hashes = NDArray[np.uint64]

SEED = 42
MISSING = 0
KEY_SLOT = 0
_LONG_DIGITS = 18  # of a decimal that Spark keeps in a bigint
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


def row_hash(columns: Sequence[pa.Array]) -> pa.Array:
    """Hashes each row as Spark SQL's `xxhash64(column, ...)`, where Parquet's types are as Spark
    reads them and a map is the list of its entries (`map_entries`).

    Args:
        columns: At least one.

    Returns:
        int64 `(num_rows,)` without nulls.

    Raises:
        TypeError: A value has a type that Spark does not have.
    """
    hashes = np.full(len(columns[0]), SEED, np.uint64)
    for column in columns:
        _chain(column, hashes)
    return array_of(hashes.view(np.int64))


def _chain(array: pa.Array, hashes: Hashes) -> None:
    """Replaces each hash by that of a value with it as the seed; a null leaves it as it is."""
    if (nulls := nulls_of(array)) is not None:
        present = np.flatnonzero(~nulls)
        _chain_at(present, array.take(pa.array(present)), hashes)
    elif pa.types.is_dictionary(array.type):
        _chain(array.dictionary_decode(), hashes)
    elif pa.types.is_struct(array.type):
        for column in array.flatten():
            _chain(column, hashes)
    elif pa.types.is_fixed_size_list(array.type):
        _chain(array.cast(pa.list_(array.type.value_type)), hashes)
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        _chain_lists(array, [array.values], hashes)
    elif pa.types.is_map(array.type):
        _chain_lists(array, [array.keys, array.items], hashes)
    elif len(array):
        kernels.chain_texts(*_hashed_bytes(array), hashes)


def _chain_at(rows: NDArray[np.int64], array: pa.Array, hashes: Hashes) -> None:
    part = hashes[rows]
    _chain(array, part)
    hashes[rows] = part


def _chain_lists(array: pa.Array, elements: list[pa.Array], hashes: Hashes) -> None:
    """Chains the elements of lists, or keys and values of maps, one after the other."""
    offsets = values_of(array.offsets)
    lengths = np.diff(offsets)
    for i in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > i)
        for values in elements:
            _chain_at(rows, values.take(pa.array(offsets[rows] + i)), hashes)


def _hashed_bytes(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """The bytes that Spark hashes of each value, and their offsets. No value is null."""
    found = array.type
    for are_texts in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary,
                      pa.types.is_large_binary, pa.types.is_fixed_size_binary):  # fmt: skip
        if are_texts(found):
            texts = array.cast(pa.binary())
            return bytes_of(texts), stored_offsets_of(texts)
    if pa.types.is_uint64(found):
        array = array.cast(pa.decimal128(20, 0))
    if pa.types.is_decimal128(array.type):
        words = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset :][: 2 * len(array)]
        if array.type.precision <= _LONG_DIGITS:
            return _words(words[::2])
        texts = pa.array(map(_big_endian, words.view("V16").tolist()), pa.binary())
        return bytes_of(texts), stored_offsets_of(texts)
    if pa.types.is_floating(found):
        wide = pa.types.is_float64(found)
        numbers = values_of(array if wide else array.cast(pa.float32())) + 0.0  # no -0.0
        numbers[np.isnan(numbers)] = np.nan
        return _words(numbers)
    if pa.types.is_timestamp(found):
        return _words(values_of(microseconds(array).view(pa.int64())))
    if pa.types.is_date(found):
        return _words(values_of(array.cast(pa.date32()).view(pa.int32())))
    if pa.types.is_boolean(found) or pa.types.is_integer(found):
        is_long = pa.types.is_int64(found) or pa.types.is_uint32(found)
        return _words(values_of(array.cast(pa.int64() if is_long else pa.int32())))
    raise TypeError(f"expected a type that Spark hashes, found {found}")


def _words(values: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    offsets = np.arange(len(values) + 1, dtype=np.int32) * values.itemsize
    return np.ascontiguousarray(values).view(np.uint8), offsets


def _big_endian(little_endian: bytes) -> bytes:
    """The bytes of Java's `BigInteger`."""
    value = int.from_bytes(little_endian, "little", signed=True)
    num_bits = (value if value >= 0 else ~value).bit_length()
    return value.to_bytes(num_bits // 8 + 1, "big", signed=True)


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
