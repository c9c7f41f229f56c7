"""What counts as delivered, and what the store is told, in any order of what threads do."""

import gc
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from featstore.base.errors import BatchError, DispatchError
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.stores.address import bind
from featstore.dispatch.terms import Claim, Terms
from featstore.loader.batches.pipeline import StageQueue
from featstore.loader.batches.progress import Progress, Segment
from featstore.loader.batches.stats import Stats
from featstore.loader.batches.transform import write_check
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.iteration.delivery import Delivery
from featstore.loader.iteration.reports import Reports
from featstore.loader.iteration.state import LoaderState
from featstore.tensors.batch import Batch
from featstore.tensors.column_arrays import SLOT
from featstore.tensors.packed import TensorColumns
from tests.dispatch.conftest import WholeClaims
from tests.forks import in_a_fork
from tests.loader.conftest import iteration_of, source_of
from tests.loader.iteration.states import START
from tests.programs import run_python
from tests.threads import beside

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
SPLITS = [Split(path=path, num_rows=rows) for path, rows in (("a", 4), ("b", 2), ("c", 5))]
STREAM = [(index, row) for index, split in enumerate(SPLITS) for row in range(split.num_rows)]


def claim_of(index: int) -> Claim:
    split = SPLITS[index]
    return Claim(index=index, split=split, fence=1, end_row=split.num_rows)


def segments_of(rows: Any, splits: Any = SPLITS) -> tuple[Segment, ...]:
    """The segments of consecutive rows of the stream."""
    last = dict(rows)
    claims = [Claim(index=i, split=split, fence=1) for i, split in enumerate(splits)]
    return tuple(
        Segment(claims[i], row + 1, row + 1 == splits[i].num_rows) for i, row in last.items()
    )


def done_of(rows: Any, splits: Any = SPLITS) -> dict[int, Any]:
    """What a state says where these rows are delivered."""
    counts = Counter(index for index, _ in rows)
    return {i: "complete" if n == splits[i].num_rows else n for i, n in counts.items()}


def real_batch() -> Batch:
    columns = TensorColumns({(SLOT, "x"): torch.zeros(2)})
    return Batch(columns, num_rows=2, extras=pa.table({}))


@dataclass
class Added:
    """A slice of the model."""

    rows: list[Any]
    is_batch: bool
    batch: Batch | None = None
    is_written: bool = False


@dataclass
class Model:
    """All that was added, in order, and how much of it is given and delivered."""

    added: list[Added] = field(default_factory=list)
    num_given: int = 0
    num_delivered: int = 0
    told: dict[int, int] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)

    def rows(self, end: int) -> list[Any]:
        return [row for added in self.added[:end] for row in added.rows]

    def pass_over_what_is_no_batch(self, at: int) -> int:
        while at < len(self.added) and not self.added[at].is_batch:
            at += 1
        return at

    def acknowledge(self) -> bool:
        """Whether no batch that was given was written to."""
        while self.num_delivered < self.num_given:
            if self.added[self.num_delivered].is_written:
                return False
            self.num_delivered += 1
        self.num_delivered = self.pass_over_what_is_no_batch(self.num_delivered)
        return True


