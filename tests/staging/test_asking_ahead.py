"""Short requests are asked for ahead, so that their round trips are not waited for one after the other: a few at a time, in
order, each with its own retries, and none beside another where connections are limited."""

import threading
import time
from collections import Counter

import pytest

from featstore.errors import StagingError
from featstore.staging.cost import MOST_REQUESTS
from featstore.staging.fetcher import Source, StageItem
from featstore.staging.options import Staging
from featstore.staging.retry import RetryPolicy
from featstore.staging.stager import Stager
from featstore.transfer import Answer

SIZE_BYTES, LATENCY_S = 50_000_000, 0.005
SPANS = [(at, at + 50_000) for at in range(0, 40_000_000, 1_000_000)]


def byte_at(place: int) -> int:
    return place % 251


def bytes_of(first: int, end: int) -> bytes:
    return bytes(map(byte_at, range(first, end)))


class Store:
    """Answers after a latency. Counts the requests that are under way: asked for, and not read to their end."""

    def __init__(self, *, cuts: int = 0, refuses: tuple[int, ...] = (), stalls_at: int | None = None) -> None:
        self.asked: list[tuple[int, int]] = []
        self.num_under_way = self.most_under_way = 0
        self.cuts, self.refuses, self.stalls_at = cuts, refuses, stalls_at
        self.released, self._lock, self._seen = threading.Event(), threading.Lock(), Counter[int]()

    def read(self, url: str, first: int, end: int, *, size_bytes: int, tag: str = "") -> Answer:
        with self._lock:
            self.asked.append((first, end))
            self._seen[first] += 1
            is_first_time = self._seen[first] == 1
            self.num_under_way += 1
            self.most_under_way = max(self.most_under_way, self.num_under_way)
        if first == self.stalls_at:
            self.released.wait(60)
        time.sleep(LATENCY_S)
        if first in self.refuses and is_first_time:
            self._end()
            raise ConnectionResetError("refused")
        return Answer(size_bytes=size_bytes, tag="v", blocks=self._blocks(first, end, is_cut=self.cuts and is_first_time))

    def _blocks(self, first: int, end: int, *, is_cut: bool):
        try:
            for at in range(first, end, 16 << 10):
                if is_cut and at - first >= self.cuts:
                    raise ConnectionResetError("cut")
                yield bytes_of(at, min(at + (16 << 10), end))
        finally:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self.num_under_way -= 1


@pytest.fixture(autouse=True)
def _no_bridges(monkeypatch):
    """No hole is bridged, however slow the machine makes the store look, and the window is wide."""
    monkeypatch.setattr("featstore.staging.cost._LONGEST_HOLE_BYTES", 16 << 10)


def stage(tmp_path, store: Store, *, max_attempts: int = 5, **options) -> bytes:
    retry = RetryPolicy(first_pause_s=0.01, max_attempts=max_attempts)
    source = Source(read=store.read, plan_ranges=lambda tail, size, name: SPANS, retry=retry)
    with Stager(Staging(directory=str(tmp_path), mode="ranges", **options), source) as stager:
        item = StageItem(key=0, url="http://store/f.parquet", size_bytes=SIZE_BYTES)
        with next(stager.stage([item])) as staged:
            return staged.path.read_bytes()


def require_right(data: bytes) -> None:
    assert all(data[first:end] == bytes_of(first, end) for first, end in SPANS)


def ask_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "featstore-ask"]


def test_short_requests_are_under_way_together_but_never_more_than_a_few(tmp_path):
    store = Store()
    require_right(stage(tmp_path, store))
    assert 2 <= store.most_under_way <= MOST_REQUESTS
    assert store.asked[1:] == SPANS
    assert store.num_under_way == 0


def test_where_connections_are_limited_a_download_has_one(tmp_path):
    store = Store()
    require_right(stage(tmp_path, store, max_connections=3))
    assert store.most_under_way == 1


def test_what_breaks_goes_on_where_it_broke_and_the_requests_behind_it_serve(tmp_path):
    store = Store(cuts=20_000)
    require_right(stage(tmp_path, store))
    again = [(first, end) for first, end in store.asked if (first, end) not in SPANS]
    assert len(again) == 2 + len(SPANS)  # the footer too
    assert all((first - 32_768, end) in SPANS for first, end in again[2:])


def test_a_request_that_failed_while_nobody_waited_for_it_is_made_again(tmp_path):
    refused = (SPANS[5][0], SPANS[6][0])
    store = Store(refuses=refused)
    require_right(stage(tmp_path, store))
    assert Counter(store.asked)[SPANS[5]] == Counter(store.asked)[SPANS[6]] == 2


def test_a_download_that_fails_leaves_no_request_behind(tmp_path):
    store = Store(cuts=20_000)
    with pytest.raises(StagingError, match="gave up after 1 attempts"):
        stage(tmp_path, store, max_attempts=1)
    assert ask_threads() == []


def test_closing_does_not_wait_for_a_request_that_stalls_while_nobody_waits_for_it(tmp_path):
    store = Store(stalls_at=SPANS[2][0])
    source = Source(read=store.read, plan_ranges=lambda tail, size, name: SPANS)
    with Stager(Staging(directory=str(tmp_path), mode="ranges"), source) as stager:
        stager.stage([StageItem(key=0, url="http://store/f.parquet", size_bytes=SIZE_BYTES)])
        while SPANS[2] not in store.asked:
            time.sleep(0.001)
        since = time.monotonic()
    assert time.monotonic() - since < 10
    store.released.set()
    for thread in ask_threads():
        thread.join(60)
    assert not list(tmp_path.glob("*/*.part"))
