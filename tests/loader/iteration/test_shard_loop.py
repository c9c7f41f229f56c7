"""Loops over positions in shards, over a real store: which are claimed, cut off, lost, delivered."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from featstore.base.errors import DispatchError, StateError
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.receipt import Receipt, receipts
from featstore.loader.iteration.shard_loop import ShardLoop, Shards
from tests.process import await_that
from tests.programs import run_python

SHARDS = Shards(num_positions=1_000, shard_rows=400, order="o")


class Workers:
    """Loops of one run. Ranks in step do not wait for each other, so one thread may drive all."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.url, self._stack = f"sqlite://{path}/store.db", stack

    def loop(self, shards: Shards = SHARDS, **dispatch: Any) -> ShardLoop:
        given = {"store": self.url, "run_id": "run", "in_step": True, "lease_s": 4.0} | dispatch
        return self._stack.enter_context(ShardLoop(shards, 10, given, 0))

    @property
    def receipt(self) -> Receipt:
        (receipt,) = receipts(self.url, "run").values()
        return receipt


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with ExitStack() as stack:
        yield Workers(tmp_path, stack)


class Ahead:
    """A loader that asks for so many batches ahead of the loop."""

    def __init__(self, loop: ShardLoop, num_ahead: int = 0) -> None:
        self._loop, self._num_ahead = loop, num_ahead

    def __iter__(self) -> Iterator[list[int]]:
        batches = ([row for each in batch for row in each] for batch in self._loop.batches())
        asked = list(islice(batches, self._num_ahead))
        for batch in batches:
            asked.append(batch)
            yield asked.pop(0)
        yield from asked


def coordinator_of(loop: ShardLoop) -> Coordinator:
    assert loop._under_way is not None
    assert loop._under_way.reports.coordinator is not None
    return loop._under_way.reports.coordinator


def flat(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch]


def test_shards_cover_the_positions_in_their_order() -> None:
    assert list(SHARDS) == [
        Split(path="order", num_rows=rows, first_row_group=index, last_row_group=index)
        for index, rows in enumerate([400, 400, 200])
    ]
    assert SHARDS.num_rows == sum(split.num_rows for split in SHARDS) == 1_000
    assert SHARDS.positions(2, 3, 5) == range(803, 805)
    others = [replace(SHARDS, **change) for change in ({"order": "p"}, {"num_positions": 1_001})]
    digests = {Plan(splits=shards).digest for shards in (SHARDS, *others)}
    assert len(digests) == 3, "workers that would share an epoch of other positions are refused"


def test_an_idle_worker_takes_what_another_has_not_reserved_at_a_batch_of_its_own(
    workers: Workers,
) -> None:
    shards = replace(SHARDS, shard_rows=1_000)
    one, other = (workers.loop(shards) for _ in range(2))
    slow, fast = one.deliver(Ahead(one)), other.deliver(Ahead(other))
    got = [next(slow), next(slow)]
    theirs = [next(fast)]
    assert theirs[0][0] > 100, "of the end"
    theirs += list(fast)
    got += list(slow)
    assert sorted(flat(got + theirs)) == list(range(1_000))
    assert {len(batch) for batch in got + theirs} == {10}
    assert len(theirs) > 10
    assert (workers.receipt.missing, workers.receipt.repeated_at_most) == (0, 0)


@pytest.mark.parametrize("num_ahead", [0, 8])
def test_what_a_loop_has_got_is_told_while_it_computes(workers: Workers, num_ahead: int) -> None:
    loop = workers.loop(lease_s=0.8)
    batches = loop.deliver(Ahead(loop, num_ahead))
    for _ in range(4):
        next(batches)
    deadline = time.monotonic() + 60
    while workers.receipt.delivered < 30:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    assert workers.receipt.delivered == 30, "the fourth is not delivered, and none asked ahead"
    assert len(flat(batches)) == 1_000 - 40
    assert workers.receipt.delivered == 1_000


def test_a_loop_that_lost_its_claim_leaves_the_rest_of_it_to_the_one_that_has_it(
    workers: Workers,
) -> None:
    one, other = workers.loop(lease_s=0.5), workers.loop(lease_s=0.5)
    batches = one.deliver(Ahead(one, 2))
    got = [next(batches)]
    # Its threads renew and report no more, as if the process stood still.
    coordinator_of(one)._renewer._closed.set()
    coordinator_of(one)._renewer.join()
    assert one._under_way is not None
    one._under_way.reports._told_at += 1_000
    theirs = list(other.deliver(Ahead(other)))
    assert sorted(flat(theirs)) == list(range(1_000)), "nothing was acknowledged"
    got += list(batches)
    assert len(flat(got)) <= workers.receipt.repeated_at_most < 400
    assert workers.receipt.missing == 0
    assert one.state.done != other.state.done


