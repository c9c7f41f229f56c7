"""Profiles counted from rows: exact, in one pass, in bounded memory. And profiles of statistics:
those stored with the data, and those that Spark gathered.

The values of every slot are counted one by one (`value_counter`). All figures of a slot follow from
its counts in ascending order of the values.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featstore.base.schema import Slot, SlotKind
from featstore.explore.profile import NUM_TOP, Profile, result_table
from featstore.explore.value_counter import BUDGET_BYTES, CountingSpace, ValueCounter
from featstore.extraction.units.findings import FILLED, NULLS_DROPPED, TEXT_ERRORS
from featstore.ops.arrays import values_of
from featstore.reading.buffers import as_float32
from featstore.statistics.column_statistics import NUM_MERGED_POINTS, ColumnStatistics, Statistics
from featstore.statistics.sketches import NUM_SMALLEST, Floats, Integers, mix
from featstore.statistics.summary import (
    LENGTH_QUANTILES,
    QUANTILES,
    SlotSummary,
    label_mean,
    slot_columns,
    summarize,
)
from featstore.statistics.value_counts import ValueCounts, merge_counts, most_frequent

# The most frequent values that are kept for comparisons, 100 KB for each slot. Drift over more of
# them is mostly chance: `docs/design/statistics.md`.
NUM_LISTED = 4096
SOURCE = "from the rows: exact"


def profile_rows(
    batches: Iterable[pa.RecordBatch],
    slots: Sequence[Slot],
    labels: Sequence[str] = (),
    *,
    budget_bytes: int = BUDGET_BYTES,
) -> Profile:
    """Profiles rows.

    Args:
        batches: The rows as batches with the columns of `slots` and `labels`, by name, and missing
            values as null.
        slots: The slots to profile.
        labels: Columns of numbers or booleans.
        budget_bytes: The memory that counts may take. What exceeds it is sorted to a temporary
            file.

    Raises:
        DiskFullError: The disk of temporary files is full.
    """
    with CountingSpace(budget_bytes) as space:
        counted = [_SlotCounts(space, slot, len(labels)) for slot in slots]
        num_rows, totals = 0, np.zeros((2, len(labels)))
        for batch in batches:
            num_rows += batch.num_rows
            weights = [_label(batch.column(name)) for name in labels]
            totals += np.array([[w.sum() for w in pair] for pair in weights]).reshape(-1, 2).T
            for one in counted:
                one.add(batch.column(one.slot.name), weights)
        found = [one.finish(num_rows) for one in counted]
    rates = {
        name: total / known if known else None
        for name, total, known in zip(labels, *totals.tolist(), strict=True)
    }
    summaries = {summary.slot.name: summary for summary, _ in found}
    tops = {summary.slot.name: _rates(top, labels) for summary, top in found}
    return Profile(
        num_rows=num_rows,
        label_rates=rates,
        table=result_table(summaries.values(), labels, label_rates=tops),
        source=SOURCE,
        summaries=summaries,
    )


def known_values(slot: Slot, column: pa.Array) -> tuple[NDArray[Any], NDArray[np.intp] | None]:
    """The values of a column that are not missing.

    Returns:
        The values, int64 or floats (num_values,), and the row of each; None if every row has one.
    """
    rows = None
    if column.type == pa.float64():
        column = as_float32(column)
    if column.null_count:
        rows = np.flatnonzero(values_of(pc.is_valid(column)))
        column = column.drop_null()
    if slot.shape:
        parents = values_of(pc.list_parent_indices(column).cast(pa.int64()))
        rows = parents if rows is None else rows[parents]
        column = pc.list_flatten(column)
        if column.null_count:
            rows = rows[values_of(pc.is_valid(column))]
            column = column.drop_null()
    if slot.kind is SlotKind.ID:
        return values_of(column.cast(pa.int64(), safe=False)), rows
    values = values_of(column).astype(np.float32, copy=False)
    known = ~np.isnan(values)
    if not known.all():
        rows = np.flatnonzero(known) if rows is None else rows[known]
        values = values[known]
    return values, rows


def label_numbers(column: pa.Array) -> Floats:
    """A label's value in each row, float64 (num_rows,), NaN where it is unknown."""
    return values_of(pc.fill_null(column.cast(pa.float64()), float("nan")))


def _label(column: pa.Array) -> tuple[Floats, Floats]:
    """A label's value in each row, 0 where it is unknown, and 1 where it is known, else 0."""
    values = label_numbers(column)
    known = ~np.isnan(values)
    return np.where(known, values, 0.0), known.astype(np.float64)


