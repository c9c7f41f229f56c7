"""Threads ahead of a consumer: how far, what they raise, and that all of them end."""

import threading
from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from featstore.base.errors import DataFileError, StateError
from featstore.loader.batches.assembly import Assembler
from featstore.loader.batches.memory_budget import Budget
from featstore.loader.batches.mixtures import Splits, read_in_order
from featstore.loader.batches.pipeline import Pipeline, Stage, StageQueue, fill
from featstore.loader.batches.split_reader import SplitReader
from featstore.loader.batches.stats import Stats
from featstore.loader.plan.shuffle import RowOrder
from tests.loader.conftest import data_file, request_of, work_on
from tests.process import our_threads
from tests.threads import beside

SCHEMA = pa.schema([("row", pa.int64()), ("click", pa.float32())])


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_producer_is_so_many_items_ahead_of_its_consumer_and_no_more(ahead: int) -> None:
    handoff = StageQueue[int](ahead)
    put, is_put = Counter[str](), threading.Semaphore(0)

    def produce() -> None:
        for item in range(5):
            assert handoff.put(item)
            put["items"] += 1
            is_put.release()
        handoff.end()

    with beside(produce):
        for item in range(5):
            for _ in range(ahead if item == 0 else 0):
                assert is_put.acquire(timeout=60)
            assert put["items"] <= item + ahead
            assert handoff.get() == item
            if item + ahead < 5:
                assert is_put.acquire(timeout=60)
    assert handoff.get() is None


def test_an_error_comes_after_what_was_put_before_it_and_once() -> None:
    handoff = StageQueue[int](ahead=3)
    assert handoff.put(7)
    handoff.end(ValueError("broken"))
    assert handoff.get() == 7
    with pytest.raises(ValueError, match="broken"):
        handoff.get()
    assert handoff.get() is None


def test_a_closed_handoff_wakes_both_sides_and_takes_nothing_more() -> None:
    handoff, answers = StageQueue[int](), list[bool]()
    with beside(lambda: answers.append(handoff.put(1))):
        handoff.close()
    assert answers == [False]
    assert not handoff.put(2)
    with pytest.raises(StateError, match="closed before its end"):
        handoff.get()


def test_a_thread_ahead_closes_its_iterator_however_it_ends() -> None:
    for how in ("drained", "closed", "broken"):
        closed = list[bool]()

        def items(how: str = how, closed: list[bool] = closed) -> Generator[int, None, None]:
            try:
                yield from range(9)
                if how == "broken":
                    raise ValueError(how)
            finally:
                closed.append(True)

        ahead = Stage[int](ahead=2)
        ahead.begin("featstore-ahead", fill, items())
        found = iter(ahead.get, None)
        if how == "closed":
            assert next(found) == 0
        elif how == "drained":
            assert list(found) == list(range(9))
        else:
            with pytest.raises(ValueError, match="broken"):
                list(found)
        ahead.close()
        assert closed == [True]
        assert not our_threads()


def pipeline_over(
    path: Path, *, budget: Budget, null_at: int = -1, failed: Counter[str] | None = None
) -> Pipeline:
    """Over a file of four windows, with a null label in one row."""
    click = pa.array([None if row == null_at else 1.0 for row in range(64)], pa.float32())
    file = data_file(path / "a.parquet", pa.table({"row": range(64), "click": click}))
    request, stats = request_of(SCHEMA, "row", labels=["click"]), Stats()
    counts = Counter[str]() if failed is None else failed
    work = replace(work_on(file), fail=lambda: counts.update(["failed"]))

    order = RowOrder(seed=0, epoch=0, shuffle=None)
    opened = partial(SplitReader, request=request, order=order, stats=stats, budget=budget)
    assembler = Assembler(request, 16, stats, budget=budget)
    return Pipeline(
        read_in_order(Splits(work=iter([work]), open_split=opened)), assembler, budget, stats
    )


def test_what_goes_wrong_in_assembling_is_raised_after_the_blocks_before_it(
    tmp_path: Path,
) -> None:
    failed = Counter[str]()
    pipeline = pipeline_over(tmp_path, budget=Budget(), null_at=20, failed=failed)
    blocks = pipeline.blocks()
    assert len(next(blocks)) == 16
    with pytest.raises(DataFileError, match="label 'click' is null in 1 of 16 rows"):
        next(blocks)
    assert failed["failed"] == 1
    pipeline.close()
    assert not our_threads()


def test_a_block_holds_its_part_of_the_budget_until_the_next_one_is_asked_for(
    tmp_path: Path,
) -> None:
    budget = Budget(1_000_000)
    pipeline = pipeline_over(tmp_path, budget=budget)
    blocks = pipeline.blocks()
    block = next(blocks)
    assert block.held_bytes == block.size_bytes > 0
    assert budget.held_bytes >= block.held_bytes
    assert sum(len(block) for block in blocks) == 48
    assert budget.held_bytes == 0
    pipeline.close()
    assert budget.is_closed
    with pytest.raises(StateError):
        next(pipeline.blocks())
    assert not our_threads()
