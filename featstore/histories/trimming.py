"""What a row group stores of its rows' histories.

The first row of a key, its *holder*, has the list of all events that rows of the key in the row
group see. The others say how far back the holder is, and each row which range of the list it sees.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from featstore.base.errors import InputError
from featstore.ops.arrays import Integers
from featstore.ops.lists import offsets_from

MAX_EVENTS = 2**31 - 1  # of a row group: offsets of Arrow's lists have 32 bits


@dataclass(frozen=True, kw_only=True)
class Trimmed:
    """The lists of a row group, and the rows' ranges in them. All arrays are `(num_rows,)`.

    Attributes:
        starts: Where the row's list begins in the events, int64.
        counts: The length of its list, int64; 0 where the row is no holder.
        end: Where the row's range ends in the holder's list, int32.
        length: The length of the row's range, int32: it is `list[end - length : end]`.
        back: How many rows before it the holder stands, int32.
    """

    starts: Integers
    counts: Integers
    end: NDArray[np.int32]
    length: NDArray[np.int32]
    back: NDArray[np.int32]


def trim(keys: Integers, begin: Integers, end: Integers) -> Trimmed:
    """Trims events to what the rows of one row group see.

    A key's list is one span, from the least begin to the greatest end of its rows. Where their
    ranges leave a gap, the events in it are kept, so that a range stays a range. Rows that see
    nothing do not count, and have end 0.

    Args:
        keys: Tells the rows that share a list, int64 `(num_rows,)`: the signs of their keys, or
            where lists are trimmed again the rows' holders + 1. 0 shares with none, and sees
            nothing.
        begin: The first event of each row, as a position in events of which those of a key stand
            side by side, int64 `(num_rows,)`.
        end: The position after the last one, at least `begin`, int64 `(num_rows,)`.

    Raises:
        InputError: The row group would have more events than a list column can hold.
        ValueError: The spans of two keys overlap, so that one would hold events of the other.
    """
    rows = np.arange(len(keys))
    sees = (begin < end) & (keys != 0)
    order = np.argsort(keys, kind="stable")
    is_first = np.ones(len(keys), np.bool_)
    is_first[1:] = keys[order[1:]] != keys[order[:-1]]
    first = np.flatnonzero(is_first)
    group = np.cumsum(is_first) - 1
    holders = np.empty_like(rows)
    holders[order] = order[first][group]
    holders = np.where(keys == 0, rows, holders)
    starts, stops = np.zeros_like(rows), np.zeros_like(rows)
    if len(first):
        none = np.iinfo(np.int64)
        low = np.minimum.reduceat(np.where(sees, begin, none.max)[order], first)
        high = np.maximum.reduceat(np.where(sees, end, none.min)[order], first)
        is_seen = low < high
        held = order[first][is_seen]
        starts[held], stops[held] = low[is_seen], high[is_seen]
        _check_apart(starts[held], stops[held])
    counts = stops - starts
    if counts.sum() > MAX_EVENTS:
        raise InputError(
            f"expected at most {MAX_EVENTS:,} events of a history in a row group, found "
            f"{counts.sum():,} of {len(keys):,} rows: lower `output.rows_per_row_group`"
        )
    return Trimmed(
        starts=starts,
        counts=counts,
        end=np.where(sees, end - starts[holders], 0).astype(np.int32),
        length=np.where(sees, end - begin, 0).astype(np.int32),
        back=(rows - holders).astype(np.int32),
    )


def seen_only(
    begin: Integers, end: Integers, num_events: int
) -> tuple[Integers, Integers, Integers]:
    """Leaves out events that no row sees, which may lie between those that the rows of a key see.

    Args:
        begin: Where each row's range begins in the events, int64 `(num_rows,)`.
        end: Where it ends, at least `begin`, int64 `(num_rows,)`.
        num_events: How many events there are.

    Returns:
        The positions of the events that are left, int64 `(num_left,)`, and where the rows' ranges
        begin and end in them: they hold the same events.
    """
    changes = np.bincount(begin, minlength=num_events + 1) - np.bincount(
        end, minlength=num_events + 1
    )
    is_seen = np.cumsum(changes)[:num_events] > 0
    before = offsets_from(is_seen)
    return np.flatnonzero(is_seen), before[begin], before[end]


def _check_apart(starts: Integers, stops: Integers) -> None:
    order = np.argsort(starts)
    wrong = np.flatnonzero(stops[order[:-1]] > starts[order[1:]])
    if len(wrong):
        one, other = order[wrong[0]], order[wrong[0] + 1]
        raise ValueError(
            f"expected the events of each key side by side, found {starts[one]}-{stops[one]} of "
            f"one key and {starts[other]}-{stops[other]} of another"
        )
