"""How far a slot moved between two sets of rows, from what is known of it.

Pure functions. Both sides are `SlotSummary`s: of stored statistics, or of counted rows, or one of
each. The rows are taken for random ones of a distribution, and statistics may know a sample of
them, so drift comes with the error that both may have caused.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from featstore.base.errors import InputError
from featstore.base.schema import SlotKind
from featstore.statistics.measures import jensen_shannon, psi, share_of_new, wilson
from featstore.statistics.sketches import Floats, Integers, quantiles_of
from featstore.statistics.summary import SlotSummary

NUM_BINS = 10  # of numbers: the deciles of the rows before
DEPENDENT = "rows of one user are not independent, so chance may do more than is said"
NUM_ERRORS = 3.0  # the error, in standard errors, beside what chance adds on average
_MOST_POINTS = 4096  # quantiles of counted rows: so many tell the shares of bins to three digits
_DECILES = tuple((i + 1) / NUM_BINS for i in range(NUM_BINS - 1))


class DriftMethod(enum.StrEnum):
    """Over which cells drift was computed.

    `EXACT`: over all ids. `AT_LEAST`: over the ids that are listed, and all others as one; the
    others may have drifted more. `BINS`: over bins of numbers. `ESTIMATED_BINS`: over such bins,
    whose shares are estimated from a sample, or from few quantiles.
    """

    EXACT = "exact"
    AT_LEAST = "at least"
    BINS = "bins"
    ESTIMATED_BINS = "estimated bins"


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


def drift(before: Sequence[SlotSummary], after: SlotSummary) -> Drift | None:
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
    shares = _numbers(parts, after) if after.slot.kind is SlotKind.FLOAT else _signs(parts, after)
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


def shares_differ(before: float, after: float, num_before: int, num_after: int) -> bool:
    """Whether two shares of so many rows differ by more than `NUM_ERRORS` standard errors."""
    if not num_before or not num_after:
        return False
    pooled = (before * num_before + after * num_after) / (num_before + num_after)
    variance = pooled * (1 - pooled) * (1 / num_before + 1 / num_after)
    return abs(after - before) > NUM_ERRORS * float(np.sqrt(max(variance, 0.0)))


def _method(parts: Sequence[SlotSummary]) -> DriftMethod:
    if parts[-1].slot.kind is SlotKind.FLOAT:
        off = any(one.sampled or one.points_error > one.num_values / _MOST_POINTS for one in parts)
        return DriftMethod.ESTIMATED_BINS if off else DriftMethod.BINS
    knows_all = not any(part.unlisted or part.sampled for part in parts)
    return DriftMethod.EXACT if knows_all else DriftMethod.AT_LEAST


def _spread(parts: Sequence[SlotSummary]) -> float:
    """One over the number of random rows whose shares are known as well as those of the parts: the
    variance of a share `p` is `p (1 - p)` times this.
    """
    num_rows = sum(part.num_rows for part in parts)
    total = sum(part.total for part in parts)
    by_sample = sum(part.sampled for part in parts) / (num_rows * total)
    # Both ends of a bin may be off; compared with the standard error of a share of a decile.
    off = 2 * sum(part.points_error for part in parts) / total
    decile = (1 - 1 / NUM_BINS) / NUM_BINS
    return 1 / num_rows + by_sample + off**2 / decile


def _signs(parts: Sequence[SlotSummary], after: SlotSummary) -> tuple[Floats, Floats]:
    """The shares of each listed sign, of the others, and of missing rows: before and after."""
    signs = np.unique(np.concatenate([part.values for part in (*parts, after)]))
    low, high = _bounds(parts, signs)
    after_low, after_high = _bounds([after], signs)
    # Where the bounds overlap the share may be the same; else their nearest ends are taken.
    same = np.maximum(low, after_low)
    expected = np.where(low > after_high, low, np.minimum(high, same))
    actual = np.where(after_low > high, after_low, np.minimum(after_high, same))
    return _with_rest(expected, parts), _with_rest(actual, [after])


def _bounds(parts: Sequence[SlotSummary], signs: Integers) -> tuple[Floats, Floats]:
    """The least and the greatest share that each sign may have in the parts together."""
    low, more = np.zeros(len(signs)), np.zeros(len(signs))
    for part in parts:
        places = np.searchsorted(signs, part.values)
        low[places] += part.counts
        more += part.unlisted
        more[places] -= part.unlisted - part.missed
    total = sum(part.total for part in parts)
    return low / total, (low + more) / total


def _numbers(parts: Sequence[SlotSummary], after: SlotSummary) -> tuple[Floats, ...]:
    """The shares of each decile of the numbers before, and of missing rows: before and after."""
    values = np.concatenate([part.points[0] for part in parts])
    weights = np.concatenate([part.points[1] for part in parts])
    edges = np.unique(quantiles_of(values, weights, _DECILES) or [])
    return tuple(
        _with_rest(_binned(edges, side) / sum(part.total for part in side), side)
        for side in (parts, [after])
    )


def _binned(edges: Floats, parts: Sequence[SlotSummary]) -> Floats:
    """The number of values in each bin. Weights of points add up to the numbers of values."""
    counts = np.zeros(len(edges) + 1)
    for part in parts:
        values, weights = part.points
        bins = np.searchsorted(edges, values, side="right")
        found = np.bincount(bins, weights, len(counts))
        counts += found * (part.num_values / max(found.sum(), 1.0))
    return counts


def _with_rest(shares: Floats, parts: Sequence[SlotSummary]) -> Floats:
    """The shares, then that of all other values, then that of missing rows."""
    total = sum(part.total for part in parts)
    missing = sum(part.num_missing for part in parts) / total
    # Counts are estimates, and may add up to more than there is.
    rest = (
        max(0.0, 1.0 - missing - float(shares.sum()))
        if any(part.unlisted for part in parts)
        else 0.0
    )
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


# Of counted ids, beside a side that knows a sample of its rows: by chance in it each cell adds to
# the index, and rarer ids are within what an unlisted one may have counted there.
_MOST_BESIDE_SAMPLE = 1024


@dataclass(frozen=True, kw_only=True)
class ValueShares:
    """An id's shares of all values on both sides, with their errors of 95 %.

    Attributes:
        value: The id.
        before: Its share before; None if it may have been too rare to be listed.
        before_error: The error of `before`.
        after: Its share after; None as before.
        after_error: The error of `after`.
    """

    value: int
    before: float | None
    before_error: float = 0.0
    after: float | None
    after_error: float = 0.0


def slot_change(before: SlotSummary, after: SlotSummary) -> dict[str, Any]:
    """How a slot differs: the columns of `Comparison.table` that compare both sides. Those of which
    nothing can be told are not there.

    Raises:
        InputError: The slot holds ids on one side and floats, or indices, on the other.
    """
    kinds = [
        "indices" if side.slot.num_indices is not None else f"{side.slot.kind}s"
        for side in (before, after)
    ]
    if kinds[0] != kinds[1]:
        raise InputError(
            f"slot {after.slot.name!r}: expected the same kind of values on both sides, found "
            f"{kinds[0]} before and {kinds[1]} after; leave it out by `slots`"
        )
    moved = drift([_beside(before, after)], _beside(after, before))
    found: dict[str, Any] = {}
    if moved is not None:
        found = {
            "psi": moved.index,
            "psi_error": moved.error,
            "psi_method": str(moved.method),
            "jensen_shannon": moved.jensen_shannon,
        }
    return found | (_new_and_vanished(before, after) if before.slot.kind is SlotKind.ID else {})


def value_shares(before: SlotSummary, after: SlotSummary, num_top: int) -> list[ValueShares]:
    """The most frequent ids of both sides: those of after, then others of before.

    Args:
        before: An id slot before.
        after: The slot after.
        num_top: How many ids of each side.
    """
    top = dict.fromkeys([*after.values[:num_top].tolist(), *before.values[:num_top].tolist()])
    return _with_shares(before, after, list(top))


def new_and_vanished(
    before: SlotSummary, after: SlotSummary, num_top: int
) -> tuple[list[ValueShares] | None, list[ValueShares] | None]:
    """The most frequent new ids, and the most frequent ones that vanished.

    Either is None where the other side does not list all of its ids, so that nobody knows.
    """
    new = after.values[~np.isin(after.values, before.values)][:num_top].tolist()
    gone = before.values[~np.isin(before.values, after.values)][:num_top].tolist()
    return (
        _with_shares(before, after, new) if before.lists_all else None,
        _with_shares(before, after, gone) if after.lists_all else None,
    )


def _with_shares(
    before: SlotSummary, after: SlotSummary, values: Sequence[int]
) -> list[ValueShares]:
    sides = zip(values, _shares(before, values), _shares(after, values), strict=True)
    return [
        ValueShares(value=value, before=old, before_error=old_error, after=new, after_error=error)
        for value, (old, old_error), (new, error) in sides
    ]


def _shares(side: SlotSummary, values: Sequence[int]) -> list[tuple[float | None, float]]:
    """The shares of ids and their errors. An estimate is at most 1."""
    whole = max(side.num_values, 1)
    listed = np.isin(side.values, np.array(values, np.int64))
    shares = np.minimum(side.counts[listed] / whole, 1.0).tolist()
    errors = (side.count_errors[listed] / whole).tolist()
    known = dict(zip(side.values[listed].tolist(), zip(shares, errors, strict=True), strict=True))
    absent = (0.0 if side.lists_all else None), 0.0
    return [known.get(value, absent) for value in values]


def _beside(side: SlotSummary, other: SlotSummary) -> SlotSummary:
    """A side with as many of its counted ids as can be compared with the other side."""
    num = _MOST_BESIDE_SAMPLE
    if not other.sampled or len(side.values) <= num:
        return side
    last = float(side.counts[num])
    return replace(side, values=side.values[:num], counts=side.counts[:num], unlisted=last)


def _counts_of(side: SlotSummary, chosen: Integers) -> Floats:
    """How often the side has each of these ids, ascending, among which are all that it lists."""
    counts = np.zeros(len(chosen))
    counts[np.searchsorted(chosen, side.values)] = side.counts
    return counts


def _new_and_vanished(before: SlotSummary, after: SlotSummary) -> dict[str, Any]:
    if before.lists_all and after.lists_all:
        chosen = np.union1d(before.values, after.values)
        one, other = (_counts_of(side, chosen) for side in (before, after))
        return {
            "new_values": share_of_new(one, other > 0),
            "vanished_values": share_of_new(other, one > 0),
            "values_error": 0.0,
            "new_share": share_of_new(one, other),
            "vanished_share": share_of_new(other, one),
        }
    # Both sides know all of their ids whose hashes are below a bound: the same random ids.
    bound = min(before.bound, after.bound)
    old, new = (side.smallest[side.smallest < bound] for side in (before, after))
    num_new = len(np.setdiff1d(new, old, assume_unique=True))
    num_gone = len(np.setdiff1d(old, new, assume_unique=True))
    if not len(old) or not len(new):
        return {}
    return {
        "new_values": num_new / len(new),
        "vanished_values": num_gone / len(old),
        "values_error": max(_half_width(num_new, len(new)), _half_width(num_gone, len(old))),
    }


def _half_width(num: int, of: int) -> float:
    low, high = wilson(num, of)
    return float(max(num / of - low, high - num / of))
