"""The progress of the epochs in a store, as `featstore dispatch status` prints it.

An observer only reads. `summarize`, a pure function, turns a reading into a status. Leases tell how
fast each worker's loop is and what it has reserved, but not when they were written: who gives no
sign of life is known only to an observer that looks again.
"""

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any

from featstore.base.text_table import Printed, text_table
from featstore.dispatch.epochs import EpochNote, announced, read_leases
from featstore.dispatch.lease import FINAL, Lease, LeaseState, all_shares, pace_of
from featstore.dispatch.stores.address import open_read_only
from featstore.dispatch.stores.base import Store
from featstore.dispatch.survey import Part
from featstore.dispatch.waiting import LeaseWatch

# What a reading of an epoch may take.
_READING_S = 0.5


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """What one worker has done of an epoch.

    Attributes:
        worker: The worker's name.
        index: Its number in the job.
        num_done: Splits and parts that it completed.
        num_held: Splits and parts that it holds.
        num_rows: Rows that it acknowledged.
        num_rows_reserved: Rows that it has not acknowledged, and that nobody can take from it while
            it lives.
        rows_per_s: How fast its loop goes through rows; 0 if not known, or if it holds nothing.
        own_s: Seconds until it has delivered what it has reserved: by its pace, and at least as
            long as it is known to have done nothing. 0 if nothing is known of its pace.
        quiet_s: For how many seconds it is known to have written nothing, if a loop of short steps
            would have; else 0.
        is_silent: It holds splits and has renewed none of them for half a lease time.
        is_straggler: It is not silent, and others will have nothing to do before it has delivered
            what it has reserved.
    """

    worker: str
    index: int
    num_done: int
    num_held: int
    num_rows: int
    num_rows_reserved: int
    rows_per_s: float
    own_s: float
    quiet_s: float
    is_silent: bool
    is_straggler: bool = False

    @property
    def may_be_gone(self) -> bool:
        """Whether it is silent, or may soon turn out to be."""
        return self.quiet_s > 0

    @property
    def remark(self) -> str:
        """`silent`, `straggler`, that it gave no sign of life, or nothing, for the table."""
        if self.is_silent:
            return f"silent for {self.quiet_s:.0f} s"
        straggler = [f"straggler: {self.own_s:.0f} s for its next rows"] * self.is_straggler
        return ", ".join(straggler + [f"no sign for {self.quiet_s:.0f} s"] * self.may_be_gone)


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
        rows_per_s: The sum of the paces of the workers that read.
        remaining_s: Expected seconds to the end: None while no pace is known, 0 at the end.
        latest_s: The same if the workers that gave no sign of life for a while are gone.
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
    latest_s: float | None
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
            "latest_s": self.latest_s,
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


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One look at an epoch.

    Attributes:
        leases: The leases of all splits and parts that were claimed.
        quiet_s: For how many seconds each held lease is known to show no sign of life.
        standstill_s: For how many seconds its holder is known to have done nothing.
    """

    leases: Mapping[Part, Lease]
    quiet_s: Mapping[Part, float]
    standstill_s: Mapping[Part, float]

    @property
    def num_over(self) -> int:
        """How many splits are done or quarantined together with all parts cut off them."""
        claimed = {index for index, _ in self.leases}
        cut_off = {
            (index, first) for (index, _), lease in self.leases.items() for first in lease.cuts
        }
        is_open = {index for (index, _), lease in self.leases.items() if lease.state not in FINAL}
        return len(claimed - is_open - {index for index, _ in cut_off - self.leases.keys()})


def summarize(note: EpochNote, now: Reading) -> EpochStatus:
    """The status of an epoch from a reading.

    Args:
        note: What the epoch's first worker announced.
        now: The reading.
    """
    states = [lease.state for lease in now.leases.values()]
    num_done = now.num_over + note.num_splits_before
    num_read = sum(lease.rows - first for (_, first), lease in now.leases.items())
    num_rows = num_read + note.num_rows_before
    num_left = note.num_rows - num_rows
    num_left -= sum(
        lease.limit - lease.rows
        for lease in now.leases.values()
        if lease.state is LeaseState.QUARANTINED
    )
    workers, is_over = _workers(note, now, num_left), num_done == note.num_splits
    silent, gone = attrgetter("is_silent"), attrgetter("may_be_gone")
    return EpochStatus(
        note=note,
        num_done=num_done,
        num_unclaimed=note.num_splits - note.num_splits_before - len({i for i, _ in now.leases}),
        num_quarantined=states.count(LeaseState.QUARANTINED),
        num_held=states.count(LeaseState.HELD),
        num_free=states.count(LeaseState.FREE),
        num_rows=num_rows,
        rows_per_s=sum(one.rows_per_s for one in workers if one.num_held and not one.is_silent),
        remaining_s=0.0 if is_over else _remaining_s(note, workers, num_left, silent),
        latest_s=0.0 if is_over else _remaining_s(note, workers, num_left, gone),
        workers=workers,
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
    rows = [
        [
            w.worker,
            str(w.index),
            f"{w.num_done:,}",
            f"{w.num_held:,}",
            f"{w.num_rows:,}",
            f"{w.rows_per_s:,.0f}" if w.rows_per_s else "",
            w.remark,
        ]
        for w in status.workers
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

    Takes a second look if a worker holds splits, since one look does not show who lives.

    Args:
        store_url: The dispatch store's URL.
        last: How many epochs to show.

    Raises:
        DispatchError: The store cannot be read.
    """
    with closing(_looks(store_url, last)) as looks:
        found = next(looks)
        if signs_s := [epoch.note.sign_s for epoch in found.epochs if epoch.num_held]:
            time.sleep(max(signs_s) + _READING_S)
            found = next(looks)
        return found