def test_an_end_that_is_learned_after_the_last_batch_is_delivered_with_it(
    workers: Workers,
) -> None:
    """A claim that was cut at the end of a batch has no row left when the next one is made."""
    one, other = (workers.loop(replace(SHARDS, num_positions=40)) for _ in range(2))
    batches = one.deliver(Ahead(one))
    got = [next(batches)]
    theirs = list(other.deliver(Ahead(other)))
    got += list(batches)
    assert sorted(flat(got + theirs)) == list(range(40))
    assert {line.state for line in workers.receipt.lines} == {"done"}


def test_rows_that_no_worker_could_read_are_an_error_at_the_end(workers: Workers) -> None:
    one, other = (workers.loop(max_failures=1) for _ in range(2))
    batches = one.deliver(Ahead(one))
    next(batches)
    coordinator = coordinator_of(one)
    [claim] = one._under_way.delivery._claims.open.values()  # type: ignore[union-attr]
    coordinator.fail(claim)
    got = list[list[int]]()
    with pytest.raises(DispatchError, match=r"some rows could not be read .* order#0-0 from row 0"):
        got.extend(other.deliver(Ahead(other)))
    assert sorted(flat(got)) == list(range(400, 1_000))


def test_what_a_rank_that_died_left_unread_is_logged_by_one_that_had_ended(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = (workers.loop(replace(SHARDS, num_positions=40)) for _ in range(2))
    batches = one.deliver(Ahead(one))
    next(batches)
    theirs = list(other.deliver(Ahead(other)))
    assert 0 < len(flat(theirs)) < 40
    coordinator_of(one)._renewer._closed.set()
    coordinator_of(one)._renewer.join()
    other.close()
    assert "rows are unread: epoch 0" in caplog.text


def test_a_closed_loop_leaves_no_thread_and_no_connection() -> None:
    def left() -> tuple[int, int]:
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    server = TCPStore("127.0.0.1", 0, is_master=True)
    before = left()
    dispatch = {"store": f"torch://127.0.0.1:{server.port}", "run_id": "run"}
    loop = ShardLoop(SHARDS, 10, dispatch, 0)
    batches = loop.deliver(Ahead(loop, 8))
    next(batches)
    loop.close()
    # The server notices a little later; what earlier tests left may end, too.
    await_that(lambda: all(now <= then for now, then in zip(left(), before, strict=True)))


def test_close_wakes_a_loop_that_waits_for_others(workers: Workers) -> None:
    one, other = (workers.loop(replace(SHARDS, num_positions=10), in_step=False) for _ in range(2))
    batches = one.deliver(Ahead(one))
    next(batches)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: list(other.deliver(Ahead(other))))
        await_that(
            lambda: (
                other._under_way is not None and other._under_way.reports.coordinator is not None
            )
        )
        time.sleep(0.3)
        assert not waiting.done()
        other.close()
        with pytest.raises(StateError, match="ended by close"):
            waiting.result(60)


LEFT_OPEN = """
import sys
import featstore

order = featstore.DispatchedOrder(100, 10, dispatch={"store": sys.argv[1], "run_id": "run"})
batches = order.deliver(order)
next(batches), next(batches)
"""


def test_a_loop_that_is_open_at_the_end_of_its_program_gives_back_what_it_claimed(
    workers: Workers,
) -> None:
    assert run_python(LEFT_OPEN, workers.url).stderr == ""
    [line] = workers.receipt.lines
    assert (line.state, line.delivered, line.repeated_at_most) == ("free", 10, 0)


def test_loops_of_one_epoch_meet_however_many_their_processes_have_begun(
    workers: Workers,
) -> None:
    one, late = workers.loop(), workers.loop()
    for _ in range(3):
        for _ in one.deliver(Ahead(one)):
            break
    for epoch in (1, 1, 2):
        one.set_epoch(epoch)
        late.set_epoch(epoch)
        first, second = one.deliver(Ahead(one)), late.deliver(Ahead(late))
        both = [next(first), next(second), *first, *second]
        assert sorted(flat(both)) == list(range(1_000)), "each meets, also where it is repeated"


def test_a_loop_ends_at_once_when_it_is_left(workers: Workers) -> None:
    loop = workers.loop()
    for _ in loop.deliver(Ahead(loop)):
        break
    [line] = workers.receipt.lines
    assert (line.state, line.delivered) == ("free", 0)
