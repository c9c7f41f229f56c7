"""The order of shuffled rows by numpy: permutations, draws, and where drawn rows lie."""

from collections.abc import Sequence

import numpy as np

from featstore.reading.buffers import Array

_ROUND_ROWS = 256
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def permutation(num_rows: int, *key: int) -> Array:
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(num_rows)
    return np.argsort(bits, kind="stable")


def draws(
    seed: int,
    epoch: int,
    splits: Sequence[int],
    split_rows: Sequence[int],
    num_taken: int,
    num_rows: int,
) -> Array:
    """From which split each row comes: (num_rows,), places in `splits`."""
    if len(splits) == 1:
        return np.zeros(num_rows, np.int64)
    seeds = np.random.SeedSequence((seed, epoch, *splits))
    *key, first_offset = seeds.generate_state(3, np.uint64)
    number, skipped = divmod(num_taken, _ROUND_ROWS)
    num_rounds = -(-(skipped + num_rows) // _ROUND_ROWS)
    numbers = np.arange(number, number + num_rounds, dtype=np.uint64)
    shifts = ((first_offset + numbers * _GOLDEN) >> np.uint64(11)) * 2.0**-53
    points = (np.arange(_ROUND_ROWS) + shifts[:, None]) / _ROUND_ROWS
    weights = np.array(split_rows, np.int64)
    bounds = np.cumsum(weights)[:-1] / weights.sum()
    drawn = np.searchsorted(bounds, points, side="right")
    source = np.random.Philox(key=key, counter=number * _ROUND_ROWS // 4)
    bits = source.random_raw(num_rounds * _ROUND_ROWS).reshape(num_rounds, _ROUND_ROWS)
    low = np.uint64(_ROUND_ROWS - 1)
    order = np.argsort(bits & ~low, axis=1, kind="stable")
    rows: Array = np.take_along_axis(drawn, order, axis=1).reshape(-1)
    return rows[skipped : skipped + num_rows]


def placed(
    draws: Array,
    shares: Sequence[tuple[Array, int, int, Array, int]],
    waiting: Sequence[int],
    row_bits: int,
) -> tuple[Array, Array, Array]:
    """The places of rows that are delivered, and of each row that is drawn its source, and whether
    it is delivered.
    """
    places, passes = np.zeros(len(draws), np.int64), np.ones(len(draws), bool)
    sources = np.zeros(len(draws), np.int32)
    for number, (rows, bits, first_piece, of_rows, source) in enumerate(shares):
        at = np.flatnonzero(draws == number)
        places[at] = (first_piece + (rows >> bits) << row_bits) + rows % (1 << bits)
        passes[at] = of_rows if len(of_rows) else True
        sources[at] = source
    before = [
        (piece << row_bits) + row for piece, count in enumerate(waiting) for row in range(count)
    ]
    return np.concatenate([np.array(before, np.int64), places[passes]]), sources, passes


def numbered(
    sources: Array, passes: Array, ends: Sequence[int]
) -> tuple[Array, list[list[tuple[int, int, int]]], list[int]]:
    """The number of each row's source in its part; the sources of each part with their rows, and how
    many of them pass; and which of these do.
    """
    numbers, parts, places, first = sources.copy(), [], list[int](), 0
    for end in ends:
        part = sources[first:end]
        order = list(dict.fromkeys(part[part >= 0].tolist()))
        for number, source in enumerate(order):
            numbers[first:end][part == source] = number
        of_sources = [passes[first:end][part == source] for source in order]
        parts.append(
            [(source, len(of), int(of.sum())) for source, of in zip(order, of_sources, strict=True)]
        )
        places += [place for of in of_sources for place in np.flatnonzero(of).tolist()]
        first = end
    return numbers, parts, places
