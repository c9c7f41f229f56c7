"""Rows of any data files, gathered from their decoded columns into one batch."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pyarrow as pa

from featstore.base.schema import Slot
from featstore.decoded.decoded_file import Piece
from featstore.loader.request.decode import NO_EXTRAS, block_extras, shaped
from featstore.loader.request.matching import Partition
from featstore.loader.request.options import SlotRequest
from featstore.loader.request.request import LabelRequest, Request
from featstore.loader.request.sequences import aligned
from featstore.ops.arrays import array_of as arrow_of
from featstore.reading.buffers import Array, BatchValues, Ragged, SharedLists, Values
from featstore.reading.gather import Places, buffers_of, max_pieces, row_bits_of
from featstore.reading.reader import Rows
from featstore.tensors.batch import Batch
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_arrays import LABEL, SLOT, WEIGHT, Key
from featstore.tensors.columns import Column
from featstore.tensors.gathering import gather_batches, joined
from featstore.tensors.packed import PackedColumns, TensorColumns, column_from, values_of
from featstore.tensors.shared_batches import reduced


class SampleBatch(Batch):
    """Samples as a batch, which a DataLoader may join with others: those of a loader are whole."""


ForkingPickler.register(SampleBatch, reduced)


class DecodedRows:
    """The rows of several pieces, numbered through all of them. For one thread.

    Args:
        pieces: The pieces, at least one, each with the partition of its file.
        request: What is delivered.
    """

    def __init__(self, pieces: Sequence[tuple[Piece, Partition]], request: Request) -> None:
        self.pieces, self._request = pieces, request
        self.firsts = np.cumsum([0, *(piece.num_rows for piece, _ in pieces)], dtype=np.int64)
        self._row_bits = row_bits_of(piece.num_rows for piece, _ in pieces)
        self._columns: Mapping[Key, Sequence[BatchValues]] = (
            {
                (SLOT, item.slot.name): [piece.slots[item.slot.name] for piece, _ in pieces]
                for item in request.slots
                if item.history is None
            }
            | {
                (SLOT, item.slot.name): [
                    piece.rows.histories[item.slot.name] for piece, _ in pieces
                ]
                for item in request.slots
                if item.history is not None
            }
            | {
                (role, label.name): [piece.numbers[label.name] for piece, _ in pieces]
                for role, label in _numbers(request)
            }
        )
        self._buffers = [
            buffers_of({key: of[number] for key, of in self._columns.items()}, piece.num_rows)
            for number, (piece, _) in enumerate(pieces)
        ]
        self._shaped = {
            (SLOT, item.slot.name): item for item in request.slots if not item.is_as_stored
        }
        self._filled = {
            (role, label.name): np.float32(label.null)
            for role, label in _numbers(request)
            if isinstance(label.null, float)
        }
        self._extras = [_only(piece.rows, request) for piece, _ in pieces]
        self._pool, self._scratch = BufferPool(), BufferPool()

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return int(self.firsts[-1])

    def numbers_of_pieces(self, rows: Array) -> Array:
        """The number of each row's piece: int64 (num_rows,)."""
        return np.searchsorted(self.firsts[1:], rows, side="right")

    def lengths(self, item: SlotRequest) -> Array:
        """How many values each list of a slot has, as delivered: int64 (num_rows,)."""
        lengths = np.empty(self.num_rows, np.int64)
        sequences = [slots for slots in self._request.sequences if item.slot in slots]
        for number, first in enumerate(self.firsts[:-1]):
            lists = self._columns[SLOT, item.slot.name][number]
            if isinstance(lists, SharedLists):
                lengths[first : first + len(lists)] = lists.lengths
                continue
            changed = aligned(sequences, partial(self._stored, number))
            lists = changed.get(item.slot.name, lists)
            assert isinstance(lists, Ragged)
            lengths[first : first + len(lists)] = np.diff(lists.offsets)
        return lengths if item.max_len is None else np.minimum(lengths, item.max_len)

    def _stored(self, number: int, slot: Slot) -> Values:
        """A column of a piece of a slot whose lists rows do not share."""
        found = self._columns[SLOT, slot.name][number]
        assert not isinstance(found, SharedLists)
        return found

    def batch(self, rows: Array) -> Batch:
        """A batch of these rows, in their order: int64 (num_rows,), each from 0 to `num_rows`.

        Consecutive rows of one piece are views of it, unless they share lists; all others are
        gathered.
        """
        numbers = self.numbers_of_pieces(rows)
        found: PackedColumns | TensorColumns
        may_be_viewed = not self._request.is_gathered and _are_consecutive(rows)
        if may_be_viewed and numbers[0] == numbers[-1]:
            found = self._viewed(int(numbers[0]), int(rows[0]), int(rows[-1]) + 1)
        else:
            found = self._gathered(numbers, rows)
        extras = self._gathered_extras(rows) if self._request.extras else NO_EXTRAS
        return SampleBatch(self._delivered(found), num_rows=len(rows), extras=extras)

    def _viewed(self, number: int, first: int, end: int) -> TensorColumns:
        """Consecutive rows of one piece. Only offsets are copied."""
        begin, end = (row - int(self.firsts[number]) for row in (first, end))
        columns = dict[Key, Column]()
        for key, pieces in self._columns.items():
            values = pieces[number]
            assert not isinstance(values, SharedLists)
            if isinstance(values, Ragged):
                cuts = values.offsets[begin : end + 1]
                offsets = np.subtract(cuts, cuts[0], dtype=np.int64)
                columns[key] = column_from(Ragged(values.values[cuts[0] : cuts[-1]], offsets))
            else:
                columns[key] = column_from(values[begin:end])
        return TensorColumns(columns)

    def _gathered(self, numbers: Array, rows: Array) -> PackedColumns:
        """Rows of any pieces, in memory of their own."""
        # Only the pieces that have any of the rows go to the kernels: their calls take as long as
        # there are pieces and columns.
        touched = np.flatnonzero(np.bincount(numbers, minlength=1))
        most = max_pieces(self._row_bits)
        if len(touched) <= most or not most:
            return self._gathered_from(touched, numbers, rows)
        # So many pieces cannot be numbered at once. As many rows lie in fewer of them.
        parts = [
            self._gathered(numbers[first : first + most], rows[first : first + most]).made()
            for first in range(0, len(rows), most)
        ]
        columns = {key: [values_of(part[key]) for part in parts] for key in self._columns}
        return joined(columns, self._pool)

    def _gathered_from(self, touched: Array, numbers: Array, rows: Array) -> PackedColumns:
        """Rows of these pieces, which are renumbered."""
        touched = touched if len(touched) else np.zeros(1, np.int64)
        renumbered = np.zeros(touched[-1] + 1, np.int64)
        renumbered[touched] = np.arange(len(touched))
        at = renumbered[numbers] << self._row_bits | rows - self.firsts[numbers]
        places = Places.of(at, len(touched), self._row_bits, np.array([0, len(rows)]))
        pieces = [self._buffers[number] for number in touched.tolist()]
        [packed] = gather_batches(pieces, places, self._pool, self._scratch)
        return packed

    def _delivered(self, found: PackedColumns | TensorColumns) -> PackedColumns | TensorColumns:
        """The columns with the options of slots and labels applied."""
        sequences = self._request.sequences
        if not self._shaped and not self._filled and not sequences:
            return found
        columns = dict(found.made())
        changed = aligned(sequences, lambda slot: _values_of(columns[SLOT, slot.name]))
        if not self._shaped and not self._filled and not changed:
            return found
        columns |= {(SLOT, name): column_from(lists) for name, lists in changed.items()}
        for key, item in self._shaped.items():
            columns[key] = column_from(shaped(_values_of(columns[key]), item))
        for key, fill in self._filled.items():
            values = _values_of(columns[key])
            assert not isinstance(values, Ragged)
            columns[key] = column_from(np.where(np.isnan(values), fill, values))
        return TensorColumns(columns)

    def by_piece(self, rows: Array) -> tuple[list[tuple[int, Array]], Array]:
        """These rows piece by piece, to gather what is no array of numbers.

        Returns:
            The number of each piece that has some of them, and the places of these in it; at least
            one piece. And where each row is found in what the pieces give one after the other.
        """
        numbers = self.numbers_of_pieces(rows)
        order = np.argsort(numbers, kind="stable")
        touched, begins = np.unique(numbers[order], return_index=True)
        parts = [
            (number, rows[chosen] - self.firsts[number])
            for number, chosen in zip(touched, np.split(order, begins[1:]), strict=False)
        ]
        return parts or [(0, rows)], np.argsort(order)

    def _gathered_extras(self, rows: Array) -> pa.Table:
        parts, places = self.by_piece(rows)
        tables = [
            block_extras(self._extras[number].take(local), self._request, self.pieces[number][1])
            for number, local in parts
        ]
        return pa.concat_tables(tables).take(arrow_of(places))


def _are_consecutive(rows: Array) -> bool:
    """Whether each row, of at least one, is the one after the row before it."""
    may_be = len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1
    return bool(may_be and (np.diff(rows) == 1).all())


def _numbers(request: Request) -> Iterable[tuple[str, LabelRequest]]:
    yield from ((LABEL, label) for label in request.labels)
    if request.weight is not None:
        yield WEIGHT, request.weight


def _only(rows: Rows, request: Request) -> Rows:
    """The rows with the extra columns alone."""
    names = [
        name
        for field in request.extras
        if (name := rows.columns.others.get(field.name)) is not None
    ]
    return Rows(
        file_name=rows.file_name,
        num_rows=rows.num_rows,
        arrow=rows.table.select(names),
        columns=rows.columns,
    )


def _values_of(column: Column) -> Values:
    """As `values_of`, of columns of a batch, in which rows share no lists."""
    values = values_of(column)
    assert not isinstance(values, SharedLists)
    return values