def _rates(top: ValueCounts, labels: Sequence[str]) -> list[dict[str, float | None]]:
    """The means of labels by value. The sums of a label and of its known rows alternate."""
    return [
        {
            name: float(sums[2 * i] / sums[2 * i + 1]) if sums[2 * i + 1] else None
            for i, name in enumerate(labels)
        }
        for sums in top.sums.T
    ]


class _SlotCounts:
    """The counts of one slot's values, and of a list slot's lengths."""

    def __init__(self, space: CountingSpace, slot: Slot, num_labels: int) -> None:
        self.slot = slot
        is_id = slot.kind is SlotKind.ID
        # Labels are averaged by id only.
        self._num_weights = 2 * num_labels if is_id else 0
        self._values = ValueCounter(space, np.int64 if is_id else np.float32, self._num_weights)
        self._lengths = ValueCounter(space, np.int64) if slot.is_list else None
        self._num_present = 0

    def add(self, column: pa.Array, labels: Sequence[tuple[Floats, Floats]]) -> None:
        """Counts the next rows."""
        values, rows = known_values(self.slot, column)
        self._num_present += len(column) - column.null_count if self.slot.shape else len(values)
        weights = [weight for pair in labels for weight in pair] if self._num_weights else []
        self._values.add(values, [weight if rows is None else weight[rows] for weight in weights])
        if self._lengths is not None:
            lengths = pc.list_value_length(column).drop_null().cast(pa.int64())
            self._lengths.add(values_of(lengths))

    def finish(self, num_rows: int) -> tuple[SlotSummary, ValueCounts]:
        """The summary, and the counts of the top values."""
        is_id = self.slot.kind is SlotKind.ID
        points = (np.arange(NUM_MERGED_POINTS) + 0.5) / NUM_MERGED_POINTS
        shares = () if is_id else (*QUANTILES, *points)
        found = _ordered(self._values, shares, not self.slot.holds_signs)
        lengths = (
            _ordered(self._lengths, LENGTH_QUANTILES)
            if self._lengths is not None and self._lengths.num_values
            else None
        )
        has_numbers = not is_id and found.num_values > 0
        weight = found.num_values / NUM_MERGED_POINTS
        summary = SlotSummary(
            slot=self.slot,
            num_rows=num_rows,
            num_present=self._num_present,
            num_values=found.num_values,
            distinct=found.distinct,
            mean=found.mean if has_numbers else None,
            min=found.min if has_numbers else None,
            max=found.max if has_numbers else None,
            quantiles=found.quantiles[: len(QUANTILES)] if has_numbers else None,
            length_mean=lengths.mean if lengths is not None else None,
            length_max=int(lengths.max) if lengths is not None else None,
            length_quantiles=lengths.quantiles if lengths is not None else None,
            values=found.top.values if is_id else np.zeros(0, np.int64),
            counts=found.top.counts.astype(np.float64) if is_id else np.zeros(0),
            count_errors=np.zeros(len(found.top) if is_id else 0),
            unlisted=float(found.top.counts[-1]) if is_id and found.distinct > NUM_LISTED else 0.0,
            lists_all=is_id and found.distinct <= NUM_LISTED,
            points=(
                np.array(found.quantiles[len(QUANTILES) :]),
                np.full(NUM_MERGED_POINTS if has_numbers else 0, weight),
            ),
            points_error=weight / 2 if has_numbers else 0.0,
            smallest=found.smallest,
            bound=found.bound,
        )
        return summary, found.top[:NUM_TOP] if is_id else found.top[:0]


@dataclass(frozen=True, kw_only=True)
class _Ordered:
    """What the counts of ascending values give in one pass."""

    num_values: int
    distinct: int
    mean: float
    min: float
    max: float
    quantiles: list[float]
    top: ValueCounts
    smallest: Integers
    bound: int


