"""Statistics of slots, gathered while data files are written, and merged over files and partitions.

Counts, coverage, means, extremes and list lengths' means and maxima are of all rows. Quantiles and
top values are of a sample of each file's rows (see `sampling`), and so are the signs that are
compared with a second hash of what they were made of.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.errors import OperatorError
from featstore.schema import Slot, SlotKind, SlotSchema
from featstore.table.statistics.sampling import RowSample
from featstore.table.statistics.sketches import (
    Collisions,
    Distinct,
    Floats,
    Integers,
    mix,
    points_of,
    quantiles_of,
    top_of,
)

_SUMS = ("num_rows", "num_present", "num_values", "num_numbers", "num_signs_checked", "length_sum")
_COUNTS = (*_SUMS, "length_max")
_NUMBERS = ("sum", "min", "max")
_PAIRS = ("points", "lengths", "top")
_BINARIES = ("bits", "smallest", *_PAIRS, "checked", "collided")
_WORDS = ("column", "role", "number", "kind", "shape")
SCHEMA = pa.schema(
    [(name, pa.int64() if name == "number" else pa.string()) for name in _WORDS]
    + [(name, pa.int64()) for name in _COUNTS]
    + [(name, pa.float64()) for name in _NUMBERS]
    + [("counts", pa.string())]
    + [(name, pa.binary()) for name in _BINARIES]
)


@dataclass(kw_only=True)
class ColumnStatistics:
    """What is known of one slot's values. Points and lengths are (values, weights), top (values,
    estimated counts).

    `num_present` rows are not missing; `num_values` counts elements of lists, `num_numbers` floats
    that are not NaN. `counts` says what was dropped or replaced on the way to the slot.
    `num_signs_checked` adds up the different signs of each file that were compared for
    `collisions`.
    """

    column: str
    role: str
    number: int | None
    kind: str
    shape: str
    num_rows: int = 0
    num_present: int = 0
    num_values: int = 0
    num_numbers: int = 0
    num_signs_checked: int = 0
    length_sum: int = 0
    length_max: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    collisions: Collisions = field(default_factory=Collisions)
    sum: float = 0.0
    min: float = np.inf
    max: float = -np.inf
    distinct: Distinct = field(default_factory=Distinct)
    points: tuple[Floats, Floats] = (np.zeros(0), np.zeros(0))
    lengths: tuple[Floats, Floats] = (np.zeros(0), np.zeros(0))
    top: tuple[Integers, Floats] = (np.zeros(0, np.int64), np.zeros(0))

    def merge(self, other: "ColumnStatistics") -> None:
        for name in (*_SUMS, "sum"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.counts = add_counts([self.counts, other.counts])
        self.collisions.merge(other.collisions)
        self.length_max = max(self.length_max, other.length_max)
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)
        self.distinct.merge(other.distinct)
        self.points = points_of(*_joined(self.points, other.points))
        self.lengths = points_of(*_joined(self.lengths, other.lengths))
        values, counts = self.top, other.top
        self.top = top_of(
            np.concatenate([values[0], counts[0]]), np.concatenate([values[1], counts[1]])
        )

    def quantiles(self, wanted: tuple[float, ...]) -> list[float] | None:
        return quantiles_of(*self.points, wanted)

    def length_quantiles(self, wanted: tuple[float, ...]) -> list[float] | None:
        return quantiles_of(*self.lengths, wanted)


class Gatherer:
    """Gathers the statistics of one data file, batch by batch, as its columns are stored. Not
    thread-safe.

    Memory: two samples of rows, and 24 KB a slot.
    """

    def __init__(self, schema: SlotSchema) -> None:
        self._slots = schema.slots
        self._labels = [label.name for label in schema.labels if _is_number(label.type)]
        self._found = {slot.name: _new(slot) for slot in schema.slots}
        self._found |= {name: _new_label(name) for name in self._labels}
        self._sample = RowSample()

    def update(self, batch: pa.RecordBatch) -> None:
        """Takes the next rows; columns are as in the data file, with marks for missing values."""
        for slot in self._slots:
            _count(self._found[slot.name], slot, batch.column(slot.name))
        for name in self._labels:
            _count_label(self._found[name], batch.column(name))
        self._sample.update(batch.select([slot.name for slot in self._slots]))

    def finish(
        self,
        counts: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
        witnesses: Mapping[str, pa.Array] = MappingProxyType({}),
    ) -> "Statistics":
        """The statistics of all rows taken.

        `counts` says by slot what was dropped or replaced on the way to it. `witnesses` are, by
        slot with signs, other signs of the rows of a `RowSample` of as many rows, made of the same
        values by another hash. OperatorError where they are not as many.
        """
        for name, found in counts.items():
            self._found[name].counts = dict(found)
        if self._sample.batches:
            sample = pa.Table.from_batches(self._sample.batches)
            for slot in self._slots:
                column = sample.column(slot.name).combine_chunks()
                _summarize(self._found[slot.name], slot, column, self._sample.weight)
                if slot.name in witnesses:
                    _compare(self._found[slot.name], slot, column, witnesses[slot.name])
        return Statistics(num_rows=self._sample.num_rows_seen, columns=self._found)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Statistics of some rows, by column: slots, and labels that are numbers."""

    num_rows: int = 0
    columns: Mapping[str, ColumnStatistics] = field(default_factory=dict)

    def to_table(self) -> pa.Table:
        return pa.Table.from_pylist([_to_row(column) for column in self.columns.values()], SCHEMA)

    @classmethod
    def from_table(cls, table: pa.Table, num_rows: int) -> "Statistics":
        return cls(
            num_rows=num_rows, columns={row["column"]: _from_row(row) for row in table.to_pylist()}
        )


