"""A worker's view of its own leases while several of its threads change them."""

import threading
import uuid
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from featstore.dispatch import lease as leases
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.held import Holdings, in_step_pause_s, renewal_pause_s
from featstore.dispatch.lease import Lease
from featstore.dispatch.plan import Extent, Plan, Split
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import StoreAddress, bind
from featstore.dispatch.terms import SYSTEM_CLOCK, Claim, Clock
from tests.threads import run_together

KEYS, PART = EpochKeys("p/", 0), (0, 0)
CLAIM = Claim(index=0, split=Split(path="a", num_rows=100), fence=1)
CHANGES = {
    "renew": leases.renew,
    "start": leases.start,
    "reserve": lambda mine, work: leases.reserve(mine, 100, work),
    "advance": lambda mine, work: leases.advance(mine, 10, work),
}


class Overtaken:
    """A store that answers the first write only after another thread has finished a change of its
    own.
    """

    def __init__(self, store: Any, act: Any) -> None:
        self._store, self._act = store, act

    def compare_set(self, *arguments: Any) -> Any:
        found = self._store.compare_set(*arguments)
        act, self._act = self._act, lambda: None
        act()
        return found


def _held() -> Any:
    store, holdings = bind("memory://held").open(), Holdings(KEYS, 60.0, SYSTEM_CLOCK)
    mine = leases.claim(Extent(split="a#0-", start_row=0, end=100), worker="w", nonce="n")
    store.set(KEYS.part(PART), mine.encode())
    holdings.take(PART, mine)
    return store, holdings


@given(
    slow=st.sampled_from(sorted(CHANGES)),
    quick=st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=4),
)
def test_a_thread_overtaken_between_its_write_and_its_update_does_not_undo_the_newer_record(
    slow: Any, quick: list[Any]
) -> None:
    store, holdings = _held()

    def overtake() -> None:
        for name in quick:
            assert holdings.change(store, PART, 1, CHANGES[name]) is not None

    assert holdings.change(Overtaken(store, overtake), PART, 1, CHANGES[slow]) is not None
    assert holdings.get(PART, 1) == Lease.decode(store.get_or_none(KEYS.part(PART)))


def test_a_claim_whose_last_rows_were_reserved_by_another_thread_can_be_completed() -> None:
    store, holdings = _held()
    overtaken = Overtaken(store, lambda: holdings.change(store, PART, 1, CHANGES["reserve"]))
    holdings.change(overtaken, PART, 1, CHANGES["start"])
    assert holdings.change(store, PART, 1, lambda mine, _: leases.finish(mine)) is not None
    assert len(holdings) == 0


def test_after_many_threads_changed_a_lease_the_worker_has_the_record_of_the_store() -> None:
    store, holdings = _held()

    def work() -> None:
        for _ in range(200):
            assert holdings.change(store, PART, 1, leases.renew) is not None

    run_together(*[work] * 4)
    assert holdings.get(PART, 1) == Lease.decode(store.get_or_none(KEYS.part(PART)))


def test_a_write_for_a_claim_that_has_ended_does_not_change_a_later_one_of_the_same_part() -> None:
    store, holdings = _held()
    value = store.get_or_none(KEYS.part(PART))
    again = leases.claim_again(Lease.decode(value), worker="w", nonce="n")
    assert store.compare_set(KEYS.part(PART), value, again.encode()) == again.encode()
    holdings.take(PART, again)
    assert holdings.change(store, PART, 1, CHANGES["advance"]) is None
    holdings.keep(PART, 1, 50)
    assert holdings.lower(PART, 2, 0) == 0
    assert not holdings.make([(CLAIM, 0)])
    assert Lease.decode(store.get_or_none(KEYS.part(PART))) == again


