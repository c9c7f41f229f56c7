"""A worker's view of its own leases while several of its threads change them."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from featstore.dispatch import lease as leases
from featstore.dispatch.held import Holdings
from featstore.dispatch.lease import Lease
from featstore.dispatch.plan import Extent
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import bind
from tests.threads import run_together

KEYS, PART = EpochKeys("p/", 0), (0, 0)
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
    store, holdings = bind("memory://held").open(), Holdings(KEYS)
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
            assert holdings.change(store, PART, CHANGES[name]) is not None

    assert holdings.change(Overtaken(store, overtake), PART, CHANGES[slow]) is not None
    assert holdings.get(PART, 1) == Lease.decode(store.get_or_none(KEYS.part(PART)))


def test_a_claim_whose_last_rows_were_reserved_by_another_thread_can_be_completed() -> None:
    store, holdings = _held()
    overtaken = Overtaken(store, lambda: holdings.change(store, PART, CHANGES["reserve"]))
    holdings.change(overtaken, PART, CHANGES["start"])
    assert holdings.change(store, PART, lambda mine, _: leases.finish(mine)) is not None
    assert len(holdings) == 0


def test_after_many_threads_changed_a_lease_the_worker_has_the_record_of_the_store() -> None:
    store, holdings = _held()

    def work() -> None:
        for _ in range(200):
            assert holdings.change(store, PART, leases.renew) is not None

    run_together(*[work] * 4)
    assert holdings.get(PART, 1) == Lease.decode(store.get_or_none(KEYS.part(PART)))
