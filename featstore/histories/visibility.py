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

from featstore.ops.arrays import Integers, array_of, values_of
from featstore.ops.columns import float_column
from featstore.ops.hashing import MISSING, key_signs
from featstore.ops.lists import array_of_bits
from featstore.ops.registry import OPERATORS
from featstore.spec.check import read_params
from featstore.spec.model import History, Node

_NEVER = np.iinfo(np.int64).min
_ALWAYS = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class Events:
    """The events of any number of keys in order. Those of a key stand side by side.

    Attributes:
        columns: The event columns, `num_events` rows.
        keys: The signs of the keys, int64 `(num_events,)`, ascending.
        known: When each event became known, int64 `(num_events,)`, ascending within a key.
        at: The times of the events, int64 `(num_events,)`.
        num_incomplete: The events that were left out, since their key or a time is missing.
    """

    columns: pa.RecordBatch
    keys: Integers
    known: Integers
    at: Integers
    num_incomplete: int


@dataclass(frozen=True, kw_only=True)
class Ranges:
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


def ordered(history: History, columns: Mapping[str, pa.Array]) -> Events:
    """Puts events in order.

    Args:
        history: Their history.
        columns: Its event columns by name, in their declared types, as `ops.columns.clean` returns
            them: the key, the times and those that slots read, all of one length.
    """
    needed = [columns[name] for name in (history.key, *history.times)]
    complete = np.logical_and.reduce([values_of(pc.is_valid(array)) for array in needed])
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    num_incomplete = len(complete) - int(np.count_nonzero(complete))
    if num_incomplete:
        batch = batch.filter(array_of_bits(complete))
    keys = values_of(key_signs(batch.column(history.key)))
    at, *logged_at = (values_of(batch.column(name)) for name in history.times)
    known = np.maximum(at, *logged_at) if logged_at else at
    ties = [batch.column(name) for name in (history.at, *history.slot_inputs)]
    order = _order(keys, known, ties)
    return Events(
        columns=batch.take(array_of(order)),
        keys=keys[order],
        known=known[order],
        at=at[order],
        num_incomplete=num_incomplete,
    )


def keys_of_rows(keys: pa.Array, as_of: pa.Array) -> Integers:
    """The signs of the rows' keys, 0 where key or `as_of` is missing: int64 `(num_rows,)`."""
    return np.where(values_of(pc.is_valid(as_of)), values_of(keys), MISSING)


def visible(events: Events, history: History, keys: Integers, as_of: Integers) -> Ranges:
    """The events that rows see.

    Args:
        events: Events in order, among them all of the rows' keys.
        history: The history, whose `max_len` and `window` count.
        keys: The signs of the rows' keys, int64 `(num_rows,)`; 0 where key or `as_of` is missing.
        as_of: The times of the rows, int64 `(num_rows,)`; any value where `keys` is 0.
    """
    first = np.searchsorted(events.keys, keys)
    end = _first_at_least(events.known, as_of, first, np.searchsorted(events.keys, keys, "right"))
    end = np.where(keys == MISSING, first, end)
    begin = np.maximum(first, end - history.max_len)
    if history.window is None:
        return Ranges(begin=begin, end=end, oldest=np.full(len(keys), _NEVER))
    is_first = as_of < _NEVER + history.window  # the difference is below int64
    oldest = np.where(is_first, _NEVER, as_of - np.where(is_first, 0, history.window))
    # An event is known at its time or later, so none that was known before `oldest` is newer.
    begin = _first_at_least(events.known, oldest, begin, end)
    some = np.flatnonzero(begin < end)
    late = some[events.at[begin[some]] < oldest[some]]
    if len(late):
        found = _next_at_least(events.at, oldest[late], begin[late])
        begin[late] = np.minimum(found, end[late])
    return Ranges(begin=begin, end=end, oldest=oldest)


def ages(as_of: pa.Array, at: pa.Array, node: Node) -> pa.Array:
    """A slot that is made while reading: how long before its row each event was.

    Args:
        as_of: The time of each event's row, timestamps `(num_events,)`.
        at: The times of the events, timestamps `(num_events,)`.
        node: One of `History.derived`.

    Returns:
        float32 `(num_events,)`, as `time_since` of these two gives it; NaN beyond int64
        microseconds.
    """
    unit = read_params(node, OPERATORS[node.op])
    elapsed = OPERATORS[node.op].function(as_of, at, **unit, counts=Counter())
    return float_column(elapsed, arrow_type=pa.float32(), counts=Counter())


def _order(keys: Integers, known: Integers, ties: Sequence[pa.Array]) -> Integers:
    """The permutation that puts events in order of key, known time and `ties`, nulls first."""
    order = _by_key_and_time(keys, known)
    follows = np.zeros(len(order) + 1, np.bool_)  # whether an event ties with the one before it
    follows[1:-1] = (keys[order[1:]] == keys[order[:-1]]) & (known[order[1:]] == known[order[:-1]])
    if not follows.any():
        return order
    # Few events tie, and only those are compared by all columns.
    tied = np.flatnonzero(follows[:-1] | follows[1:])
    runs = np.cumsum(~follows[:-1])[tied]
    rows = array_of(order[tied])
    columns = [array_of(runs)]
    for array in (tie.take(rows) for tie in ties):
        columns += [pc.is_valid(array), array] if array.null_count else [array]  # nulls first
    names = [str(i) for i in range(len(columns))]
    table = pa.Table.from_arrays(columns, names=names)
    by_ties = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
    order[tied] = values_of(rows)[values_of(by_ties.cast(pa.int64()))]
    return order


def _by_key_and_time(keys: Integers, known: Integers) -> Integers:
    """The permutation that puts events in order of key and known time."""
    if not len(keys):
        return np.arange(0)
    # One number that has both is sorted four times as fast, and few blocks are too wide for it.
    encoded = array_of(keys).dictionary_encode()
    different = values_of(encoded.dictionary)
    ranks = np.empty(len(different), np.int64)
    ranks[np.argsort(different)] = np.arange(len(different))
    low = known.min()
    num_bits = (int(known.max()) - int(low)).bit_length()
    if len(different) << num_bits >= 2**63:
        return np.lexsort((known, keys))
    return np.argsort((ranks[values_of(encoded.indices)] << num_bits) | (known - low))


def _first_at_least(values: Integers, targets: Integers, low: Integers, high: Integers) -> Integers:
    """The first positions in `low ... high - 1`, where values ascend, whose value is at least the
    target; `high` where there is none.
    """
    low, high = low.copy(), high.copy()
    searched = np.flatnonzero(low < high)
    while len(searched):
        middle = (low[searched] + high[searched]) >> 1
        is_below = values[middle] < targets[searched]
        low[searched[is_below]] = middle[is_below] + 1
        high[searched[~is_below]] = middle[~is_below]
        searched = searched[low[searched] < high[searched]]
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
    for node in (1 << level for level in range(width.bit_length() - 2, -1, -1)):
        tree[node : 2 * node] = tree[2 * node : 4 * node].reshape(-1, 2).max(axis=1)
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