def _ordered(counter: ValueCounter, shares: Sequence[float], hashed: bool = False) -> _Ordered:
    """Reads all counts of a counter once.

    Args:
        counter: The counter.
        shares: The shares of the quantiles, which may be in any order.
        hashed: Whether the smallest hashes are those of the values, and not the values themselves.
    """
    # A quantile is the least value that the share is not above.
    ranks = np.maximum(1, np.ceil(np.array(shares) * counter.num_values)).astype(np.int64)
    quantiles = np.zeros(len(ranks))
    distinct, before, total, top = 0, 0, 0.0, counter.none
    low, high, smallest = np.inf, -np.inf, np.zeros(0, np.int64)
    for part in counter.merged():
        if not len(part):
            continue
        distinct += len(part)
        low, high = min(low, float(part.values[0])), float(part.values[-1])
        ends = before + np.cumsum(part.counts)
        inside = (ranks > before) & (ranks <= ends[-1])
        quantiles[inside] = part.values[np.searchsorted(ends, ranks[inside])]
        before = int(ends[-1])
        total += float(np.dot(part.values.astype(np.float64), part.counts))
        if part.values.dtype == np.int64:
            hashes = np.sort(mix(part.values)) if hashed else part.values
            smallest = np.sort(np.concatenate([smallest, hashes[:NUM_SMALLEST]]))[:NUM_SMALLEST]
            top = most_frequent(merge_counts([top, most_frequent(part, NUM_LISTED)]), NUM_LISTED)
    return _Ordered(
        num_values=before,
        distinct=distinct,
        mean=total / before if before else 0.0,
        min=low,
        max=high,
        quantiles=quantiles.tolist() if before else [],
        top=top,
        smallest=smallest,
        bound=int(smallest[-1]) + 1 if len(smallest) == NUM_SMALLEST else 1 << 63,
    )


_METHOD = (
    "exact where no ± (95 %), ≈ or ≥ is shown; distinct values by sketches, top values and "
    "quantiles by samples of rows"
)
_STORED = f"from stored statistics: {_METHOD}"
_ROWS = f"from the rows, on Spark: {_METHOD}"


def rows_profile(statistics: Statistics, slots: Sequence[Slot], labels: Sequence[str]) -> Profile:
    """The profile of statistics gathered from a table's rows, in which the counts of extraction are
    unknown and null.
    """
    return replace(stored_profile(statistics, None, slots, labels), source=_ROWS)


def stored_profile(
    statistics: Statistics,
    counts: Mapping[str, int] | None,
    slots: Sequence[Slot],
    labels: Sequence[str],
) -> Profile:
    """The profile of statistics that were stored with the data.

    Label rates of top values are unknown and null. A slot is matched by its number, so that it may
    have been renamed since, or by its name if it has no number. A slot without statistics is
    missing in every row.

    Args:
        statistics: The merged statistics of the partitions.
        counts: The merged counts of extraction; None if they, and those of the slots, are unknown.
        slots: The slots of the profile.
        labels: The labels whose rates are given.
    """
    num_rows = statistics.num_rows
    summaries = summarize(statistics, slots)
    columns = slot_columns(statistics, slots)
    extraction = {
        slot.name: _extraction_counts(slot, columns[slot.name], num_rows)
        for slot in slots
        if counts is not None
    }
    return Profile(
        num_rows=num_rows,
        label_rates={name: label_mean(statistics, name) for name in labels},
        table=result_table(summaries.values(), labels, extraction=extraction),
        source=_STORED,
        counts=counts or {},
        summaries=summaries,
    )


def with_counted(stored: Profile, counted: Profile, slots: Sequence[str]) -> Profile:
    """The profile of statistics, and of other slots of the same rows that were counted, as one.

    Args:
        stored: The profile of statistics.
        counted: The profile of the rows. Its label rates count, since groups may hold labels.
        slots: The names of the slots, in order.
    """
    table = pa.concat_tables([stored.table, counted.table])
    places = {name: i for i, name in enumerate(table["slot"].to_pylist())}
    summaries = {**stored.summaries, **counted.summaries}
    return replace(
        stored,
        label_rates=counted.label_rates,
        table=table.take([places[name] for name in slots]).combine_chunks(),
        source=f"{stored.source}; slots of slot groups, and labels, {counted.source}",
        summaries={name: summaries[name] for name in slots},
    )


def _extraction_counts(slot: Slot, column: ColumnStatistics, num_rows: int) -> dict[str, Any]:
    signs = slot.holds_signs
    return {
        "default_rate": column.counts.get(FILLED, 0) / num_rows if num_rows else 0.0,
        "num_nulls_dropped": sum(column.counts.get(name, 0) for name in NULLS_DROPPED),
        "num_text_errors": sum(column.counts.get(name, 0) for name in TEXT_ERRORS),
        "num_sign_collisions": len(column.collisions.collided) if signs else None,
        "num_signs_checked": column.num_signs_checked if signs else None,
    }