def watch(
    store_url: str, *, last: int = 5, every_s: float = 2.0
) -> Generator[StoreStatus, None, None]:
    """Yields the status again and again, until the caller closes it or the store is lost.

    It remembers since when leases are as they are, and does not read them again once they are
    final. Not thread-safe.

    Args:
        store_url: The dispatch store's URL.
        last: How many of the epochs that began last to look at.
        every_s: Seconds between two looks.

    Raises:
        DispatchError: The store does not exist, or cannot be reached.
    """
    with closing(_looks(store_url, last)) as looks:
        for look in looks:
            yield look
            time.sleep(every_s)


def _looks(store_url: str, last: int) -> Generator[StoreStatus, None, None]:
    observers = dict[str, EpochObserver]()
    with closing(open_read_only(store_url)) as store:
        while True:
            notes = list(announced(store, last))
            epochs = tuple(
                observers.setdefault(note.name, EpochObserver(note)).look(store, time.monotonic())
                for note in notes
            )
            yield StoreStatus(epochs=epochs)


class EpochObserver:
    """Looks at one epoch again and again."""

    def __init__(self, note: EpochNote) -> None:
        self._note, self._watch = note, LeaseWatch(note.lease_s)
        self._leases: Mapping[Part, Lease] = {}

    def look(self, store: Store, now: float) -> EpochStatus:
        """The epoch's status now, a time in seconds."""
        self._leases = read_leases(store, self._note, self._leases)
        held = {
            part: lease for part, lease in self._leases.items() if lease.state is LeaseState.HELD
        }
        for part, lease in held.items():
            self._watch.is_expired(part, lease, now)
        reading = Reading(
            leases=self._leases,
            quiet_s={part: self._watch.silent_s(part, now) for part in held},
            standstill_s={
                part: self._watch.standstill_s(part, lease, now) for part, lease in held.items()
            },
        )
        return summarize(self._note, reading)


def _workers(note: EpochNote, now: Reading, num_left: int) -> list[WorkerStatus]:
    by_name = defaultdict[str, dict[Part, Lease]](dict)
    rows, indices = Counter[str](), dict[str, int]()
    for part, lease in now.leases.items():
        by_name[lease.worker][part] = lease
        rows[lease.worker] += 0  # It is listed, too, if it has acknowledged nothing.
        for share in all_shares(lease):
            rows[share.worker] += share.through - share.first
            indices[share.worker] = share.index
    indices |= {lease.worker: lease.index for lease in now.leases.values()}
    names = sorted(rows, key=lambda name: (indices[name], name))
    workers = [
        _worker(note, now, (name, indices[name]), by_name[name], rows[name]) for name in names
    ]
    return [
        replace(one, is_straggler=_is_straggler(note, one, workers, num_left)) for one in workers
    ]


