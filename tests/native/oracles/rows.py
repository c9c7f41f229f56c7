"""Rows gathered by numpy: as by the functions of these names in `featstore.reading.gather`."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np

from featstore.reading.buffers import Array, Ragged
from featstore.reading.gather import GatheredColumn, Places


def rows_in_piece(places: Places) -> Array:
    """The row in its piece: uint32 (num_rows,)."""
    return places.rows & np.uint32((1 << places.row_bits) - 1)


def rebased(offsets: Array, cuts: Array, out: Array) -> None:
    parts = [offsets[first : end + 1] for first, end in pairwise(cuts.tolist())]
    np.concatenate([np.subtract(part, part[0], dtype=np.int64) for part in parts], out=out)


def gather_offsets(pieces: Sequence[Ragged], places: Places, firsts: Array, out: Array) -> None:
    lengths = np.empty(len(places), np.int64)
    for number, lists in enumerate(pieces):
        of_piece = places.pieces == number
        rows = rows_in_piece(places)[of_piece]
        firsts[of_piece], lengths[of_piece] = lists.offsets[rows], np.diff(lists.offsets)[rows]
    parts = [np.cumsum(lengths[first:end]) for first, end in pairwise(places.cuts.tolist())]
    np.concatenate([np.concatenate([np.zeros(1, np.int64), part]) for part in parts], out=out)


def gather_column(column: GatheredColumn, places: Places) -> None:
    numbers, of_pieces, out = places.pieces, rows_in_piece(places), column.out
    parts = list(enumerate(pairwise(places.cuts.tolist())))
    if column.found is None:
        pieces = [piece for piece in column.pieces if not isinstance(piece, Ragged)]
        rows = np.empty((len(places), prod(pieces[0].shape[1:])), out.dtype)
        for number, values in enumerate(pieces):
            of_piece = numbers == number
            rows[of_piece] = values.reshape(-1, rows.shape[1])[of_pieces[of_piece]]
        for part, (first, end) in parts:
            out[column.starts[part] : column.ends[part]] = rows[first:end].reshape(-1)
        return
    firsts, offsets = column.found
    values_of = [piece.values for piece in column.pieces if isinstance(piece, Ragged)]
    for part, (first, end) in parts:
        lengths = np.diff(offsets[first + part : end + part + 1])
        lists = [
            values_of[piece][begin : begin + length]
            for piece, begin, length in zip(
                numbers[first:end], firsts[first:end], lengths, strict=True
            )
        ]
        out[column.starts[part] : column.ends[part]] = np.concatenate([out[:0], *lists])


def pack_parts(parts: Sequence[Array], layout: Array, out: Array) -> None:
    for part, (start, width) in zip(parts, layout.tolist(), strict=True):
        found = np.subtract(part, part[0], dtype=np.int64) if width else np.ascontiguousarray(part)
        out[start : start + found.nbytes] = np.frombuffer(found.tobytes(), np.uint8)
