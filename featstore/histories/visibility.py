"""Which events a row sees: those of its key that were known strictly before it.

Events of a key have a total order, by the time when they became known, then by their own time, then
by what slots read of them. So what a row may know is a prefix, and all engines write the same
bytes. All times are int64 microseconds. The functions are pure, and know nothing of files.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.ops.arrays import Integers, Mask, array_of, values_of
from featstore.ops.columns import float_column
from featstore.ops.hashing import MISSING, key_signs
from featstore.ops.registry import OPERATORS
from featstore.spec.check import read_params
from featstore.spec.model import EventHistory, Node

NEVER = np.iinfo(np.int64).min
# Times this far from 1970, 146,000 years, are none: of others no difference is beyond int64.
MOST_US = 2**62
_ALWAYS = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class Events:
    """The events of any number of keys in order. Those of a key stand side by side.

    Attributes:
        columns: The event columns as they were given, in any order.
        order: The row of `columns` that holds each event in order, int64 `(num_events,)`. Events
            without key or time are not among them.
        keys: The different signs of keys, int64 `(num_keys,)`, ascending.
        first: The first event of each key, then `num_events`: int64 `(num_keys + 1,)`.
        known: When each event became known, int64 `(num_events,)`, ascending within a key.
        at: The times of the events, int64 `(num_events,)`.
    """

    columns: pa.RecordBatch
    order: Integers
    keys: Integers
    first: Integers
    known: Integers
    at: Integers

    def take(self, positions: Integers) -> pa.RecordBatch:
        """The event columns of the events at these positions in the order."""
        return self.columns.take(array_of(self.order[positions]))


@dataclass(frozen=True, kw_only=True)
class EventRanges:
    """The events `begin[i] ... end[i] - 1` of each row, as positions in `Events`.

    Attributes:
        begin: int64 `(num_rows,)`.
        end: int64 `(num_rows,)`.
        oldest: The time before which events of a range are too old for the row, int64
            `(num_rows,)`. Only where events have a time of their own at which they became known may
            a range hold such events.
    """

    begin: Integers
    end: Integers
    oldest: Integers


def ordered(history: EventHistory, columns: Mapping[str, pa.Array]) -> Events:
    """Puts events in order.

    Args:
        history: Their history.
        columns: Its event columns by name, in their declared types, as `ops.columns.clean` returns
            them: the key, the times and those that slots read, all of one length.
    """
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    keys, rows = complete(history, columns)
    at, *logged_at = (values_of(columns[name]) for name in history.times)
    known = np.maximum(at, *logged_at) if logged_at else at
    order = rows[_by_key_and_time(keys[rows], known[rows])]
    keys, known = keys[order], known[order]
    is_first = np.diff(keys, prepend=MISSING) != 0  # no event has the sign 0
    follows = ~is_first
    follows[1:] &= known[1:] == known[:-1]
    ties = [columns[name] for name in (history.at, *history.slot_inputs)]
    _order_ties(order, follows, ties)
    first = np.flatnonzero(is_first)
    return Events(
        columns=batch,
        order=order,
        keys=keys[first],
        first=np.append(first, len(order)),
        known=known,
        at=at[order],
    )


def complete(history: EventHistory, columns: Mapping[str, pa.Array]) -> tuple[Integers, Integers]:
    """The signs of all events' keys, int64 `(num_events,)`, and the rows of those events that have
    key and times, within MOST_US; arguments as of `ordered`.
    """
    keys = values_of(key_signs(columns[history.key]))
    has_all = keys != MISSING
    for name in history.times:
        has_all &= _are_times(columns[name])
    return keys, np.flatnonzero(has_all)


def keys_of_rows(keys: pa.Array, as_of: pa.Array) -> Integers:
    """The signs of the rows' keys, 0 where key or `as_of` is missing or `as_of` beyond MOST_US:
    int64 `(num_rows,)`.
    """
    return np.where(_are_times(as_of), values_of(keys), MISSING)


def _are_times(array: pa.Array) -> Mask:
    """Where a time is there and within MOST_US: bool `(len(array),)`."""
    times = values_of(array)
    within: Mask = (times > -MOST_US) & (times < MOST_US) & values_of(pc.is_valid(array))
    return within


def visible(events: Events, history: EventHistory, keys: Integers, as_of: Integers) -> EventRanges:
    """The events that rows see.

    Args:
        events: Events in order, among them all of the rows' keys.
        history: The history, whose `max_len` and `window` count.
        keys: The signs of the rows' keys, int64 `(num_rows,)`; 0 where key or `as_of` is missing.
        as_of: The times of the rows, int64 `(num_rows,)`; any value where `keys` is 0.
    """
    first, stop = (
        events.first[np.searchsorted(events.keys, keys, side)] for side in ("left", "right")
    )
    end = _first_at_least(events.known, as_of, first, stop)
    begin = np.maximum(first, end - history.max_len)
    if history.window is None:
        return EventRanges(begin=begin, end=end, oldest=np.full(len(keys), NEVER))
    oldest = oldest_seen(as_of, history.window)
    # An event is known at its time or later, so none that was known before `oldest` is newer.
    begin = _first_at_least(events.known, oldest, begin, end)
    some = np.flatnonzero(begin < end)
    late = some[events.at[begin[some]] < oldest[some]]
    if len(late):
        found = _next_at_least(events.at, oldest[late], begin[late])
        begin[late] = np.minimum(found, end[late])
    return EventRanges(begin=begin, end=end, oldest=oldest)


def oldest_seen(as_of: Integers, window_us: int) -> Integers:
    """The time before which events are outside each row's window, within int64: `(num_rows,)`."""
    oldest: Integers = np.maximum(as_of, NEVER + window_us) - window_us
    return oldest


