"""Texts of values gathered while units write, and merged per partition before the commit.

Each id of a slot is counted exactly. When one occurs that was not there before, its raw row is laid
aside. At the end of the unit the texts of the most frequent ids are found in these rows: so each
text is made once a unit, whatever the number of rows, and none is made that is not kept. Only rows
that take too much memory are looked at before.
"""

import bisect
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from featstore.base.schema import Slot
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.stand_ins import FoundTexts, SlotTexts
from featstore.extraction.units.unit_statistics import joined_alike
from featstore.files.storage import delete, join
from featstore.ops.arrays import Integers, array_of, offsets_of, values_of
from featstore.ops.lists import array_of_bits
from featstore.ops.malformed import without_views
from featstore.spec.graph import Graph
from featstore.spec.value_names import (
    MAX_DISTINCT,
    ValueText,
    kept_values,
    member_names,
    names_of_spec,
)
from featstore.statistics.value_counts import IdCounts
from featstore.statistics.values_file import (
    NUM_KEPT,
    SCHEMA,
    TEXT_BYTES,
    StoredValues,
    merge_values,
    most_frequent,
    read_values,
    room_for_texts,
    write_values,
)
from featstore.table.layout import file_values_path, values_path
from featstore.table.snapshot import DataFile

# What the rows laid aside by all slots of a unit may take, until all of their texts are found.
_MAX_WAITING_BYTES = 64 << 20
# So many texts a slot must have room, or a small unit gathers none: it would spend more time on
# them than on its data.
_MIN_TEXTS = 4


