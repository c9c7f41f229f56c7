"""A log of events in sessions, the impressions of its last day, and what each of these sees of it,
looked up without featstore.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_DAYS, _DAY_MS = 93, 86_400_000
_START_MS = 1_767_225_600_000  # 2026-01-01
_ITEMS, _CATEGORIES, _ZIPF, _REPEATS = 500_000, 1_000, 0.95, 0.25
_EVENTS_OF_SESSION, _GAP_MS = 8, 30_000
# Times are below 2^34 ms, so that user and time are one number.
_TIME_BITS = 34
_US = pa.timestamp("us", tz="UTC")
_ROWS_OF_FILE = 50_000

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Impressions in order of time, by number.

    Attributes:
        number: int64 (num_rows,).
        user: int64 (num_rows,).
        ms: When, since the log began: int64 (num_rows,).
    """

    number: Array
    user: Array
    ms: Array

    def __len__(self) -> int:
        return len(self.user)

    def where(self, chosen: Array) -> "Rows":
        """Some of them, as numpy indexes arrays."""
        return Rows(number=self.number[chosen], user=self.user[chosen], ms=self.ms[chosen])

    @property
    def per_user(self) -> float:
        """How many each user has who has any."""
        return len(self) / max(1, len(np.unique(self.user)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Log:
    """Events, by user and time; equal times by item.

    Attributes:
        keys: User and time as one number: int64 (num_events,), ascending.
        item: int64 (num_events,).
        rows: The impressions of the last day.
        share: It is of users whose numbers this divides.
    """

    keys: Array
    item: Array
    rows: Rows
    share: int = 1

    def has(self, rows: Rows) -> Array:
        """Which rows are of users of the log: bool (num_rows,)."""
        found: Array = rows.user % self.share == 0
        return found

    def of_users(self, share: int) -> "Log":
        """The events and rows of this part of the users, whatever their weights."""
        mine = (self.keys >> _TIME_BITS) % share == 0
        part = replace(self, keys=self.keys[mine], item=self.item[mine], share=share)
        return replace(part, rows=self.rows.where(part.has(self.rows)))

    def ranges(self, rows: Rows, max_len: int) -> tuple[Array, Array]:
        """Where the newest events before each row begin and end: int64 (num_rows,)."""
        of_user = rows.user << _TIME_BITS
        end = np.searchsorted(self.keys, of_user + rows.ms)
        return np.maximum(np.searchsorted(self.keys, of_user), end - max_len), end

    def first_rows(self, rows: Rows, max_len: int, num_values: int) -> Rows:
        """The first of these rows, of which all lists together have so many values at most."""
        begin, end = self.ranges(rows, max_len)
        num_rows = int(np.searchsorted(np.cumsum(end - begin), num_values))
        return rows.where(np.arange(max(1, num_rows)))

    def write_events(self, directory: Path) -> None:
        """Files of raw events, in order of time."""
        directory.mkdir()
        ms = self.keys & ((1 << _TIME_BITS) - 1)
        order = np.argsort(ms, kind="stable")
        for number, part in enumerate(np.array_split(order, max(1, len(order) // 2_500_000))):
            columns = {
                "user_id": self.keys[part] >> _TIME_BITS,
                "event_ts": _times(ms[part]),
                "item_id": self.item[part],
                "category": self.item[part] % _CATEGORIES,
            }
            pq.write_table(pa.table(columns), directory / f"{number}.parquet", compression="zstd")

    def write_fat(self, rows: Rows, max_len: int, directory: Path) -> None:
        """Files of raw rows that have their lists, beside `items` and `categories` the events'
        times and their ages in seconds.
        """
        begin, end = self.ranges(rows, max_len)
        lengths = end - begin
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - begin, lengths)
        ms = self.keys[places] & ((1 << _TIME_BITS) - 1)
        items = self.item[places]
        ages = ((np.repeat(rows.ms, lengths) - ms) / 1_000).astype(np.float32)
        lists = {
            "items": items,
            "categories": items % _CATEGORIES,
            "times": _START_MS + ms,
            "ages": ages,
        }
        own_offsets = pa.array(offsets.astype(np.int32))
        _write(
            rows,
            directory,
            {
                name: pa.ListArray.from_arrays(own_offsets, pa.array(of))
                for name, of in lists.items()
            },
        )

    def write_rows(self, rows: Rows, directory: Path) -> None:
        """Files of raw rows without lists."""
        _write(rows, directory, {})

    def mean_length(self, rows: Rows, max_len: int) -> float:
        begin, end = self.ranges(rows, max_len)
        return float((end - begin).mean())


def _write(rows: Rows, directory: Path, lists: dict[str, pa.Array]) -> None:
    directory.mkdir(parents=True)
    label = (rows.number * 2_654_435_761 >> 16) % 8 == 0
    own = {"row": rows.number, "user_id": rows.user, "ts": _times(rows.ms), "click": label * 1}
    table = pa.table({**own, **lists})
    for number, first in enumerate(range(0, len(rows), _ROWS_OF_FILE)):
        part = table.slice(first, _ROWS_OF_FILE)
        pq.write_table(part, directory / f"{number:03}.parquet", compression="zstd")


def _times(ms: Array) -> pa.Array:
    return pa.array((_START_MS + ms) * 1_000).cast(_US)


def make_log(num_users: int, num_events: int, num_rows: int, per_user: float) -> Log:
    """A log of 93 days, in milliseconds.

    User n has a weight of 1 / (n + 50), an item one by its rank to the power of -0.95; a quarter of
    the events repeat the one before. Rows are of the last day, in sessions as events are.

    Args:
        num_users: How many users.
        num_events: How many events.
        num_rows: How many rows the day has before it is thinned.
        per_user: As of `thinned`.
    """
    random = np.random.default_rng(7)
    user, ms = _sessions(random, num_users, num_events, 0, _DAYS * _DAY_MS)
    ranks = _drawn(random, np.arange(1, _ITEMS + 1) ** -_ZIPF, num_events)
    item = random.permutation(_ITEMS)[ranks]
    keys = (user << _TIME_BITS) + ms
    order = np.argsort(keys)
    keys, item = keys[order], item[order]
    same = (random.random(num_events) < _REPEATS) & (np.diff(keys >> _TIME_BITS, prepend=-1) == 0)
    item = item[np.maximum.accumulate(np.where(same, 0, np.arange(num_events)))]
    order = np.lexsort((item, keys))
    user, ms = _sessions(random, num_users, num_rows, (_DAYS - 1) * _DAY_MS, _DAYS * _DAY_MS)
    in_time = np.argsort(ms, kind="stable")
    rows = Rows(number=np.arange(num_rows), user=user[in_time], ms=ms[in_time])
    return Log(keys=keys[order], item=item[order], rows=thinned(rows, per_user))


def _drawn(random: np.random.Generator, weights: Array, count: int) -> Array:
    ends = np.cumsum(weights)
    found: Array = np.searchsorted(ends, random.random(count) * ends[-1], side="right")
    return found


def _sessions(
    random: np.random.Generator, num_users: int, count: int, first_ms: int, end_ms: int
) -> tuple[Array, Array]:
    """Users and times of so many events."""
    lengths = random.geometric(1 / _EVENTS_OF_SESSION, count)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), count)) + 1]
    user = np.repeat(_drawn(random, 1 / (np.arange(num_users) + 50), len(lengths)), lengths)
    starts = random.integers(first_ms, end_ms, len(lengths))
    gaps = random.exponential(_GAP_MS, len(user)).astype(np.int64)
    ends = np.cumsum(gaps)
    begun = np.repeat(ends[np.cumsum(lengths) - lengths], lengths)
    ms = np.minimum(np.repeat(starts, lengths) + ends - begun, end_ms - 1)
    return user[:count], ms[:count]


def thinned(rows: Rows, per_user: float) -> Rows:
    """As many of these rows, drawn at random, as leave each user who has any about so many."""
    drawn = np.random.default_rng(8).permutation(len(rows))
    low, high = 1, len(rows)
    while low < high:
        middle = (low + high) // 2
        if rows.where(drawn[:middle]).per_user < per_user:
            low = middle + 1
        else:
            high = middle
    return rows.where(np.sort(drawn[:low]))


def by_user(rows: Rows) -> Rows:
    """All rows of one user after those of another, in order of time; users in a random order."""
    ranks = np.random.default_rng(9).permutation(int(rows.user.max(initial=0)) + 1)
    return rows.where(np.lexsort((rows.ms, ranks[rows.user])))


def hours(rows: Rows, numbers: Sequence[int]) -> list[Rows]:
    """The rows of these hours of the day."""
    of_rows = rows.ms // 3_600_000 % 24
    return [rows.where(of_rows == number) for number in numbers]
