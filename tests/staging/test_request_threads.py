"""The threads in which requests wait for answers."""

import threading
import time
from collections.abc import Iterator

import pytest

from featstore.files.transfer import RangeResponse
from featstore.staging.request_threads import RequestThreads


@pytest.fixture
def threads() -> Iterator[RequestThreads]:
    made = RequestThreads()
    yield made
    made.close()


def answer() -> RangeResponse:
    return RangeResponse(size_bytes=1, tag=threading.current_thread().name, blocks=iter(()))


def alive() -> int:
    return sum(thread.name == "featstore-ask" for thread in threading.enumerate())


def test_requests_one_after_the_other_share_a_thread(threads: RequestThreads) -> None:
    for _ in range(20):
        threads.send(answer).result(30)
    # The second is sent before the first thread has said that it is free, at most.
    assert 1 <= alive() <= 2


def test_each_request_in_flight_has_a_thread_of_its_own(threads: RequestThreads) -> None:
    together = threading.Barrier(4)

    def wait() -> RangeResponse:
        together.wait(30)
        return answer()

    answers = [threads.send(wait) for _ in range(4)]
    assert all(each.result(30).size_bytes == 1 for each in answers)
    assert alive() == 4


def test_an_error_is_that_of_its_own_request(threads: RequestThreads) -> None:
    def fail() -> RangeResponse:
        raise OSError("no route")

    failed, sound = threads.send(fail), threads.send(answer)
    with pytest.raises(OSError, match="no route"):
        failed.result(30)
    assert sound.result(30).size_bytes == 1


def test_close_ends_the_threads_but_does_not_wait_for_a_request_that_hangs() -> None:
    released = threading.Event()

    def hang() -> RangeResponse:
        released.wait(60)
        return answer()

    threads = RequestThreads()
    hanging = threads.send(hang)
    threads.send(answer).result(30)
    since = time.monotonic()
    threads.close()
    assert time.monotonic() - since < 20
    assert not hanging.done()
    released.set()
    assert hanging.result(30).size_bytes == 1
