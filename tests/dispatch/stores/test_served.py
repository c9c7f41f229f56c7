"""What handles of one server know together."""

import math
import pickle
import re
import time
from contextlib import closing
from functools import partial

import pytest

from featstore.dispatch.stores.address import bind
from featstore.dispatch.stores.served import Patience, ServerIdentity
from tests.dispatch.stores.forwarder import Forwarder
from tests.dispatch.stores.served import KINDS, ServerProcess
from tests.threads import beside


def test_the_first_server_is_recognised_also_after_pickling() -> None:
    server = ServerIdentity()
    assert server.is_same("a", is_durable=True)
    assert not server.is_same("b")
    copy = pickle.loads(pickle.dumps(server))
    assert not copy.is_same("b")
    assert copy.is_known
    assert not copy.has_ended


def test_an_outage_lasts_from_the_first_request_that_failed_to_the_next_answer() -> None:
    server, begin_s = ServerIdentity(), time.monotonic()
    server.failed(begin_s - 30)  # They were sent earlier, and failed only now.
    server.failed(begin_s - 20)
    assert 30 <= server.unanswered_s() < 35
    server.answered(time.monotonic())
    counted_s = server.unanswered_s()
    assert 30 <= counted_s < 35
    server.failed(begin_s - 10)  # Within what is counted.
    server.answered(time.monotonic())
    assert counted_s <= server.unanswered_s() < counted_s + 5


def test_a_request_that_failed_lasts_no_longer_than_since_the_last_answer_to_another_handle() -> (
    None
):
    server, sent_s = ServerIdentity(), time.monotonic() - 5
    server.answered(time.monotonic())
    assert server.unanswered_s() == 0
    server.failed(sent_s)
    assert server.unanswered_s() < 4


def test_an_answer_that_took_long_came_out_of_an_outage() -> None:
    server = ServerIdentity()
    server.answered(time.monotonic() - 3)
    assert 3 <= server.unanswered_s() < 8
    server = ServerIdentity()
    server.answered(time.monotonic() - 0.5)
    assert server.unanswered_s() == 0


def test_each_process_counts_its_own_outages() -> None:
    server = ServerIdentity()
    server.failed(time.monotonic() - 10)
    assert pickle.loads(pickle.dumps(server)).unanswered_s() == 0


def test_who_hurries_ends_the_patience_of_all_that_works_for_it_and_no_other() -> None:
    iteration = Patience(wait_s=100)
    epoch, other = Patience(10, iteration), Patience(10, iteration)
    assert epoch.until_s == math.inf
    epoch.hurry()
    first_s = epoch.until_s
    assert time.monotonic() < first_s <= time.monotonic() + 10
    epoch.hurry()
    assert epoch.until_s == first_s  # Only the first call counts.
    assert other.until_s == iteration.until_s == math.inf
    iteration.hurry()
    assert other.until_s == iteration.until_s < math.inf
    assert epoch.until_s == first_s


def test_an_outage_is_told_of_once_with_its_end() -> None:
    server, begin_s = ServerIdentity(), time.monotonic()
    assert [server.failed(begin_s), server.failed(begin_s)] == [True, False]
    time.sleep(0.01)
    assert server.answered(time.monotonic()) > 0
    assert server.answered(time.monotonic()) == 0
    assert not server.failed(begin_s)  # It was sent in the outage that has ended.
    assert server.failed(time.monotonic())  # Another one.


def test_the_end_of_an_outage_that_was_not_told_of_is_not_told_of() -> None:
    assert ServerIdentity().answered(time.monotonic() - 3) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_handles_of_one_process_log_an_outage_once_with_how_long_it_took(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "featstore.dispatch")
    with ServerProcess(kind) as server, Forwarder(server.url) as between:
        address = bind(between.url, timeout_s=60)
        with closing(address.open()) as one, closing(address.open()) as other:
            one.set("k", "v")
            other.set("k", "v")
            between.forget_connections()
            with beside(partial(one.add, "n", 1), partial(other.add, "n", 1)):
                pass
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in told] == ["WARNING", "INFO"]
    store = re.escape(f"dispatch store {between.url}")
    assert re.fullmatch(
        rf"{store} does not answer: .*; it is waited for, up to [45]\d s", told[0][1]
    )
    assert re.fullmatch(rf"{store} answers again, after \d+\.\d s", told[1][1])
