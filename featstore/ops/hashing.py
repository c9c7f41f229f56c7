"""The sign: 64-bit hashes of values, and 63-bit ids of values in slots.

    h(value) = xxhash64(canonical UTF-8 text) sign(slot, v1, v2, ...) = xxhash64(int slot, h(v1),
    h(v2), ...) & (2**63 - 1), 0 becomes 1; 0 stands for missing

`xxhash64` is Spark SQL's function of that name: XXH64
(https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md) with seed 42, an int as 4 and a
bigint as 8 little-endian bytes, the hash so far being the seed of the next argument. Changing any
of it changes every id ever stored: see docs/contracts.md.
"""

import functools
import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featstore._native.loading import KERNELS
from featstore.ops.arrays import (
    Integers,
    array_of,
    bytes_of,
    either,
    nulls_of,
    offsets_of,
    stored_offsets_of,
    values_of,
)
from featstore.ops.single import xxh64_bytes, xxh64_long

Hashes = NDArray[np.uint64]

SEED = 42
MISSING = 0
_MASK = 2**63 - 1
SIGN_MASK = np.uint64(_MASK)

_P1, _P2, _P3 = (
    np.uint64(0x9E3779B185EBCA87),
    np.uint64(0xC2B2AE3D27D4EB4F),
    np.uint64(0x165667B19E3779F9),
)
_P4, _P5 = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)
_SAMPLE_ROWS = 1024
_BLOCK_ROWS = 16_384  # keeps the temporaries of one block in the processor's second cache
_TABLE_SPAN = 4096
_FEW = 16  # so many values at most are hashed one by one: numpy's calls cost more


def value_hash(array: pa.Array) -> pa.Array:
    """h(value) of each value, int64; null stays null.

    Strings are hashed as their bytes, integers as their shortest decimal, booleans as `1` or `0`,
    timestamps as the decimal of their int64 microseconds since 1970 UTC. TypeError for any other
    type.
    """
    if pa.types.is_dictionary(array.type):
        return value_hash(array.dictionary).take(array.indices)
    if pa.types.is_string(array.type):
        return _hash_strings(array)
    if pa.types.is_boolean(array.type):
        return _hash_small(values_of(array).astype(np.int64), nulls_of(array), 0, 1)
    if pa.types.is_timestamp(array.type):
        return _hash_integers(array.cast(pa.timestamp("us", tz=array.type.tz)).view(pa.int64()))
    if pa.types.is_integer(array.type):
        return _hash_integers(array.cast(pa.int64()))
    raise TypeError(
        f"expected strings, integers, booleans or timestamps to hash, found {array.type}"
    )


def sign(slot: int, *hashes: pa.Array) -> pa.Array:
    """The ids of rows whose members have these value hashes: int64 without nulls, 0 where a member
    is missing.
    """
    nulls = None
    for member in hashes:
        nulls = either(nulls, nulls_of(member))
    signs = _chain(slot, [values_of(member).view(np.uint64) for member in hashes])
    if nulls is not None:
        signs[nulls] = MISSING
    return array_of(signs.view(np.int64))