class ValueGathering:
    """Gathers the texts of one unit's values while its data files are written. Not thread-safe.

    The first batch waits for a second one. A unit that ends without one, and is so small that there
    is room for few texts of each slot, keeps none, unless a slot says `top`: an hour of 500 rows
    and thousands of slots would take longer to find texts than to extract.

    Args:
        extractor: The extractor that all rows of the unit come from; watched from now on.
        slots: The names of the slots that are written.

    Attributes:
        names: The slots of which texts are kept.
        unlimited: The slots that may have any number of different values.
    """

    def __init__(self, extractor: Extractor, slots: Collection[str]) -> None:
        self._graph = extractor.graph
        kept = kept_values(extractor.spec, self._graph)
        written = frozenset(slots)
        names = self._graph.schema.names
        self.names = [name for name in names if name in kept and name in written]
        self.unlimited = frozenset(name for name in self.names if kept[name] == "top")
        self._slots: list[_SlotGathering] | None = None
        self._held: list[tuple[pa.RecordBatch, pa.RecordBatch]] = []
        self._raw = pa.RecordBatch.from_pydict({})
        if self.names:
            extractor.watch(self._see)

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Passes extracted batches on and counts them. Each must come right from the extractor."""
        for batch in batches:
            self._held.append((batch, self._raw))
            if self._slots is not None or len(self._held) > 1:
                self._count_held()
            yield batch

    def finish(self, data_bytes: int) -> StoredValues:
        """The counts of all rows that passed, with the texts of the most frequent values.

        Args:
            data_bytes: The bytes of the unit's data files, of which texts take a small share.
        """
        room = room_for_texts(data_bytes) / TEXT_BYTES
        is_small = self._slots is None and room < _MIN_TEXTS * len(self.names)
        if is_small and not self.unlimited:
            return StoredValues(left_out=frozenset(self.names))
        slots = self._count_held()
        counted = [slot.counts.counts for slot in slots]
        num_texts = depth_of([len(ids) for ids, _ in counted], data_bytes)
        tables = [
            slot.table(ids, counts, num_texts)
            for slot, (ids, counts) in zip(slots, counted, strict=True)
        ]
        return StoredValues(
            table=pa.concat_tables([SCHEMA.empty_table(), *tables]),
            left_out=frozenset(slot.name for slot in slots if slot.counts.has_given_up),
        )

    def _count_held(self) -> "list[_SlotGathering]":
        """Counts the batches that wait."""
        if self._slots is None:
            schema, unlimited = self._graph.schema, self.unlimited
            self._slots = [
                _SlotGathering(self._graph, schema[name], keeps_top=name in unlimited)
                for name in self.names
            ]
        for batch, raw in self._held:
            for slot in self._slots:
                slot.update(batch.column(slot.name), raw)
            if sum(slot.waiting_bytes for slot in self._slots) > _MAX_WAITING_BYTES:
                for slot in self._slots:
                    slot.find_texts()
        self._held = []
        return self._slots

    def _see(self, raw: pa.RecordBatch) -> None:
        self._raw = raw


def store_values(
    gatherings: Sequence[ValueGathering], table_url: str, path: str, data_bytes: int
) -> bool:
    """Writes the texts of a unit beside the data file at `path`: the unit's last one.

    Args:
        gatherings: Those of the unit's rows, one for each thread that extracted some.
        table_url: The table, or the slot group.
        path: The path of the data file.
        data_bytes: The bytes of the unit's data files.

    Returns:
        Whether there are any.
    """
    if not any(gathering.names for gathering in gatherings):
        return False
    if len(gatherings) == 1:
        stored = gatherings[0].finish(data_bytes)
    else:
        unlimited = gatherings[0].unlimited
        stored = merge_values((one.finish(data_bytes) for one in gatherings), unlimited)
    write_values(table_url, file_values_path(path), stored)
    return True


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """Raw rows with ids whose texts are not known.

    Attributes:
        rows: The raw columns that the slot is made of.
        ids: The ids, int64 (num_ids,).
        row_of: The row of each id, int64 (num_ids,).
    """

    rows: pa.RecordBatch
    ids: Integers
    row_of: Integers

    def having(self, wanted: Integers | None) -> pa.RecordBatch:
        """The rows with ids that are wanted, or all."""
        if wanted is None:
            return self.rows
        needed = np.zeros(self.rows.num_rows, np.bool_)
        needed[self.row_of[np.isin(self.ids, wanted)]] = True
        return self.rows if needed.all() else self.rows.filter(array_of_bits(needed))


class _SlotGathering:
    """Counts the ids of one slot, and finds the texts of new ones.

    Attributes:
        counts: The ids, the most frequent first, and their counts.
        waiting_bytes: What the rows take that are laid aside.
    """

    def __init__(self, graph: Graph, slot: Slot, *, keeps_top: bool) -> None:
        self.name, self._slot = slot.name, slot
        self.counts = IdCounts(MAX_DISTINCT, keeps_top=keeps_top)
        # Most slots are named by the spec or by rows, and only by one of them.
        self._known = names_of_spec(graph, [slot.name]).by_slot.get(slot.name, {})
        self._index_names = member_names(graph, slot.name)[0] if slot.num_indices else None
        is_named = bool(self._known) or self._index_names is not None
        self._source = None if is_named else SlotTexts(graph, slot.name)
        self._waiting: list[_Waiting] = []
        self.waiting_bytes = 0
        self._found: list[FoundTexts] = []

    def update(self, column: pa.Array, raw: pa.RecordBatch) -> None:
        """Counts the next rows.

        Args:
            column: The slot's column of extracted rows.
            raw: The same rows before.
        """
        if self.counts.has_given_up:
            return
        values = values_of(column.flatten() if self._slot.shape else column)
        new = self.counts.update(values)
        if self.counts.has_given_up:
            self._waiting, self.waiting_bytes, self._found = [], 0, []
        elif self._source is not None and len(new):
            self._wait(self._source, values[new], _rows_of(column, new, self._slot), raw)

    def find_texts(self, wanted: Integers | None = None) -> None:
        """Finds the texts of the rows laid aside.

        Args:
            wanted: The ids to find texts of, int64; by default all.
        """
        if self._source is None or not self._waiting:
            return
        rows = [waiting.having(wanted) for waiting in self._waiting]
        self._waiting, self.waiting_bytes = [], 0
        for batch in joined_alike(rows):
            self._found.append(self._source(batch.columns, wanted))

    def table(self, ids: Integers, counts: Integers, num_texts: int) -> pa.Table:
        """A row for each id, with the columns of `SCHEMA`; the first have texts.

        Args:
            ids: The ids, the most frequent first.
            counts: Their counts.
            num_texts: How many texts to find, at most.
        """
        first = ids[:num_texts]
        texts, ranks = self._named(first) if self._source is None else self._from_rows(first)
        num_more = len(ids) - len(first)
        columns = [
            pa.repeat(pa.scalar(self.name), len(ids)),
            pa.repeat(pa.scalar(self._slot.number, pa.int64()), len(ids)),
            array_of(ids),
            pa.concat_arrays([texts, pa.nulls(num_more, pa.string())]),
            pa.concat_arrays([ranks, pa.nulls(num_more, pa.int32())]),
            array_of(counts),
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMA)

    def _named(self, ids: Integers) -> tuple[pa.Array, pa.Array]:
        """The texts and ranks that the spec tells."""
        names = self._index_names  # of very many values
        known = [
            self._known.get(id_)
            or (ValueText(text=names.text_of_index(id_)) if names is not None else None)
            for id_ in ids.tolist()
        ]
        texts = pa.array([value and value.text for value in known], pa.string())
        return texts, pa.array([value and value.rank for value in known], pa.int32())

    def _from_rows(self, ids: Integers) -> tuple[pa.Array, pa.Array]:
        """The texts that rows had; null for ids of which another value was there first."""
        self.find_texts(ids)
        found_ids = np.concatenate([ids[:0], *(found.ids for found in self._found)])
        none = pa.array([], pa.string())
        texts = pa.concat_arrays([none, *(found.texts for found in self._found)])
        order = np.argsort(found_ids, kind="stable")
        places = np.searchsorted(found_ids[order], ids)
        is_found = places < len(order)
        is_found[is_found] = found_ids[order[places[is_found]]] == ids[is_found]
        at = np.zeros(len(ids), np.int64)
        at[is_found] = order[places[is_found]]
        return texts.take(array_of(at, ~is_found)), pa.nulls(len(ids), pa.int32())

    def _wait(self, source: SlotTexts, ids: Integers, rows: Integers, raw: pa.RecordBatch) -> None:
        # Positions ascend, and so do their rows.
        is_first = np.append(True, rows[1:] != rows[:-1])
        places, row_of = rows[is_first], np.cumsum(is_first) - 1
        columns = [without_views(raw.column(i)) for i in source.columns]
        names = [str(i) for i in source.columns]
        taken = pa.RecordBatch.from_arrays(columns, names).take(array_of(places))
        self._waiting.append(_Waiting(rows=taken, ids=ids, row_of=row_of))
        self.waiting_bytes += taken.nbytes + ids.nbytes + row_of.nbytes


def depth_of(num_ids: Sequence[int], data_bytes: int) -> int:
    """How many of each slot's ids get texts: `NUM_KEPT`, or fewer that take a small share of the
    data.

    Args:
        num_ids: The different ids of each slot.
        data_bytes: The bytes of the data.
    """
    room = room_for_texts(data_bytes) / TEXT_BYTES
    # The number of texts grows with the depth, so the deepest that has room is found by bisection.
    return bisect.bisect_right(
        range(1, NUM_KEPT + 1),
        room,
        key=lambda depth: sum(min(depth, count) for count in num_ids),
    )


def merge_partition_values(
    table_url: str,
    tag: str,
    files: Sequence[DataFile],
    paths: Sequence[str],
    unlimited: Collection[str],
) -> None:
    """Merges the texts of one partition's units into a single file.

    Args:
        table_url: The table, or the slot group.
        tag: The run's tag, part of the file's name.
        files: All files that the run wrote to the partition.
        paths: The data files beside which units stored texts.
        unlimited: The slots with `values: top`.
    """
    parts = [file_values_path(path) for path in paths]
    merged = merge_values((read_values(table_url, part) for part in parts), unlimited)
    kept = most_frequent(merged, sum(file.size_bytes for file in files))
    write_values(table_url, values_path(files[0].partition, tag), kept)
    for part in parts:
        delete(join(table_url, part))


def _rows_of(column: pa.Array, positions: Integers, slot: Slot) -> Integers:
    """The row of each position among the column's values."""
    if not slot.shape:
        return positions
    offsets = offsets_of(column)
    rows: Integers = np.searchsorted(offsets - offsets[0], positions, side="right") - 1
    return rows
