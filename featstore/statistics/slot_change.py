"""How a slot differs between two sets of rows. Pure.

Both sides are `SlotSummary`s: of stored statistics, or of counted rows, or one of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featstore.base.errors import InputError
from featstore.base.schema import SlotKind
from featstore.statistics.drift import Distribution, Drift, drift
from featstore.statistics.measures import share_of_new, wilson
from featstore.statistics.sketches import Floats, Integers
from featstore.statistics.summary import SlotSummary

# Of counted ids, beside a side that knows a sample of its rows: by chance in it each cell adds to
# the index, and rarer ids are within what an unlisted one may have counted there.
_MOST_BESIDE_SAMPLE = 1024


@dataclass(frozen=True, kw_only=True)
class SlotDifference:
    """How a slot differs. What cannot be told is None.

    Attributes:
        psi: The population stability index, as the checks of a spec take it (`drift`).
        psi_error: How much of it chance may have made.
        psi_method: A `DriftMethod`: over which cells both measures are.
        jensen_shannon: The Jensen-Shannon divergence, in bits, over the same cells.
        new_values: Of an id slot, the share of the different ids after that were not there before.
        vanished_values: The share of the different ids before that are not there after.
        values_error: The error of these shares, 95 %; 0 if the ids of both sides are all known.
        new_share: The share of all values after that are new ids; known if `values_error` is 0.
        vanished_share: The share of all values before that are ids which vanished.
    """

    psi: float | None = None
    psi_error: float | None = None
    psi_method: str | None = None
    jensen_shannon: float | None = None
    new_values: float | None = None
    vanished_values: float | None = None
    values_error: float | None = None
    new_share: float | None = None
    vanished_share: float | None = None


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

    @property
    def is_new(self) -> bool:
        """Whether it was surely not there before."""
        return self.before == 0.0

    @property
    def has_vanished(self) -> bool:
        """Whether it is surely not there after."""
        return self.after == 0.0


def slot_change(before: SlotSummary, after: SlotSummary) -> SlotDifference:
    """Compares a slot's summaries.

    Raises:
        InputError: The slot holds ids on one side and floats, or indices, on the other.
    """
    _check(before, after)
    moved = drift([_distribution(before, after)], _distribution(after, before))
    found = SlotDifference() if moved is None else _moved(moved)
    if before.slot.kind is not SlotKind.ID:
        return found
    return replace(found, **_new_and_vanished(before, after))


def _moved(found: Drift) -> SlotDifference:
    return SlotDifference(
        psi=found.index,
        psi_error=found.error,
        psi_method=str(found.method),
        jensen_shannon=found.jensen_shannon,
    )


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
    old, new = _shares(before, values), _shares(after, values)
    return [
        ValueShares(
            value=value,
            before=old.get(value, _absent(before))[0],
            before_error=old.get(value, _absent(before))[1],
            after=new.get(value, _absent(after))[0],
            after_error=new.get(value, _absent(after))[1],
        )
        for value in values
    ]


def _shares(side: SlotSummary, values: Sequence[int]) -> dict[int, tuple[float | None, float]]:
    """The shares of ids that are listed and their errors. An estimate is at most 1."""
    whole = max(side.num_values, 1)
    wanted = np.isin(side.values, np.array(values, np.int64))
    shares = np.minimum(side.counts[wanted] / whole, 1.0).tolist()
    errors = (side.count_errors[wanted] / whole).tolist()
    return dict(zip(side.values[wanted].tolist(), zip(shares, errors, strict=True), strict=True))


def _absent(side: SlotSummary) -> tuple[float | None, float]:
    """The share of an id that is not listed, and its error."""
    return (0.0 if side.lists_all else None), 0.0


def _distribution(side: SlotSummary, other: SlotSummary) -> Distribution:
    values: NDArray[Any]
    values, counts, last = side.points[0], side.points[1], side.unlisted
    if side.slot.kind is SlotKind.ID:
        num = _MOST_BESIDE_SAMPLE if other.sampled else len(side.values)
        order = np.argsort(side.values[:num])
        values, counts = side.values[order], side.counts[order]
        last = float(side.counts[num]) if num < len(side.values) else last
    return Distribution(
        kind=str(side.slot.kind),
        values=values,
        counts=counts,
        last=last,
        missed=side.missed,
        num_rows=side.num_rows,
        num_values=side.num_values,
        num_missing=side.num_rows - side.num_present,
        sampled=side.sampled,
        rank_error=side.points_error,
    )


def _check(before: SlotSummary, after: SlotSummary) -> None:
    kinds = [
        "indices" if side.slot.num_indices is not None else f"{side.slot.kind}s"
        for side in (before, after)
    ]
    if kinds[0] != kinds[1]:
        raise InputError(
            f"slot {after.slot.name!r}: expected the same kind of values on both sides, found "
            f"{kinds[0]} before and {kinds[1]} after; leave it out by `slots`"
        )


def _listed(side: SlotSummary, chosen: Integers) -> Floats:
    order = np.argsort(side.values)
    values, counts = side.values[order], side.counts[order]
    places = np.searchsorted(values, chosen).clip(max=max(len(values) - 1, 0))
    if not len(values):
        return np.append(np.zeros(len(chosen)), float(side.num_values))
    found = np.where(values[places] == chosen, counts[places], 0.0)
    # Estimates can add up to more than there are.
    return np.append(found, max(0.0, side.num_values - found.sum()))


def _new_and_vanished(before: SlotSummary, after: SlotSummary) -> dict[str, Any]:
    if before.lists_all and after.lists_all:
        chosen = np.union1d(before.values, after.values)
        one, other = (_listed(side, chosen)[:-1] for side in (before, after))
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