class Deliveries(RuleBasedStateMachine):
    """A thread that makes batches, a loop that takes them, and whoever tells the store or ends the
    run, each doing the next thing it may do in any order."""

    @initialize(is_ahead=st.booleans(), num_workers=st.integers(1, 2))
    def begin(self, is_ahead: Any, num_workers: Any) -> None:
        self.counts, self.num_lost, self.num_dropped = Counter[Any](), 0, 0
        start = LoaderState(**{**vars(START), "num_workers": num_workers})
        self.delivery = Delivery(start, self.counts, tells=True)
        self.is_ahead, self.epoch, self.num_forks = is_ahead, 0, 0
        self.stop_at: int | None = None
        if is_ahead:
            self.delivery.run_ahead()
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.model, self.num_made, self.telling = Model(), 0, list[Any]()
        for index in range(len(SPLITS)):
            self.delivery.claim(claim_of(index))

    @property
    def is_stopped(self) -> Any:
        return self.stop_at is not None and self.model.num_delivered == self.stop_at

    def _add(self, num_rows: Any, *, is_batch: Any) -> None:
        rows = STREAM[self.num_made : self.num_made + num_rows]
        self.num_made += len(rows)
        batch = real_batch() if is_batch else None
        num_dropped = 0 if is_batch else len(rows)
        check = None if batch is None else write_check(batch)
        self.delivery.add(Progress(segments_of(rows), num_dropped, is_batch), check)
        if self.stop_at is not None:
            return
        model = self.model
        model.added.append(Added(rows, is_batch, batch))
        if is_batch and not self.is_ahead:
            model.num_given = len(model.added)
        if model.num_delivered == len(model.added) - 1:
            model.num_delivered = model.pass_over_what_is_no_batch(model.num_delivered)

    @rule(num_rows=st.integers(0, 4))
    def add_a_batch(self, num_rows: Any) -> None:
        self._add(num_rows, is_batch=True)

    @rule(num_rows=st.integers(0, 4))
    def add_rows_without_a_batch(self, num_rows: Any) -> None:
        self._add(num_rows, is_batch=False)

    @precondition(lambda self: self.is_ahead)
    @rule()
    def give(self) -> None:
        self.delivery.give()
        for number in range(self.model.num_given, len(self.model.added)):
            if self.model.added[number].is_batch:
                self.model.num_given = number + 1
                break

    @rule()
    def acknowledge(self) -> None:
        if self.model.acknowledge():
            self.delivery.acknowledge()
        else:
            with pytest.raises(BatchError, match="was written in place"):
                self.delivery.acknowledge()

    @rule(num_rows=st.integers(1, 2))
    def deliver_a_batch(self, num_rows: Any) -> None:
        self._add(num_rows, is_batch=True)
        if self.is_ahead:
            self.give()
        self.acknowledge()

    @rule(data=st.data())
    def write_to_a_batch(self, data: Any) -> None:
        has = self.model.added[self.model.num_delivered : self.model.num_given]
        batches = [added for added in has if added.is_batch]
        if batches:
            written = data.draw(st.sampled_from(batches))
            written.batch["x"][0] = 7
            written.is_written = True

    @precondition(lambda self: self.stop_at is None)
    @rule(num_epochs=st.integers(1, 2))
    def stop(self, num_epochs: int) -> None:
        self.stop_at, self.next_epoch = len(self.model.added), self.epoch + num_epochs
        self.delivery.stop(self.next_epoch)

    @precondition(lambda self: self.stop_at is None)
    @rule()
    def end_the_epoch(self) -> None:
        model = self.model
        is_over = model.num_delivered == len(model.added) and self.num_made == len(STREAM)
        if not is_over or self.telling:  # Who ends an epoch waits until all of it is told.
            return
        self.delivery.end_epoch(is_last=False)
        self.num_dropped += self._dropped()
        self.num_lost += len(model.lost)
        self.epoch += 1
        self._begin_epoch()

    @rule()
    def close(self) -> None:
        was_closed = self.delivery.is_closed
        assert self.delivery.close() is not was_closed
        assert self.delivery.closed.is_set()
        self.delivery.wait()

    @rule(index=st.integers(0, len(SPLITS) - 1))
    def lose_a_lease(self, index: Any) -> None:
        self.delivery.lose(claim_of(index).key)
        if done_of(self.model.rows(self.model.num_delivered)).get(index) != "complete":
            self.model.lost.add(index)

    @rule(index=st.integers(0, len(SPLITS) - 1))
    def fail_to_read(self, index: Any) -> None:
        self.delivery.fail(claim_of(index))
        self.model.failed.add(index)

    @precondition(lambda self: not self.telling)
    @rule(is_all=st.booleans())
    def begin_to_tell_the_store(self, is_all: Any) -> None:
        kinds = ("complete", "advanced", "failed") if is_all else ("complete",)
        delivered = Counter(index for index, _ in self.model.rows(self.model.num_delivered))
        self.telling = self.delivery.untold(*kinds)
        for report in self.telling:
            index, size = report.claim.index, report.claim.split.num_rows
            if report.kind == "failed":
                assert index in self.model.failed
            else:
                through = size if report.kind == "complete" else report.through
                assert index not in self.model.lost
                assert self.model.told.get(index, 0) < through == delivered[index]
                assert (report.kind == "complete") is (delivered[index] == size)
        if is_all:
            kinds_of = {(report.claim.index, report.kind == "failed") for report in self.telling}
            told = self.model.told
            untold = {i for i, n in delivered.items() if told.get(i, 0) < n} - self.model.lost
            assert kinds_of == {(i, False) for i in untold} | {(i, True) for i in self.model.failed}

    @precondition(lambda self: self.telling)
    @rule(answer=st.sampled_from(["mine", "mine", "other", "error"]))
    def hear_from_the_store(self, answer: Any) -> None:
        report = self.telling.pop()
        if answer != "error":
            self._told(report, is_mine=answer == "mine")

    def _told(self, report: Any, *, is_mine: Any) -> None:
        self.delivery.told(report, is_mine=is_mine)
        index = report.claim.index
        if report.kind == "failed":
            self.model.failed.discard(index)
        else:
            rows = report.claim.split.num_rows if report.kind == "complete" else report.through
            self.model.told[index] = rows
        if not is_mine:
            self.model.lost.add(index)

    @precondition(lambda self: not self.num_forks)
    @rule()
    def fork(self) -> None:
        self.num_forks += 1

        def use() -> None:
            delivery = self.delivery
            assert delivery.close() is False
            adds = (lambda: delivery.add(Progress(())), delivery.acknowledge, delivery.give)
            ends = (lambda: delivery.stop(1), lambda: delivery.end_epoch(is_last=True))
            states = (lambda: delivery.state, lambda: delivery.state_with_given, delivery.wait)
            for act in (*adds, *ends, *states):
                with pytest.raises(DispatchError, match=r"was copied into .* by a fork"):
                    act()

        assert in_a_fork(use) == 0

    def _dropped(self) -> Any:
        added = self.model.added[: self.model.num_delivered]
        return sum(len(one.rows) for one in added if not one.is_batch)

    @invariant()
    def what_is_delivered_is_a_prefix_of_what_was_added(self) -> None:
        state, model = self.delivery.state, self.model
        assert self.delivery.is_stopped is self.is_stopped
        if self.is_stopped:
            assert (state.first_epoch, state.delivered) == (state.epoch, {self.next_epoch: {}})
            done = done_of(model.rows(model.num_delivered))
            keeps_done = state.num_workers > 1 and self.next_epoch == self.epoch + 1
            assert state.ended == (done if keeps_done else None)
            assert self.delivery.state_with_given.done == done
        else:
            assert state.epoch == self.epoch
            assert state.done == done_of(model.rows(model.num_delivered))

    @invariant()
    def no_batch_is_delivered_that_the_consumer_has_or_has_not_had(self) -> None:
        if self.is_stopped:
            return
        done = self.delivery.state.done
        first = next((a for a in self.model.added[self.model.num_delivered :] if a.rows), None)
        if first is not None:
            for index, row in first.rows:
                assert done.get(index, 0) != "complete"
                assert done.get(index, 0) <= row

    @invariant()
    def a_state_with_what_is_given_goes_as_far_as_the_next_batch(self) -> None:
        given = max(self.model.num_given, self.model.num_delivered)
        end = self.model.pass_over_what_is_no_batch(given)
        assert self.delivery.state_with_given.done == done_of(self.model.rows(end))

    @invariant()
    def what_is_counted_is_what_happened(self) -> None:
        assert self.counts["rows_dropped_last"] == self.num_dropped + self._dropped()
        assert self.counts["leases_lost"] == self.num_lost + len(self.model.lost)
        rows = self.model.rows(self.model.num_delivered)
        left = len(STREAM) - len(rows) if self.is_stopped else 0
        assert self.counts["rows_dropped_tail"] == left


