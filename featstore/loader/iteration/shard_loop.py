"""A training loop over positions of an order that are claimed in shards, as splits of files are,
through a loader that asks for batches ahead of the loop.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

from featstore.base.closing import Closing, when_gone
from featstore.base.errors import ConfigError, StateError
from featstore.base.intervals import fitting_end
from featstore.dispatch.options import AUTO, END, Dispatch
from featstore.dispatch.plan import Done, Plan, Split, SplitList
from featstore.dispatch.relieving import FEW_ROWS
from featstore.dispatch.terms import Claim
from featstore.loader.batches.progress import Progress, Segment
from featstore.loader.batches.stats import Stats
from featstore.loader.iteration.delivery import Delivery
from featstore.loader.iteration.dynamic_epoch import (
    DynamicEpoch,
    report_all_done,
    report_quarantined,
)
from featstore.loader.iteration.rendezvous import Meeting, Rendezvous
from featstore.loader.iteration.reports import Reports
from featstore.loader.iteration.state import LoaderState
from featstore.loader.iteration.worker import LoaderWorker, worker_name
from featstore.loader.request.options import as_options
from featstore.reading.buffers import Array

Item = TypeVar("Item")
DispatchOptions = Dispatch | Mapping[str, Any] | str


@dataclass(frozen=True, kw_only=True)
class Shards(SplitList):
    """The positions from 0 up to `num_positions`, in splits of `shard_rows`.

    Attributes:
        num_positions: How many positions.
        shard_rows: Positions of a split; the last one may have fewer.
        order: A text that tells the order of the positions from others.
    """

    num_positions: int
    shard_rows: int
    order: str

    def __len__(self) -> int:
        return -(-self.num_positions // self.shard_rows)

    @property
    def num_rows(self) -> int:
        return self.num_positions

    def positions(self, index: int, first: int, end: int) -> range:
        """The positions of rows `first` to `end` of a shard."""
        begin = index * self.shard_rows
        return range(begin + first, begin + end)

    def digest_lines(self) -> Iterable[bytes]:
        return [f"{self.order}\n{self.num_positions}\n{self.shard_rows}\n".encode()]

    def _split(self, index: int) -> Split:
        num_rows = min(self.shard_rows, self.num_positions - index * self.shard_rows)
        return Split(path="order", num_rows=num_rows, first_row_group=index, last_row_group=index)


@dataclass(frozen=True, kw_only=True)
class ValueCap:
    """How many values the positions of a batch may have.

    Attributes:
        max_values: The most of them. No position alone has more.
        offsets: For an epoch and some of its positions, returns where the values of each begin, and
            the last ones end: integers (num_positions + 1,).
    """

    max_values: int
    offsets: Callable[[int, range], Array]


@dataclass(kw_only=True)
class _UnderWay:
    """A loop that has begun.

    Attributes:
        meeting: Where its workers meet.
        delivery: What it has delivered, and what the loader asked for ahead.
        reports: Tells the store of it.
        claims: Those of the next round, until the loader asks for their batches.
        num_ahead: How many batches the loader asked for that the loop has not got.
        has_claimed: Whether there was a round.
        is_over: Whether the loader has asked for all batches of the round.
        has_ended: Whether the epoch has ended for the loop, without an error.
        end: Ends it. May be called more than once.
    """

    meeting: Meeting
    delivery: Delivery
    reports: Reports
    claims: Iterable[Claim] | None = None
    num_ahead: int = 0
    has_claimed: bool = False
    is_over: bool = False
    has_ended: bool = False
    end: Callable[[], object] = lambda: None

    def ack(self) -> None:
        """Counts the batches that the loop has as delivered."""
        self.reports.tell(is_complete=self.delivery.acknowledge())

    def add(self, made: Sequence[tuple[range, Segment]]) -> list[range]:
        """Adds a batch to what is to be delivered, and returns its positions."""
        self.delivery.add(Progress(tuple(segment for _, segment in made)))
        self.num_ahead += 1
        return [positions for positions, _ in made]

    def round(self, loader: Iterable[Item], claims: Iterable[Claim]) -> Iterator[Item]:
        """The batches of a loader in one round, each delivered when the next one is asked for."""
        self.claims, self.has_claimed, self.is_over = claims, True, False
        for batch in loader:
            self.num_ahead -= 1
            self._require(self.num_ahead >= 0)
            self.delivery.give()
            yield batch
            self.ack()
        self._require(self.is_over and not self.num_ahead)
        self.reports.await_delivery()

    def _require(self, has_one_each: bool) -> None:
        if not has_one_each:
            raise StateError(
                "expected a loader that has one batch for each of the order's, to its end, found "
                "more or fewer: pass the DataLoader itself, made with batch_sampler=order, "
                "or with sampler=order and drop_last=False"
            )


@dataclass(frozen=True)
class _ClaimedRows:
    """The rows of a claim.

    Attributes:
        claim: The claim.
        offsets: Where the values of each begin and end, as of `ValueCap`; None without a cap.
    """

    claim: Claim
    offsets: Array | None

    def fitting_end(self, row: int, most_rows: int, most_values: int) -> int:
        """The row after the last one that fits, of those from `row` on."""
        end, begin = min(row + most_rows, self.claim.end_row), self.claim.start_row
        if self.offsets is None or row == end:
            return end
        return min(end, begin + fitting_end(self.offsets, row - begin, most_values))

    def num_values(self, first: int, end: int) -> int:
        """The values of some of the rows; 0 without a cap."""
        if self.offsets is None:
            return 0
        begin = self.claim.start_row
        return int(self.offsets[end - begin] - self.offsets[first - begin])


class LoopBatches(Generic[Item]):
    """The batches that a loop gets. The loop ends when they are dropped, as by a `break`.

    Args:
        under_way: The loop.
        batches: Its batches.
    """

    def __init__(self, under_way: _UnderWay, batches: Generator[Item, None, None]) -> None:
        # The generator does not refer to this object, which is then dropped at once.
        self._under_way, self._batches = under_way, batches
        self.close = under_way.end = when_gone(self, partial(_end, under_way, batches))

    def __iter__(self) -> "LoopBatches[Item]":
        return self

    def __next__(self) -> Item:
        found = list(islice(self._batches, 1))
        if self._under_way.delivery.is_closed and not self._under_way.has_ended:
            raise StateError(
                "this loop was ended by close(), an error or a newer one: iterate deliver(loader) "
                "anew"
            )
        if not found:
            raise StopIteration
        return found[0]


def _end(under_way: _UnderWay, batches: Generator[Any, None, None]) -> None:
    under_way.meeting.address.hurry()
    if under_way.delivery.close():
        under_way.reports.close()
    # One that another thread is in ends by itself.
    if inspect.getgeneratorstate(batches) != inspect.GEN_RUNNING:
        batches.close()


class ShardLoop(Closing):
    """Claims shards of an epoch, makes batches of them, and counts a batch as delivered when the
    loop asks for the next one. For one thread; only `close` may come from another one.

    Workers meet in an epoch by its number, whenever they come. A loop that is broken off and begun
    again goes on with it; once the epoch has ended for this process, the next loop repeats it.

    A worker waits for others only when all that it claimed is delivered, and a loader that runs
    ahead would wait too soon. So it is iterated in rounds: each ends when nothing is left to claim
    at once, and the next one begins when the loop has got all of it.

    Args:
        shards: What is claimed.
        batch_size: Positions of a batch; None: as many as a batch of the loader has.
        dispatch: Where workers meet.
        epoch: The first epoch.
        cap: How many values a batch may have.
    """

    def __init__(
        self,
        shards: Shards,
        batch_size: int | None,
        dispatch: DispatchOptions,
        epoch: int,
        cap: ValueCap | None = None,
    ) -> None:
        self._cap = cap
        self._given_size, self.batch_size, self.epoch = batch_size, batch_size or 1, epoch
        given = {"store": dispatch} if isinstance(dispatch, str) else dispatch
        self._dispatch = as_options(Dispatch, given, "dispatch") or Dispatch()
        self._shards, self._stats, self.terms = shards, Stats(), self._dispatch.terms
        self._rendezvous = Rendezvous(self._dispatch, self.plan(0).digest[:16], 1)
        self._restored: LoaderState | None = None
        self._under_way: _UnderWay | None = None
        self._num_ended = Counter[int]()  # Of each epoch, the loops that ended in this process.
        # What earlier loops have delivered of epochs that have not ended.
        self._left: dict[int, LoaderState] = {}
        when_gone(self, self._rendezvous.remove)

    @property
    def least_rows(self) -> int:
        """Fewer positions are not taken from a worker that lives."""
        return self.batch_size if self._cap is None else min(self.batch_size, FEW_ROWS)

    def plan(self, epoch: int) -> Plan:
        """The shards of an epoch, in the order of their positions."""
        return Plan(splits=self._shards, epoch=epoch, shuffle=False)

    def deliver(self, loader: Iterable[Item]) -> LoopBatches[Item]:
        """The batches of a loader, which has one for each of `batches`, in their order.

        Raises:
            ConfigError: The loader does not keep their order.
            StateError: It has others, or the loop was ended by `close` or a newer one.
            DispatchError: The store is lost, an earlier start of the run has read everything, or a
                shard killed its worker again and again.
        """
        if not getattr(loader, "in_order", True):
            raise ConfigError(
                "DataLoader: expected in_order=True, found False: batches count as delivered in "
                "the order in which they were asked for"
            )
        self._leave()
        self.batch_size = self._given_size or getattr(loader, "batch_size", None) or 1
        worker = LoaderWorker.here()
        meeting = self._rendezvous.begin(worker, (self._num_ended[self.epoch], self.epoch))
        # A process that had a part of the run does not come late, whatever others have read since.
        is_late = meeting.is_repeated and not (self._left or self._num_ended.total())
        meeting = replace(meeting, is_repeated=is_late)
        delivery = Delivery(self.state, self._stats.counts, tells=True)
        delivery.run_ahead()
        reports = Reports(delivery, self._stats, self.terms)
        self._under_way = _UnderWay(meeting=meeting, delivery=delivery, reports=reports)
        rounds = self._rounds(loader, meeting, self._under_way, self._start(worker).done)
        return LoopBatches(self._under_way, rounds)

    def batches(self) -> Iterator[list[range]]:
        """The positions of each batch of a round, reserved for this worker: `batch_size` of them,
        or as many as the cap allows, and in the last one fewer.

        Raises:
            StateError: It is not `deliver` that iterates the loader.
        """
        under_way = self._under_way
        if under_way is None or (claims := under_way.claims) is None:
            raise StateError(
                "expected a loop over deliver(loader), found one over the loader: it asks ahead, "
                "and does not know which batches the loop has got"
            )
        under_way.claims = None
        made, room = list[tuple[range, Segment]](), self._room
        for claim in claims:
            under_way.delivery.claim(claim)
            row, is_complete = claim.start_row, False
            rows = _ClaimedRows(claim, self._offsets(claim))
            while not is_complete:
                wanted = rows.fitting_end(row, *room)
                if wanted == row < claim.end_row:
                    yield under_way.add(made)
                    made, room = [], self._room
                    continue
                through = under_way.reports.reserve_rows(claim, wanted)
                if through is None:
                    break
                # Less than wanted: others have the rest.
                is_complete = through < wanted or through == claim.end_row
                positions = self._shards.positions(claim.index, row, through)
                made.append((positions, Segment(claim, through, is_complete)))
                room = room[0] - len(positions), room[1] - rows.num_values(row, through)
                row = through
                if not room[0]:
                    yield under_way.add(made)
                    made, room = [], self._room
        if room[0] < self.batch_size:
            yield under_way.add(made)
        elif made:
            no_rows = tuple(segment for _, segment in made)
            under_way.delivery.add(Progress(no_rows, is_batch=False))
        under_way.is_over = True

    @property
    def _room(self) -> tuple[int, int]:
        """How many positions and values fit into a batch."""
        return self.batch_size, 0 if self._cap is None else self._cap.max_values

    def _offsets(self, claim: Claim) -> Array | None:
        if self._cap is None:
            return None
        positions = self._shards.positions(claim.index, claim.start_row, claim.end_row)
        return self._cap.offsets(self.epoch, positions)

    def ack(self) -> None:
        """Counts the last batch as delivered now."""
        if self._under_way is not None:
            self._under_way.ack()

    def set_epoch(self, epoch: int) -> None:
        """Makes the next loop one of another epoch; does nothing if this is the current one."""
        if epoch != self.epoch:
            self._leave()
            self.epoch = epoch

    @property
    def state(self) -> LoaderState:
        """What this worker has delivered of the epoch."""
        if self._under_way is not None:
            return self._under_way.delivery.state
        return self._left.get(self.epoch) or self._start(LoaderWorker.here())

    def restore(self, saved: LoaderState) -> None:
        """Makes the next loop continue from the state of all workers.

        Raises:
            StateError: Workers are missing, it is of other shards, or a loop is under way.
        """
        if self._under_way is not None and not self._under_way.delivery.is_closed:
            raise StateError(
                "load_state_dict(): expected it before a loop, found one under way; a state goes "
                "into the order itself, not into a StatefulDataLoader"
            )
        worker = LoaderWorker.here()
        saved.require_fit(self._begin(worker))
        saved.require_complete()
        self.epoch, self._restored, self._under_way = saved.epoch, saved, None
        self._num_ended.clear()
        self._left.clear()
        self._rendezvous.restore(saved.digest, saved.epoch, worker)

    def end(self) -> None:
        """Ends the loop that is under way."""
        if self._under_way is not None:
            self._under_way.end()

    def _leave(self) -> None:
        """Ends the loop that is under way, and keeps what it has delivered for the next one of its
        epoch.
        """
        self.end()
        if self._under_way is not None and self._under_way.has_ended:
            self._left.pop(self.epoch, None)
        elif self._under_way is not None and self._under_way.has_claimed:
            self._left[self.epoch] = self.state
        self._under_way = None

    def close(self) -> None:
        """Ends the loop, releases claims and closes connections. May be called more than once."""
        with closing(self._rendezvous):
            self.end()
            if self._in_step:
                self._rendezvous.log_left_open()

    def _rounds(
        self, loader: Iterable[Item], meeting: Meeting, under_way: _UnderWay, done: Done
    ) -> Generator[Item, None, None]:
        in_step, delivery = self._in_step, under_way.delivery
        epoch = DynamicEpoch(
            self,
            meeting,
            meeting.first_epoch,
            worker=worker_name(),
            in_step=in_step,
            delivery=delivery,
            reports=under_way.reports,
            stats=self._stats,
            is_staged=None,
            done=done,
        )
        with epoch, closing(delivery):
            for claims in epoch.rounds():
                yield from under_way.round(loader, claims)
            if in_step:
                epoch.note_left_open()
            is_over = not delivery.is_closed
        if epoch.found_all_done and meeting.is_repeated:
            ends_finished = self._dispatch.finished == END
            report_all_done(meeting, meeting.first_epoch + 1, ends_finished=ends_finished)
        report_quarantined(epoch.quarantined, self.terms, skips=False)
        under_way.has_ended = is_over
        self._num_ended[meeting.first_epoch] += is_over

    @property
    def _in_step(self) -> bool:
        in_step = self._dispatch.in_step
        return LoaderWorker.here().in_step if in_step == AUTO else bool(in_step)

    def _begin(self, worker: LoaderWorker) -> LoaderState:
        """The state of a worker that has delivered nothing of the epoch."""
        return LoaderState(
            table="order",
            plan=self.plan(0).digest,
            request="",
            seed=0,
            window_rows=None,
            num_epochs=1,
            epoch=self.epoch,
            first_epoch=self.epoch,
            num_workers=worker.num_workers,
            workers=(worker.index,),
        )

    def _start(self, worker: LoaderWorker) -> LoaderState:
        begin, saved = self._begin(worker), self._restored
        if saved is None or saved.epoch != self.epoch or self._num_ended[self.epoch]:
            return begin
        return replace(begin, done=saved.done)
