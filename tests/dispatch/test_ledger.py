"""The current leases of an epoch, read from its store."""

from collections.abc import Sequence
from typing import Any

from featstore.dispatch import lease as leases
from featstore.dispatch.epochs import LeaseEntry, read_splits
from featstore.dispatch.lease import Lease
from featstore.dispatch.plan import Extent
from featstore.dispatch.store_keys import EpochKeys, run_prefix
from featstore.dispatch.stores.base import Store

KEYS = EpochKeys(run_prefix("run"), 0)


class CountingStore:
    """Counts the keys that are read from another store."""

    def __init__(self, store: Store) -> None:
        self._store, self.reads = store, list[list[str]]()

    def get_many(self, keys: Sequence[str]) -> list[str | None]:
        self.reads.append(list(keys))
        return self._store.get_many(keys)


def _held(split: str = "a#0-", *, end: int = 100, cuts: tuple[int, ...] = ()) -> Lease:
    extent = Extent(split=split, start_row=0, end=end, cuts=cuts)
    return leases.claim(extent, worker="w", nonce="n")


def _done(split: str = "a#0-", *, end: int = 100, cuts: tuple[int, ...] = ()) -> Lease:
    return leases.finish(leases.reserve(_held(split, end=end, cuts=cuts), end))


def _write(store: Store, record: Lease, index: int, first: int = 0) -> Lease:
    store.set(KEYS.part((index, first)), record.encode())
    return record


def _read(store: Any, positions: Any, known: Any = None) -> dict[int, list[LeaseEntry]]:
    return dict(read_splits(store, KEYS, positions, known))


def test_a_split_that_was_never_claimed_has_no_entries(store: Store) -> None:
    record = _write(store, _held(), 1)
    entry = LeaseEntry(first=0, end=100, record=record)
    assert _read(store, range(3)) == {0: [], 1: [entry], 2: []}
    assert entry.split == "a#0-"


def test_parts_end_where_the_next_one_begins_and_may_be_unclaimed(store: Store) -> None:
    split = _write(store, _held(cuts=(40, 70)), 0)
    part = _write(store, _done(end=70), 0, 40)
    assert _read(store, [0])[0] == [
        LeaseEntry(first=0, end=100, record=split),
        LeaseEntry(first=40, end=70, record=part),
        LeaseEntry(first=70, end=100, record=None),
    ]
    assert LeaseEntry(first=70, end=100, record=None).split == ""


def test_parts_that_were_cut_off_parts_are_found(store: Store) -> None:
    _write(store, _held(cuts=(50,)), 0)
    _write(store, _held(cuts=(80,)), 0, 50)
    _write(store, _held(cuts=(90,)), 0, 80)
    (entries,) = _read(store, [0]).values()
    assert [(entry.first, entry.end) for entry in entries] == [
        (0, 100),
        (50, 100),
        (80, 100),
        (90, 100),
    ]


def test_known_leases_are_read_again_unless_they_are_final(store: Store) -> None:
    held, done = _write(store, _held(), 0), _write(store, _done(), 1)
    advanced = _write(store, leases.advance(held, 10), 0)
    counting = CountingStore(store)
    entries = _read(counting, range(2), {(0, 0): held, (1, 0): done})
    assert [entries[index][0].record for index in range(2)] == [advanced, done]
    assert counting.reads[0] == [KEYS.split(0)]


def test_many_splits_are_read_in_exchanges_of_256_keys(store: Store) -> None:
    counting = CountingStore(store)
    assert list(_read(counting, range(600))) == list(range(600))
    assert [len(keys) for keys in counting.reads] == [256, 256, 88]