def _worker(
    note: EpochNote,
    now: Reading,
    who: tuple[str, int],
    mine: Mapping[Part, Lease],
    num_rows: int,
) -> WorkerStatus:
    held = {part: lease for part, lease in mine.items() if lease.state is LeaseState.HELD}
    # Who holds nothing waits for others, or died and was relieved: leases do not tell which.
    pace = pace_of(mine.values()) if held else 0
    num_reserved = sum(lease.num_unacknowledged for lease in held.values())
    # A sign of life of one claim is one of the worker.
    quiet_s = min((now.quiet_s.get(part, 0.0) for part in held), default=0.0)
    standstill_s = min((now.standstill_s.get(part, 0.0) for part in held), default=0.0)
    # A renewal comes every third of a lease: half a lease without one is silence.
    is_silent = quiet_s >= note.lease_s / 2
    return WorkerStatus(
        worker=who[0],
        index=who[1],
        num_done=sum(lease.state is LeaseState.DONE for lease in mine.values()),
        num_held=len(held),
        num_rows=num_rows,
        num_rows_reserved=num_reserved,
        rows_per_s=pace,
        own_s=max(num_reserved / pace, standstill_s) if num_reserved and pace else 0.0,
        quiet_s=quiet_s if is_silent or quiet_s >= note.sign_s else 0.0,
        is_silent=is_silent,
    )


def _is_straggler(
    note: EpochNote, worker: WorkerStatus, workers: Sequence[WorkerStatus], num_left: int
) -> bool:
    """Whether a worker will still have rows that it has reserved when the others, of which some
    may already have nothing to do, have delivered all that no silent worker has reserved.
    """
    others = [one for one in workers if one is not worker and not one.is_silent]
    if worker.is_silent or not others:
        return False
    own = [one.num_rows_reserved for one in workers if one is worker or one.is_silent]
    # Others that read nothing, although rows are free, are gone rather than waiting.
    others_per_s = max(1, sum(one.rows_per_s for one in others))
    return worker.own_s > (num_left - sum(own)) / others_per_s + note.sign_s


def _remaining_s(
    note: EpochNote,
    workers: Sequence[WorkerStatus],
    num_left: int,
    is_gone: Callable[[WorkerStatus], bool],
) -> float | None:
    """The seconds until so many rows are delivered, None if no pace is known.

    Each worker delivers what it has reserved. All other rows move to whoever is free, so that all
    end together, except that what gone workers have reserved comes once their leases have expired.
    Only where nobody else reads are those that hold nothing taken to be there, and to wait. Who has
    no pace is taken to be as fast as the others.
    """
    idle = [worker for worker in workers if not worker.num_held]
    gone = [worker for worker in workers if worker.num_held and is_gone(worker)]
    readers = [worker for worker in workers if worker.num_held and not is_gone(worker)] or idle
    paces = [[one.rows_per_s for one in some if one.rows_per_s] for some in (readers, gone)]
    known = paces[0] or paces[1]
    if not readers or not known:
        return None
    rows_per_s = len(readers) * statistics.fmean(known)
    num_late = sum(worker.num_rows_reserved for worker in gone)
    expire_s = max((note.lease_s - worker.quiet_s for worker in gone), default=0.0)
    return max(
        num_left / rows_per_s,
        expire_s + num_late / rows_per_s,
        *(worker.own_s for worker in readers),
    )


def _expected(status: EpochStatus) -> str:
    if status.is_over:
        return "over"
    if status.remaining_s is None:
        return "end not known"
    at = time.strftime("%H:%M:%S", time.localtime(time.time() + status.remaining_s))
    expected = f"ends in about {status.remaining_s:,.0f} s, at {at}"
    if status.latest_s is None or status.latest_s == status.remaining_s:
        return expected
    return f"{expected}, or in {status.latest_s:,.0f} s if those that gave no sign are gone"
