"""The sign: 64-bit hashes of values, and 63-bit ids of values in slots.

    h(value) = xxhash64(canonical UTF-8 text)
    sign(slot, v1, v2, ...) = xxhash64(int slot, h(v1), h(v2), ...) & (2**63 - 1)

A sign of 0 becomes 1, because 0 stands for missing.

`xxhash64` is Spark SQL's function of that name: XXH64
(https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md) with seed 42. An int is hashed as 4
little-endian bytes and a bigint as 8. The hash of one argument is the seed of the next. Changing
any of this changes every id ever stored: see docs/contracts.md.

The C kernels (`KERNELS`) are used where they were built; numpy computes the same hashes otherwise.
"""

import functools
import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featstore.native.loading import KERNELS
from featstore.ops.arrays import (
    Integers,
    array_of,
    bytes_of,
    microseconds,
    nulls_of,
    offsets_of,
    stored_offsets_of,
    validity_of,
    values_of,
)
from featstore.ops.single import LANE_ROTATIONS, PRIMES, xxh64_bytes, xxh64_long

Hashes = NDArray[np.uint64]

SEED = 42
MISSING = 0
_MISSING_MARK = bytes(8)
_SIGN_MASK = 2**63 - 1

_P1, _P2, _P3, _P4, _P5 = (np.uint64(prime) for prime in PRIMES)
# Rows that are looked at before a text column is dictionary encoded. More rows estimate the number
# of distinct values better; the lookup is paid by every batch that is not encoded.
_SAMPLE_ROWS = 1024
# Keeps the temporaries of one block in the L2 cache (docs/design/spec.md).
_BLOCK_ROWS = 16_384
# Integers whose range is narrower than this, or than the batch, are hashed through a table of the
# whole range. A larger span hashes values that do not occur.
_TABLE_SPAN = 4096
# Tables that are kept, of 32 KiB at most each.
_MAX_TABLES = 512
# At most this many values are hashed one by one in Python: the numpy calls cost more. It brought an
# online request from 4.7 ms to about 2 ms (docs/design/spec.md).
_MAX_SINGLE_VALUES = 16


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
        return _hash_strings(array)
    if pa.types.is_boolean(array.type):
        return _hash_small(values_of(array).astype(np.int64), nulls_of(array), 0, 1)
    if pa.types.is_timestamp(array.type):
        return _hash_integers(microseconds(array).view(pa.int64()))
    if pa.types.is_integer(array.type):
        return _hash_integers(array.cast(pa.int64()))
    raise TypeError(
        f"expected strings, integers, booleans or timestamps to hash, found {array.type}"
    )


def sign(slot: int, *hashes: pa.Array) -> pa.Array:
    """The ids in one slot of values, or of crosses of several values.

    Args:
        slot: The slot number.
        hashes: The value hashes of each member in declared order, int64 `(num_rows,)`, null where
            the member is missing.

    Returns:
        int64 `(num_rows,)` without nulls; 0 where a member is missing.
    """
    signs = _chain(slot, [values_of(member).view(np.uint64) for member in hashes])
    for member in hashes:
        _fill_nulls(signs, member)
    return array_of(signs.view(np.int64))


def _fill_nulls(signs: Hashes, member: pa.Array) -> None:
    """Writes the missing sign where a member is null."""
    if member.null_count == 0:
        return
    bits = member.buffers()[0]
    if KERNELS is not None and bits is not None:
        KERNELS.fill_nulls(signs, bits, member.offset, _MISSING_MARK)
    else:
        signs[nulls_of(member)] = MISSING