def _chain(slot: int, members: list[Hashes]) -> Hashes:
    """sign(slot, ...) of rows without missing members, `(num_rows,)`, block by block."""
    seed = np.uint64(_hash_int(slot))
    signs = np.empty(len(members[0]), np.uint64)
    if KERNELS is not None:
        KERNELS.sign_rows(tuple(members), signs, int(seed))
        return signs
    if len(signs) <= _FEW:
        return _chain_few(int(seed), members, signs)
    for start in range(0, len(signs), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        chained: Hashes | np.uint64 = seed
        for member in members:
            chained = _hash_longs(member[block], chained)
        np.bitwise_and(chained, SIGN_MASK, out=signs[block])
    signs[signs == MISSING] = 1
    return signs


def _chain_few(seed: int, members: list[Hashes], signs: Hashes) -> Hashes:
    for row, hashes in enumerate(zip(*(member.tolist() for member in members), strict=True)):
        signs[row] = (
            functools.reduce(lambda chained, member: xxh64_long(member, chained), hashes, seed)
            & _MASK
        ) or 1
    return signs


@functools.lru_cache(maxsize=65_536)
def _hash_int(value: int) -> int:
    """xxhash64(int value): 4 bytes, seed 42."""
    return xxh64_bytes(int(value).to_bytes(4, "little", signed=True), SEED)


def _hash_longs(values: Hashes, seed: Hashes | np.uint64) -> Hashes:
    """xxhash64(bigint value) with a seed: 8 bytes."""
    with np.errstate(over="ignore"):
        hashes = np.empty(len(values), np.uint64)
        hashes[:] = seed + (_P5 + np.uint64(8))
    return _avalanche(_mix_word(hashes, values.copy()))


def _hash_strings(array: pa.Array) -> pa.Array:
    """Through the distinct values where a sample says that there are few of them, and finding them
    costs less than hashing.
    """
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
        return array_of(hashes.view(np.int64), nulls_of(array))
    offsets, data = offsets_of(array), bytes_of(array)
    if len(array) <= _FEW:
        bounds = offsets.tolist()
        few = [
            xxh64_bytes(data[start:end].tobytes(), SEED)
            for start, end in itertools.pairwise(bounds)
        ]
        hashes = np.array(few, np.uint64)
    else:
        hashes = xxh64(data, offsets[:-1], np.diff(offsets))
    return array_of(hashes.view(np.int64), nulls_of(array))


def _hash_integers(array: pa.Array) -> pa.Array:
    """Through a table of all values in range where the range is small, else through the decimal
    text of each.
    """
    bounds = pc.min_max(array)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None:
        return array_of(np.zeros(len(array), np.int64), nulls_of(array))
    if len(array) > _FEW and high - low < max(_TABLE_SPAN, len(array)):
        return _hash_small(values_of(array), nulls_of(array), low, high)
    return _hash_decimals(array)


def _hash_decimals(array: pa.Array) -> pa.Array:
    """Through the decimal text of each int64."""
    if KERNELS is None:
        return _hash_bytes(array.cast(pa.string()))
    hashes = np.empty(len(array), np.uint64)
    KERNELS.hash_decimals(values_of(array), hashes, SEED)
    return array_of(hashes.view(np.int64), nulls_of(array))


def _hash_small(values: Integers, nulls: NDArray[np.bool_] | None, low: int, high: int) -> pa.Array:
    table = values_of(_hash_decimals(array_of(low + np.arange(high - low + 1))))
    index = values - low
    if nulls is not None:
        index[nulls] = 0
    return array_of(table[index], nulls)


def xxh64(data: NDArray[np.uint8], starts: Integers, lengths: Integers, seed: int = SEED) -> Hashes:
    """XXH64 of the byte ranges `data[starts[i] : starts[i] + lengths[i]]`: uint64
    `(len(starts),)`.
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
    """Mixes the next bytes into the hashes of the rows that have them, and moves their positions
    on.
    """
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
    """The 32-byte stripes of rows that have any: four lanes of 8 bytes, then merged into one
    hash.
    """
    rows = np.flatnonzero(lengths >= 32)
    if not len(rows):
        return
    words = _unaligned(data, "<u8")
    rows = rows[
        np.argsort(-lengths[rows], kind="stable")
    ]  # the rows that have a k-th stripe are a prefix
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
    for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True):
        merged += _rotate(lane.copy(), turn)
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
    """Rotated to the left; uses up `words`."""
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
    """A number of so many bits for each 64-bit word: equal for equal words, else as if by
    chance.
    """
    return _avalanche(words + _P5) >> np.uint64(64 - num_bits)


def _avalanche(hashes: Hashes) -> Hashes:
    hashes ^= hashes >> np.uint64(33)
    hashes *= _P2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _P3
    hashes ^= hashes >> np.uint64(32)
    return hashes
