"""Which epochs a store holds, and the leases of one. A store cannot list its keys, so the first
worker of an epoch leaves a note under a known key.
"""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from featstore.base.errors import DispatchError
from featstore.dispatch import lease as leases
from featstore.dispatch.lease import FINAL, Lease, Share
from featstore.dispatch.plan import Done, Plan
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.base import KEYS_PER_READ, Store
from featstore.dispatch.survey import AHEAD, Part
from featstore.dispatch.terms import Terms

FORMAT = 1
_EPOCHS = "featstore/epochs"
# What an acknowledgement may take.
_WRITING_S = 0.5


@dataclass(frozen=True, kw_only=True)
class EpochNote:
    """What an observer needs to know to read the leases of an epoch.

    Attributes:
        prefix: What the epoch's keys begin with, see `run_prefix`.
        epoch: The epoch's number.
        num_splits: Splits of the plan.
        num_rows: Rows of the plan.
        num_splits_before: Splits that a restored state had delivered completely. They have no
            leases.
        num_rows_before: The rows of those splits.
        lease_s: The lease time of the workers, in seconds.
        report_s: Seconds between two acknowledgements of a loop of short steps.
        started_unix_s: When the first worker began, by its own clock.
    """

    prefix: str
    epoch: int
    num_splits: int
    num_rows: int
    num_splits_before: int = 0
    num_rows_before: int = 0
    lease_s: float
    report_s: float = 1.5  # Of all workers whose notes do not have it.
    started_unix_s: float

    @classmethod
    def of(
        cls, keys: EpochKeys, plan: Plan, done: Done, *, terms: Terms, started_unix_s: float
    ) -> "EpochNote":
        """The note for the epoch of `plan`.

        Args:
            keys: The epoch's keys.
            plan: The epoch's plan.
            done: What a restored state had delivered of it.
            terms: The terms of the workers.
            started_unix_s: When the first worker began, by its own clock.
        """
        before = [index for index, rows in done.items() if rows == "complete"]
        return cls(
            prefix=keys.prefix,
            epoch=plan.epoch,
            num_splits=len(plan),
            num_rows=plan.num_rows,
            num_splits_before=len(before),
            num_rows_before=sum(plan[index].num_rows for index in before),
            lease_s=terms.lease_s,
            report_s=terms.report_s,
            started_unix_s=started_unix_s,
        )

    @property
    def sign_s(self) -> float:
        """Seconds in which a loop of short steps gives a sign of life: it acknowledges."""
        return self.report_s + _WRITING_S

    @property
    def keys(self) -> EpochKeys:
        """The keys of the epoch."""
        return EpochKeys(self.prefix, self.epoch)

    @property
    def loader(self) -> str:
        """The key of the loader that read the epoch, without the number of its iteration."""
        return self.prefix.rstrip("/").rpartition("/")[2].partition("-")[0]

    @property
    def name(self) -> str:
        """`{run_id}/{restart}/{loader} epoch {epoch}`."""
        return f"{self.prefix.removeprefix('featstore/').rstrip('/')} epoch {self.epoch}"

    def encode(self) -> str:
        """The value in the store: JSON with sorted keys."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> "EpochNote":
        """Reads what `encode` wrote.

        Raises:
            DispatchError: The value has another format, or is damaged.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields.pop("format") != FORMAT:
                raise ValueError("another format")
            return cls(**fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DispatchError(
                f"the store holds a note of an epoch that this version cannot read: expected "
                f"format {FORMAT}, found {text[:200]!r}; use the workers' version of featstore"
            ) from error


def announce(store: Store, note: EpochNote) -> bool:
    """Leaves a note of the epoch, once, however many workers call this.

    A worker that dies between its two writes leaves an epoch without a note, which `featstore
    dispatch status` and `receipt` do not find.

    Returns:
        Whether this call left the note.
    """
    # The marker decides who writes: a text that nobody else writes shows who was first.
    mine = uuid.uuid4().hex
    if store.compare_set(f"{note.prefix}{note.epoch}/announced", "", mine) != mine:
        return False
    number = store.add(_EPOCHS, 1)
    store.set(f"{_EPOCHS}/{number}", note.encode())
    return True


def announced(store: Store, last: int | None = None) -> Iterator[EpochNote]:
    """The notes of the epochs in a store; the oldest comes first.

    Args:
        store: The store.
        last: How many of the epochs that were announced last; None is all.
    """
    count = int(store.get_or_none(_EPOCHS) or 0)
    # From the end: the count is raised before its note is written, and may be raised twice for one.
    texts = (store.get_or_none(f"{_EPOCHS}/{number}") for number in range(count, 0, -1))
    yield from reversed([EpochNote.decode(text) for text in islice(filter(None, texts), last)])


def announced_in_run(store: Store, run_id: str, epoch: int | None = None) -> Iterator[EpochNote]:
    """The notes of a run's epochs; the oldest comes first.

    Args:
        store: The store.
        run_id: The run.
        epoch: The one epoch to look for, of all loaders of the run; None is all.
    """
    return (
        note
        for note in announced(store)
        if note.prefix.startswith(f"featstore/{run_id}/") and epoch in (None, note.epoch)
    )


@dataclass(frozen=True, kw_only=True)
class LeaseEntry:
    """The lease of a split, or of a part that was cut off it.

    Attributes:
        first: The row at which the part begins; 0 for the split itself.
        end: The row before which the part ends, according to the lease that it was cut off. None
            if that does not say.
        record: The lease, or None for a part that nobody has claimed yet.
    """

    first: int
    end: int | None
    record: Lease | None

    @property
    def split(self) -> str:
        """The split's id; empty for a part that nobody has claimed."""
        return "" if self.record is None else self.record.split

    @property
    def shares(self) -> tuple[Share, ...]:
        """What each claim acknowledged; empty for a part that nobody has claimed."""
        return () if self.record is None else leases.all_shares(self.record)


def read_splits(
    store: Store,
    keys: EpochKeys,
    positions: Sequence[int],
    known: Mapping[Part, Lease] | None = None,
) -> Iterator[tuple[int, list[LeaseEntry]]]:
    """Reads the leases at some positions of the plan.

    Args:
        store: The store.
        keys: The epoch's keys.
        positions: Positions of the plan.
        known: Leases that were read before. The final ones among them are not read again.

    Yields:
        Each position with the entry of its split and those of its parts; with an empty list if the
        split was never claimed.
    """
    known = {part: record for part, record in (known or {}).items() if record.state in FINAL}
    for start in range(0, len(positions), KEYS_PER_READ):
        some = positions[start : start + KEYS_PER_READ]
        records = dict(_read(store, keys, [(index, 0) for index in some], known))
        for index in some:
            record = records[index, 0]
            yield index, [] if record is None else list(_entries(store, keys, index, record, known))


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


def _entries(
    store: Store, keys: EpochKeys, index: int, record: Lease, known: Mapping[Part, Lease]
) -> Iterator[LeaseEntry]:
    # Breadth first: a part may have been cut again, and its own lease names the parts.
    todo = [LeaseEntry(first=0, end=record.end, record=record)]
    while todo:
        entry = todo.pop(0)
        yield entry
        cut_off = leases.parts(entry.record) if entry.record is not None else []
        found = dict(_read(store, keys, [(index, first) for first, _ in cut_off], known))
        todo += [
            LeaseEntry(first=first, end=end, record=found[index, first]) for first, end in cut_off
        ]


def _read(
    store: Store, keys: EpochKeys, parts: list[Part], known: Mapping[Part, Lease]
) -> Iterator[tuple[Part, Lease | None]]:
    """The parts with their leases: known ones first, then what the store answers."""
    unknown = [part for part in parts if part not in known]
    yield from ((part, known[part]) for part in parts if part in known)
    values = store.get_many([keys.part(part) for part in unknown])
    yield from (
        (part, None if value is None else Lease.decode(value))
        for part, value in zip(unknown, values, strict=True)
    )