def merge_statistics(parts: Iterable[Statistics]) -> Statistics:
    """The statistics of all rows of the parts, which are used up. A slot that a part lacks is
    missing in its rows.

    A slot is known by its number; it has the name of the first part.
    """
    num_rows, known = 0, dict[tuple[int | None, str], ColumnStatistics]()
    for part in parts:
        num_rows += part.num_rows
        for column in part.columns.values():
            key = (column.number, column.column if column.number is None else "")
            if key in known:
                known[key].merge(column)
            else:
                known[key] = column
    return Statistics(
        num_rows=num_rows, columns={column.column: column for column in known.values()}
    )


def add_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums of counts of the same name, by name."""
    total: dict[str, int] = {}
    for one in counts:
        for name, number in one.items():
            total[name] = total.get(name, 0) + number
    return dict(sorted(total.items()))


def _new(slot: Slot) -> ColumnStatistics:
    return ColumnStatistics(
        column=slot.name,
        role="slot",
        number=slot.number,
        kind=str(slot.kind),
        shape=slot.shape_text,
    )


def _new_label(name: str) -> ColumnStatistics:
    return ColumnStatistics(column=name, role="label", number=None, kind="float", shape="scalar")


def _is_number(arrow_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(arrow_type)
        or pa.types.is_floating(arrow_type)
        or pa.types.is_boolean(arrow_type)
    )


def _values(column: pa.Array, slot: Slot) -> tuple[Any, Integers | None]:
    """The column's values in one array, and the lengths of its lists, with a missing list's mark
    among them.
    """
    if not slot.shape:
        return _numpy(column, slot), None
    values = column.flatten()
    if slot.width is not None:
        return _numpy(values, slot), None
    return _numpy(values, slot), np.diff(_numpy_offsets(column))


def _numpy(values: pa.Array, slot: Slot) -> Any:
    item = np.int64 if slot.kind is SlotKind.ID else np.float32
    data = values.buffers()[1]
    if data is None:
        return np.zeros(0, item)
    return np.frombuffer(data, item, len(values), values.offset * np.dtype(item).itemsize)


def _numpy_offsets(column: pa.Array) -> Integers:
    data = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    return data.astype(np.int64)


def _missing(values: Any, slot: Slot) -> Any:
    return values == 0 if slot.kind is SlotKind.ID else np.isnan(values)


def _present(slot: Slot, missing: Any, lengths: Integers | None, num_rows: int) -> int:
    """The rows that are not missing: a list is where it is one mark, a fixed width where all
    are.
    """
    if lengths is not None:
        first = (np.cumsum(lengths) - lengths)[lengths == 1]
        return num_rows - int(missing[first].sum())
    if slot.width is not None:
        return num_rows - int(missing.reshape(-1, slot.width).all(axis=1).sum())
    return num_rows - int(np.count_nonzero(missing))


def _count(found: ColumnStatistics, slot: Slot, column: pa.Array) -> None:
    values, lengths = _values(column, slot)
    num_missing = _count_distinct(found.distinct, slot, values)
    missing = _missing(values, slot) if num_missing else None
    present = len(column) if missing is None else _present(slot, missing, lengths, len(column))
    found.num_rows += len(column)
    found.num_present += present
    found.num_values += len(values) - num_missing
    if lengths is not None:
        known_lengths = lengths if missing is None else _known_lengths(lengths, values, slot)
        found.length_sum += int(lengths.sum()) - (len(column) - present)
        found.length_max = max(found.length_max, int(known_lengths.max(initial=0)))
    if slot.kind is SlotKind.FLOAT:
        _add_numbers(found, (values if missing is None else values[~missing]).astype(np.float64))


def _count_distinct(distinct: Distinct, slot: Slot, values: Any) -> int:
    """Counts the different values; the number that are missing."""
    if slot.num_indices is None:
        return distinct.take(values)
    known = values[values != 0]
    distinct.update(mix(known))
    return len(values) - len(known)


def _add_numbers(found: ColumnStatistics, known: Floats) -> None:
    if len(known):
        found.num_numbers += len(known)
        found.sum += float(known.sum())
        found.min, found.max = (
            min(found.min, float(known.min())),
            max(found.max, float(known.max())),
        )


def _count_label(found: ColumnStatistics, column: pa.Array) -> None:
    numbers = column.cast(pa.float64())
    known = numbers.filter(pc.fill_null(pc.invert(pc.is_nan(numbers)), False))
    found.num_rows += len(column)
    found.num_present += len(known)
    found.num_values += len(known)
    _add_numbers(
        found, np.frombuffer(known.buffers()[1] or b"", np.float64, len(known), known.offset * 8)
    )


def _known_lengths(lengths: Integers, values: Any, slot: Slot) -> Integers:
    """The lengths of the lists that are not missing."""
    single = np.flatnonzero(lengths == 1)
    if not len(single):
        return lengths
    first = (np.cumsum(lengths) - lengths)[single]
    return np.delete(lengths, single[_missing(values[first], slot)])


def _summarize(found: ColumnStatistics, slot: Slot, column: pa.Array, weight: float) -> None:
    """Takes the sampled rows, each of which stands for `weight` rows."""
    values, lengths = _values(column, slot)
    known = values[~_missing(values, slot)]
    if slot.kind is SlotKind.ID:
        found.top = top_of(known, np.full(len(known), weight))
    else:
        found.points = points_of(known.astype(np.float64), np.full(len(known), weight))
    if lengths is not None:
        there = _known_lengths(lengths, values, slot).astype(np.float64)
        found.lengths = points_of(there, np.full(len(there), weight))


def _compare(found: ColumnStatistics, slot: Slot, column: pa.Array, witness: pa.Array) -> None:
    """Compares the sampled rows' signs with those that another hash made of the same values."""
    signs, others = _values(column, slot)[0], _values(witness, slot)[0]
    if len(signs) != len(others):
        raise OperatorError(
            f"{slot.name} ({slot.op}): {len(column):,} sampled rows gave {len(signs):,} values, "
            f"and {len(others):,} when they "
            f"were extracted again; expected operators that give a row the same values each time"
        )
    there = signs != 0
    found.num_signs_checked += found.collisions.update(signs[there], others[there])


