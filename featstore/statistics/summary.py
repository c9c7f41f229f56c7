"""What is known of a slot over some rows, whether counted exactly or estimated: what profiles show
and comparisons take.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from featstore.base.schema import Slot, SlotKind
from featstore.statistics.column_statistics import ColumnStatistics, Statistics
from featstore.statistics.sketches import Floats, Integers, no_integers, quantiles_of
from featstore.statistics.value_counts import most_frequent

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
LENGTH_QUANTILES = (0.5, 0.9)
# Quantiles of a sample are all within this over the root of its rows of the true ranks, with a
# probability of 95 %: the inequality of Dvoretzky, Kiefer and Wolfowitz, with Massart's constant.
_DKW_95 = float(np.sqrt(np.log(2 / 0.05) / 2))


@dataclass(frozen=True, kw_only=True)
class SlotSummary:
    """What is known of one slot. Errors hold with a probability of 95 %; those of exact figures are
    0.

    Attributes:
        slot: The slot.
        num_rows: All rows.
        num_present: Rows in which the slot is not missing.
        num_values: All values; of lists all elements.
        distinct: The number of different values.
        distinct_error: Its relative error.
        mean: The mean of a float slot's values; None without any.
        min: Their minimum.
        max: Their maximum.
        quantiles: Their quantiles at `QUANTILES`: the least value that so large a share is not
            above.
        rank_error: By how much the share of a quantile may be off.
        length_mean: The mean length of a list slot's lists; None without any.
        length_max: The maximum.
        length_quantiles: The quantiles at `LENGTH_QUANTILES`.
        length_rank_error: By how much their shares may be off.
        values: The most frequent ids, int64 (num,), most frequent first, equal counts ascending.
        counts: Their counts, float64 (num,).
        count_errors: By how much each count may be off, float64 (num,).
        unlisted: The most that an id which is not among `values` can have counted.
        missed: The most that `counts` can be too low, sampling aside.
        sampled: As `ColumnStatistics.sampled`, of `counts` or `points`.
        lists_all: Whether `values` are all ids of the slot, with exact counts.
        points: A float slot's values and their weights, float64 (num_points,) each.
        points_error: The weight by which reducing points may have moved a rank.
        smallest: The smallest hashes of the slot's ids, int64, ascending: of signs themselves.
        bound: All hashes below it are among them.
    """

    slot: Slot
    num_rows: int
    num_present: int
    num_values: int
    distinct: int
    distinct_error: float = 0.0
    mean: float | None = None
    min: float | None = None
    max: float | None = None
    quantiles: list[float] | None = None
    rank_error: float = 0.0
    length_mean: float | None = None
    length_max: int | None = None
    length_quantiles: list[float] | None = None
    length_rank_error: float = 0.0
    values: Integers = field(default_factory=no_integers)
    counts: Floats = field(default_factory=lambda: np.zeros(0))
    count_errors: Floats = field(default_factory=lambda: np.zeros(0))
    unlisted: float = 0.0
    missed: float = 0.0
    sampled: float = 0.0
    lists_all: bool = True
    points: tuple[Floats, Floats] = (np.zeros(0), np.zeros(0))
    points_error: float = 0.0
    smallest: Integers = field(default_factory=no_integers)
    bound: int = 1 << 63

    @property
    def num_missing(self) -> int:
        """The rows without a value."""
        return self.num_rows - self.num_present

    @property
    def total(self) -> int:
        """All values, and the rows without one."""
        return self.num_values + self.num_missing

    @property
    def coverage(self) -> float:
        """The share of rows in which the slot is not missing; 0 without rows."""
        return self.num_present / self.num_rows if self.num_rows else 0.0


def slot_columns(statistics: Statistics, slots: Iterable[Slot]) -> dict[str, ColumnStatistics]:
    """The statistics of slots, by name.

    A slot is matched by its number, so that it may have been renamed since, or by its name if it
    has no number. A slot without statistics is missing in every row.
    """
    known = {column.key: column for column in statistics.columns.values() if column.role == "slot"}
    nothing = {slot.name: ColumnStatistics.of_slot(slot) for slot in slots}
    return {name: known.get(none.key, none) for name, none in nothing.items()}


def label_mean(statistics: Statistics, name: str) -> float | None:
    """The mean of a label; None if no row has it."""
    label = statistics.columns.get(name)
    return label.sum / label.num_numbers if label is not None and label.num_numbers else None


def summarize(statistics: Statistics, slots: Sequence[Slot]) -> dict[str, SlotSummary]:
    """What gathered statistics know of slots, by name; see `slot_columns`."""
    columns = slot_columns(statistics, slots)
    return {slot.name: summary_of(slot, columns[slot.name], statistics.num_rows) for slot in slots}


def summary_of(slot: Slot, column: ColumnStatistics, num_rows: int) -> SlotSummary:
    """What its statistics know of a slot of `num_rows` rows."""
    has_numbers = column.num_numbers > 0
    has_lists = slot.is_list and column.num_present > 0
    exact, top = column.exact, column.top
    if exact is not None:
        ordered = most_frequent(exact, len(exact))
        values, counts = ordered.values, ordered.counts.astype(np.float64)
        errors = np.zeros(len(values))
    else:
        values, counts, errors = top.values, top.counts, top.count_errors(num_rows)
    return SlotSummary(
        slot=slot,
        num_rows=num_rows,
        num_present=column.num_present,
        num_values=column.num_values,
        distinct=len(values) if exact is not None else column.distinct.estimate(),
        distinct_error=0.0 if exact is not None else column.distinct.error(),
        mean=column.sum / column.num_numbers if has_numbers else None,
        min=column.min if has_numbers else None,
        max=column.max if has_numbers else None,
        quantiles=quantiles_of(*column.points, QUANTILES),
        rank_error=_rank_error(column, num_rows, column.points[1], column.points_error),
        length_mean=column.length_sum / column.num_present if has_lists else None,
        length_max=column.length_max if has_lists else None,
        length_quantiles=quantiles_of(*column.lengths, LENGTH_QUANTILES),
        length_rank_error=_rank_error(column, num_rows, column.lengths[1], column.lengths_error),
        values=values,
        counts=counts,
        count_errors=errors,
        unlisted=0.0 if exact is not None else top.unlisted + top.missed,
        missed=0.0 if exact is not None else top.missed,
        sampled=top.sampled if slot.kind is SlotKind.ID else column.sampled,
        lists_all=exact is not None,
        points=column.points,
        points_error=column.points_error,
        smallest=column.distinct.smallest,
        bound=column.distinct.bound,
    )


def _rank_error(column: ColumnStatistics, num_rows: int, weights: Floats, reduced: float) -> float:
    if not len(weights):
        return 0.0
    by_sampling = _DKW_95 * float(np.sqrt(column.sampled)) / max(num_rows, 1)
    return min(1.0, by_sampling + reduced / float(weights.sum()))
