"""Statistics of slots, gathered while data files are written, and merged over files and partitions.

Counts, coverage, means, extremes, and the means and maxima of list lengths are computed from all
rows. Quantiles, top values and sign collisions (found by comparing signs with a second hash of the
same values) are computed from a sample of each file's rows, see `sampling`.
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
from featstore.ops.arrays import offsets_of, values_of
from featstore.ops.numbers import is_number
from featstore.schema import Slot, SlotKind, SlotSchema
from featstore.table.statistics.sampling import RowSample
from featstore.table.statistics.sketches import (
    NUM_CHECKED,
    NUM_POINTS,
    ROWS_PER_POINT,
    ROWS_PER_SIGN,
    Collisions,
    Distinct,
    Floats,
    Integers,
    at_most,
    mix,
    points_of,
    quantiles_of,
    top_of,
    top_of_rows,
)

# Names of attributes of `ColumnStatistics` and of columns of the stored file, by type.
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
    """Statistics of one slot or label.

    Attributes:
        column: The column's name.
        role: `slot` or `label`.
        number: The slot number, or None.
        kind: The slot kind.
        shape: The shape, as `Slot.shape_text`.
        num_rows: All rows.
        num_present: Rows in which the value is not missing.
        num_values: Values that are not missing; of lists all elements.
        num_numbers: Floats that are not NaN.
        num_signs_checked: The distinct signs compared for `collisions`, summed over files.
        length_sum: The sum of the lengths of lists that are not missing.
        length_max: The maximum of these lengths.
        counts: Counts of values that extraction dropped or replaced, by name.
        collisions: Signs that more than one value had.
        sum: The sum of the numbers.
        min: The minimum of the numbers; infinity without any.
        max: The maximum of the numbers; minus infinity without any.
        distinct: A sketch of the distinct values.
        points: Numbers and their weights, float64 (num_points,) each, for quantiles.
        lengths: List lengths and their weights, as `points`.
        top: The most frequent ids, int64, and their estimated counts, float64.
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

    @classmethod
    def of_slot(cls, slot: Slot) -> "ColumnStatistics":
        """The statistics of no rows of a slot."""
        return cls(
            column=slot.name,
            role="slot",
            number=slot.number,
            kind=str(slot.kind),
            shape=slot.shape_text,
        )

    @property
    def key(self) -> tuple[int | None, str]:
        """Identifies a slot by its number, so that it may be renamed, or else a column by name."""
        return self.number, self.column if self.number is None else ""

    def merge(self, other: "ColumnStatistics") -> None:
        """Adds the statistics of other rows of the same column."""
        for name in (*_SUMS, "sum"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.counts = add_counts([self.counts, other.counts])
        self.collisions.merge(other.collisions)
        self.length_max = max(self.length_max, other.length_max)
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)
        self.distinct.merge(other.distinct)
        self.points = points_of(*_joined(self.points, other.points))
        self.lengths = points_of(*_joined(self.lengths, other.lengths))
        self.top = top_of(*_joined(self.top, other.top))

    def quantiles(self, shares: tuple[float, ...]) -> list[float] | None:
        """The quantiles of the numbers at these shares; None if there are no numbers."""
        return quantiles_of(*self.points, shares)

    def length_quantiles(self, shares: tuple[float, ...]) -> list[float] | None:
        """The quantiles of the list lengths at these shares; None if there are no lists."""
        return quantiles_of(*self.lengths, shares)


