"""Gathers rows of decoded columns in another order, straight into the memory of batches.

A window's column comes in pieces, one for each row group. They are joined first, since looking up
the piece of each row costs more. `Places` says which rows are wanted, in which order, and where
each batch ends. Every function has a compiled and a numpy path with equal results.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from featstore._native.loading import KERNELS
from featstore.reading.buffers import Array, Ragged

Take = Callable[[int], Array]  # Gives uint8 memory of at least this many bytes.


@dataclass(frozen=True, eq=False)
class Places:
    """The rows to gather, in parts.

    Attributes:
        rows: int32 (num_rows,).
        cuts: Where parts begin and end: int64 (num_parts + 1,), from 0 to num_rows.
    """

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


def places_of(order: Array, cuts: Array) -> Places:
    """Places of an order in which rows are numbered through all pieces.

    Args:
        order: (num_rows,).
        cuts: As of `Places`.
    """
    return Places(order.astype(np.int32), np.ascontiguousarray(cuts, dtype=np.int64))


def joined_values(pieces: Sequence[Array], take: Take) -> Array:
    """The concatenated pieces. A single piece is not copied; `take` gives memory for several."""
    if len(pieces) == 1:
        return np.ascontiguousarray(pieces[0])
    num_bytes = sum(piece.nbytes for piece in pieces)
    out = take(num_bytes)[:num_bytes].view(pieces[0].dtype)
    return np.concatenate(pieces, out=out.reshape(-1, *pieces[0].shape[1:]))


def joined_offsets(pieces: Sequence[Ragged]) -> Array:
    """The offsets into the concatenated `list_values` of the pieces."""
    num_values = sum(int(piece.offsets[-1] - piece.offsets[0]) for piece in pieces)
    out = np.empty(sum(map(len, pieces)) + 1, np.int32 if num_values < 2**31 else np.int64)
    join_offsets(pieces, out)
    return out


def list_values(piece: Ragged) -> Array:
    """The values of a piece that belong to its lists."""
    return piece.values[piece.offsets[0] : piece.offsets[-1]]


def join_offsets(pieces: Sequence[Ragged], out: Array) -> None:
    """Writes the offsets of concatenated lists, from 0, to `out` (num_rows + 1,). The offsets of a
    piece may begin above 0.
    """
    out[0] = row = before = 0
    for piece in pieces:
        first = int(piece.offsets[0])
        np.subtract(
            piece.offsets[1:],
            first - before,
            out=out[row + 1 : row + len(piece) + 1],
            dtype=np.int64,
            casting="unsafe",
        )
        row, before = row + len(piece), before + int(piece.offsets[-1]) - first


def rebased(offsets: Array, cuts: Array, out: Array) -> None:
    """Writes the offsets of consecutive parts, each rebased to begin with 0.

    Args:
        offsets: (num_rows + 1,).
        cuts: As of `Places`.
        out: int64 (num_rows + num_parts,).
    """
    if KERNELS is not None:
        KERNELS.rebase_offsets(offsets, offsets.itemsize, cuts, out)
        return
    parts = [offsets[first : end + 1] for first, end in pairwise(cuts.tolist())]
    np.concatenate([np.subtract(part, part[0], dtype=np.int64) for part in parts], out=out)


def gather_values(values: Array, places: Places, starts: Array, out: Array) -> None:
    """Writes the rows of each part to `out`.

    Args:
        values: (num_values,) or (num_values, width).
        places: The rows.
        starts: The element of `out` at which each part begins: int64 (num_parts,).
        out: One-dimensional, with the dtype of `values`.
    """
    width = int(np.prod(values.shape[1:], dtype=np.int64))
    if KERNELS is None:
        for part, (first, end) in enumerate(pairwise(places.cuts.tolist())):
            rows = values[places.rows[first:end]]
            out[starts[part] : starts[part] + rows.size] = rows.reshape(-1)
        return
    begins = starts * out.itemsize
    ends = begins + places.part_rows * width * out.itemsize
    KERNELS.gather(
        values, width * out.itemsize, b"", 8, places.rows, places.cuts, begins, ends, out
    )


def gather_offsets(offsets: Array, places: Places, out: Array) -> None:
    """Writes the offsets of the gathered lists, those of each part from 0.

    Args:
        offsets: Of the lists, (num_lists + 1,).
        places: The lists to gather.
        out: int64 (num_rows + num_parts,).
    """
    if KERNELS is not None:
        KERNELS.gather_offsets(
            offsets, offsets.itemsize, int(offsets[-1]), places.rows, places.cuts, out
        )
        return
    lengths = np.diff(offsets)[places.rows]
    parts = [
        np.cumsum(lengths[first:end], dtype=np.int64)
        for first, end in pairwise(places.cuts.tolist())
    ]
    np.concatenate([np.concatenate([np.zeros(1, np.int64), part]) for part in parts], out=out)


def gather_lists(lists: Ragged, places: Places, starts: Array, ends: Array, out: Array) -> None:
    """Writes the values of each part's lists to `out`.

    Args:
        lists: The lists.
        places: Those to gather.
        starts: The element of `out` at which each part begins: int64 (num_parts,).
        ends: The element after its last.
        out: One-dimensional, with the dtype of the values.
    """
    if KERNELS is not None:
        begins, ends, offsets = starts * out.itemsize, ends * out.itemsize, lists.offsets
        KERNELS.gather(
            lists.values,
            out.itemsize,
            offsets,
            offsets.itemsize,
            places.rows,
            places.cuts,
            begins,
            ends,
            out,
        )
        return
    for part, (first, end) in enumerate(pairwise(places.cuts.tolist())):
        out[starts[part] : ends[part]] = _lists(lists, places.rows[first:end])


def _lists(lists: Ragged, rows: Array) -> Array:
    """The concatenated values of these lists."""
    lengths = np.diff(lists.offsets)[rows].astype(np.int64)
    ends = np.cumsum(lengths)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return np.asarray(lists.values[np.repeat(lists.offsets[:-1][rows], lengths) + within])
