"""What handles of one server know together."""

import math
import pickle
import re
from contextlib import closing
from functools import partial
from types import SimpleNamespace

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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time by which outages are counted, which the test sets."""
    found = SimpleNamespace(now_s=1_000.0)
    found.monotonic = lambda: found.now_s
    monkeypatch.setattr("featstore.dispatch.stores.served.time", found)
    return found


def test_an_outage_lasts_from_the_first_request_that_failed_to_the_next_answer(
    clock: SimpleNamespace,
) -> None:
    server = ServerIdentity()
    server.failed(970)  # They were sent earlier, and failed only now.
    server.failed(980)
    assert server.unanswered_s() == 30
    clock.now_s = 1_002
    server.answered(1_002)
    assert server.unanswered_s() == 32
    clock.now_s = 1_010
    server.failed(990)  # Within what is counted.
    server.answered(1_010)
    assert server.unanswered_s() == 40


def test_a_request_that_failed_lasts_no_longer_than_since_the_last_answer_to_another_handle(
    clock: SimpleNamespace,
) -> None:
    server = ServerIdentity()
    server.answered(1_000)
    assert server.unanswered_s() == 0
    clock.now_s = 1_003
    server.failed(995)
    assert server.unanswered_s() == 3


@pytest.mark.usefixtures("clock")
def test_an_answer_that_took_long_came_out_of_an_outage() -> None:
    server = ServerIdentity()
    server.answered(997)
    assert server.unanswered_s() == 3
    server = ServerIdentity()
    server.answered(999.5)
    assert server.unanswered_s() == 0


@pytest.mark.usefixtures("clock")
def test_each_process_counts_its_own_outages() -> None:
    server = ServerIdentity()
    server.failed(990)
    assert server.unanswered_s() == 10
    assert pickle.loads(pickle.dumps(server)).unanswered_s() == 0


def test_who_hurries_ends_the_patience_of_all_that_works_for_it_and_no_other(
    clock: SimpleNamespace,
) -> None:
    iteration = Patience(wait_s=100)
    epoch, other = Patience(10, iteration), Patience(10, iteration)
    assert epoch.until_s == math.inf
    epoch.hurry()
    assert epoch.until_s == 1_010
    clock.now_s = 1_001
    epoch.hurry()
    assert epoch.until_s == 1_010  # Only the first call counts.
    assert other.until_s == iteration.until_s == math.inf
    iteration.hurry()
    assert other.until_s == iteration.until_s == 1_101
    assert epoch.until_s == 1_010


def test_an_outage_is_told_of_once_with_its_end(clock: SimpleNamespace) -> None:
    server = ServerIdentity()
    assert [server.failed(1_000), server.failed(1_000)] == [True, False]
    clock.now_s = 1_005
    assert server.answered(1_005) == 5
    assert server.answered(1_005) == 0
    assert not server.failed(1_000)  # It was sent in the outage that has ended.
    assert server.failed(1_005)  # Another one.


@pytest.mark.usefixtures("clock")
def test_the_end_of_an_outage_that_was_not_told_of_is_not_told_of() -> None:
    assert ServerIdentity().answered(997) == 0


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
