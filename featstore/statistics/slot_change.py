"""How a slot differs between two sets of rows. Pure.

Both sides are `SlotSummary`s: of stored statistics, or of counted rows, or one of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from featstore.base.errors import InputError
from featstore.base.schema import SlotKind
from featstore.statistics.drift import drift
from featstore.statistics.measures import share_of_new, wilson
from featstore.statistics.sketches import Floats, Integers
from featstore.statistics.summary import SlotSummary

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