TestDeliveries = Deliveries.TestCase
TestDeliveries.settings = settings(stateful_step_count=60)


def delivery_of(start: Any = START, **claims: Any) -> Delivery:
    """Of a run whose claims are all there."""
    delivery = Delivery(start, Counter(), tells=True)
    for index in range(len(SPLITS)):
        delivery.claim(claim_of(index))
    return delivery


@pytest.mark.parametrize("num_workers", [1, 2])
def test_after_the_last_epoch_a_state_says_how_it_ended(num_workers: int) -> None:
    delivery = delivery_of(LoaderState(**{**vars(START), "num_workers": num_workers}))
    delivery.add(Progress(segments_of(STREAM)))
    delivery.acknowledge()
    delivery.end_epoch(is_last=True)
    done = dict.fromkeys(range(len(SPLITS)), "complete")
    state, ended = delivery.state, delivery.state_with_given
    assert (state.epoch, state.first_epoch, state.done) == (1, 1, {})
    assert state.ended == (None if num_workers == 1 else done)
    assert (ended.epoch, ended.first_epoch, ended.done) == (0, 0, done)


def test_what_was_delivered_of_the_next_epoch_is_delivered_once_that_begins() -> None:
    ahead, kept = {2: 1}, {"num_workers": 2, "num_epochs": 3, "ahead": {2: 1}}
    start = LoaderState(**{**vars(START), **kept})
    delivery = delivery_of(start)
    delivery.add(Progress(segments_of(STREAM)))
    delivery.acknowledge()
    done = dict.fromkeys(range(len(SPLITS)), "complete")
    assert delivery.state.delivered == {0: done, 1: ahead}
    delivery.end_epoch(is_last=False)
    state = delivery.state
    assert (state.first_epoch, state.delivered, state.ended) == (0, {1: ahead}, done)
    # A stop passes it over, unless it has begun.
    stopped = delivery_of(start)
    stopped.stop(3)
    assert (stopped.state.delivered, stopped.state.ended) == ({3: {}}, None)


