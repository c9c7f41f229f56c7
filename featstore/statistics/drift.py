"""How far a column moved between two sets of rows, from their statistics.

Pure functions. The rows are taken for random ones of a distribution, and statistics may know a
sample of them, so the result comes with the error that both may have caused.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featstore.base.schema import SlotKind
from featstore.statistics.column_statistics import ColumnStatistics
from featstore.statistics.measures import jensen_shannon, psi
from featstore.statistics.sketches import Floats, Integers, quantiles_of

NUM_BINS = 10  # of numbers: the deciles of the rows before
NUM_ERRORS = 3.0  # the error is so many standard errors, beside what chance adds on average
_DECILES = tuple((i + 1) / NUM_BINS for i in range(NUM_BINS - 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Distribution:
    """The rows of one column, by their values.

    Attributes:
        kind: The slot kind.
        values: The listed signs, int64, ascending, or numbers, float64.
        counts: How often each occurs, float64; maybe estimated from sampled rows.
        last: How often a value that is not listed may occur; 0 if all are listed.
        missed: By how much the counts of listed values may be too low.
        num_rows: The number of all rows.
        num_values: The number of all values.
        num_missing: The number of rows without a value.
        sampled: What sampling adds to the variance of counts, as `ColumnStatistics.sampled`.
        rank_error: By how much reducing numbers to points may shift a rank, as a weight.
    """

    kind: str
    values: NDArray[Any]
    counts: Floats
    last: float
    missed: float = 0.0
    num_rows: int
    num_values: int
    num_missing: int
    sampled: float
    rank_error: float

    @property
    def total(self) -> int:
        """All values, and the rows without one."""
        return self.num_values + self.num_missing


class DriftMethod(enum.StrEnum):
    """Over which cells drift was computed.

    `EXACT`: over all ids. `AT_LEAST`: over the ids that are listed, and all others as one; the
    others may have drifted more. `BINS`: over bins of numbers.
    """

    EXACT = "exact"
    AT_LEAST = "at least"
    BINS = "bins"


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far a column moved.

    Attributes:
        index: The population stability index.
        error: How much of it chance may have made.
        jensen_shannon: The Jensen-Shannon divergence in bits, over the same cells.
        method: What the cells are.
    """

    index: float
    error: float
    jensen_shannon: float
    method: DriftMethod


def distribution_of(column: ColumnStatistics) -> Distribution:
    """The distribution of a slot's values: its signs or the frequent ones, or points of numbers."""
    values: NDArray[Any]
    if column.kind == SlotKind.FLOAT:
        values, counts = column.points
        last, missed, sampled = 0.0, 0.0, column.sampled
    elif column.exact is not None:
        values, counts = column.exact.values, column.exact.counts.astype(np.float64)
        last, missed, sampled = 0.0, 0.0, 0.0
    else:
        order = np.argsort(column.top.values)
        values, counts = column.top.values[order], column.top.counts[order]
        missed, sampled = column.top.missed, column.top.sampled
        last = column.top.unlisted + missed
    return Distribution(
        kind=column.kind,
        values=values,
        counts=counts,
        last=last,
        missed=missed,
        num_rows=column.num_rows,
        num_values=column.num_values,
        num_missing=column.num_rows - column.num_present,
        sampled=sampled,
        rank_error=column.points_error,
    )


def drift(before: Sequence[Distribution], after: Distribution) -> Drift | None:
    """The drift between the rows of some parts before and of one after.

    The cells are the signs that a part lists, or the deciles of the numbers before; all other signs
    together; and the missing rows. Of a sign that a part does not list only an upper bound of its
    count is known: the least drift is taken that the bounds allow.

    Returns:
        The drift. None if either side has no rows.
    """
    parts = [part for part in before if part.total]
    if not parts or not after.total:
        return None
    shares = _numbers(parts, after) if after.kind == SlotKind.FLOAT else _signs(parts, after)
    spread_before, spread_after = _spread(parts), _spread([after])
    expected, actual = shares[0] / spread_before, shares[1] / spread_after
    index, divergence = psi(expected, actual), jensen_shannon(*shares)
    if index is None or divergence is None:
        return None
    return Drift(
        index=index,
        error=_error(expected, actual, spread_before, spread_after),
        jensen_shannon=divergence,
        method=_method([*parts, after]),
    )