def test_rows_are_made_without_a_call_of_the_store_only_as_far_as_they_stay_reserved() -> None:
    _, holdings = _held()
    store, _ = bind("memory://held").open(), holdings.keep(PART, 1, 10)
    holdings.change(store, PART, 1, lambda mine, work: leases.reserve(mine, 60, work))
    assert holdings.make([(CLAIM, 20)])
    assert not holdings.make([(CLAIM, 61)])
    assert holdings.lower(PART, 1, 5) == 20, "those are made"
    assert not holdings.make([(CLAIM, 21)]), "the store may be told so at any moment"
    assert holdings.num_delivering == 1


def test_a_batch_is_made_without_a_call_of_the_store_only_if_all_its_claims_are_reserved() -> None:
    store, holdings = _held()
    other = Claim(index=1, split=Split(path="b", num_rows=100), fence=1)
    mine = leases.claim(Extent(split="b#0-", start_row=0, end=100), worker="w", nonce="n")
    store.set(KEYS.part((1, 0)), mine.encode())
    holdings.take((1, 0), mine)
    for index, through in ((0, 60), (1, 30)):
        assert holdings.change(
            store, (index, 0), 1, lambda mine, work, to=through: leases.reserve(mine, to, work)
        )
    assert holdings.make([(CLAIM, 20), (other, 30)])
    assert not holdings.make([(CLAIM, 40), (other, 31)])
    assert holdings.num_delivering == 2
    holdings.change(store, PART, 1, lambda mine, _: leases.release(mine))
    assert not holdings.make([(other, 30), (CLAIM, 20)]), "it has ended"


NUM_ROWS = 200
ACTIONS = st.tuples(st.sampled_from(["make", "acknowledge", "cut", "renew"]), st.integers(1, 40))


class StandingClock(Clock):
    """Time passes when a test says so. Nothing that waits by it ends before it is closed."""

    now = 0.0

    def now_s(self) -> float:
        return self.now

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(60)


class Loop:
    """A worker with one claim, of which one thread makes batches, one acknowledges and lowers the
    reservation, and one renews, while another worker cuts. Each write may be interrupted by others'
    before and after it reaches the store. All run in one thread, so that a run can be repeated.
    """

    def __init__(self, interruptions: list[tuple[str, int]]) -> None:
        address = bind(f"memory://{uuid.uuid4().hex}")
        opening: Any = _Opening(address, self)
        self._interruptions, self._active = interruptions, set[str]()
        self._store, self.made, self._acknowledged = address.open(), 0, 0
        self.clock = StandingClock()
        self._key = EpochKeys("p/", 0).split(0)
        self.coordinator = Coordinator(
            opening,
            plan=Plan(splits=[Split(path="a", num_rows=NUM_ROWS)]),
            prefix="p/",
            worker="w",
            clock=self.clock,
        )
        self.claim = next(self.coordinator.claims())

    def record(self) -> Lease:
        return Lease.decode(self._store.get_or_none(self._key) or "")

    def act(self, action: tuple[str, int]) -> None:
        """Does something, unless the thread that does this is interrupted itself."""
        name, number = action
        if name not in self._active:
            self._active.add(name)
            getattr(self, name)(number)
            self._active.remove(name)

    def interrupt(self) -> None:
        if hasattr(self, "claim"):
            record = self.record()
            assert self.made <= record.reserved, "a batch was made of rows that are not reserved"
            assert record.reserved <= record.limit
            if self._interruptions:
                self.act(self._interruptions.pop())

    def make(self, num_rows: int) -> bool:
        """Whether rows may be left."""
        through = self.made + num_rows
        row = self.coordinator.reserve(self.claim, through)
        assert row is not None
        record = self.record()
        assert self.made <= row <= record.reserved, "not reserved at the moment at which it is made"
        self.made = row
        return row == through

    def acknowledge(self, tenths: int) -> None:
        self.clock.now += tenths / 10
        self._acknowledged += (self.made - self._acknowledged) * min(tenths, 10) // 10
        assert self.coordinator.acknowledge_all([(self.claim, self._acknowledged)]) == [True]

    def renew(self, _: int) -> None:
        self.coordinator._held.renew_all(self.coordinator._store)

    def cut(self, num_rows: int) -> None:
        record = self.record()
        at = record.limit - num_rows
        if record.reserved <= at and at > 0:
            shorter = leases.cut(record, at).encode()
            assert self._store.compare_set(self._key, record.encode(), shorter) == shorter