def test_what_is_delivered_while_the_store_is_told_is_told_next() -> None:
    delivery = delivery_of()
    reports = []
    for rows in (STREAM[:2], STREAM[2:3]):
        delivery.add(Progress(segments_of(rows)))
        delivery.acknowledge()
        reports += delivery.untold("advanced")
    assert [report.through for report in reports] == [2, 3]
    delivery.told(reports[0], is_mine=True)
    assert delivery.untold("advanced") == reports[1:]
    delivery.told(reports[1], is_mine=True)
    assert delivery.untold("advanced") == []


def test_the_modules_of_delivery_import_no_torch() -> None:
    names = ("iteration.delivery", "batches.progress", "iteration.state")
    modules = [f"featstore.loader.{name}" for name in names]
    code = f"import sys, {', '.join(modules)}; assert 'torch' not in sys.modules"
    run_python(code)


def test_a_signal_handler_saves_the_state_and_closes_while_a_batch_is_acknowledged() -> None:
    delivery, seen = delivery_of(), []
    delivery.add(Progress(segments_of(STREAM[:2])))
    delivery.add(Progress(segments_of(STREAM[2:5])), lambda: signal.raise_signal(signal.SIGUSR1))

    def save(*_: Any) -> None:
        seen.append((delivery.state.done, delivery.close()))

    before = signal.signal(signal.SIGUSR1, save)
    try:
        delivery.acknowledge()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [({0: 2}, True)]
    assert delivery.state.done == {0: "complete", 1: 1}