class StatisticsGatherer:
    """Gathers the statistics of one data file, batch by batch. Not thread-safe.

    Memory: two samples of rows, and 24 KB per slot.
    """

    def __init__(self, schema: SlotSchema) -> None:
        self._slots = schema.slots
        self._labels = [label.name for label in schema.labels if is_number(label.type)]
        self._columns = {slot.name: ColumnStatistics.of_slot(slot) for slot in schema.slots}
        self._columns |= {name: _new_label(name) for name in self._labels}
        self._sample = RowSample()

    def update(self, batch: pa.RecordBatch) -> None:
        """Adds the next rows, with columns as in the data file and marks for missing values."""
        for slot in self._slots:
            _count(self._columns[slot.name], slot, batch.column(slot.name))
        for name in self._labels:
            _count_label(self._columns[name], batch.column(name))
        self._sample.update(batch.select([slot.name for slot in self._slots]))

    def finish(
        self,
        counts: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
        witnesses: Mapping[str, pa.Array] = MappingProxyType({}),
    ) -> "Statistics":
        """The statistics of all rows.

        Args:
            counts: By slot, counts of values that extraction dropped or replaced.
            witnesses: By slot with signs, the signs that another hash gives for the same values, of
                the rows in a `RowSample` of the same file.

        Raises:
            OperatorError: A slot's witnesses are more or fewer than its sampled signs.
        """
        for name, slot_counts in counts.items():
            self._columns[name].counts = dict(slot_counts)
        if self._sample.batches:
            sample = pa.Table.from_batches(self._sample.batches)
            for slot in self._slots:
                column = sample.column(slot.name).combine_chunks()
                _summarize(self._columns[slot.name], slot, column, self._sample.weight)
                if slot.name in witnesses:
                    _compare(self._columns[slot.name], slot, column, witnesses[slot.name])
        return Statistics(num_rows=self._sample.num_rows_seen, columns=self._columns)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Statistics of some rows.

    Attributes:
        num_rows: The number of rows.
        columns: The statistics by name: of slots, and of labels that are numbers.
    """

    num_rows: int = 0
    columns: Mapping[str, ColumnStatistics] = field(default_factory=dict)

    def to_table(self) -> pa.Table:
        """A row per column, with the schema `SCHEMA`."""
        rows = [_to_row(column) for column in self.columns.values()]
        # `Table.from_pylist` looks up every name in every row, and takes thrice the time.
        columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
        arrays = [
            pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=SCHEMA)

    @classmethod
    def from_table(cls, table: pa.Table, num_rows: int) -> "Statistics":
        """The inverse of `to_table`."""
        return cls(
            num_rows=num_rows, columns={row["column"]: _from_row(row) for row in table.to_pylist()}
        )


def merge_statistics(parts: Iterable[Statistics]) -> Statistics:
    """Merges the statistics of several files or partitions. The parts are consumed: their objects
    are changed.

    A slot is identified by its number, and gets its name from the first part. It is missing in all
    rows of a part that lacks it.
    """
    num_rows, known = 0, dict[tuple[int | None, str], ColumnStatistics]()
    for part in parts:
        num_rows += part.num_rows
        for column in part.columns.values():
            if column.key in known:
                known[column.key].merge(column)
            else:
                known[column.key] = column
    return Statistics(
        num_rows=num_rows, columns={column.column: column for column in known.values()}
    )


def add_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of each count, by name."""
    total: dict[str, int] = {}
    for one in counts:
        for name, number in one.items():
            total[name] = total.get(name, 0) + number
    return dict(sorted(total.items()))


def _new_label(name: str) -> ColumnStatistics:
    return ColumnStatistics(column=name, role="label", number=None, kind="float", shape="scalar")


def _values(column: pa.Array, slot: Slot) -> tuple[Any, Integers | None]:
    """The column's values (num_values,), marks of missing ones included, and for lists their
    lengths (num_rows,), else None.
    """
    if not slot.shape:
        return values_of(column), None
    lengths = np.diff(offsets_of(column)) if slot.width is None else None
    return values_of(column.flatten()), lengths


def _missing(values: Any, slot: Slot) -> Any:
    return values == 0 if slot.kind is SlotKind.ID else np.isnan(values)


def _present(slot: Slot, missing: Any, lengths: Integers | None, num_rows: int) -> int:
    """The number of rows that are not missing. A list is missing if it is a single mark, a
    fixed-width row if all its values are marks.
    """
    if lengths is not None:
        # Only a list of a single value can be missing: the position of that value.
        first = (np.cumsum(lengths) - lengths)[lengths == 1]
        return num_rows - int(missing[first].sum())
    if slot.width is not None:
        return num_rows - int(missing.reshape(-1, slot.width).all(axis=1).sum())
    return num_rows - int(np.count_nonzero(missing))


def _count(statistics: ColumnStatistics, slot: Slot, column: pa.Array) -> None:
    values, lengths = _values(column, slot)
    num_missing = _count_distinct(statistics.distinct, slot, values)
    # Most columns of a batch have no missing values: then no mask is made.
    missing = _missing(values, slot) if num_missing else None
    present = len(column) if missing is None else _present(slot, missing, lengths, len(column))
    statistics.num_rows += len(column)
    statistics.num_present += present
    statistics.num_values += len(values) - num_missing
    if lengths is not None:
        known_lengths = lengths if missing is None else _known_lengths(lengths, values, slot)
        # A missing list has one element, its mark.
        statistics.length_sum += int(lengths.sum()) - (len(column) - present)
        statistics.length_max = max(statistics.length_max, int(known_lengths.max(initial=0)))
    if slot.kind is SlotKind.FLOAT:
        _add_numbers(
            statistics, (values if missing is None else values[~missing]).astype(np.float64)
        )


