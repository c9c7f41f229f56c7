"""Short requests are sent ahead, so that their round trips overlap: a few at a time, in order, each
with its own retries, only one with a connection limit, and never more bytes than connections
buffer.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featstore.base.errors import ReplacedError, StagingError
from featstore.base.intervals import covers, num_bytes
from featstore.files.retry import RetryPolicy
from featstore.files.transfer import RangeResponse
from featstore.staging.fetcher import Source, StageItem
from featstore.staging.filling import Filling
from featstore.staging.lookahead import RequestsAhead
from featstore.staging.options import Staging
from featstore.staging.remote import MAX_REQUESTS, Remote
from featstore.staging.stager import Stager
from tests.process import our_threads

SIZE_BYTES, LATENCY_S = 50_000_000, 0.005
SPANS = [(at, at + 50_000) for at in range(0, 40_000_000, 1_000_000)]


def bytes_of(first: int, end: int, version: int = 0) -> bytes:
    pattern = bytes((place + 7 * version) % 251 for place in range(251))
    start = first % 251
    return (pattern * ((start + end - first) // 251 + 1))[start : start + end - first]


class Store:
    """A store that answers after a latency, and counts the requests in flight: sent and not read to
    their end. By the first byte of a request: `cuts` says after how many bytes it breaks the first
    time; those in `refuses` fail, and those in `stalls` wait for `released`. The request at
    `replaced_at` replaces the file.
    """

    def __init__(
        self,
        *,
        cuts: dict[int, int] | None = None,
        refuses: tuple[int, ...] = (),
        stalls: int | None = None,
        replaced_at: int | None = None,
        has_versions: bool = True,
        block_bytes: int = 16 << 10,
    ) -> None:
        self.asked: list[tuple[int, int]] = []
        self.num_under_way = self.most_under_way = self.most_bytes = 0
        self.cuts, self.refuses, self.stalls, self.replaced_at = (
            cuts or {},
            refuses,
            stalls,
            replaced_at,
        )
        self.has_versions, self.version, self._block_bytes = has_versions, 0, block_bytes
        self.released, self._lock, self._seen = threading.Event(), threading.Lock(), Counter[int]()
        self._under_way: dict[tuple[int, int], int] = {}

    def read(
        self, url: str, first: int, end: int, *, size_bytes: int, tag: str = ""
    ) -> RangeResponse:
        is_first_time = self._begin(first, end)
        if first == self.stalls:
            self.released.wait(60)
        time.sleep(LATENCY_S)
        if first == self.replaced_at and is_first_time:
            self.version += 1
        now = f"v{self.version}" if self.has_versions else ""
        if tag and tag != now:
            self._end(first, end)
            raise ReplacedError("replaced")
        if first in self.refuses and is_first_time:
            self._end(first, end)
            raise ConnectionResetError("refused")
        cut_at = first + self.cuts.get(first, end) if is_first_time else end
        return RangeResponse(
            size_bytes=size_bytes, tag=now, blocks=self._blocks(first, end, cut_at, self.version)
        )

    def _blocks(self, first: int, end: int, cut_at: int, version: int) -> Iterator[Any]:
        try:
            for at in range(first, end, self._block_bytes):
                if at >= cut_at:
                    raise ConnectionResetError("cut")
                yield bytes_of(at, min(at + self._block_bytes, end), version)
        finally:
            self._end(first, end)

    def _begin(self, first: int, end: int) -> bool:
        with self._lock:
            self.asked.append((first, end))
            self._seen[first] += 1
            self._under_way[first, end] = end - first
            self.most_under_way = max(self.most_under_way, len(self._under_way))
            self.most_bytes = max(self.most_bytes, sum(self._under_way.values()))
            return self._seen[first] == 1

    def _end(self, first: int, end: int) -> None:
        with self._lock:
            self._under_way.pop((first, end), None)


class Asking:
    """What is known of a filling: which spans were sent, and how many requests broke."""

    def __init__(self) -> None:
        self.sent, self.num_broken = set[tuple[int, int]](), 0

    def is_coming(self, span: tuple[int, int]) -> bool:
        return span in self.sent


def test_requests_are_chosen_anew_when_the_store_changes_or_a_request_breaks() -> None:
    filling: Any = Asking()
    known, choices = [Remote()], [((0, 1), (2, 3)), ((0, 3),), ((4, 5), (6, 7)), ()]
    num_chosen: list[int] = []

    def choose() -> Any:
        num_chosen.append(len(num_chosen))
        return choices[len(num_chosen) - 1]

    ahead = RequestsAhead(
        choose=choose, remote=lambda: known[-1], filling=filling, pass_on=lambda: None
    )
    requests = ahead.remaining
    assert requests() == ((0, 1), (2, 3))
    filling.sent.add((0, 1))
    known.append(Remote(latency_s=known[0].latency_s * 1.05))
    assert requests() == ((2, 3),)
    assert len(num_chosen) == 1
    known.append(Remote(latency_s=known[0].latency_s * 1.2))
    assert requests() == ((0, 3),)
    assert requests() == ((0, 3),)
    filling.num_broken = 1
    assert requests() == ((4, 5), (6, 7))
    assert len(num_chosen) == 3
    known.append(Remote(weight_bytes=1.0))  # the bandwidth is known now
    assert requests() == ()


@pytest.fixture(autouse=True)
def _no_bridges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bridges no holes, however slow the machine makes the store look."""
    monkeypatch.setattr("featstore.staging.remote._MAX_HOLE_BYTES", 16 << 10)


