"""Statistics of slots, gathered while data files are written, and merged over files and partitions.

Counts, coverage, means, extremes, and the means and maxima of list lengths are computed from all
rows. So are the counts of every value of an id slot that has few different ones. For other slots
distinct values are sketched, and quantiles and top values are computed from a sample of each file's
rows, see `sampling`; what bounds their errors is kept with them. Sign collisions are looked for in
the sample too, by comparing signs with a second hash of the same values.
"""

import itertools
import json
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.errors import OperatorError
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.ops.arrays import offsets_of, values_of
from featstore.ops.numbers import is_number
from featstore.statistics.sketches import (
    NUM_CHECKED,
    NUM_POINTS,
    ROWS_PER_POINT,
    ROWS_PER_SIGN,
    Collisions,
    Distinct,
    Floats,
    Integers,
    RowSample,
    Top,
    at_most,
    mix,
    points_of,
)
from featstore.statistics.value_counts import ValueCounts, count_each, count_values, merge_counts

# The values of an id slot are counted exactly up to this many different ones. In a
# file of few rows at most one for each `ROWS_PER_EXACT` rows, so that statistics stay smaller than
# the data.
NUM_EXACT, ROWS_PER_EXACT = 1024, 16
# Merged columns hold more points in memory than are stored, so that hundreds of merges do not add
# up their errors.
NUM_MERGED_POINTS = 4096

# Names of attributes of `ColumnStatistics` and of columns of the stored file, by type.
_SUMS = ("num_rows", "num_present", "num_values", "num_numbers", "num_signs_checked", "length_sum")
_COUNTS = (*_SUMS, "length_max")
_NUMBERS = ("sum", "min", "max", "sampled", "points_error", "lengths_error")
_TOP_NUMBERS = ("unlisted", "missed", "sampled")
_BINARIES = ("bits", "smallest", "points", "lengths", "top", "checked", "collided", "exact")
_WORDS = ("column", "role", "number", "kind", "shape")
_PLAIN = operator.attrgetter(*_WORDS, *_COUNTS, *_NUMBERS[:-2])
SCHEMA = pa.schema(
    [(name, pa.int64() if name == "number" else pa.string()) for name in _WORDS]
    + [(name, pa.int64()) for name in _COUNTS]
    + [(name, pa.float64()) for name in _NUMBERS]
    + [(f"top_{name}", pa.float64()) for name in _TOP_NUMBERS]
    + [("counts", pa.string())]
    + [(name, pa.binary()) for name in _BINARIES]
)


_NO_COUNTS, _NO_TOP = count_values(np.zeros(0, np.int64)), Top()