def _count_distinct(distinct: Distinct, slot: Slot, values: Any) -> int:
    """Adds the values to the sketch. Returns the number of marks of missing values."""
    # Signs and bits of floats go to the kernel. Indices are small numbers, which must be hashed.
    if slot.num_indices is None:
        return distinct.take(values)
    known = values[values != 0]
    distinct.update(mix(known))
    return len(values) - len(known)


def _add_numbers(statistics: ColumnStatistics, known: Floats) -> None:
    if len(known):
        statistics.num_numbers += len(known)
        statistics.sum += float(known.sum())
        statistics.min, statistics.max = (
            min(statistics.min, float(known.min())),
            max(statistics.max, float(known.max())),
        )


def _count_label(statistics: ColumnStatistics, column: pa.Array) -> None:
    numbers = column.cast(pa.float64())
    known = numbers.filter(pc.fill_null(pc.invert(pc.is_nan(numbers)), False))
    statistics.num_rows += len(column)
    statistics.num_present += len(known)
    statistics.num_values += len(known)
    _add_numbers(statistics, values_of(known))


def _known_lengths(lengths: Integers, values: Any, slot: Slot) -> Integers:
    """The lengths of the lists that are not missing."""
    single = np.flatnonzero(lengths == 1)
    if not len(single):
        return lengths
    first = (np.cumsum(lengths) - lengths)[single]
    return np.delete(lengths, single[_missing(values[first], slot)])


def _summarize(statistics: ColumnStatistics, slot: Slot, column: pa.Array, weight: float) -> None:
    """Computes top values or quantiles from the sampled rows, each of which stands for `weight`
    rows.
    """
    values, lengths = _values(column, slot)
    known = values[~_missing(values, slot)]
    num_points = at_most(NUM_POINTS, len(column), ROWS_PER_POINT)
    if slot.kind is SlotKind.ID:
        statistics.top = top_of_rows(known, weight)
    else:
        points = known.astype(np.float64)
        statistics.points = points_of(points, np.full(len(known), weight), num_points)
    if lengths is not None:
        present = _known_lengths(lengths, values, slot).astype(np.float64)
        statistics.lengths = points_of(present, np.full(len(present), weight), num_points)


def _compare(statistics: ColumnStatistics, slot: Slot, column: pa.Array, witness: pa.Array) -> None:
    """Compares the sampled signs with the ones that another hash gives for the same values."""
    signs, others = _values(column, slot)[0], _values(witness, slot)[0]
    if len(signs) != len(others):
        raise OperatorError(
            f"{slot.name} ({slot.op}): {len(column):,} sampled rows gave {len(signs):,} values, "
            f"and {len(others):,} when they were extracted again; expected operators that give a "
            f"row the same values each time"
        )
    present = signs != 0
    statistics.num_signs_checked += statistics.collisions.update(signs[present], others[present])
    statistics.collisions.shorten(at_most(NUM_CHECKED, len(column), ROWS_PER_SIGN))


def _joined(one: tuple[Any, Floats], other: tuple[Any, Floats]) -> tuple[Any, Floats]:
    return np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]])


def _to_row(column: ColumnStatistics) -> tuple[Any, ...]:
    """The values of `SCHEMA`, in its order."""
    signs, distinct = column.collisions, column.distinct
    return (
        *(getattr(column, name) for name in (*_WORDS, *_COUNTS, *_NUMBERS)),
        json.dumps(dict(column.counts), sort_keys=True) if column.counts else "{}",
        np.packbits(distinct.bits).tobytes(),
        distinct.smallest.tobytes(),
        *(b"".join(part.tobytes() for part in getattr(column, name)) for name in _PAIRS),
        signs.signs.tobytes() + signs.witnesses.tobytes(),
        signs.collided.tobytes(),
    )


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
    """Two arrays of equal length, stored one after the other: the first with items of type `item`,
    the second float64. The item sizes are equal.
    """
    half = len(data) // 2
    return np.frombuffer(data[:half], item), np.frombuffer(data[half:], np.float64)
