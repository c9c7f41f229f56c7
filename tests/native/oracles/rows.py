"""Rows gathered by numpy, and offsets rebased."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from featstore.reading.buffers import Array, Ragged, Values
from featstore.reading.gather import Places


def rows_in_piece(places: Places) -> Array:
    """The row in its piece: uint32 (num_rows,)."""
    return places.rows & np.uint32((1 << places.row_bits) - 1)


def rebased(offsets: Array, cuts: Array, out: Array) -> None:
    """As by the function of this name in `featstore.reading.gather`."""
    parts = [offsets[first : end + 1] for first, end in pairwise(cuts.tolist())]
    np.concatenate([np.subtract(part, part[0], dtype=np.int64) for part in parts], out=out)


def firsts_of_lists(pieces: Sequence[Ragged], places: Places) -> Array:
    """Where each of the lists begins in its piece: int64 (num_rows,)."""
    firsts = np.empty(len(places), np.int64)
    for number, lists in enumerate(pieces):
        of_piece = places.pieces == number
        firsts[of_piece] = lists.offsets[rows_in_piece(places)[of_piece]]
    return firsts


def gathered(pieces: Sequence[Values], places: Places) -> list[Values]:
    """The rows of each part: their values one after the other, or lists with offsets from 0."""
    rows = [
        _row(pieces[number], row)
        for number, row in zip(places.pieces.tolist(), rows_in_piece(places).tolist(), strict=True)
    ]
    return [_joined(pieces[0], rows[first:end]) for first, end in pairwise(places.cuts.tolist())]


def _row(values: Values, row: int) -> Array:
    if isinstance(values, Ragged):
        return values.values[int(values.offsets[row]) : int(values.offsets[row + 1])]
    return np.ravel(values[row])


def _joined(like: Values, rows: Sequence[Array]) -> Values:
    if isinstance(like, Ragged):
        offsets = np.cumsum([0, *map(len, rows)])
        return Ragged(np.concatenate([like.values[:0], *rows]), offsets)
    return np.concatenate([like.reshape(-1)[:0], *rows])


def pack_parts(parts: Sequence[Array], layout: Array, out: Array) -> None:
    for part, (start, width) in zip(parts, layout.tolist(), strict=True):
        found = np.subtract(part, part[0], dtype=np.int64) if width else np.ascontiguousarray(part)
        out[start : start + found.nbytes] = np.frombuffer(found.tobytes(), np.uint8)