def source_of(store: Store, spans: Any, *, max_attempts: int = 5) -> Source:
    retry = RetryPolicy(first_pause_s=0.01, max_attempts=max_attempts)
    return Source(read=store.read, plan_ranges=lambda tail, size, name: spans, retry=retry)


def stage(
    tmp_path: Path,
    store: Store,
    *,
    spans: Any = SPANS,
    max_attempts: int = 5,
    url: str = "http://store/f.parquet",
    prior: Remote | None = None,
    **options: Any,
) -> bytes:
    """`prior`: the estimates before the first request."""
    staging = Staging(**({"directory": str(tmp_path), "mode": "ranges"} | options))
    with Stager(staging, source_of(store, spans, max_attempts=max_attempts)) as stager:
        stager.fetcher._remotes |= {} if prior is None else {"http://store": prior}
        item = StageItem(key=0, url=url, size_bytes=SIZE_BYTES)
        with next(stager.stage([item])) as staged:
            assert staged.path is not None
            return staged.path.read_bytes()


def require_right(data: bytes, version: int = 0) -> None:
    assert all(data[first:end] == bytes_of(first, end, version) for first, end in SPANS)


def ask_threads() -> set[threading.Thread]:
    return our_threads("-ask")


def test_a_few_short_requests_are_in_flight_together(tmp_path: Path) -> None:
    store = Store()
    require_right(stage(tmp_path, store))
    assert 2 <= store.most_under_way <= MAX_REQUESTS
    assert (
        sorted(store.asked[1:]) == SPANS
    )  # of two that are sent at one time either may be there first


@pytest.mark.parametrize(
    "case",
    [{"max_connections": 3}, {"url": "memory://store/f.parquet"}],
    ids=["limited", "by fsspec"],
)
def test_with_a_connection_limit_or_a_single_threaded_client_one_request_is_in_flight(
    tmp_path: Path, case: Any
) -> None:
    store = Store()
    require_right(stage(tmp_path, store, **case))
    assert store.most_under_way == 1


def test_a_long_request_is_in_flight_alone(tmp_path: Path) -> None:
    """Its bytes would fill the connection unread, in front of a short request that the store serves
    later.
    """
    period, short, long = 9_000_000, 60_000, 6_000_000
    spans = [
        (at + first, at + first + size)
        for at in range(0, 5 * period, period)
        for first, size in ((0, short), (1_000_000, short), (2_000_000, long))
    ]
    store = Store()
    stage(tmp_path, store, spans=spans)
    assert sorted(store.asked[1:]) == spans
    assert store.most_bytes <= long + (4 << 20)
    assert store.most_under_way >= 2


def test_a_broken_request_resumes_and_the_requests_behind_it_are_dropped(
    tmp_path: Path,
) -> None:
    """A store that serves one request at a time would answer those first."""
    store = Store(cuts={SPANS[5][0]: 20_000, SPANS[6][0]: 1, SPANS[20][0]: 20_000})
    require_right(stage(tmp_path, store))
    asked = Counter(store.asked)
    assert (
        asked[SPANS[5][0] + 32_768, SPANS[5][1]] == asked[SPANS[20][0] + 32_768, SPANS[20][1]] == 1
    )
    assert asked[SPANS[6]] >= 2
    assert max(asked.values()) <= 4


def test_a_request_that_failed_before_its_turn_is_made_again(tmp_path: Path) -> None:
    store = Store(refuses=(SPANS[5][0], SPANS[6][0]))
    require_right(stage(tmp_path, store))
    assert Counter(store.asked)[SPANS[5]] >= 2
    assert Counter(store.asked)[SPANS[6]] >= 2


def test_without_versions_a_span_is_fetched_from_its_start(tmp_path: Path) -> None:
    store = Store(cuts={SPANS[5][0]: 20_000}, has_versions=False)
    require_right(stage(tmp_path, store))
    assert Counter(store.asked)[SPANS[5]] == 2


def test_a_file_replaced_while_requests_are_in_flight_is_fetched_again(
    tmp_path: Path,
) -> None:
    store = Store(replaced_at=SPANS[8][0])
    require_right(stage(tmp_path, store), version=1)
    asked = Counter(store.asked)
    assert all(asked[span] >= 2 for span in SPANS[:8])


