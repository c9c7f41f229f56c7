"""The threads and the queue of a stream, over a fetcher that only pretends to download."""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from featstore.base.errors import BudgetError, StagingError
from featstore.staging.cache import Refusal
from featstore.staging.counts import Counts
from featstore.staging.fetcher import StageItem, Waiting
from featstore.staging.options import Staging
from featstore.staging.stream import Stream
from tests.process import await_that

SIZE_BYTES = 100


class PretendedPin:
    """A pin of a file that is not there."""

    def __init__(self, released: list[str], url: str) -> None:
        self._released, self._url = released, url
        self.path = self.open_path = self.record = self
        self.is_whole, self.is_checked, self.num_bytes = True, False, SIZE_BYTES

    def release(self) -> None:
        self._released.append(self._url)


class PretendedFetcher:
    """Obtains a file at once, or when it is allowed to, or fails.

    Attributes:
        waits_for: Events by URL, for which a download waits after its last bytes began to come.
        refuses: URLs for which the cache has no room.
        fails: Errors by URL.
        in_place: URLs that are to be read in place.
    """

    def __init__(self) -> None:
        self.waits_for: dict[str, threading.Event] = {}
        self.refuses, self.in_place = set[str](), set[str]()
        self.fails: dict[str, Exception] = {}
        self.begun, self.released = list[str](), list[str]()
        self.num_downloading = self.most_downloading = 0
        self.has_let_go = False

    def expected_bytes(self, item: StageItem[Any]) -> int:
        return item.size_bytes

    def obtain(self, item: StageItem[Any], waiting: Waiting) -> Any:
        self.begun.append(item.url)
        self.num_downloading += 1
        self.most_downloading = max(self.most_downloading, self.num_downloading)
        while item.url in self.refuses:
            waiting.await_room(Refusal.FULL, item.size_bytes)
        if item.url in self.fails:
            raise self.fails[item.url]
        self.num_downloading -= 1
        waiting.pass_on()
        if item.url in self.waits_for:
            self.waits_for[item.url].wait(60)
        return None if item.url in self.in_place else PretendedPin(self.released, item.url)

    def await_begun(self, count: int) -> None:
        await_that(lambda: len(self.begun) >= count)

    def let_go(self, stop: threading.Event) -> bool:
        self.has_let_go = True
        return True


@pytest.fixture
def fetcher() -> PretendedFetcher:
    return PretendedFetcher()


@pytest.fixture
def stage(fetcher: PretendedFetcher) -> Iterator[Callable[..., Stream[int]]]:
    streams: list[Stream[int]] = []

    def made(items: Iterable[StageItem[int]], *, max_files: int = 100) -> Stream[int]:
        options = Staging(ahead_bytes=10_000, ahead_files=max_files, budget_bytes=150)
        streams.append(Stream(fetcher, items, Counts(), options, 0.0))  # type: ignore[arg-type]
        return streams[-1]

    yield made
    for stream in streams:
        stream.close()


Stage = Callable[..., Stream[int]]


def items(count: int) -> list[StageItem[int]]:
    return [
        StageItem(key=i, url=f"http://me:secret@s/{i}", size_bytes=SIZE_BYTES) for i in range(count)
    ]


def test_files_come_in_order_also_where_a_later_one_is_there_first(
    stage: Stage, fetcher: PretendedFetcher
) -> None:
    first = fetcher.waits_for[items(3)[0].url] = threading.Event()
    stream = stage(items(3))
    fetcher.await_begun(3)
    first.set()
    assert [staged.key for staged in stream] == [0, 1, 2]
    assert stream.is_over


def test_a_stream_is_ready_when_the_next_file_is_there_and_at_its_end(
    stage: Stage, fetcher: PretendedFetcher
) -> None:
    held = fetcher.waits_for[items(2)[1].url] = threading.Event()
    stream = stage(items(2))
    next(stream)
    fetcher.await_begun(2)
    assert not stream.is_ready()
    assert not stream.is_ready(2)
    held.set()
    await_that(stream.is_ready)
    await_that(lambda: stream.is_ready(2))  # Nothing follows.
    assert next(stream).key == 1
    await_that(stream.is_ready)
    assert next(stream, None) is None