def _method(parts: Sequence[Distribution]) -> DriftMethod:
    if parts[-1].kind == SlotKind.FLOAT:
        return DriftMethod.BINS
    knows_all = not any(part.last or part.sampled for part in parts)
    return DriftMethod.EXACT if knows_all else DriftMethod.AT_LEAST


def _spread(parts: Sequence[Distribution]) -> float:
    """One over the number of random rows whose shares are known as well as those of the parts: the
    variance of a share `p` is `p (1 - p)` times this.
    """
    num_rows = sum(part.num_rows for part in parts)
    total = sum(part.total for part in parts)
    by_sample = sum(part.sampled for part in parts) / (num_rows * total)
    # Both ends of a bin may be off; compared with the standard error of a share of a decile.
    off = 2 * sum(part.rank_error for part in parts) / total
    decile = (1 - 1 / NUM_BINS) / NUM_BINS
    return 1 / num_rows + by_sample + off**2 / decile


def _signs(parts: Sequence[Distribution], after: Distribution) -> tuple[Floats, Floats]:
    """The shares of each listed sign, of the others, and of missing rows: before and after."""
    signs = np.unique(np.concatenate([part.values for part in (*parts, after)]))
    low, high = _bounds(parts, signs)
    after_low, after_high = _bounds([after], signs)
    # Where the bounds overlap the share may be the same; else their nearest ends are taken.
    same = np.maximum(low, after_low)
    expected = np.where(low > after_high, low, np.minimum(high, same))
    actual = np.where(after_low > high, after_low, np.minimum(after_high, same))
    return _with_rest(expected, parts), _with_rest(actual, [after])


def _bounds(parts: Sequence[Distribution], signs: Integers) -> tuple[Floats, Floats]:
    """The least and the greatest share that each sign may have in the parts together."""
    low, more = np.zeros(len(signs)), np.zeros(len(signs))
    for part in parts:
        places = np.searchsorted(signs, part.values)
        low[places] += part.counts
        more += part.last
        more[places] -= part.last - part.missed
    total = sum(part.total for part in parts)
    return low / total, (low + more) / total


def _numbers(parts: Sequence[Distribution], after: Distribution) -> tuple[Floats, ...]:
    """The shares of each decile of the numbers before, and of missing rows: before and after."""
    values = np.concatenate([part.values for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    edges = np.unique(quantiles_of(values, counts, _DECILES) or [])
    return tuple(
        _with_rest(_binned(edges, side) / sum(part.total for part in side), side)
        for side in (parts, [after])
    )


def _binned(edges: Floats, parts: Sequence[Distribution]) -> Floats:
    """The number of values in each bin. Weights of points add up to the numbers of values."""
    counts = np.zeros(len(edges) + 1)
    for part in parts:
        bins = np.searchsorted(edges, part.values, side="right")
        found = np.bincount(bins, part.counts, len(counts))
        counts += found * (part.num_values / max(found.sum(), 1.0))
    return counts


def _with_rest(shares: Floats, parts: Sequence[Distribution]) -> Floats:
    """The shares, then that of all other values, then that of missing rows."""
    total = sum(part.total for part in parts)
    missing = sum(part.num_missing for part in parts) / total
    # Counts are estimates, and may add up to more than there is.
    rest = max(0.0, 1.0 - missing - float(shares.sum())) if any(p.last for p in parts) else 0.0
    return np.append(shares, [rest, missing])


def _error(expected: Floats, actual: Floats, spread_before: float, spread_after: float) -> float:
    """What chance adds to the index on average, and `NUM_ERRORS` standard errors.

    The standard error is that of the delta method, for two multinomial samples, and that of the
    chi-squared distribution that the index has where nothing moved (B. Yurdakul and J. Naranjo,
    2020), which the delta method sees as 0.
    """
    seen = (expected > 0) | (actual > 0)
    num_cells, spread = int(seen.sum()), spread_before + spread_after
    e, a = ((side[seen] + 0.5) / (side.sum() + 0.5 * num_cells) for side in (expected, actual))
    by_after, by_before = np.log(a / e) + 1 - e / a, np.log(e / a) + 1 - a / e
    variance = _variance(a, by_after) * spread_after + _variance(e, by_before) * spread_before
    variance += 2 * (num_cells - 1) * spread**2
    return (num_cells - 1) * spread + NUM_ERRORS * float(np.sqrt(variance))


def _variance(shares: Floats, slopes: Floats) -> float:
    return float(max(0.0, np.sum(shares * slopes**2) - np.sum(shares * slopes) ** 2))
