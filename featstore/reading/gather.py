"""Rows of decoded columns in another order: gathered from the pieces of a window straight into the batches' memory.

A window's column comes in pieces, one for each row group. `Places` says which rows, in which order, and where one batch ends
and the next begins. Each function has a compiled path and a numpy path with equal results.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from featstore._native.loading import KERNELS
from featstore.reading.columns import Array, Ragged


@dataclass(frozen=True, eq=False)
class Places:
    """The rows wanted: int32 (num_rows, 2), the piece of each and its row in the piece; `cuts` int64 (num_parts + 1,), from 0
    to num_rows, where parts begin and end."""

    rows: Array
    cuts: Array

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_parts(self) -> int:
        return len(self.cuts) - 1

    @property
    def part_rows(self) -> Array:
        """How many rows each part has: int64 (num_parts,)."""
        return np.diff(self.cuts)


def places_of(order: Array, piece_rows: Sequence[int], cuts: Array) -> Places:
    """The places of rows that are counted through all pieces, of so many rows each."""
    ends = np.cumsum(piece_rows, dtype=np.int64)
    rows = np.empty((len(order), 2), np.int32)
    rows[:, 0] = np.searchsorted(ends, order, side="right") if len(piece_rows) > 1 else 0
    rows[:, 1] = order - (np.concatenate([[0], ends])[rows[:, 0]] if len(piece_rows) > 1 else 0)
    return Places(rows, np.ascontiguousarray(cuts, dtype=np.int64))


def rebased(offsets: Array, cuts: Array, out: Array) -> None:
    """Writes the offsets of consecutive parts, each from 0, to `out`, int64 (rows + num_parts,)."""
    if KERNELS is not None:
        KERNELS.rebase_offsets(offsets, offsets.itemsize, cuts, out)
        return
    parts = [offsets[first : end + 1] for first, end in pairwise(cuts.tolist())]
    np.concatenate([np.subtract(part, part[0], dtype=np.int64) for part in parts], out=out)


def gather_values(pieces: Sequence[Array], places: Places, starts: Array, out: Array) -> None:
    """Writes each part's rows to `out` (one dimension, the pieces' dtype) from element `starts[part]` on."""
    width = int(np.prod(pieces[0].shape[1:], dtype=np.int64))
    if KERNELS is None:
        joined = np.concatenate(pieces).reshape(-1, width)
        for part, (first, end) in enumerate(pairwise(places.cuts.tolist())):
            rows = joined[_joined_rows(places.rows[first:end], list(map(len, pieces)))]
            out[starts[part] : starts[part] + rows.size] = rows.reshape(-1)
        return
    flat = tuple(np.ascontiguousarray(piece) for piece in pieces)
    begins = starts * out.itemsize
    ends = begins + places.part_rows * width * out.itemsize
    KERNELS.gather(flat, width * out.itemsize, (), 8, places.rows, places.cuts, begins, ends, out)


def gather_offsets(pieces: Sequence[Ragged], places: Places) -> Array:
    """The offsets of the gathered lists, each part's from 0: int64 (num_rows + num_parts,)."""
    if KERNELS is None:
        lengths = np.concatenate([np.diff(piece.offsets) for piece in pieces])
        lengths = lengths[_joined_rows(places.rows, list(map(len, pieces)))]
        parts = [np.cumsum(lengths[first:end], dtype=np.int64) for first, end in pairwise(places.cuts.tolist())]
        return np.concatenate([np.concatenate([np.zeros(1, np.int64), part]) for part in parts])
    offsets = np.empty(len(places) + places.num_parts, np.int64)
    KERNELS.gather_offsets(*_buffers(pieces), places.rows, places.cuts, offsets)
    return offsets


def gather_lists(pieces: Sequence[Ragged], places: Places, starts: Array, ends: Array, out: Array) -> None:
    """Writes the values of each part's lists to `out`, from element `starts[part]` to just before `ends[part]`."""
    if KERNELS is not None:
        begins, ends = starts * out.itemsize, ends * out.itemsize
        KERNELS.gather(*_buffers(pieces), places.rows, places.cuts, begins, ends, out)
        return
    for part, (first, end) in enumerate(pairwise(places.cuts.tolist())):
        values = _lists(pieces, places.rows[first:end])
        out[starts[part] : ends[part]] = values


def _buffers(pieces: Sequence[Ragged]) -> tuple[tuple[Array, ...], int, tuple[Array, ...], int]:
    """What the kernels take: values, their width, offsets of one width."""
    is_narrow = all(piece.offsets.dtype == np.int32 for piece in pieces)
    dtype = np.int32 if is_narrow else np.int64
    offsets = tuple(np.ascontiguousarray(piece.offsets, dtype=dtype) for piece in pieces)
    values = tuple(np.ascontiguousarray(piece.values) for piece in pieces)
    return values, values[0].itemsize, offsets, np.dtype(dtype).itemsize


def _joined_rows(rows: Array, piece_rows: Sequence[int]) -> Array:
    """Places as rows counted through all pieces."""
    firsts: Array = np.cumsum([0, *piece_rows])
    return np.asarray(firsts[rows[:, 0]] + rows[:, 1])


def _lists(pieces: Sequence[Ragged], rows: Array) -> Array:
    """The values of these lists, one after the other."""
    places = _joined_rows(rows, list(map(len, pieces)))
    bases = np.cumsum([0, *(len(piece.values) for piece in pieces)])
    begins = np.concatenate([piece.offsets[:-1] + base for piece, base in zip(pieces, bases, strict=False)])[places]
    lengths = np.concatenate([np.diff(piece.offsets) for piece in pieces])[places]
    ends = np.cumsum(lengths)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return np.asarray(np.concatenate([piece.values for piece in pieces])[np.repeat(begins, lengths) + within])