class _Opening:
    def __init__(self, address: StoreAddress, loop: Loop) -> None:
        self._address, self._loop = address, loop

    def unanswered_s(self) -> float:
        return 0.0

    def scoped(self, wait_s: float) -> "_Opening":
        return self

    def hurry(self) -> None:
        """Its handles wait for nobody."""

    def open(self) -> Any:
        return _Interrupted(self._address.open(), self._loop.interrupt)


class _Interrupted:
    def __init__(self, store: Any, interrupt: Callable[[], None]) -> None:
        self._store, self._interrupt = store, interrupt

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    def compare_set(self, *given: Any) -> Any:
        self._interrupt()
        found = self._store.compare_set(*given)
        self._interrupt()
        return found


@given(actions=st.lists(ACTIONS, max_size=12), interruptions=st.lists(ACTIONS, max_size=30))
@settings(max_examples=400, deadline=None)
def test_no_row_is_made_that_is_not_reserved_however_makers_acknowledgers_and_cutters_interleave(
    actions: list[tuple[str, int]], interruptions: list[tuple[str, int]]
) -> None:
    loop = Loop(interruptions)
    with loop.coordinator as coordinator:
        for action in actions:
            loop.act(action)
        interruptions.clear()
        while loop.make(40):
            pass
        assert loop.made == loop.record().limit
        assert coordinator.complete(loop.claim)


def test_threads_that_make_acknowledge_renew_and_cut_agree_on_who_has_which_rows() -> None:
    loop, num_rows = Loop([]), 0
    coordinator, done = loop.coordinator, threading.Event()

    def make() -> None:
        nonlocal num_rows
        while (row := coordinator.reserve(loop.claim, num_rows + 1)) is not None and row > num_rows:
            num_rows = row
        done.set()

    def acknowledge() -> None:
        while not done.is_set():
            loop.clock.now += 0.5
            assert coordinator.acknowledge_all([(loop.claim, num_rows)]) == [True]

    def renew() -> None:
        while not done.is_set():
            loop.renew(0)

    def cut() -> None:
        while not done.is_set():
            record = loop.record()
            if record.num_left > 1 and record.reserved:
                shorter = leases.cut(record, record.limit - 1).encode()
                loop._store.compare_set(loop._key, record.encode(), shorter)

    run_together(make, acknowledge, renew, cut)
    with coordinator:
        record = loop.record()
        assert num_rows == record.limit, "rows are nobody's, or two workers'"
        assert coordinator.complete(loop.claim)


SECONDS = st.floats(0.01, 1e5)


def test_three_renewals_fit_into_a_lease() -> None:
    assert renewal_pause_s(60.0) == 20.0


@given(lease_s=SECONDS, taken=st.integers(0, 1000), left=st.integers(0, 1000), elapsed_s=SECONDS)
def test_a_rank_in_step_never_renews_less_often_than_others_nor_more_than_twice_a_second(
    lease_s: Any, taken: int, left: int, elapsed_s: Any
) -> None:
    pause_s = in_step_pause_s(lease_s, num_taken=taken, num_left=left, elapsed_s=elapsed_s)
    assert min(0.5, renewal_pause_s(lease_s)) <= pause_s <= renewal_pause_s(lease_s)


def test_at_the_end_of_the_plan_a_rank_in_step_renews_twice_a_second() -> None:
    assert in_step_pause_s(60.0, num_taken=10, num_left=0, elapsed_s=1e4) == 0.5


def test_before_the_end_of_the_plan_the_next_renewal_comes_when_half_of_the_rest_is_expected_to_be_handed_out() -> (
    None
):
    assert in_step_pause_s(60.0, num_taken=90, num_left=10, elapsed_s=90.0) == 5.0
    assert in_step_pause_s(60.0, num_taken=10, num_left=90, elapsed_s=90.0) == 20.0
