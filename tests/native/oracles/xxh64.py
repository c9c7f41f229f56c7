"""XXH64 in plain Python integers, and signs made of it.

Format: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md.
"""

import functools
from collections.abc import Sequence

_MASK = 2**64 - 1
# The five primes of the specification, in its order.
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
# How far each of the four lanes is rotated when the lanes are merged.
_LANE_ROTATIONS = (1, 7, 12, 18)


def xxh64_bytes(data: bytes, seed: int) -> int:
    """The XXH64 of `data`.

    Args:
        data: The bytes to hash.
        seed: An integer of 0 or more; XXH64 uses 64 bits of it.

    Returns:
        The unsigned 64-bit hash.
    """
    size = len(data)
    end = size & ~31
    hashed = ((_stripes(data, end, seed) if end else seed + _P5) + size) & _MASK
    at = end
    while at + 8 <= size:
        hashed = _mix_word(hashed, int.from_bytes(data[at : at + 8], "little"))
        at += 8
    if at + 4 <= size:
        hashed ^= int.from_bytes(data[at : at + 4], "little") * _P1 & _MASK
        hashed = (_rotate(hashed, 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        hashed ^= byte * _P5 & _MASK
        hashed = _rotate(hashed, 11) * _P1 & _MASK
    return _avalanche(hashed)


def xxh64_long(value: int, seed: int) -> int:
    """XXH64 of an unsigned 64-bit number as 8 little-endian bytes."""
    return _avalanche(_mix_word((seed + _P5 + 8) & _MASK, value))


def sign(members: Sequence[int], seed: int) -> int:
    """A row's sign: the hashes of its members chained from `seed`, cut to 63 bits, 1 instead of 0."""
    chained = functools.reduce(lambda seed, member: xxh64_long(member, seed), members, seed)
    return chained & 2**63 - 1 or 1


def mark_of(word: int, num_bits: int) -> int:
    """The hash, of so many bits, by which a column's distinct values are counted."""
    return _avalanche((word + _P5) & _MASK) >> (64 - num_bits)


def _stripes(data: bytes, end: int, seed: int) -> int:
    lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed & _MASK, (seed - _P1) & _MASK]
    for at in range(0, end, 32):
        for i in range(4):
            lanes[i] = _round(lanes[i], int.from_bytes(data[at + 8 * i : at + 8 * i + 8], "little"))
    merged = (
        sum(_rotate(lane, bits) for lane, bits in zip(lanes, _LANE_ROTATIONS, strict=True)) & _MASK
    )
    for lane in lanes:
        merged = ((merged ^ _round(0, lane)) * _P1 + _P4) & _MASK
    return merged


def _mix_word(hashed: int, word: int) -> int:
    return (_rotate(hashed ^ _round(0, word), 27) * _P1 + _P4) & _MASK


def _round(accumulator: int, word: int) -> int:
    return _rotate((accumulator + word * _P2) & _MASK, 31) * _P1 & _MASK


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK


def _avalanche(hashed: int) -> int:
    hashed = (hashed ^ hashed >> 33) * _P2 & _MASK
    hashed = (hashed ^ hashed >> 29) * _P3 & _MASK
    return hashed ^ hashed >> 32
