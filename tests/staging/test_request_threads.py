"""The threads in which requests wait for answers."""

import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from featstore.files.transfer import RangeResponse
from featstore.staging.request_threads import RequestThreads
from tests.process import await_that


@pytest.fixture
def threads() -> Iterator[RequestThreads]:
    made = RequestThreads()
    yield made
    made.close()


def answer() -> RangeResponse:
    """Tells which thread it came from."""
    return RangeResponse(size_bytes=1, tag=str(threading.get_ident()), blocks=iter(()))


def test_requests_one_after_the_other_share_a_thread(threads: RequestThreads) -> None:
    assert len({threads.send(answer).result(30).tag for _ in range(20)}) == 1


def test_each_request_in_flight_has_a_thread_of_its_own(threads: RequestThreads) -> None:
    together = threading.Barrier(4)

    def wait() -> RangeResponse:
        together.wait(30)
        return answer()

    answers = [threads.send(wait) for _ in range(4)]
    assert len({each.result(30).tag for each in answers}) == 4


def test_an_answer_that_nobody_takes_is_let_go(threads: RequestThreads) -> None:
    sent = threads.send(answer)
    response = weakref.ref(sent.result(30))
    del sent
    threads.drop_answers()
    await_that(lambda: response() is None)


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
