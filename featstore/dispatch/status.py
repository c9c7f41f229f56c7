"""How far the epochs of a store are: what `featstore dispatch status` prints.

An observer only reads. What readings mean is a pure function; rates are measured on the observer's own clock where it has
looked twice, and otherwise since the epoch began.
"""

import statistics
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from tabulate import tabulate

from featstore.dispatch.keys import EpochKeys
from featstore.dispatch.lease import Lease, LeaseState
from featstore.dispatch.registry import EpochNote, announced
from featstore.dispatch.stores.address import bind
from featstore.dispatch.stores.base import Store

_STRAGGLER_SHARE = 0.5
_WINDOW_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One look at an epoch: the leases of all splits that were claimed, by position, and when (seconds, any clock)."""

    leases: Mapping[int, Lease]
    at_s: float


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """What one worker has done of an epoch.

    `is_silent`: it holds splits and renewed none for half a lease time. `is_straggler`: it holds splits, and is slower than
    half of what the median worker is.
    """

    worker: str
    num_done: int
    num_held: int
    num_rows: int
    rows_per_s: float
    is_silent: bool
    is_straggler: bool

    @property
    def remark(self) -> str:
        return "silent" if self.is_silent else "straggler" if self.is_straggler else ""


@dataclass(frozen=True, kw_only=True)
class EpochStatus:
    """An epoch's progress; `remaining_s` is None while no rate is known, and 0 at the end."""

    note: EpochNote
    num_done: int
    num_held: int
    num_free: int
    num_rows: int
    rows_per_s: float
    remaining_s: float | None
    workers: Sequence[WorkerStatus] = field(default=())

    @property
    def is_over(self) -> bool:
        return self.num_done == self.note.num_splits


def summarize(note: EpochNote, now: Reading, before: Reading) -> EpochStatus:
    """What two readings say; `before` may be an empty one from when the epoch began."""
    states = [lease.state for lease in now.leases.values()]
    num_done = states.count(LeaseState.DONE) + note.num_splits_before
    num_rows = sum(lease.rows for lease in now.leases.values())
    spent_s = max(now.at_s - before.at_s, 1e-9)
    rows_per_s = max(0, num_rows - sum(lease.rows for lease in before.leases.values())) / spent_s
    num_rows += note.num_rows_before
    left, is_over = max(0, note.num_rows - num_rows), num_done == note.num_splits
    return EpochStatus(
        note=note,
        num_done=num_done,
        num_held=states.count(LeaseState.HELD),
        num_free=states.count(LeaseState.FREE),
        num_rows=num_rows,
        rows_per_s=rows_per_s,
        remaining_s=0.0 if is_over else left / rows_per_s if rows_per_s else None,
        workers=_workers(note, now, before, spent_s),
    )


def show(status: EpochStatus) -> str:
    """A line for the epoch and one for each worker."""
    note = status.note
    share = 100 * status.num_done / note.num_splits if note.num_splits else 100.0
    unclaimed = note.num_splits - status.num_done - status.num_held - status.num_free
    head = (
        f"{note.name}: {status.num_done:,} of {note.num_splits:,} splits done ({share:.1f}%), {status.num_held:,} held, "
        f"{status.num_free:,} given back, {unclaimed:,} unclaimed; {status.num_rows:,} of {note.num_rows:,} rows, "
        f"{status.rows_per_s:,.0f} rows/s; {_expected(status)}"
    )
    rows = [[w.worker, w.num_done, w.num_held, f"{w.num_rows:,}", f"{w.rows_per_s:,.0f}", w.remark] for w in status.workers]
    table = (
        tabulate(rows, ["worker", "done", "held", "rows", "rows/s", ""], colalign=("left", *["right"] * 4, "left"))
        if rows
        else ""
    )
    return f"{head}\n{table}".rstrip()


def status(store_url: str, *, last: int = 5) -> str:
    """The text for the epochs that began last, the newest at the end. DispatchError where the store cannot be read."""
    with closing(Observer(store_url, last)) as observer:
        return observer.look()


def watch(store_url: str, *, last: int = 5, every_s: float = 2.0) -> Iterator[str]:
    """`status` again and again, until its caller has enough or the store is lost (DispatchError)."""
    with closing(Observer(store_url, last)) as observer:
        while True:
            yield observer.look()
            time.sleep(every_s)


class Observer:
    """Looks at a store; keeps earlier readings for the rates, and asks no more for splits that are done."""

    def __init__(self, store_url: str, last: int) -> None:
        self._store, self._last = bind(store_url).open(), last
        self._readings: dict[str, deque[Reading]] = {}

    def look(self) -> str:
        texts = [show(self._look_at(note)) for note in announced(self._store, self._last)]
        return "\n\n".join(texts) or "no epoch has begun in this store"

    def close(self) -> None:
        self._store.close()

    def _look_at(self, note: EpochNote) -> EpochStatus:
        readings = self._readings.setdefault(note.name, deque())
        known = readings[-1].leases if readings else {}
        now = Reading(leases=read_leases(self._store, note, known), at_s=time.monotonic())
        # An epoch that began on another machine may have begun in this clock's future.
        age_s = max(0.0, time.time() - note.started_unix_s)
        before = readings[0] if readings else Reading(leases={}, at_s=now.at_s - age_s)
        readings.append(now)
        while len(readings) > 2 and now.at_s - readings[1].at_s >= max(_WINDOW_S, note.lease_s / 2):
            readings.popleft()
        return summarize(note, now, before)


def read_leases(store: Store, note: EpochNote, known: Mapping[int, Lease]) -> dict[int, Lease]:
    """The leases of all splits that were claimed; those known to be done are taken as known."""
    keys = EpochKeys(note.prefix, note.epoch)
    cursor = min(int(store.get_or_none(keys.cursor) or 0), note.num_splits)
    leases = {index: lease for index, lease in known.items() if lease.state is LeaseState.DONE}
    for index in range(cursor):
        if index not in leases and (text := store.get_or_none(keys.split(index))) is not None:
            leases[index] = Lease.decode(text)
    return leases


def _workers(note: EpochNote, now: Reading, before: Reading, spent_s: float) -> list[WorkerStatus]:
    names = sorted({lease.worker for lease in now.leases.values()})
    rates = {name: max(0, _rows(now, name) - _rows(before, name)) / spent_s for name in names}
    median = statistics.median(rates.values()) if rates else 0.0
    watched = bool(before.leases) and spent_s >= note.lease_s / 2
    statuses = []
    for name in names:
        mine = {index: lease for index, lease in now.leases.items() if lease.worker == name}
        held = [index for index, lease in mine.items() if lease.state is LeaseState.HELD]
        statuses.append(
            WorkerStatus(
                worker=name,
                num_done=sum(lease.state is LeaseState.DONE for lease in mine.values()),
                num_held=len(held),
                num_rows=_rows(now, name),
                rows_per_s=rates[name],
                is_silent=watched and bool(held) and all(before.leases.get(index) == mine[index] for index in held),
                is_straggler=bool(held) and rates[name] < _STRAGGLER_SHARE * median,
            )
        )
    return statuses


def _rows(reading: Reading, worker: str) -> int:
    return sum(lease.rows for lease in reading.leases.values() if lease.worker == worker)


def _expected(status: EpochStatus) -> str:
    if status.is_over:
        return "over"
    if status.remaining_s is None:
        return "end not known"
    at = time.strftime("%H:%M:%S", time.localtime(time.time() + status.remaining_s))
    return f"ends in about {status.remaining_s:,.0f} s, at {at}"
