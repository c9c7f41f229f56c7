"""The progress of the epochs in a store, as `featstore dispatch status` prints it.

An observer only reads. `summarize`, a pure function, turns readings into a status. Rates are
measured on the observer's own clock once it has looked twice, and until then since the epoch began.
"""

import statistics
import time
from collections import Counter, defaultdict, deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

from featstore.base.text_table import Printed, text_table
from featstore.dispatch.epochs import EpochNote, announced, read_splits
from featstore.dispatch.lease import FINAL, Lease, LeaseState, all_shares
from featstore.dispatch.stores.address import open_read_only
from featstore.dispatch.stores.base import Store
from featstore.dispatch.survey import AHEAD, Part

# A worker below half of the median rate is a straggler (docs/dispatch.md).
_STRAGGLER_SHARE = 0.5
# Rates are averages over this time or half a lease, whichever is longer: in half a lease a living
# worker renews its leases. Shorter windows show bursts of acknowledgements instead of a rate.
_WINDOW_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One look at an epoch.

    Attributes:
        leases: The leases of all splits and parts that were claimed.
        at_s: When they were read, in seconds of any clock.
    """

    leases: Mapping[Part, Lease]
    at_s: float

    @property
    def num_rows(self) -> int:
        """Rows that were acknowledged."""
        return sum(lease.rows - first for (_, first), lease in self.leases.items())

    @property
    def worker_rows(self) -> Counter[str]:
        """Acknowledged rows of each worker that holds or held a claim."""
        rows = Counter({lease.worker: 0 for lease in self.leases.values()})
        for share in chain.from_iterable(map(all_shares, self.leases.values())):
            rows[share.worker] += share.through - share.first
        return rows

    @property
    def worker_indices(self) -> dict[str, int]:
        """The index of each worker that holds or held a claim."""
        shares = chain.from_iterable(map(all_shares, self.leases.values()))
        indices = {share.worker: share.index for share in shares}
        return indices | {lease.worker: lease.index for lease in self.leases.values()}

    @property
    def num_over(self) -> int:
        """How many splits are done or quarantined together with all parts cut off them."""
        claimed = {index for index, _ in self.leases}
        cut_off = {
            (index, first) for (index, _), lease in self.leases.items() for first in lease.cuts
        }
        is_open = {index for (index, _), lease in self.leases.items() if lease.state not in FINAL}
        return len(claimed - is_open - {index for index, _ in cut_off - self.leases.keys()})


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """What one worker has done of an epoch.

    Attributes:
        worker: The worker's name.
        index: Its number in the job.
        num_done: Splits and parts that it completed.
        num_held: Splits and parts that it holds.
        num_rows: Rows that it acknowledged.
        rows_per_s: Its rate between the two readings.
        is_silent: It holds splits and has renewed none of them for half a lease time.
        is_straggler: It holds splits, was there at the reading before, if there was one, and is
            slower than half of the median worker's rate.
    """

    worker: str
    index: int
    num_done: int
    num_held: int
    num_rows: int
    rows_per_s: float
    is_silent: bool
    is_straggler: bool

    @property
    def remark(self) -> str:
        """`silent`, `straggler` or nothing, for the table."""
        return "silent" if self.is_silent else "straggler" if self.is_straggler else ""


@dataclass(frozen=True, kw_only=True)
class EpochStatus:
    """The progress of an epoch.

    Attributes:
        note: What the epoch's first worker announced.
        num_done: Whole splits that are done or quarantined.
        num_unclaimed: Splits that nobody has claimed yet.
        num_quarantined: Splits and parts that are quarantined.
        num_held: Splits and parts that a worker holds.
        num_free: Splits and parts that were given back.
        num_rows: Rows that were acknowledged.
        rows_per_s: The rate between the two readings.
        remaining_s: Expected seconds to the end: None while no rate is known, 0 at the end.
        workers: The status of each worker, by name.
    """

    note: EpochNote
    num_done: int
    num_unclaimed: int
    num_quarantined: int
    num_held: int
    num_free: int
    num_rows: int
    rows_per_s: float
    remaining_s: float | None
    workers: Sequence[WorkerStatus] = field(default=())

    @property
    def is_over(self) -> bool:
        """Whether all splits are done or quarantined."""
        return self.num_done == self.note.num_splits

    def as_dict(self) -> dict[str, Any]:
        """The status as JSON types."""
        note = self.note
        return {
            "epoch": note.name,
            "num_splits": note.num_splits,
            "num_done": self.num_done,
            "num_held": self.num_held,
            "num_free": self.num_free,
            "num_unclaimed": self.num_unclaimed,
            "num_quarantined": self.num_quarantined,
            "num_rows_of_plan": note.num_rows,
            "num_rows": self.num_rows,
            "rows_per_s": self.rows_per_s,
            "remaining_s": self.remaining_s,
            "is_over": self.is_over,
            "workers": [asdict(worker) for worker in self.workers],
        }


@dataclass(frozen=True, kw_only=True)
class StoreStatus(Printed):
    """The progress of the epochs in a store; the newest comes last."""

    epochs: tuple[EpochStatus, ...]

    def text(self, width: int | None = None) -> str:
        """The status as text, with tables of `width` characters at most if given."""
        texts = [show(epoch, width) for epoch in self.epochs]
        return "\n\n".join(texts) or "no epoch has begun in this store"

    def as_dict(self) -> dict[str, Any]:
        """The status as JSON types."""
        return {"epochs": [epoch.as_dict() for epoch in self.epochs]}


def summarize(note: EpochNote, now: Reading, before: Reading) -> EpochStatus:
    """The status of an epoch from two readings.

    Args:
        note: What the epoch's first worker announced.
        now: The later reading.
        before: The earlier reading; an empty one from the time when the epoch began will do.
    """
    states = [lease.state for lease in now.leases.values()]
    num_done = now.num_over + note.num_splits_before
    spent_s = max(now.at_s - before.at_s, 1e-9)
    rows_per_s = max(0, now.num_rows - before.num_rows) / spent_s
    num_rows = now.num_rows + note.num_rows_before
    num_rows_left, is_over = max(0, note.num_rows - num_rows), num_done == note.num_splits
    return EpochStatus(
        note=note,
        num_done=num_done,
        num_unclaimed=note.num_splits
        - note.num_splits_before
        - len({index for index, _ in now.leases}),
        num_quarantined=states.count(LeaseState.QUARANTINED),
        num_held=states.count(LeaseState.HELD),
        num_free=states.count(LeaseState.FREE),
        num_rows=num_rows,
        rows_per_s=rows_per_s,
        remaining_s=0.0 if is_over else num_rows_left / rows_per_s if rows_per_s else None,
        workers=_workers(note, now, before, spent_s),
    )


def show(status: EpochStatus, width: int | None = None) -> str:
    """The status as text: a line for the epoch, and a table with a line for each worker.

    Args:
        status: The status.
        width: The most characters of a line of the table; None sets no limit.
    """
    note = status.note
    share = 100 * status.num_done / note.num_splits if note.num_splits else 100.0
    quarantined = f", {status.num_quarantined:,} quarantined" if status.num_quarantined else ""
    rate = "" if status.is_over else f", {status.rows_per_s:,.0f} rows/s"
    head = (
        f"{note.name}: {status.num_done:,} of {note.num_splits:,} splits done ({share:.1f}%), "
        f"{status.num_held:,} held, "
        f"{status.num_free:,} given back, {status.num_unclaimed:,} unclaimed{quarantined}; "
        f"{status.num_rows:,} of {note.num_rows:,} rows{rate}; {_expected(status)}"
    )
    # No key says when an epoch ended, so the rates of a finished one are not known.
    rates = ["" if status.is_over else f"{worker.rows_per_s:,.0f}" for worker in status.workers]
    rows = [
        [
            w.worker,
            str(w.index),
            f"{w.num_done:,}",
            f"{w.num_held:,}",
            f"{w.num_rows:,}",
            rate,
            w.remark,
        ]
        for w, rate in zip(status.workers, rates, strict=True)
    ]
    table = (
        text_table(
            rows,
            ("worker", "index", "done", "held", "rows", "rows/s", ""),
            align=("left", *["right"] * 5, "left"),
            width=width,
        )
        if rows
        else ""
    )
    return f"{head}\n{table}".rstrip()


def status(store_url: str, *, last: int = 5) -> StoreStatus:
    """The status of the epochs that began last.

    Args:
        store_url: The dispatch store's URL.
        last: How many epochs to show.

    Raises:
        DispatchError: The store cannot be read.
    """
    with closing(watch(store_url, last=last)) as found:
        return next(found)


def watch(
    store_url: str, *, last: int = 5, every_s: float = 2.0
) -> Generator[StoreStatus, None, None]:
    """Yields `status` again and again, until the caller closes it or the store is lost.

    It keeps earlier readings for the rates, and does not read leases again once they are final. Not
    thread-safe.

    Args:
        store_url: The dispatch store's URL.
        last: How many of the epochs that began last to look at.
        every_s: Seconds between two looks.

    Raises:
        DispatchError: The store does not exist, or cannot be reached.
    """
    readings = defaultdict[str, deque[Reading]](deque)
    with closing(open_read_only(store_url)) as store:
        while True:
            notes = list(announced(store, last))
            epochs = tuple(_look_at(store, note, readings[note.name]) for note in notes)
            yield StoreStatus(epochs=epochs)
            time.sleep(every_s)


def _look_at(store: Store, note: EpochNote, readings: deque[Reading]) -> EpochStatus:
    """The status of an epoch, after the earlier readings, to which this one is added."""
    known = readings[-1].leases if readings else {}
    now = Reading(leases=read_leases(store, note, known), at_s=time.monotonic())
    # Another machine noted the start: by this machine's clock it may lie in the future.
    age_s = max(0.0, time.time() - note.started_unix_s)
    before = readings[0] if readings else Reading(leases={}, at_s=now.at_s - age_s)
    readings.append(now)
    while len(readings) > 2 and now.at_s - readings[1].at_s >= max(_WINDOW_S, note.lease_s / 2):
        readings.popleft()
    return summarize(note, now, before)


def read_leases(store: Store, note: EpochNote, known: Mapping[Part, Lease]) -> dict[Part, Lease]:
    """The current leases of all splits and parts that were claimed.

    Args:
        store: The store.
        note: The epoch.
        known: Leases that were read before. The final ones among them are not read again.
    """
    # Beyond the cursor only splits are claimed whose files a host has staged: within the next
    # `AHEAD` positions.
    end = min(int(store.get_or_none(note.keys.cursor) or 0) + AHEAD, note.num_splits)
    return {
        (index, entry.first): entry.record
        for index, entries in read_splits(store, note.keys, range(end), known)
        for entry in entries
        if entry.record is not None
    }


def _workers(note: EpochNote, now: Reading, before: Reading, spent_s: float) -> list[WorkerStatus]:
    rows, rows_before, indices = now.worker_rows, before.worker_rows, now.worker_indices
    names = sorted(rows, key=lambda name: (indices[name], name))
    rates = {name: max(0, rows[name] - rows_before[name]) / spent_s for name in names}
    # A renewal comes every third of a lease: half a lease without one is silence.
    was_watched = bool(before.leases) and spent_s >= note.lease_s / 2
    # Of a worker that came between the readings it is not known for how long it has read.
    were_there = rows_before if before.leases else rows
    median = statistics.median([rates[name] for name in were_there if name in rates] or [0.0])
    statuses = []
    for name in rates:
        mine = {part: lease for part, lease in now.leases.items() if lease.worker == name}
        held = [part for part, lease in mine.items() if lease.state is LeaseState.HELD]
        statuses.append(
            WorkerStatus(
                worker=name,
                index=indices[name],
                num_done=sum(lease.state is LeaseState.DONE for lease in mine.values()),
                num_held=len(held),
                num_rows=rows[name],
                rows_per_s=rates[name],
                is_silent=was_watched
                and bool(held)
                and all(before.leases.get(part) == mine[part] for part in held),
                is_straggler=bool(held)
                and name in were_there
                and rates[name] < _STRAGGLER_SHARE * median,
            )
        )
    return statuses


def _expected(status: EpochStatus) -> str:
    if status.is_over:
        return "over"
    if status.remaining_s is None:
        return "end not known"
    at = time.strftime("%H:%M:%S", time.localtime(time.time() + status.remaining_s))
    return f"ends in about {status.remaining_s:,.0f} s, at {at}"
