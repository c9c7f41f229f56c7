"""How a worker claims splits and parts: which one comes next, and what is written to its key."""

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from featstore.base.errors import DispatchError
from featstore.dispatch import lease as leases
from featstore.dispatch.epochs import EpochNote, announce
from featstore.dispatch.held import Holdings, LoopPace
from featstore.dispatch.lease import FINAL, Lease
from featstore.dispatch.plan import Done, Extent, Plan, Split, extent, part_extent
from featstore.dispatch.receipt import EpochSize, quarantine
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.base import Store
from featstore.dispatch.survey import Part, StagedSplits, Survey
from featstore.dispatch.terms import Claim, Terms

# The turns of one worker: those of the next one of its index are larger. Files and cuts are fewer.
_TURNS = 2**32


@dataclass(frozen=True, kw_only=True)
class Claimer:
    """Who claims.

    Attributes:
        worker: The worker's name in leases.
        nonce: A text that is unique to its coordinator.
        index: The worker's number in the job.
    """

    worker: str
    nonce: str
    index: int


class Claiming:
    """Claims for one worker, in one epoch. They begin with nothing reserved. Not safe for several
    threads.

    Args:
        store: The store.
        keys: The epoch's keys.
        plan: The splits.
        done: What a restored state had delivered.
        claimer: The worker.
        held: The leases that it holds.
        pace: How fast its loop is.
        is_staged: As of `Coordinator`.

    Attributes:
        claimer: The worker.
        survey: The splits that are not known to be done.
        cursor: The position of the plan before which all splits are claimed, as far as is known.
    """

    def __init__(
        self,
        store: Store,
        keys: EpochKeys,
        plan: Plan,
        done: Done,
        claimer: Claimer,
        held: Holdings,
        pace: LoopPace,
        is_staged: Callable[[str], bool] | None,
    ) -> None:
        self._store, self._keys, self._plan, self._done = store, keys, plan, done
        self.claimer, self._held, self._pace = claimer, held, pace
        self._lookahead = StagedSplits(is_staged)
        self._extents: dict[Part, int] = {}
        self._turn = 0
        self.survey = Survey(frozenset(i for i, rows in done.items() if rows == "complete"))
        self.cursor = 0

    def begin(self, terms: Terms) -> None:
        """Called once, before the first claim. Announces the epoch. The claims of this worker come
        after those of earlier ones of its index.

        Raises:
            DispatchError: The store has another plan for the epoch.
        """
        self._require_same_plan()
        self._store.set(self._keys.size, EpochSize.of(self._plan, self._done).encode())
        note = EpochNote.of(
            self._keys, self._plan, self._done, terms=terms, started_unix_s=time.time()
        )
        announce(self._store, note)
        self._turn = _TURNS * (self._store.add(self._keys.begun(self.claimer.index), 1) - 1)

    @property
    def is_handed_out(self) -> bool:
        """Whether all splits of the plan are claimed."""
        return self.cursor >= len(self._plan)

    @property
    def num_splits(self) -> int:
        """Splits of the plan."""
        return len(self._plan)

    def num_unclaimed(self) -> int:
        """How many splits of the plan no worker has come to yet. One read of the store."""
        cursor = int(self._store.get_or_none(self._keys.cursor) or 0)
        complete = sum(i >= cursor and rows == "complete" for i, rows in self._done.items())
        return max(0, len(self._plan) - cursor - complete)

    def open_parts(self) -> list[Part]:
        """All splits and parts that are not known to be done."""
        return self.survey.pending(len(self._plan), len(self._plan))

    def next(self) -> Claim | None:
        """Claims the next split of the plan; None if there is none. One whose file this host has
        comes first if it is a little ahead of the cursor: the worker that comes to its position
        finds it claimed.
        """
        for index in self._lookahead.staged(self._plan, self.cursor):
            if (claim := self._first(index)) is not None:
                return claim
        while (index := self._store.add(self._keys.cursor, 1) - 1) < len(self._plan):
            self.cursor = index + 1
            if (claim := self._first(index)) is not None:
                return claim
        self.cursor = len(self._plan)
        return None

    def learn(self, part: Part, record: Lease) -> list[Part]:
        """Learns from a lease record. Returns parts of the split that were not known before."""
        if record.state in FINAL:
            self.survey.settle(part)
        self._extents.update({(part[0], first): end for first, end in leases.parts(record)})
        return self.survey.add((part[0], first) for first in record.cuts)

    def quarantine(self, part: Part, value: str | None, record: Lease) -> None:
        """Leaves out a part that has failed too often, if its key still has `value`."""
        quarantine(self._store, self._keys, part)
        if self._write(part, value, given_up := leases.quarantine(record)):
            self.learn(part, given_up)

    def cut(self, part: Part, value: str, record: Lease, at: int) -> Claim | None:
        """Cuts a lease in two and claims the second part, if the key of the first still has
        `value`.
        """
        if not self._write(part, value, shorter := leases.cut(record, at)):
            return None
        self.learn(part, shorter)
        return self.claim((part[0], at), None, None)

    def claim(
        self, part: Part, value: str | None, record: Lease | None, *, relieves: bool = False
    ) -> Claim | None:
        """Claims the part if its key still has `value`.

        Args:
            part: The part.
            value: What its key holds; None if there is none.
            record: The lease in it.
            relieves: As of `claim_again`.
        """
        split, who = self._plan[part[0]], self.claimer
        named: dict[str, Any] = {
            "worker": who.worker,
            "nonce": who.nonce,
            "index": who.index,
            "turn": self._turn,
            "pace": math.ceil(self._pace.idle_rows_per_s),
        }
        mine = (
            leases.claim(self._extent(part, split), **named)
            if record is None
            else leases.claim_again(record, relieves=relieves, **named)
        )
        if not self._write(part, value, mine):
            return None
        self._turn += 1
        self._held.take(part, mine)
        new = self.learn(part, mine)
        if record is None:
            self._offer(new)
        return Claim(
            index=part[0],
            split=split,
            fence=mine.fence,
            start_row=mine.rows,
            part=part[1],
            end_row=mine.limit,
        )

    def _require_same_plan(self) -> None:
        seed = "\n".join(f"{index} {self._done[index]}" for index in sorted(self._done))
        mine = f"{self._plan.digest}+{hashlib.sha256(seed.encode()).hexdigest()[:16]}"
        if self._plan.window_rows is not None:
            mine += f"+{self._plan.window_rows}"
        found = self._store.compare_set(self._keys.plan, "", mine)
        if found != mine:
            raise DispatchError(
                f"worker {self.claimer.worker} has another plan for epoch {self._plan.epoch} than "
                f"the workers before it: expected {found}, found {mine}; table version, selection, "
                "seed, shuffle, row groups and restored state must be the same in all workers, and "
                "each run needs its own run_id"
            )

    def _first(self, index: int) -> Claim | None:
        """The first claim on a split, unless it was claimed or delivered before."""
        is_done = self._done.get(index) == "complete"
        return None if is_done else self.claim((index, 0), None, None)

    def _extent(self, part: Part, split: Split) -> Extent:
        index, first = part
        rows = self._done.get(index, 0)
        return (
            part_extent(split, rows, first, self._extents[part]) if first else extent(split, rows)
        )

    def _offer(self, parts: Sequence[Part]) -> None:
        """Writes free leases for further parts of a split, in the middle of which a restored state
        had delivered rows.
        """
        who = self.claimer
        for part in parts:
            mine = leases.claim(
                self._extent(part, self._plan[part[0]]), worker=who.worker, nonce=who.nonce
            )
            self._write(part, None, leases.release(mine))

    def _write(self, part: Part, value: str | None, record: Lease) -> bool:
        return (
            self._store.compare_set(self._keys.part(part), value or "", record.encode())
            == record.encode()
        )