def _joined(one: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    return np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]])


def _to_row(column: ColumnStatistics) -> dict[str, Any]:
    row = {name: getattr(column, name) for name in (*_WORDS, *_COUNTS, *_NUMBERS)}
    pairs = {name: b"".join(part.tobytes() for part in getattr(column, name)) for name in _PAIRS}
    return {
        **row,
        **pairs,
        "counts": json.dumps(dict(column.counts), sort_keys=True),
        "bits": np.packbits(column.distinct.bits).tobytes(),
        "smallest": column.distinct.smallest.tobytes(),
        "checked": column.collisions.signs.tobytes() + column.collisions.witnesses.tobytes(),
        "collided": column.collisions.collided.tobytes(),
    }


def _from_row(row: Mapping[str, Any]) -> ColumnStatistics:
    bits = np.unpackbits(np.frombuffer(row["bits"], np.uint8)).astype(np.bool_)
    checked = np.frombuffer(row["checked"], np.int64).reshape(2, -1)
    return ColumnStatistics(
        **{name: row[name] for name in (*_WORDS, *_COUNTS, *_NUMBERS)},
        counts=json.loads(row["counts"]),
        distinct=Distinct(bits, np.frombuffer(row["smallest"], np.int64)),
        collisions=Collisions(checked[0], checked[1], np.frombuffer(row["collided"], np.int64)),
        points=_pair(row["points"], np.float64),
        lengths=_pair(row["lengths"], np.float64),
        top=_pair(row["top"], np.int64),
    )


def _pair(data: bytes, item: Any) -> Any:
    """Two arrays of as many items: the first of the type given, the second float64."""
    half = len(data) // 2
    return np.frombuffer(data[:half], item), np.frombuffer(data[half:], np.float64)
