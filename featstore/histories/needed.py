"""Which events of a log any row may see, before they are put in order: a log reaches back further
than rows do. The functions are pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from featstore.histories.visibility import NEVER, by_rank_and_time, oldest_seen
from featstore.ops.arrays import Integers, array_of, values_of
from featstore.ops.hashing import MISSING
from featstore.spec.model import EventHistory


@dataclass(frozen=True, kw_only=True)
class RowTimes:
    """When the first and the last row of each key are, all int64 (num_keys,).

    Attributes:
        keys: The signs of the keys, ascending.
        first: The time of the first row.
        last: The time of the last row.
    """

    keys: Integers
    first: Integers
    last: Integers

    @classmethod
    def of(cls, keys: Integers, as_of: Integers) -> "RowTimes":
        """Those of rows in any order.

        Args:
            keys: The signs of the rows' keys, int64 (num_rows,); rows of key 0 see nothing.
            as_of: The times of the rows, int64 (num_rows,).
        """
        has_key = keys != MISSING
        return cls.joined([cls(keys=keys[has_key], first=as_of[has_key], last=as_of[has_key])])

    @classmethod
    def joined(cls, parts: Iterable["RowTimes"]) -> "RowTimes":
        """Those of the rows of all parts, in which keys may be in any order and repeat."""
        columns = zip(*((part.keys, part.first, part.last) for part in parts), strict=True)
        keys, first, last = map(np.concatenate, columns)
        order = np.argsort(keys)
        begins = np.flatnonzero(np.diff(keys[order], prepend=MISSING))
        if not len(begins):
            return cls(keys=keys, first=first, last=last)
        return cls(
            keys=keys[order[begins]],
            first=np.minimum.reduceat(first[order], begins),
            last=np.maximum.reduceat(last[order], begins),
        )


def may_be_seen(history: EventHistory, rows: RowTimes, keys: Integers, known: Integers) -> Integers:
    """The positions of those of some events that any row may see, in the order of their keys. Of
    events that all rows of a key know these are the newest `max_len`, whatever other events there
    are.

    Args:
        history: Their history, whose `max_len` and `window` count.
        rows: The rows.
        keys: The signs of the events' keys, int64 (num_events,).
        known: When the events became known, int64 (num_events,).
    """
    if not len(rows.keys):
        return np.empty(0, np.int64)
    encoded = array_of(keys).dictionary_encode()
    codes, different = values_of(encoded.indices), values_of(encoded.dictionary)
    places = np.minimum(np.searchsorted(rows.keys, different), len(rows.keys) - 1)
    last = np.where(rows.keys[places] == different, rows.last[places], NEVER)
    is_near = known < last[codes]
    if history.window is not None:
        # An event is known at its time or later.
        is_near &= known >= oldest_seen(rows.first[places], history.window)[codes]
    found = np.flatnonzero(is_near)
    of_rows, known = places[codes[found]], known[found]
    order = by_rank_and_time(of_rows, len(rows.keys), known)
    found, of_rows, known = found[order], of_rows[order], known[order]
    begins = np.flatnonzero(np.diff(of_rows, prepend=-1))
    if not len(begins):
        return found
    num_known = np.add.reduceat(known < rows.first[of_rows], begins)
    # Events that became known together with the oldest one are kept: their order is not known yet.
    oldest = known[begins + np.maximum(0, num_known - history.max_len)]
    return found[known >= np.repeat(oldest, np.diff(begins, append=len(found)))]