def ages(as_of: pa.Array, at: pa.Array, node: Node) -> pa.Array:
    """A slot that is made while reading: how long before its row each event was.

    Args:
        as_of: The time of each event's row, timestamps `(num_events,)`.
        at: The times of the events, timestamps `(num_events,)`.
        node: One of `EventHistory.derived`.

    Returns:
        float32 `(num_events,)`, as `time_since` of these two gives it; NaN beyond int64
        microseconds.
    """
    unit = read_params(node, OPERATORS[node.op])
    elapsed = OPERATORS[node.op].function(as_of, at, **unit, counts=Counter())
    return float_column(elapsed, arrow_type=pa.float32(), counts=Counter())


def _order_ties(order: Integers, follows: Mask, ties: Sequence[pa.Array]) -> None:
    """Puts runs of events in order of `ties`, nulls first. Few events tie, so few are compared.

    Args:
        order: The rows of `ties`, `(num_events,)`; changed in place.
        follows: Whether an event is of one run with the event before it, `(num_events,)`.
        ties: The columns.
    """
    tied = np.flatnonzero(follows | np.append(follows[1:], False))
    if not len(tied):
        return
    columns = [array_of(np.cumsum(~follows[tied]))]
    for array in (tie.take(array_of(order[tied])) for tie in ties):
        columns += [pc.is_valid(array), array] if array.null_count else [array]
    names = [str(i) for i in range(len(columns))]
    table = pa.Table.from_arrays(columns, names=names)
    by_ties = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
    order[tied] = order[tied[values_of(by_ties.cast(pa.int64()))]]


def _by_key_and_time(keys: Integers, known: Integers) -> Integers:
    """The permutation that puts events in order of key and known time."""
    if not len(keys):
        return np.arange(0)
    encoded = array_of(keys).dictionary_encode()
    different = values_of(encoded.dictionary)
    ranks = np.empty(len(different), np.int64)
    ranks[np.argsort(different)] = np.arange(len(different))
    return by_rank_and_time(ranks[values_of(encoded.indices)], len(different), known)


def by_rank_and_time(ranks: Integers, num_ranks: int, known: Integers) -> Integers:
    """The permutation that puts events in order of rank, 0 to `num_ranks - 1`, and known time."""
    if num_ranks <= 1 << 16 and bool((known[1:] >= known[:-1]).all()):
        # As of a log in order of time. Numbers of 16 bits are sorted by their digits.
        return np.argsort(ranks.astype(np.uint16), kind="stable")
    # One number that has both is sorted in half the time, and few blocks are too wide for it.
    low = int(known.min(initial=_ALWAYS))
    num_bits = (int(known.max(initial=low)) - low).bit_length()
    if num_ranks << num_bits >= 2**63:
        return np.lexsort((known, ranks))
    return np.argsort((ranks << num_bits) | (known - low))


def _first_at_least(values: Integers, targets: Integers, low: Integers, high: Integers) -> Integers:
    """The first positions in `low ... high - 1`, where values ascend, whose value is at least the
    target; `high` where there is none.
    """
    low, left = low.copy(), high - low
    longest = int(left.max(initial=0))
    for _ in range(longest.bit_length()):
        middle = low + (left >> 1)
        is_below = values[np.minimum(middle, len(values) - 1)] < targets
        is_below &= left > 0
        low = np.where(is_below, middle + 1, low)
        left = np.where(is_below, left - (left >> 1) - 1, left >> 1)
    return low


def _next_at_least(values: Integers, targets: Integers, starts: Integers) -> Integers:
    """The first positions from `starts` on whose value, in any order, is at least the target;
    `len(values)` where there is none.
    """
    # A tree of maxima: node i has the children 2i and 2i + 1; leaf i is node `width + i`. The leaf
    # after the last value is above all targets, so that each search ends.
    width = 1 << len(values).bit_length()
    tree = np.full(2 * width, _ALWAYS)
    tree[width : width + len(values)] = values
    for level in reversed(range(width.bit_length() - 1)):
        low, high = 1 << level, 2 << level
        np.maximum(tree[high : 2 * high : 2], tree[high + 1 : 2 * high : 2], out=tree[low:high])
    nodes = width + starts
    # Up: to the right neighbour, then to the largest subtree that begins there.
    while len(passed := np.flatnonzero(tree[nodes] < targets)):
        after = nodes[passed] + 1
        nodes[passed] = after // (after & -after)
    # Down: to the first child that is large enough.
    while len(inner := np.flatnonzero(nodes < width)):
        child = 2 * nodes[inner]
        nodes[inner] = child + (tree[child] < targets[inner])
    return nodes - width