class HoldsUp:
    """What a batch is watched by where it takes long to acknowledge it."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.has_begun.set()
        self.may_end.wait(60)


def test_a_forked_copy_is_refused_though_the_lock_was_held_when_it_was_made() -> None:
    delivery, watch = delivery_of(), HoldsUp()
    delivery.add(Progress(segments_of(STREAM[:3])), watch)

    def use() -> None:
        assert delivery.close() is False
        with pytest.raises(DispatchError, match=r"was copied into .* by a fork"):
            delivery.acknowledge()

    with beside(delivery.acknowledge):
        assert watch.has_begun.wait(60)
        code = in_a_fork(use)
        watch.may_end.set()
    assert code == 0
    assert delivery.state.done == {0: 3}


def test_a_forked_process_lets_go_of_an_iteration_though_the_store_was_being_told(
    table_url: str,
) -> None:
    with FeatureLoader(table_url, slots=["row"], batch_size=40) as loader:
        batches = iter(loader)
        next(batches)
        telling = iteration_of(loader)._reports._telling
        is_held, may_end = threading.Event(), threading.Event()

        def tell() -> None:
            with telling:
                is_held.set()
                may_end.wait(60)

        def forget() -> None:
            nonlocal batches
            source_of(loader).iteration = None
            del batches
            gc.collect()

        with beside(tell):
            assert is_held.wait(60)
            code = in_a_fork(forget)
            may_end.set()
        assert code == 0
        assert sum(batch.num_rows for batch in batches) == 280 - 40


@pytest.fixture
def switching_often() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching_often")
def test_a_run_stops_while_another_thread_claims() -> None:
    split = Split(path="a", num_rows=1)
    claims = [Claim(index=index, split=split, fence=1, end_row=1) for index in range(2000)]
    for _ in range(20):
        delivery, has_begun = (
            Delivery(START, counts := Counter[Any](), tells=True),
            threading.Event(),
        )

        def claim(delivery: Any = delivery, has_begun: Any = has_begun) -> None:
            for number, one in enumerate(claims):
                delivery.claim(one)
                if number == 1000:
                    has_begun.set()

        with beside(claim):
            assert has_begun.wait(60)
            delivery.stop(1)
        assert 1000 < counts["rows_dropped_tail"] <= 2000


@pytest.mark.usefixtures("switching_often")
def test_batches_given_by_one_thread_and_added_by_another_are_all_delivered_once() -> None:
    """`give` and `add` count on the same slices."""
    delivery, handoff, num_batches = (
        Delivery(START, Counter[Any](), tells=False),
        StageQueue[Any](ahead=7),
        3000,
    )
    delivery.run_ahead()

    def make() -> None:
        for row in range(num_batches):
            delivery.add(Progress((Segment(claim_of(0), row + 1, is_complete=False),)))
            handoff.put(row)
        handoff.end()

    with beside(make):
        while (row := handoff.get()) is not None:
            delivery.give()
            assert delivery.state.done == ({0: row} if row else {})
            delivery.acknowledge()
    assert delivery.state.done == {0: num_batches}


class Maker:
    """What a thread does that claims splits of a real store and makes batches ahead of a loop:
    every third slice of five rows is without a batch."""

    def __init__(self, name: str) -> None:
        self.plan = Plan(splits=[Split(path=f"{n}", num_rows=31 + n) for n in range(8)])
        self.address = bind(f"memory://{name}")
        self.stats, self.handoff = Stats(), StageQueue[Any](ahead=3)
        self.delivery = Delivery(START, self.stats.counts, tells=True)
        self.delivery.run_ahead()
        self.reports = Reports(self.delivery, self.stats, Terms(lease_s=0.004))

    def coordinator(self, worker: str) -> Coordinator:
        plan, terms = self.plan, Terms(lease_s=20.0)
        return WholeClaims(self.address, plan=plan, prefix="p/", worker=worker, terms=terms)

    def make(self) -> None:
        error = None
        try:
            with self.coordinator("0") as coordinator:
                self.reports.begin(coordinator)
                self._make(coordinator)
                self.reports.await_delivery()
                self.reports.end()
        except BaseException as raised:  # noqa: BLE001  a thread's boundary: the loop raises it
            error = raised
        self.handoff.end(error)

    def _make(self, coordinator: Coordinator) -> None:
        number = num_rows = 0
        for claim in coordinator.claims():
            self.delivery.claim(claim)
            end = claim.split.num_rows
            for through in [*range(5, end, 5), end]:
                segment = Segment(claim, through, through == end)
                added = Progress((segment,), is_batch=number % 3 > 0)
                self.reports.tell(is_complete=self.delivery.add(added))
                if added.is_batch:
                    self.handoff.put(num_rows)
                number, num_rows = number + 1, num_rows + (through - 1) % 5 + 1


def num_rows_of(done: Any, plan: Any) -> int:
    return sum(plan[i].num_rows if rows == "complete" else rows for i, rows in done.items())


@pytest.mark.usefixtures("switching_often")
@pytest.mark.parametrize("number", range(3))
def test_a_loop_is_told_of_in_order_and_to_the_end_while_states_are_saved(number: Any) -> None:
    """Each batch, when the loop has it, comes right after all that is delivered."""
    maker = Maker(f"told-{number}")
    states, has_ended = [], threading.Event()

    def save() -> None:
        while not has_ended.is_set():
            states.append(maker.delivery.state.done)

    with beside(maker.make, save):
        try:
            while (first_row := maker.handoff.get()) is not None:
                maker.delivery.give()
                assert num_rows_of(maker.delivery.state.done, maker.plan) == first_row
                maker.reports.tell(is_complete=maker.delivery.acknowledge())
                num_states = len(states)
                while len(states) == num_states:
                    time.sleep(0)  # Lets the saving thread save.
        finally:
            has_ended.set()
            maker.delivery.close()
            maker.handoff.close()
    assert maker.delivery.state.done == dict.fromkeys(range(8), "complete")
    assert maker.stats.counts["leases_lost"] == 0
    counts = [num_rows_of(done, maker.plan) for done in states]
    assert counts == sorted(counts)
    assert len(set(counts)) > 5
    with maker.coordinator("1") as other:
        assert list(other.claims()) == []
        assert other.is_done
