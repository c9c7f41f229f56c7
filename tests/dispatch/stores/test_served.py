"""What handles of one server know together."""

import math
import pickle
import time

from featstore.dispatch.stores.served import Patience, ServerIdentity


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
