"""Keeps the lists of a sequence aligned in rows where some of them are missing."""

from collections.abc import Callable, Sequence

import numpy as np

from featstore.base.schema import Slot, SlotKind
from featstore.ops.lists import offsets_from
from featstore.reading.buffers import Array, Ragged, Values


def aligned(
    sequences: Sequence[Sequence[Slot]], column: Callable[[Slot], Values]
) -> dict[str, Ragged]:
    """The columns in which a missing list, stored as a single mark, has to become a mark for each
    event of its row: for as many as the longest list of the sequence has that is not missing.

    Args:
        sequences: The slots of each sequence.
        column: Gives the lists of a slot, as stored.

    Returns:
        The new columns by the names of their slots; usually there are none.
    """
    found = dict[str, Ragged]()
    for slots in sequences:
        found |= _aligned(slots, [column(slot) for slot in slots])
    return found


def _aligned(slots: Sequence[Slot], columns: Sequence[Values]) -> dict[str, Ragged]:
    lists = [of for of in columns if isinstance(of, Ragged)]
    lengths = [np.diff(of.offsets) for of in lists]
    if all(np.array_equal(lengths[0], other) for other in lengths[1:]):
        return {}
    missing = list(map(_missing, slots, lists, lengths))
    known = [np.where(of, -1, length) for of, length in zip(missing, lengths, strict=True)]
    num_events = np.max(known, axis=0)  # -1 where all lists are missing
    has_other_length = (num_events >= 0) & (num_events != 1)
    return {
        slot.name: _filled(slot, of, length, is_missing & has_other_length, num_events)
        for slot, of, length, is_missing in zip(slots, lists, lengths, missing, strict=True)
        if (is_missing & has_other_length).any()
    }


def _missing(slot: Slot, of: Ragged, lengths: Array) -> Array:
    """Which lists are missing: bool (num_rows,)."""
    rows = np.flatnonzero(lengths == 1)
    values = of.values[of.offsets[rows]]
    found = np.zeros(len(of), bool)
    found[rows] = values == 0 if slot.kind is SlotKind.ID else np.isnan(values)
    return found


def _filled(slot: Slot, of: Ragged, lengths: Array, rows: Array, num_events: Array) -> Ragged:
    """The lists with a mark for each event in these rows."""
    offsets = offsets_from(np.where(rows, num_events, lengths))
    values = np.full(offsets[-1], slot.missing, of.values.dtype)
    stored = of.values[of.offsets[0] : of.offsets[-1]]
    values[~np.repeat(rows, np.diff(offsets))] = stored[~np.repeat(rows, lengths)]
    return Ragged(values, offsets)