def test_a_download_that_fails_leaves_no_request_behind(tmp_path: Path) -> None:
    store = Store(cuts={SPANS[5][0]: 20_000})
    with pytest.raises(StagingError, match="gave up after 1 attempts"):
        stage(tmp_path, store, max_attempts=1)
    assert store.most_under_way >= 2
    assert not ask_threads()


def test_close_does_not_wait_for_a_stalled_request_whose_turn_has_not_come(
    tmp_path: Path,
) -> None:
    store = Store(stalls=SPANS[2][0])
    with Stager(Staging(directory=str(tmp_path), mode="ranges"), source_of(store, SPANS)) as stager:
        stager.stage([StageItem(key=0, url="http://store/f.parquet", size_bytes=SIZE_BYTES)])
        while SPANS[2] not in store.asked:
            time.sleep(0.001)
    stalled = ask_threads()
    assert stalled  # it was not waited for
    store.released.set()
    for thread in stalled:
        thread.join(60)
    assert not list(tmp_path.glob("*/*.part"))


def test_room_for_holes_is_reserved_beside_requests_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first, long answer shows a fast line, on which holes are bridged, while others were
    requested one by one. The prior is 1 MB/s, so that any machine is faster: 32 MB/s are enough for
    these holes.
    """
    monkeypatch.setattr("featstore.staging.remote._MAX_HOLE_BYTES", 64 << 20)
    spans = [(0, 5_000_000), *((at, at + 60_000) for at in range(6_000_000, 12_000_000, 80_000))]
    store = Store(block_bytes=1 << 20)
    with _watched_reservations() as reserved:
        stage(tmp_path, store, spans=spans, prior=Remote(bytes_per_s=1e6))
    assert len(reserved) >= MAX_REQUESTS
    assert len(store.asked) < len(spans)
    assert all(coming_bytes <= reserved_bytes for coming_bytes, reserved_bytes in reserved)


@settings(max_examples=settings().max_examples // 3)
@given(
    places=st.lists(st.integers(0, 200), min_size=2, max_size=40, unique=True),
    cuts=st.dictionaries(st.integers(0, 200), st.integers(1, 60_000), max_size=6),
    refuses=st.sets(st.integers(0, 200), max_size=4),
    replaced_at=st.none() | st.integers(0, 200),
    mode=st.sampled_from(["ranges", "auto", "whole"]),
    budget_bytes=st.sampled_from([10**9, SIZE_BYTES, 6_000_000]),
    data=st.data(),
)
def test_under_any_fault_bytes_are_right_of_one_version_and_within_the_reservation(
    places: list[int],
    cuts: Any,
    refuses: set[int],
    replaced_at: int | None,
    mode: str,
    budget_bytes: Any,
    data: st.DataObject,
) -> None:
    """Offsets are multiples of 240,000 bytes, and each span lies between two of them."""
    ascending = [240_000 * place for place in sorted(places)]
    spans = [
        (first, min(end, first + data.draw(st.integers(1, 120_000))))
        for first, end in pairwise(ascending)
    ]
    store = Store(
        cuts={240_000 * place: after for place, after in cuts.items()},
        refuses=tuple(240_000 * place for place in refuses),
        replaced_at=None if replaced_at is None else 240_000 * replaced_at,
    )
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory())
        reserved = stack.enter_context(_watched_reservations())
        options = Staging(
            directory=directory,
            mode="ranges" if budget_bytes < SIZE_BYTES else mode,
            budget_bytes=budget_bytes,
        )
        stager = stack.enter_context(Stager(options, source_of(store, spans, max_attempts=20)))
        with next(
            stager.stage([StageItem(key=0, url="http://store/f.parquet", size_bytes=SIZE_BYTES)])
        ) as staged:
            if staged.path is not None:
                content, held = staged.path.read_bytes(), staged.held or ((0, SIZE_BYTES),)
                assert covers(held, spans)
                assert all(
                    content[first:end] == bytes_of(first, end, store.version) for first, end in held
                )
    assert all(coming_bytes <= reserved_bytes for coming_bytes, reserved_bytes in reserved)
    assert not ask_threads()


@contextmanager
def _watched_reservations() -> Iterator[Any]:
    """Records, each time a request is sent ahead, what is held or coming and what is reserved."""
    seen = []

    class Watched(Filling):
        def __init__(self, url: Any, size_bytes: Any, path: Any, line: Any, listed: Any) -> None:
            super().__init__(url, size_bytes, path, line, listed)
            self._root, self._name = path.parent, path.name.partition(".")[0]

        def send(self, first: Any, end: Any) -> None:
            super().send(first, end)
            (part,) = self._root.glob(f"{self._name}.*.part")
            seen.append((num_bytes(self.coming), int(part.name.split(".")[1])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("featstore.staging.fetcher.Filling", Watched)
        yield seen
