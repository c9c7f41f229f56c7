"""The receipt of an epoch: which rows were delivered, which may have been delivered twice, and
which are missing, by split and by worker.

It is derived from the leases of splits and parts, which are the only source of truth. Nothing is
counted while the epoch runs.
"""

import enum
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from featstore.base.errors import DispatchError
from featstore.base.intervals import united
from featstore.base.redaction import redact
from featstore.dispatch import lease as leases
from featstore.dispatch.epochs import LeaseEntry, announced_in_run, read_splits
from featstore.dispatch.lease import Lease, LeaseState
from featstore.dispatch.plan import Done, Plan, as_ranges
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import Store, open_read_only
from featstore.dispatch.stores.base import first_free


@dataclass(frozen=True, kw_only=True)
class EpochSize:
    """The size of an epoch's plan, and how much of it a restored state had delivered.

    Equal for all workers of the epoch.

    Attributes:
        num_splits: Splits of the plan.
        num_rows: Rows of the plan.
        rows_before: Rows that the restored state had delivered, of any split.
        complete_before: Positions of the splits that it had delivered completely, ascending.
    """

    num_splits: int
    num_rows: int
    rows_before: int = 0
    complete_before: tuple[int, ...] = ()

    @classmethod
    def of(cls, plan: Plan, done: Done) -> "EpochSize":
        """The size of `plan`, of which `done` was delivered before."""
        before = sum(
            end - first
            for index, rows in done.items()
            for first, end in as_ranges(rows, plan[index].num_rows)
        )
        complete = tuple(sorted(index for index, rows in done.items() if rows == "complete"))
        return cls(
            num_splits=len(plan),
            num_rows=plan.num_rows,
            rows_before=before,
            complete_before=complete,
        )

    def encode(self) -> str:
        """The value in the store: JSON with sorted keys."""
        return json.dumps(vars(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> "EpochSize":
        """Reads what `encode` wrote."""
        fields = json.loads(text)
        return cls(**fields | {"complete_before": tuple(fields["complete_before"])})


@dataclass(frozen=True, kw_only=True)
class SplitLine:
    """What the receipt says of one split, or of a part that was cut off it.

    Attributes:
        split: The split's id.
        part: The row at which the part begins; 0 for the split itself.
        state: The state of the lease, or `unclaimed`.
        delivered: Rows that were acknowledged.
        repeated_at_most: An upper bound of the rows that may have been delivered twice.
        missing: Rows that were not acknowledged.
        workers: Acknowledged rows by worker.
    """

    split: str
    part: int
    state: str
    delivered: int
    repeated_at_most: int
    missing: int
    workers: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Which rows of one epoch were delivered: `str()` of it is the text for people.

    `delivered + missing == size.num_rows` if the workers kept to their leases.

    Attributes:
        size: The size of the plan.
        lines: One entry for each split and part that was claimed.
        never_claimed: Positions of the splits that nobody claimed.
        rows_never_claimed: The rows of those splits.
        indices: The number in the job of each worker that acknowledged rows.
    """

    size: EpochSize
    lines: tuple[SplitLine, ...]
    never_claimed: tuple[int, ...]
    rows_never_claimed: int
    indices: Mapping[str, int]

    @property
    def delivered(self) -> int:
        """Rows that were acknowledged, in this run or before the restored state."""
        return self.size.rows_before + sum(line.delivered for line in self.lines)

    @property
    def missing(self) -> int:
        """Rows that nobody acknowledged."""
        return self.rows_never_claimed + sum(line.missing for line in self.lines)

    @property
    def repeated_at_most(self) -> int:
        """An upper bound of the rows that may have been delivered twice."""
        return sum(line.repeated_at_most for line in self.lines)

    @property
    def workers(self) -> Mapping[str, int]:
        """Acknowledged rows by worker, sorted by index and name."""
        rows: Counter[str] = Counter()
        for line in self.lines:
            rows.update(line.workers)
        return {name: rows[name] for name in sorted(rows, key=lambda n: (self.indices[n], n))}

    @property
    def quarantined(self) -> tuple[SplitLine, ...]:
        """The splits and parts that were left out after too many failures."""
        return tuple(line for line in self.lines if line.state == LeaseState.QUARANTINED)

    def __str__(self) -> str:
        return "\n".join(_text(self))

    def as_dict(self) -> dict[str, Any]:
        """The receipt as JSON types, with the totals."""
        return {
            "num_splits": self.size.num_splits,
            "num_rows": self.size.num_rows,
            "rows_before": self.size.rows_before,
            "delivered": self.delivered,
            "repeated_at_most": self.repeated_at_most,
            "missing": self.missing,
            "never_claimed": list(self.never_claimed),
            "rows_never_claimed": self.rows_never_claimed,
            "workers": dict(self.workers),
            "indices": dict(self.indices),
            "splits": [asdict(line) | {"workers": dict(line.workers)} for line in self.lines],
        }


def read_receipt(store: Store, keys: EpochKeys) -> Receipt:
    """The receipt of one epoch, from its current leases.

    Raises:
        DispatchError: The store has no such epoch.
    """
    text = store.get_or_none(keys.size)
    if text is None:
        raise DispatchError(
            f"the store has no epoch {keys.epoch} under {keys.prefix!r}; "
            f"`featstore dispatch status` lists the epochs that it has"
        )
    size, lines, never, indices = EpochSize.decode(text), [], [], dict[str, int]()
    rows_claimed, complete = 0, set(size.complete_before)
    for index, entries in read_splits(store, keys, range(size.num_splits)):
        if entries:
            of_split = [_line(entries[0].split, entry) for entry in entries]
            lines += of_split
            indices |= {one.worker: one.index for entry in entries for one in entry.shares}
            # A lease begins after what a restored state had delivered: those rows are not in here.
            rows_claimed += sum(line.delivered + line.missing for line in of_split)
        elif index not in complete:
            never.append(index)
    return Receipt(
        size=size,
        lines=tuple(lines),
        never_claimed=tuple(never),
        rows_never_claimed=size.num_rows - size.rows_before - rows_claimed,
        indices=indices,
    )


class Fate(enum.StrEnum):
    """What a receipt says of a row. Of `PERHAPS`: it was reserved and not acknowledged when the
    worker's lease ended, or it is still held; or a restored state may have had it, of a part that
    nobody has claimed since.
    """

    BEFORE = "delivered before a restore"
    DELIVERED = "delivered"
    PERHAPS = "perhaps delivered"
    MISSING = "not delivered"


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Consecutive rows of a split, in its delivery order, of which a receipt says the same.

    Attributes:
        first: The first row.
        end: The row after the last one.
        fate: What it says.
        worker: Who acknowledged or reserved them; empty: nobody.
    """

    first: int
    end: int
    fate: Fate
    worker: str = ""


def stretches(
    entries: Sequence[LeaseEntry], num_rows: int, *, unclaimed: Fate
) -> Iterator[Stretch]:
    """What the leases of one split say of each of its rows: every row is in one stretch.

    Args:
        entries: The entries of the split and of its parts, as of `read_splits`; empty: it was never
            claimed.
        num_rows: The rows of the split.
        unclaimed: What became of rows that nobody has claimed.
    """
    row = 0
    if not entries:
        yield from _stretch(0, num_rows, unclaimed)
        return
    for entry in sorted(entries, key=lambda each: each.first):
        yield from _stretch(row, entry.first, Fate.BEFORE)
        row = entry.first
        if (record := entry.record) is None:
            row = entry.end or row
            yield from _stretch(entry.first, row, unclaimed)
            continue
        for share in entry.shares:
            yield from _stretch(row, share.first, Fate.BEFORE)
            yield from _stretch(share.first, share.through, Fate.DELIVERED, share.worker)
            row = share.through
        yield from _stretch(row, record.rows, Fate.BEFORE)
        # Who gives a lease back has delivered no more than it has acknowledged.
        reserved = record.rows if record.state is LeaseState.FREE else record.reserved
        yield from _stretch(record.rows, reserved, Fate.PERHAPS, record.worker)
        row = max(record.rows, record.limit)
        yield from _stretch(max(record.rows, reserved), row, Fate.MISSING)
    yield from _stretch(row, num_rows, Fate.BEFORE)


def maybe_repeated(entries: Sequence[LeaseEntry]) -> tuple[tuple[int, int], ...]:
    """The rows of a split that may have been delivered twice, in its delivery order: ranges, ends
    excluded. As many rows follow the row at which a claim took over as were reserved then; of
    several claims in a row only the sum is known, so it is taken for each.
    """
    found = []
    for record in (entry.record for entry in entries if entry.record is not None):
        shares = leases.all_shares(record)
        begins = sorted({record.first, *(share.first for share in shares)})
        if record.fence == len(shares) + (record.rows == record.first):
            begins = begins[1:]  # No earlier claim came to nothing: the first one took over none.
        found += [(row, min(row + record.repeated, record.limit)) for row in begins]
    return united(found)


def _stretch(first: int, end: int, fate: Fate, worker: str = "") -> Iterator[Stretch]:
    """The stretch, unless it is empty."""
    if first < end:
        yield Stretch(first=first, end=end, fate=fate, worker=worker)


def receipts(url: str, run_id: str, epoch: int | None = None) -> dict[str, Receipt]:
    """The receipts of a run's epochs.

    Args:
        url: The dispatch store's URL.
        run_id: The run.
        epoch: The one epoch to report on; None is all.

    Returns:
        Receipts by the prefix of the epoch's keys.

    Raises:
        DispatchError: The store has no such epoch, or cannot be read.
    """
    with closing(open_read_only(url)) as store:
        by_prefix = {
            f"{note.prefix}{note.epoch}": read_receipt(store, note.keys)
            for note in announced_in_run(store, run_id, epoch)
        }
    if not by_prefix:
        raise no_epoch(url, run_id, epoch)
    return by_prefix


def no_epoch(url: str, run_id: str, epoch: int | None) -> DispatchError:
    """The error for a store that has no epoch of a run; the arguments are those of `receipts`."""
    what = "no epoch" if epoch is None else f"no epoch {epoch}"
    return DispatchError(
        f"dispatch store {redact(url)} has {what} of run {run_id!r}: is it the run_id of the "
        f"training config? Orders other than dynamic have no receipts"
    )


def quarantine(store: Store, keys: EpochKeys, part: tuple[int, int]) -> None:
    """Adds a part to the epoch's list of quarantined parts, once, whoever calls this.

    Call it before writing the quarantined lease: a worker that dies in between then leaves an entry
    too many, which `quarantined` skips, and never one too few.
    """
    first_free(store, keys.quarantined, f"{part[0]} {part[1]}")


def quarantined(store: Store, keys: EpochKeys) -> Iterator[Lease]:
    """The leases in the epoch's list that really are quarantined."""
    number = 0
    while (value := store.get_or_none(keys.quarantined(number))) is not None:
        index, first = map(int, value.split())
        lease = store.get_or_none(keys.part((index, first)))
        if lease is not None and (record := Lease.decode(lease)).state is LeaseState.QUARANTINED:
            yield record
        number += 1


def _line(split: str, entry: LeaseEntry) -> SplitLine:
    state, repeated, missing = "unclaimed", 0, (entry.end or 0) - entry.first
    if (record := entry.record) is not None:
        state, repeated = record.state.value, record.repeated
        missing = record.limit - record.rows
    workers: Counter[str] = Counter()
    for share in entry.shares:
        workers[share.worker] += share.through - share.first
    return SplitLine(
        split=split,
        part=entry.first,
        state=state,
        delivered=workers.total(),
        repeated_at_most=repeated,
        missing=missing,
        workers=dict(workers),
    )


def _text(receipt: Receipt) -> Iterator[str]:
    size = receipt.size
    yield f"rows        {size.num_rows:,} in {size.num_splits:,} splits"
    yield f"delivered   {receipt.delivered:,}" + (
        f", {size.rows_before:,} of them before a restore" if size.rows_before else ""
    )
    # Which of them the loop had before its lease ended, nobody knows.
    why = " (reserved, and not acknowledged when a lease ended)" if receipt.repeated_at_most else ""
    yield f"twice       {receipt.repeated_at_most:,} at most{why}"
    yield f"missing     {receipt.missing:,}"
    if receipt.never_claimed:
        never = f"{receipt.rows_never_claimed:,} rows of {len(receipt.never_claimed):,} splits"
        some = ", ".join(map(str, receipt.never_claimed[:5]))
        more = ", ..." if len(receipt.never_claimed) > 5 else ""
        yield f"  never claimed: {never}, at positions {some}{more}"
    for line in receipt.lines:
        if line.missing or line.repeated_at_most:
            at = f" from row {line.part:,}" if line.part else ""
            twice = f", {line.repeated_at_most:,} at most twice" if line.repeated_at_most else ""
            who = (
                ", ".join(f"{worker} {rows:,}" for worker, rows in line.workers.items()) or "nobody"
            )
            yield (
                f"  {line.split}{at}: {line.state}, {line.missing:,} missing{twice}; delivered by "
                f"{who}"
            )
    for worker, rows in receipt.workers.items():
        yield f"worker {worker} (index {receipt.indices[worker]})   {rows:,}"
