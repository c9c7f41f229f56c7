"""Idle workers look only at what may have changed, and no worker ends while a split is free."""

import threading
from collections import Counter
from typing import Any

from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import StoreAddress
from featstore.dispatch.stores.base import Store
from featstore.dispatch.survey import Hints, Survey
from featstore.dispatch.terms import WaitFor
from tests.dispatch.conftest import PREFIX
from tests.dispatch.repeating_store import RepeatingAddress
from tests.dispatch.simulated_clock import SimulatedClock


class CountingAddress:
    """Opens handles that count the keys they read and their exchanges."""

    def __init__(self, address: Any) -> None:
        self._address, self.num_asked, self.num_exchanges = address, Counter[Any](), 0

    def open(self) -> "_Counting":
        return _Counting(self._address.open(), self)

    def unanswered_s(self) -> float:
        return 0.0

    def scoped(self, wait_s: float) -> "CountingAddress":
        return self

    def hurry(self) -> None:
        """Its handles wait for nobody."""


class _Counting:
    def __init__(self, inner: Any, counts: Any) -> None:
        self._inner, self._counts = inner, counts

    def __getattr__(self, verb: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self._counts.num_exchanges += 1
            keys = arguments[0] if verb == "get_many" else arguments[:1]
            self._counts.num_asked.update(
                "split" if "/split/" in key else key.rpartition("/")[2] for key in keys
            )
            return getattr(self._inner, verb)(*arguments)

        return call if verb != "close" else getattr(self._inner, verb)


def test_a_worker_that_never_waits_finds_the_one_free_split_among_hundreds_that_others_hold(
    make_worker: Any,
) -> None:
    """The workers of a DataLoader end instead of waiting, so nobody reads what they miss."""
    holder, leaver, last = (
        make_worker("holder", 400),
        make_worker("leaver", 400),
        make_worker("last", 400),
    )
    held = [claim for _, claim in zip(range(390), holder.claims(), strict=False)]
    given_back = next(leaver.claims())
    held += list(holder.claims(WaitFor.NOTHING))
    leaver.close()
    assert len(held) == 399
    assert [claim.index for claim in last.claims(WaitFor.NOTHING)] == [given_back.index]


def test_idle_workers_read_two_hints_and_no_leases(
    make_worker: Any, address: StoreAddress, clock: SimulatedClock
) -> None:
    counting = CountingAddress(address)
    holder, idle = make_worker("holder", 300), make_worker("idle", 300, through=counting)
    held = list(holder.claims(WaitFor.NOTHING))
    got = []
    thread = threading.Thread(target=lambda: got.extend(idle.claims()))
    thread.start()
    while counting.num_asked["given_back"] < 6:
        clock.sleep(0.01)
    # Of 60 s leases nothing is to be seen again in the first seconds: the looks at the beginning
    # are all.
    num_looks = counting.num_asked["split"]
    assert num_looks <= 6 * 64
    while counting.num_asked["given_back"] < 9:
        clock.sleep(0.01)
    assert counting.num_asked["split"] == num_looks
    assert holder.fail(held[7])
    while not got:
        clock.sleep(0.01)
    assert [claim.index for claim in got] == [held[7].index]
    assert idle.complete(got[0])
    assert all(holder.complete(claim) for claim in held if claim.index != 7)
    clock.join(thread)
    idle.close()
    assert not thread.is_alive()


def test_the_last_look_at_thousands_of_splits_takes_a_few_exchanges(
    make_worker: Any, address: StoreAddress
) -> None:
    counting = CountingAddress(address)
    one = make_worker("one", 2_000)
    assert all(one.complete(claim) for claim in one.claims(WaitFor.NOTHING))
    keys = EpochKeys(PREFIX, 0)
    store = address.open()
    store.set(keys.low, "0")
    late = make_worker("late", 2_000, through=counting)
    before = counting.num_exchanges
    assert list(late.claims()) == []
    assert (late.is_done, counting.num_asked["split"] <= 2_100) == (True, True)
    assert counting.num_exchanges - before < 60


def test_no_split_is_missed_or_comes_twice_over_a_store_that_does_requests_twice(
    make_worker: Any, address: StoreAddress
) -> None:
    """Counts have holes then: positions of the plan, and entries of the list of what was given
    back, behind which others are.
    """
    through, done = RepeatingAddress(address), Counter[int]()
    leavers = [make_worker(f"leaver {number}", 60, through=through) for number in range(4)]
    last = make_worker("last", 60, through=through)
    for leaver in leavers:
        for _, claim in zip(range(8), leaver.claims(WaitFor.NOTHING), strict=False):
            if claim.index % 2:
                assert leaver.complete(claim)
                done[claim.index] += 1
    for leaver in leavers:
        leaver.close()
    for claim in last.claims():
        assert last.complete(claim)
        done[claim.index] += 1
    assert done == Counter(range(60))
    assert through.num_repeated > 100


def test_a_lease_that_was_given_back_is_found_behind_one_that_was_only_counted(
    store: Store,
) -> None:
    keys = EpochKeys(PREFIX, 0)
    reader, writer = (Hints(store, keys, Survey(frozenset()), 10) for _ in range(2))
    store.add(keys.given_back, 2)
    writer.gave_back([(4, 0)])
    assert reader.given_back() == [(4, 0)]
    store.set(keys.gave_back(2), "3 500")  # Its writer was slow.
    assert reader.given_back() == [(3, 500)]
    writer.gave_back([(5, 0)])
    assert reader.given_back() == [(5, 0)]
    assert reader.given_back() == []
