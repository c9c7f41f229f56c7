"""Gathers rows of decoded columns in another order, straight into the memory of batches.

A column comes in pieces: one for each row group of each window. `Places` says which rows of which
pieces are wanted, in which order, and where each batch ends.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from featstore.native import kernels
from featstore.reading.buffers import Array, Ragged, Values

# Memory is what they wait for, which few of them use up. As many as decode at most.
_MOST_THREADS = 16


@dataclass(frozen=True, eq=False)
class Places:
    """The rows to gather, in parts. `Places.of` makes them, and checks that they fit.

    Attributes:
        rows: The piece of each row, shifted left by `row_bits`, plus the row in the piece: uint32
            (num_rows,), since the kernels read it once for each column.
        row_bits: How many bits a row in a piece takes.
        cuts: Where parts begin and end: int64 (num_parts + 1,), from 0 to num_rows.
        ascends: Whether the rows of each piece ascend. Then nothing is fetched ahead of its turn;
            the result is the same.
    """

    rows: Array
    row_bits: int
    cuts: Array
    ascends: bool = False

    @classmethod
    def of(
        cls, rows: Array, num_pieces: int, row_bits: int, cuts: Array, *, ascends: bool = False
    ) -> "Places":
        """Places of rows that are int64 (num_rows,), otherwise as the attributes say.

        Raises:
            OverflowError: As of `require_numbered`.
        """
        require_numbered(num_pieces, row_bits)
        cuts = np.ascontiguousarray(cuts, dtype=np.int64)
        return cls(rows.astype(np.uint32), row_bits, cuts, ascends)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_parts(self) -> int:
        return len(self.cuts) - 1

    @property
    def part_rows(self) -> Array:
        """How many rows each part has: int64 (num_parts,)."""
        return np.diff(self.cuts)

    @property
    def pieces(self) -> Array:
        """The number of each row's piece: uint32 (num_rows,)."""
        return self.rows >> np.uint32(self.row_bits)


def row_bits_of(piece_rows: Iterable[int]) -> int:
    """How many bits a row in one of these pieces takes."""
    return max(0, max(piece_rows) - 1).bit_length()


def max_pieces(row_bits: int) -> int:
    """How many pieces `Places` can number when rows take this many bits (31 at most)."""
    return 1 << 32 - row_bits if row_bits <= 31 else 0


def require_numbered(num_pieces: int, row_bits: int) -> None:
    """Requires that `Places` can number rows of so many pieces.

    Raises:
        OverflowError: A piece and a row in it may take more than 32 bits together, as in 4,097
            pieces of a million rows.
    """
    if num_pieces > max_pieces(row_bits):
        raise OverflowError(
            f"{num_pieces} pieces of up to {1 << row_bits} rows: expected at most 32 bits for "
            "the number of a piece and a row in it"
        )


def places_of(
    order: Array, piece_rows: Sequence[int], cuts: Array, *, ascends: bool = False
) -> Places:
    """Places of an order in which rows are numbered through all pieces.

    Args:
        order: int64 (num_rows,).
        piece_rows: How many rows each piece has.
        cuts: As of `Places`.
        ascends: As of `Places`.

    Raises:
        OverflowError: As of `Places.of`.
    """
    row_bits = row_bits_of(piece_rows)
    firsts = np.cumsum([0, *piece_rows[:-1]], dtype=np.int64)
    # One addition for each row: its number among all rows becomes piece and row.
    shifts = (np.arange(len(firsts), dtype=np.int64) << row_bits) - firsts
    rows = order if len(firsts) == 1 else order + np.repeat(shifts, piece_rows)[order]
    return Places.of(rows, len(piece_rows), row_bits, cuts, ascends=ascends)


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
    kernels.rebase_offsets(offsets, offsets.itemsize, cuts, out)


def gather_offsets(pieces: Sequence[Ragged], places: Places, firsts: Array, out: Array) -> None:
    """Looks up lists: where they begin, and their offsets in each part, from 0.

    Args:
        pieces: The lists, with offsets of one dtype, see `of_one_dtype`.
        places: The lists to gather.
        firsts: Where each begins in the values of its piece: int64 (num_rows,).
        out: The offsets: int64 (num_rows + num_parts,).
    """
    offsets = tuple(piece.offsets for piece in pieces)
    kernels.gather_offsets(
        tuple(piece.values for piece in pieces),
        pieces[0].values.itemsize,
        offsets,
        offsets[0].itemsize,
        places.rows,
        places.row_bits,
        places.ascends,
        places.cuts,
        firsts,
        out,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class GatheredColumn:
    """A column that is gathered into a buffer.

    Attributes:
        pieces: Each (num_values,) or (num_values, width), or lists.
        out: The buffer: one-dimensional, with the dtype of the values.
        starts: The element of `out` at which each part begins: int64 (num_parts,).
        ends: The element after its last: int64 (num_parts,).
        found: Of lists what `gather_offsets` wrote: `firsts` and `out`.
    """

    pieces: Sequence[Values]
    out: Array
    starts: Array
    ends: Array
    found: tuple[Array, Array] | None = None


def gather_columns(columns: Sequence[GatheredColumn], places: Places, num_threads: int = 1) -> None:
    """Writes the rows of each part of each column to its buffer. The kernels take the
    interpreter's lock once for all of them, and share them among threads.

    Args:
        columns: The columns. Those that take longest should be the first.
        places: The rows.
        num_threads: In how many threads.
    """
    of_columns = tuple(map(_for_kernels, columns))
    of_rows = places.rows, places.row_bits, places.ascends, places.cuts
    kernels.gather_columns(of_columns, *of_rows, min(num_threads, _MOST_THREADS))


def _for_kernels(column: GatheredColumn) -> tuple[Any, ...]:
    """The column as `kernels.gather_columns` takes it."""
    out, width = column.out, column.out.itemsize
    if column.found is None:
        pieces = tuple(
            piece if piece.flags.c_contiguous else np.ascontiguousarray(piece)
            for piece in column.pieces
            if not isinstance(piece, Ragged)
        )
        return pieces, prod(pieces[0].shape[1:]) * width, column.starts * width, out
    values = tuple(piece.values for piece in column.pieces if isinstance(piece, Ragged))
    return values, width, column.starts * width, out, *column.found, column.ends * width


def of_one_dtype(pieces: Sequence[Ragged]) -> list[Ragged]:
    """The same lists with offsets of one dtype, as the kernels take them."""
    if len({piece.offsets.dtype for piece in pieces}) == 1:
        return list(pieces)
    return [Ragged(piece.values, piece.offsets.astype(np.int64)) for piece in pieces]
