"""Gathers rows of decoded columns in another order, straight into the memory of batches.

A column comes in pieces: one for each row group of each window. `Places` says which rows of which
pieces are wanted, in which order, and where each batch ends.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from featstore.native import kernels
from featstore.reading.buffers import Array, BatchValues, Ragged, SharedLists

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


# The rows of a share, as of `kernels.place_rows`.
ShareRows = tuple[Any, int, int, Any, int]


def drawn_places(
    draws: Array, shares: tuple[ShareRows, ...], piece_rows: Sequence[int], num_waiting: int
) -> tuple[Array, int, Array, Array]:
    """Where the rows of a mixture lie that are delivered.

    Args:
        draws: The share of each row that is drawn: uint16 (num_drawn,).
        shares: The shares.
        piece_rows: How many rows each piece has.
        num_waiting: How many pieces wait, all rows of which come before those that are drawn.

    Returns:
        `Places.rows` and `Places.row_bits`; and of the rows that are drawn their sources, int32
        (num_drawn,), and which of them are delivered, bool (num_drawn,).

    Raises:
        OverflowError: As of `require_numbered`.
    """
    row_bits, waiting = row_bits_of(piece_rows or [0]), np.array(piece_rows[:num_waiting], np.int64)
    require_numbered(len(piece_rows), row_bits)
    rows = np.empty(waiting.sum() + len(draws), np.uint32)
    sources, passes = np.empty(len(draws), np.int32), np.empty(len(draws), bool)
    num_placed = kernels.place_rows(draws, shares, waiting, row_bits, rows, sources, passes)
    return rows[:num_placed], row_bits, sources, passes


def sources_of_parts(
    sources: Array, passes: Array | None, ends: Array, num_sources: int
) -> tuple[list[tuple[int, int, int]], list[int], Array]:
    """Numbers the sources of the rows of each part anew, as `kernels.number_sources` does.

    Returns:
        The sources of all parts, each with its rows there and how many of them are delivered; how
        many each part has; and which of these rows are, empty if all are (`passes` is None).
    """
    found, counts = np.empty((len(sources), 3), np.int32), np.empty(len(ends), np.int64)
    places = np.empty(0 if passes is None else np.count_nonzero(passes), np.int64)
    num_found = kernels.number_sources(
        *(sources, b"" if passes is None else passes, ends, num_sources, found, counts, places)
    )
    return found[:num_found].tolist(), counts.tolist(), places


def rebased(offsets: Array, cuts: Array, out: Array) -> None:
    """Writes the offsets of consecutive parts, each rebased to begin with 0.

    Args:
        offsets: (num_rows + 1,).
        cuts: As of `Places`.
        out: int64 (num_rows + num_parts,).
    """
    kernels.rebase_offsets(offsets, offsets.itemsize, cuts, out)


class ColumnKind(NamedTuple):
    """What is alike in all pieces of a column.

    Attributes:
        key: The column.
        dtype: The dtype of its values.
        row_shape: The shape of a row that is no list.
        is_list: Whether rows are lists.
        is_shared: Whether they are lists that batches share.
    """

    key: Any
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    is_list: bool
    is_shared: bool = False

    @property
    def of_row(self) -> int:
        """How many values a row has; 0: a list."""
        return 0 if self.is_list else prod(self.row_shape)


def kind_of(key: Any, values: BatchValues) -> ColumnKind:
    """The kind of a column with these values."""
    if isinstance(values, SharedLists):
        return ColumnKind(key, values.dtype, (), True, values.is_shared)
    if isinstance(values, Ragged):
        return ColumnKind(key, values.values.dtype, (), True)
    return ColumnKind(key, values.dtype, values.shape[1:], False)


class ColumnBuffers(NamedTuple):
    """Columns of some rows in few buffers, as the kernels take them: a piece of a window, or rows
    that were gathered before.

    Attributes:
        kinds: The columns' kinds.
        buffers: The memory in which they lie.
        numbers: Where they lie in it: int64 (num_columns, 7). The buffer and the byte of a column's
            values, and how many they are; those of its offsets, and the bytes of one (0 where rows
            are no lists; of `SharedLists` the bytes of what they have of a row); and its rows.
        num_rows: How many rows each column has.
    """

    kinds: tuple[ColumnKind, ...]
    buffers: tuple[Any, ...]
    numbers: Array
    num_rows: int


def buffers_of(columns: Mapping[Any, BatchValues], num_rows: int) -> ColumnBuffers:
    """Columns that are arrays of any memory, which is copied only where it is not contiguous."""
    buffers, numbers = list[Any](), list[tuple[int, ...]]()
    for values in columns.values():
        add_column(values, num_rows, buffers, numbers)
    kinds = tuple(kind_of(key, values) for key, values in columns.items())
    where = np.array(numbers, np.int64).reshape(-1, 7)
    return ColumnBuffers(kinds, tuple(buffers), where, num_rows)


def add_column(
    values: BatchValues, num_rows: int, buffers: list[Any], numbers: list[tuple[int, ...]]
) -> None:
    """Appends a column's memory to buffers, and where it lies to numbers; see `ColumnBuffers`."""
    number = len(buffers)
    if isinstance(values, SharedLists):
        buffers += np.ascontiguousarray(values.values), np.ascontiguousarray(values.ranges)
        width = 8 * values.ranges.shape[1]
        numbers.append((number, 0, len(values.values), number + 1, 0, width, num_rows))
    elif isinstance(values, Ragged):
        buffers += np.ascontiguousarray(values.values), np.ascontiguousarray(values.offsets)
        width = values.offsets.itemsize
        numbers.append((number, 0, len(values.values), number + 1, 0, width, num_rows))
    else:
        buffers.append(np.ascontiguousarray(values))
        numbers.append((number, 0, values.size, 0, 0, 0, num_rows))