def _chain(slot: int, members: list[Hashes]) -> Hashes:
    """The signs of rows without missing members, `(num_rows,)`, computed block by block."""
    seed = np.uint64(_hash_int(slot))
    signs = np.empty(len(members[0]), np.uint64)
    if KERNELS is not None:
        KERNELS.sign_rows(tuple(members), signs, int(seed), False)
        return signs
    if len(signs) <= _MAX_SINGLE_VALUES:
        return _chain_few(int(seed), members, signs)
    for start in range(0, len(signs), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        chained: Hashes | np.uint64 = seed
        for member in members:
            chained = _hash_longs(member[block], chained)
        np.bitwise_and(chained, np.uint64(_SIGN_MASK), out=signs[block])
    signs[signs == MISSING] = 1
    return signs


def _chain_few(seed: int, members: list[Hashes], signs: Hashes) -> Hashes:
    for row, hashes in enumerate(zip(*(member.tolist() for member in members), strict=True)):
        signs[row] = (
            functools.reduce(lambda chained, member: xxh64_long(member, chained), hashes, seed)
            & _SIGN_MASK
        ) or 1
    return signs


@functools.lru_cache(maxsize=65_536)
def _hash_int(value: int) -> int:
    """xxhash64(int value): 4 bytes, seed 42."""
    return xxh64_bytes(int(value).to_bytes(4, "little", signed=True), SEED)


def _hash_longs(values: Hashes, seed: Hashes | np.uint64) -> Hashes:
    """xxhash64(bigint value) with one seed, or one for each value."""
    # The sum of scalars wraps around, which numpy reports for scalars though not for arrays.
    with np.errstate(over="ignore"):
        hashes = np.empty(len(values), np.uint64)
        hashes[:] = seed + (_P5 + np.uint64(8))
    return _avalanche(_mix_word(hashes, values.copy()))


def _hash_strings(array: pa.Array) -> pa.Array:
    """Hashes each distinct value once where a sample of rows shows that values repeat."""
    # With the C kernel, hashing costs less than finding the distinct values.
    if KERNELS is not None:
        return _hash_bytes(array)
    sample = array.slice(0, _SAMPLE_ROWS)
    if len(array) > _SAMPLE_ROWS and 2 * len(sample.unique()) < len(sample):
        encoded = array.dictionary_encode()
        return _hash_bytes(encoded.dictionary).take(encoded.indices)
    return _hash_bytes(array)


def _hash_bytes(array: pa.Array) -> pa.Array:
    if KERNELS is not None:
        hashes = np.empty(len(array), np.uint64)
        KERNELS.hash_texts(bytes_of(array), stored_offsets_of(array), hashes, SEED)
        return array_of(hashes.view(np.int64), validity_of(array))
    offsets, data = offsets_of(array), bytes_of(array)
    if len(array) <= _MAX_SINGLE_VALUES:
        bounds = offsets.tolist()
        few = [
            xxh64_bytes(data[start:end].tobytes(), SEED)
            for start, end in itertools.pairwise(bounds)
        ]
        hashes = np.array(few, np.uint64)
    else:
        hashes = xxh64(data, offsets[:-1], np.diff(offsets))
    return array_of(hashes.view(np.int64), validity_of(array))


def _hash_integers(array: pa.Array) -> pa.Array:
    """Hashes integers through a table of their range where it is small, else one by one."""
    bounds = pc.min_max(array)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None:
        return array_of(np.zeros(len(array), np.int64), nulls_of(array))
    if len(array) > _MAX_SINGLE_VALUES and high - low < max(_TABLE_SPAN, len(array)):
        return _hash_small(values_of(array), nulls_of(array), low, high)
    return _hash_decimals(array)


def _hash_decimals(array: pa.Array) -> pa.Array:
    """Hashes the decimal text of each int64."""
    if KERNELS is None:
        return _hash_bytes(array.cast(pa.string()))
    hashes = np.empty(len(array), np.uint64)
    KERNELS.hash_decimals(values_of(array), hashes, SEED)
    return array_of(hashes.view(np.int64), validity_of(array))


def _hash_small(values: Integers, nulls: NDArray[np.bool_] | None, low: int, high: int) -> pa.Array:
    table = (
        _table_of_range(low, high)
        if high - low < _TABLE_SPAN
        else values_of(_hash_decimals(array_of(low + np.arange(high - low + 1))))
    )
    index = values - low
    if nulls is not None:
        index[nulls] = 0
    return array_of(table[index], nulls)


@functools.lru_cache(maxsize=_MAX_TABLES)
def _table_of_range(low: int, high: int) -> Integers:
    """The hashes of `low` to `high`: batch after batch a column has the same buckets or hours."""
    return values_of(_hash_decimals(array_of(low + np.arange(high - low + 1))))


def xxh64(data: NDArray[np.uint8], starts: Integers, lengths: Integers, seed: int = SEED) -> Hashes:
    """The XXH64 of many ranges of one byte array.

    All rows take each step of the algorithm together: whole stripes first, then the remaining
    8-byte words, the 4-byte half and the single bytes. Rows that lack these bytes skip the step.

    Args:
        data: uint8, the bytes of all values.
        starts: int64 `(num_values,)`, where each range begins in `data`.
        lengths: int64 `(num_values,)`, the bytes of each range.
        seed: The seed of all hashes.

    Returns:
        uint64 `(num_values,)`.
    """
    hashes = np.full(len(starts), seed + int(_P5), np.uint64)
    positions = starts.copy()
    _hash_stripes(hashes, data, positions, lengths, seed)
    hashes += lengths.view(np.uint64)
    remaining = lengths & 31
    words = _unaligned(data, "<u8")
    for number in range(3):
        _step(hashes, positions, remaining >> 3 > number, 8, lambda h, p: _mix_word(h, words[p]))
    halves = _unaligned(data, "<u4")
    _step(
        hashes,
        positions,
        remaining & 4 != 0,
        4,
        lambda h, p: _mix_half(h, halves[p].astype(np.uint64)),
    )
    for number in range(3):
        _step(
            hashes,
            positions,
            remaining & 3 > number,
            1,
            lambda h, p: _mix_byte(h, data[p].astype(np.uint64)),
        )
    return _avalanche(hashes)


def _step(
    hashes: Hashes, positions: Integers, active: NDArray[np.bool_], num_bytes: int, mix: Any
) -> None:
    """Mixes the next bytes into the hashes of the active rows and advances their positions."""
    rows = np.flatnonzero(active)
    if len(rows) == len(hashes):
        hashes[:] = mix(hashes, positions)
        np.add(positions, num_bytes, out=positions)
    elif len(rows):
        at = positions[rows]
        hashes[rows] = mix(hashes[rows], at)
        positions[rows] = at + num_bytes


def _hash_stripes(
    hashes: Hashes, data: NDArray[np.uint8], positions: Integers, lengths: Integers, seed: int
) -> None:
    """Hashes the 32-byte stripes of rows that have any, in four lanes that are merged at last."""
    rows = np.flatnonzero(lengths >= 32)
    if not len(rows):
        return
    words = _unaligned(data, "<u8")
    # Longest first, so that the rows that have a k-th stripe are a prefix.
    rows = rows[np.argsort(-lengths[rows], kind="stable")]
    at, num_stripes = positions[rows], lengths[rows] >> 5
    first = [seed + int(_P1) + int(_P2), seed + int(_P2), seed, seed - int(_P1)]
    lanes = [np.full(len(rows), start % 2**64, np.uint64) for start in first]
    for number in range(int(num_stripes[0])):
        having = int(np.searchsorted(-num_stripes, -number, side="left"))
        for lane, accumulator in enumerate(lanes):
            accumulator[:having] = _round(
                accumulator[:having], words[at[:having] + (32 * number + 8 * lane)]
            )
    hashes[rows] = _merge(lanes)
    positions[rows] = at + 32 * num_stripes


def _merge(lanes: list[Hashes]) -> Hashes:
    merged = np.zeros_like(lanes[0])
    for lane, bits in zip(lanes, LANE_ROTATIONS, strict=True):
        merged += _rotate(lane.copy(), bits)
    for lane in lanes:
        merged ^= _round(np.zeros_like(lane), lane)
        merged *= _P1
        merged += _P4
    return merged


def _unaligned(data: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    """A view of `data` whose element i is the number that begins at byte i."""
    count = max(len(data) - np.dtype(dtype).itemsize + 1, 0)
    return (
        np.ndarray((count,), dtype=dtype, buffer=data, strides=(1,))
        if count
        else np.zeros(0, dtype)
    )


def _rotate(words: Hashes, bits: int) -> Hashes:
    """`words` rotated to the left. `words` is overwritten, to save one temporary array."""
    high = words << np.uint64(bits)
    words >>= np.uint64(64 - bits)
    high |= words
    return high


def _round(accumulator: Hashes, words: Hashes) -> Hashes:
    rotated = _rotate(words * _P2 + accumulator, 31)
    rotated *= _P1
    return rotated


def _mix_word(hashes: Hashes, words: Hashes) -> Hashes:
    words *= _P2
    words = _rotate(words, 31)
    words *= _P1
    words ^= hashes
    hashes = _rotate(words, 27)
    hashes *= _P1
    hashes += _P4
    return hashes


def _mix_half(hashes: Hashes, halves: Hashes) -> Hashes:
    halves *= _P1
    halves ^= hashes
    hashes = _rotate(halves, 23)
    hashes *= _P2
    hashes += _P3
    return hashes


def _mix_byte(hashes: Hashes, single: Hashes) -> Hashes:
    single *= _P5
    single ^= hashes
    hashes = _rotate(single, 11)
    hashes *= _P1
    return hashes


def mark_of(words: Hashes, num_bits: int) -> Hashes:
    """Mixes each 64-bit word to a hash of `num_bits` bits.

    Equal words have equal hashes; different words collide as random numbers would.

    Args:
        words: uint64 `(num_values,)`.
        num_bits: The width of a hash, 1 to 64.

    Returns:
        uint64 `(num_values,)`, each below `2**num_bits`.
    """
    return _avalanche(words + _P5) >> np.uint64(64 - num_bits)


def _avalanche(hashes: Hashes) -> Hashes:
    hashes ^= hashes >> np.uint64(33)
    hashes *= _P2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _P3
    hashes ^= hashes >> np.uint64(32)
    return hashes