@dataclass(kw_only=True)
class ColumnStatistics:
    """Statistics of one slot, label or history.

    Attributes:
        column: The column's name.
        role: `slot`, `label`, or `history` (`history_statistics`).
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
        sampled: The variance, in rows, that sampling adds to a count of half of the rows, times 4:
            the sum over files of `rows * (rows / sampled rows - 1)`. 0 if all rows were sampled.
        points_error: What reducing points has added to the error of a rank, as a weight.
        lengths_error: The same of `lengths`.
        top: The most frequent ids.
        exact: The counts of all ids, if they are few; else None. Labels and floats have none.
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
    sampled: float = 0.0
    points_error: float = 0.0
    lengths_error: float = 0.0
    top: Top = _NO_TOP
    exact: ValueCounts | None = None

    @classmethod
    def of_slot(cls, slot: Slot) -> "ColumnStatistics":
        """The statistics of no rows of a slot."""
        return cls(
            column=slot.name,
            role="slot",
            number=slot.number,
            kind=str(slot.kind),
            shape=slot.shape_text,
            exact=_NO_COUNTS if slot.kind is SlotKind.ID else None,
        )

    @property
    def key(self) -> tuple[int | None, str]:
        """Identifies a slot by its number, so that it may be renamed, or else a column by name."""
        return self.number, self.column if self.number is None else ""

    def merge(self, other: "ColumnStatistics") -> None:
        """Adds the statistics of other rows of the same column."""
        for name in (*_SUMS, "sum", "sampled", "points_error", "lengths_error"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.counts = add_counts([self.counts, other.counts])
        self.collisions.merge(other.collisions)
        self.length_max = max(self.length_max, other.length_max)
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)
        self.distinct.merge(other.distinct)
        points, lengths = _joined(self.points, other.points), _joined(self.lengths, other.lengths)
        self.points, lost = reduced_points(*points, NUM_MERGED_POINTS)
        self.points_error += lost
        self.lengths, lost = reduced_points(*lengths, NUM_MERGED_POINTS)
        self.lengths_error += lost
        self.top = self.top.merge(other.top)
        counts = [] if self.exact is None or other.exact is None else [self.exact, other.exact]
        self.exact = merge_counts(counts) if counts else None
        if self.exact is not None and len(self.exact) <= NUM_EXACT:
            self.top = Top.of_counts(self.exact)
        else:
            self.exact = None


class StatisticsGatherer:
    """Gathers the statistics of one data file, batch by batch. Not thread-safe.

    Memory: two samples of rows, and 24 KB per slot.
    """

    def __init__(self, schema: SlotSchema) -> None:
        self._slots = schema.slots
        self._labels = [label.name for label in schema.labels if is_number(label.type)]
        self._columns = {slot.name: ColumnStatistics.of_slot(slot) for slot in schema.slots}
        self._columns |= {
            name: ColumnStatistics(
                column=name, role="label", number=None, kind="float", shape="scalar"
            )
            for name in self._labels
        }
        self._sample = RowSample()

    def update(self, batch: pa.RecordBatch) -> None:
        """Adds the next rows, with columns as in the data file: marks for missing values, and nulls
        in slots without marks.
        """
        rows = batch.select([slot.name for slot in self._slots])
        columns = [self._columns[slot.name] for slot in self._slots]
        read = list(map(_values, rows.columns, self._slots))
        is_exact = [statistics.exact is not None for statistics in columns]
        counted = count_each(values for values, _ in itertools.compress(read, is_exact))
        for statistics, slot, values in zip(columns, self._slots, read, strict=True):
            found = None if statistics.exact is None else next(counted)
            statistics.num_rows += batch.num_rows
            _count(statistics, slot, *values, _count_distinct(statistics, slot, values[0], found))
        for name in self._labels:
            _count_label(self._columns[name], batch.column(name))
        self._sample.update(rows)

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
            sample = pa.Table.from_batches(self._sample.batches).combine_chunks()
            # The ratio of rows found, which has no error of its own, and not the one aimed at.
            weight = self._sample.num_rows_seen / max(1, len(sample))
            columns = (column for batch in sample.to_batches() for column in batch.columns)
            for slot, column in zip(self._slots, columns, strict=False):
                _summarize(self._columns[slot.name], slot, column, weight)
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
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(sorted(total.items()))


def _values(column: pa.Array, slot: Slot) -> tuple[Any, Integers | None]:
    """The column's values (num_values,), marks of missing ones included, and for lists their
    lengths (num_rows,), else None. Nulls are left out.
    """
    if not slot.has_marks:
        return _without_nulls(column.drop_null(), slot)
    if not slot.shape:
        return values_of(column), None
    lengths = np.diff(offsets_of(column)) if slot.width is None else None
    return values_of(column.flatten()), lengths


def _without_nulls(column: pa.Array, slot: Slot) -> tuple[Any, Integers | None]:
    if not slot.shape:
        return values_of(column), None
    elements = column.flatten()
    if slot.width is not None:
        return values_of(elements.fill_null(slot.missing)), None
    return values_of(elements.drop_null()), np.diff(offsets_of(column))


def _missing(values: Any, slot: Slot) -> Any:
    if not slot.has_marks:
        return np.zeros(len(values), np.bool_)
    return values == 0 if slot.kind is SlotKind.ID else np.isnan(values)


def _count(
    statistics: ColumnStatistics,
    slot: Slot,
    values: Any,
    lengths: Integers | None,
    num_missing: int,
) -> None:
    """Counts the values of some rows, `num_missing` of which are marks."""
    # Most columns of a batch have no missing values: then no mask is made.
    missing = _missing(values, slot) if num_missing else None
    present = len(values) // (slot.width or 1)
    if lengths is not None:
        known_lengths = lengths if missing is None else _known_lengths(lengths, missing)
        present = len(known_lengths)
        statistics.length_sum += int(known_lengths.sum())
        statistics.length_max = max(statistics.length_max, int(known_lengths.max(initial=0)))
    elif slot.width is None:
        present -= num_missing
    elif missing is not None:
        # A row of fixed width is missing if all its values are marks.
        present -= int(missing.reshape(-1, slot.width).all(axis=1).sum())
    statistics.num_present += present
    statistics.num_values += len(values) - num_missing
    if slot.kind is SlotKind.FLOAT:
        _add_numbers(
            statistics, (values if missing is None else values[~missing]).astype(np.float64)
        )


def _count_distinct(
    statistics: ColumnStatistics, slot: Slot, values: Any, found: ValueCounts | None
) -> int:
    """Counts the values, exactly while they are few, and else in the sketch.

    Args:
        statistics: Those to add them to.
        slot: Their slot.
        values: The values, marks included.
        found: Their counts; None if they are not counted exactly any more.

    Returns:
        The number of marks of missing values.
    """
    # Signs and bits of floats go to the kernel.
    if found is None and (slot.kind is SlotKind.FLOAT or slot.holds_signs):
        return statistics.distinct.update(values)
    num_missing = len(values) - int(np.count_nonzero(values)) if slot.has_marks else 0
    if found is None:
        statistics.distinct.update(_hashes(slot, values[values != 0] if num_missing else values))
        return num_missing
    if num_missing:
        found = found[found.values != 0]
    statistics.exact = merge_counts([statistics.exact, found]) if statistics.exact else found
    if len(statistics.exact) > NUM_EXACT:
        statistics.distinct.update(_hashes(slot, statistics.exact.values))
        statistics.exact = None
    return num_missing


def _hashes(slot: Slot, ids: Integers) -> Integers:
    """Signs are hashes already. Others are small numbers, which must be hashed."""
    return ids if slot.holds_signs else mix(ids)


def _add_numbers(statistics: ColumnStatistics, known: Floats) -> None:
    if len(known):
        statistics.num_numbers += len(known)
        statistics.sum += float(known.sum())
        statistics.min = min(statistics.min, float(known.min()))
        statistics.max = max(statistics.max, float(known.max()))


def _count_label(statistics: ColumnStatistics, column: pa.Array) -> None:
    numbers = column.cast(pa.float64())
    known = numbers.filter(pc.fill_null(pc.invert(pc.is_nan(numbers)), False))
    statistics.num_rows += len(column)
    statistics.num_present += len(known)
    statistics.num_values += len(known)
    _add_numbers(statistics, values_of(known))


def _known_lengths(lengths: Integers, missing: Any) -> Integers:
    """The lengths of the lists that are not missing. A list is missing if it is a single mark."""
    single = np.flatnonzero(lengths == 1)
    # Where the value of each of these begins among the values of all lists.
    first = (np.cumsum(lengths) - lengths)[single]
    return np.delete(lengths, single[missing[first]])


def _summarize(statistics: ColumnStatistics, slot: Slot, column: pa.Array, weight: float) -> None:
    """Computes top values and quantiles: of exact counts where there are any, and else of the
    sampled rows, each of which stands for `weight` rows.
    """
    statistics.sampled = statistics.num_rows * (weight - 1.0)
    values, lengths = _values(column, slot)
    num_points = at_most(NUM_POINTS, len(column), ROWS_PER_POINT)
    if statistics.exact is not None:
        # Fills the sketch and the top values, which merging with other files may need.
        statistics.distinct.update(_hashes(slot, statistics.exact.values))
        statistics.top = Top.of_counts(statistics.exact)
        if len(statistics.exact) > at_most(NUM_EXACT, statistics.num_rows, ROWS_PER_EXACT):
            statistics.exact = None
    elif slot.kind is SlotKind.ID:
        counts = count_values(values[~_missing(values, slot)])
        statistics.top = Top.of_counts(counts, weight, sampled=statistics.sampled)
    else:
        # Sorting alone is faster than sorting with the order, which is then that of the points.
        points = np.sort(values[~np.isnan(values)].astype(np.float64))
        statistics.points, statistics.points_error = reduced_points(
            points, np.full(len(points), weight), num_points
        )
    if lengths is not None:
        if slot.has_marks:
            lengths = _known_lengths(lengths, _missing(values, slot))
        known_lengths = lengths.astype(np.float64)
        statistics.lengths, statistics.lengths_error = reduced_points(
            known_lengths, np.full(len(known_lengths), weight), num_points
        )


def reduced_points(
    values: Floats, weights: Floats, num_points: int
) -> tuple[tuple[Floats, Floats], float]:
    """The values as at most `num_points` points, and the weight by which a rank may then be off."""
    if not len(values):
        return (values, weights), 0.0
    points = points_of(values, weights, num_points)
    lost = float(weights.sum()) / (2 * num_points) if len(values) > num_points else 0.0
    return points, lost


def _compare(statistics: ColumnStatistics, slot: Slot, column: pa.Array, witness: pa.Array) -> None:
    """Compares the sampled signs with the ones that another hash gives for the same values."""
    signs, others = _values(column, slot)[0], _values(witness, slot)[0]
    if len(signs) != len(others):
        raise OperatorError(
            f"{slot.name} ({slot.op}): {len(column):,} sampled rows gave {len(signs):,} values, "
            f"and {len(others):,} when they were extracted again; expected operators that give a "
            f"row the same values each time"
        )
    if np.count_nonzero(signs) < len(signs):
        present = signs != 0
        signs, others = signs[present], others[present]
    statistics.num_signs_checked += statistics.collisions.update(signs, others)
    statistics.collisions.shorten(at_most(NUM_CHECKED, len(column), ROWS_PER_SIGN))


def _joined(one: tuple[Any, Floats], other: tuple[Any, Floats]) -> tuple[Any, Floats]:
    return np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]])


def _to_row(column: ColumnStatistics) -> tuple[Any, ...]:
    """The values of `SCHEMA`, in its order."""
    signs, distinct, top, exact = (
        column.collisions,
        column.distinct,
        column.top,
        column.exact,
    )
    points, points_lost = reduced_points(*column.points, NUM_POINTS)
    lengths, lengths_lost = reduced_points(*column.lengths, NUM_POINTS)
    return (
        *_PLAIN(column),
        column.points_error + points_lost,
        column.lengths_error + lengths_lost,
        *(top.unlisted, top.missed, top.sampled),
        json.dumps(dict(column.counts), sort_keys=True) if column.counts else "{}",
        np.packbits(distinct.bits).tobytes(),
        distinct.smallest.tobytes(),
        *(_bytes(pair) for pair in (points, lengths, (top.values, top.counts))),
        signs.signs.tobytes() + signs.witnesses.tobytes(),
        signs.collided.tobytes(),
        None if exact is None else _bytes((exact.values, exact.counts)),
    )


def _from_row(row: Mapping[str, Any]) -> ColumnStatistics:
    bits = np.unpackbits(np.frombuffer(row["bits"], np.uint8)).astype(np.bool_)
    checked = np.frombuffer(row["checked"], np.int64).reshape(2, -1)
    top_values, top_counts = _pair(row["top"], np.int64)
    return ColumnStatistics(
        **{name: row[name] for name in (*_WORDS, *_COUNTS, *_NUMBERS)},
        counts=json.loads(row["counts"]),
        distinct=Distinct(bits, np.frombuffer(row["smallest"], np.int64)),
        collisions=Collisions(checked[0], checked[1], np.frombuffer(row["collided"], np.int64)),
        points=_pair(row["points"], np.float64),
        lengths=_pair(row["lengths"], np.float64),
        top=Top(
            values=top_values,
            counts=top_counts,
            **{name: row[f"top_{name}"] for name in _TOP_NUMBERS},
        ),
        exact=None if row["exact"] is None else _exact(row["exact"]),
    )


def _exact(data: bytes) -> ValueCounts:
    values, counts = np.frombuffer(data, np.int64).reshape(2, -1)
    return ValueCounts(values=values, counts=counts, sums=np.zeros((0, len(values))))


def _bytes(arrays: tuple[Any, Any]) -> bytes:
    return bytes(arrays[0].tobytes() + arrays[1].tobytes())


def _pair(data: bytes, item: Any) -> Any:
    """Two arrays of equal length, stored one after the other: the first with items of type `item`,
    the second float64. The item sizes are equal.
    """
    half = len(data) // 2
    return np.frombuffer(data[:half], item), np.frombuffer(data[half:], np.float64)