class RowGathering:
    """Gathers rows of pieces, which have columns of the same kinds.

    Args:
        pieces: The pieces, at least one.
        places: The rows of each part.
        outs: For each column the number of the output of its values, and that of its offsets:
            int64 (num_columns, 2).

    Attributes:
        kinds: The columns' kinds.
        lists: The numbers of the columns of lists.
    """

    def __init__(self, pieces: Sequence[ColumnBuffers], places: Places, outs: Array) -> None:
        self.kinds, self._places = pieces[0].kinds, places
        self._pieces = tuple((piece.buffers, piece.numbers) for piece in pieces)
        self.lists = [number for number, kind in enumerate(self.kinds) if kind.is_list]
        own = [(number, kind.dtype.itemsize, kind.of_row) for number, kind in enumerate(self.kinds)]
        self._columns = np.hstack([np.array(own, np.int64).reshape(-1, 3), outs])
        self._found = np.empty(0, np.int64)

    def find_lists(self, scratch: Array) -> Array:
        """Looks up lists: where they begin, and their offsets in each part, from 0.

        Args:
            scratch: Memory for it, used by `gather`, too: int64, at least `scratch_size`.

        Returns:
            The offsets of each column of lists: int64 (num_lists, num_rows + num_parts).
        """
        places, num_rows = self._places, len(self._places)
        self._found = scratch[: self.scratch_size]
        if self.lists:
            kernels.gather_offsets(
                self._pieces,
                self._columns[self.lists],
                places.rows,
                places.row_bits,
                places.ascends,
                places.cuts,
                self._found,
            )
        return self._found.reshape(len(self.lists), 2 * num_rows + places.num_parts)[:, num_rows:]

    @property
    def scratch_size(self) -> int:
        """How many numbers `find_lists` writes."""
        return len(self.lists) * (2 * len(self._places) + self._places.num_parts)

    def gather(self, starts: Array, outs: tuple[Any, ...], num_threads: int) -> None:
        """Writes the rows of each part of each column. The kernels take the interpreter's lock once
        for all of them, and share them among threads.

        Args:
            starts: The byte of its output at which each part begins: int64 (num_items, num_parts),
                of the values of all columns, and after them of the offsets of lists.
            outs: The outputs.
            num_threads: In how many threads.
        """
        places = self._places
        kernels.gather_columns(
            *(self._pieces, self._columns, places.rows, places.row_bits, places.ascends),
            *(places.cuts, starts, self._found, outs, min(num_threads, _MOST_THREADS)),
        )