def test_a_stream_is_ready_for_several_files_when_all_of_them_are_there(
    stage: Stage, fetcher: PretendedFetcher
) -> None:
    held = fetcher.waits_for[items(3)[1].url] = threading.Event()
    stream = stage(items(3))
    await_that(stream.is_ready)
    assert not stream.is_ready(2)
    held.set()
    await_that(lambda: stream.is_ready(2))


def test_only_one_file_is_downloaded_at_a_time(stage: Stage, fetcher: PretendedFetcher) -> None:
    assert len(list(stage(items(50)))) == 50
    assert fetcher.most_downloading == 1


def test_no_item_is_taken_beyond_the_limit_ahead_of_the_reader(stage: Stage) -> None:
    taken: list[int] = []

    def drawn() -> Iterator[StageItem[int]]:
        for item in items(6):
            taken.append(item.key)
            yield item

    for number, staged in enumerate(stage(drawn(), max_files=2), 1):
        assert len(taken) <= number + 2
        staged.release()
    assert taken == list(range(6))


def test_an_error_comes_after_the_files_before_it_and_ends_the_stream(
    stage: Stage, fetcher: PretendedFetcher
) -> None:
    fetcher.fails[items(4)[2].url] = StagingError("broken")
    stream = stage(items(4))
    assert [next(stream).key, next(stream).key] == [0, 1]
    with pytest.raises(StagingError, match="broken"):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)


def test_an_error_of_the_items_comes_after_the_files_before_it(stage: Stage) -> None:
    def broken() -> Iterator[StageItem[int]]:
        yield items(1)[0]
        raise ValueError("no more leases")

    stream = stage(broken())
    assert next(stream).key == 0
    with pytest.raises(ValueError, match="no more leases"):
        next(stream)


def test_a_file_that_is_read_in_place_has_no_path_and_takes_nothing(
    stage: Stage, fetcher: PretendedFetcher
) -> None:
    fetcher.in_place.add(items(1)[0].url)
    (staged,) = stage(items(1))
    assert (staged.path, staged.held, staged.held_bytes, staged.is_checked) == (
        None,
        None,
        0,
        False,
    )
    staged.release()


def test_closing_releases_files_that_were_not_taken_and_no_others(
    stage: Stage, fetcher: PretendedFetcher
) -> None:
    stream = stage(items(3))
    taken = next(stream)
    fetcher.await_begun(3)
    stream.close()
    assert sorted(fetcher.released) == [item.url for item in items(3)[1:]]
    taken.release()
    assert len(fetcher.released) == 3
    with pytest.raises(StopIteration):
        next(stream)


def test_closing_gives_a_download_up_that_does_not_end(
    stage: Stage, fetcher: PretendedFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("featstore.staging.stream._CLOSE_S", 0.05)
    stalled = fetcher.waits_for[items(1)[0].url] = threading.Event()
    stream = stage(items(1))
    fetcher.await_begun(1)
    stream.close()
    assert fetcher.has_let_go
    stalled.set()


def test_a_reader_that_holds_what_the_next_file_needs_gets_an_error_without_a_password(
    stage: Stage, fetcher: PretendedFetcher
) -> None:
    fetcher.refuses.add(items(2)[1].url)
    stream = stage(items(2))
    held = next(stream)
    with pytest.raises(BudgetError, match="1 files that are being read hold 100 bytes") as found:
        next(stream)
    assert "secret" not in str(found.value)
    held.release()


def test_a_reader_that_gives_room_back_gets_the_next_file(
    stage: Stage, fetcher: PretendedFetcher
) -> None:
    url = items(2)[1].url
    fetcher.refuses.add(url)
    stream = stage(items(2))
    next(stream).release()
    threading.Timer(0.05, fetcher.refuses.discard, [url]).start()
    assert next(stream).key == 1
