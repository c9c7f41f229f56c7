"""The static and rank orders, compared with the plan written out row by row."""

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.dispatch.orders import (
    MiniEpoch,
    SplitRange,
    WorkerInfo,
    num_static_batches,
    rank_splits,
    static_ranges,
)
from featstore.dispatch.plan import Plan, Split, SplitList

SIZES = st.lists(st.integers(0, 40), max_size=8)


def _plan(sizes: Any, seed: int = 0) -> Plan:
    return Plan(
        splits=[Split(path=str(i), num_rows=rows) for i, rows in enumerate(sizes)], seed=seed
    )


def _rows(stretches: Any) -> Any:
    return [(s.index, row) for s in stretches for row in range(s.first, s.end)]


def _all_rows(plan: Any) -> Any:
    return [(index, row) for index, split in enumerate(plan) for row in range(split.num_rows)]


def _dealt(plan: Any, num_workers: Any, batch_rows: Any, done: Any = None) -> Any:
    """The batches of all workers, joined step by step."""
    rows = [
        _rows(static_ranges(plan, WorkerInfo(index=w, num_workers=num_workers), batch_rows, done))
        for w in range(num_workers)
    ]
    batches = [[mine[i : i + batch_rows] for i in range(0, len(mine), batch_rows)] for mine in rows]
    steps = max(map(len, batches), default=0)
    return [
        row for step in range(steps) for mine in batches if step < len(mine) for row in mine[step]
    ]


@given(
    sizes=SIZES,
    num_workers=st.integers(1, 6),
    batch_rows=st.integers(1, 30),
    seed=st.integers(0, 9),
)
def test_the_global_row_order_does_not_depend_on_the_number_of_workers(
    sizes: Any, num_workers: int, batch_rows: int, seed: int
) -> None:
    plan = _plan(sizes, seed)
    assert _dealt(plan, num_workers, batch_rows) == _all_rows(plan)


@given(
    sizes=SIZES,
    workers=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    batch_rows=st.integers(1, 20),
    steps=st.integers(0, 9),
)
def test_another_number_of_workers_resumes_where_the_first_stopped(
    sizes: Any, workers: Any, batch_rows: int, steps: int
) -> None:
    plan = _plan(sizes)
    rows = _all_rows(plan)
    delivered = rows[: steps * workers[0] * batch_rows]
    done = {}
    for index, row in delivered:
        done[index] = row + 1
    assert _dealt(plan, workers[1], batch_rows, done) == rows[len(delivered) :]


@given(
    sizes=SIZES,
    num_workers=st.integers(1, 6),
    batch_rows=st.integers(1, 30),
    drop_last=st.booleans(),
)
def test_the_number_of_batches_is_exact(
    sizes: Any, num_workers: int, batch_rows: int, drop_last: bool
) -> None:
    plan = _plan(sizes)
    for worker in range(num_workers):
        worker_info = WorkerInfo(index=worker, num_workers=num_workers)
        num_rows = len(_rows(static_ranges(plan, worker_info, batch_rows)))
        expected = num_rows // batch_rows if drop_last else -(-num_rows // batch_rows)
        assert (
            num_static_batches(sum(sizes), worker_info, batch_rows, drop_last=drop_last) == expected
        )


def test_adjacent_ranges_are_joined() -> None:
    assert list(static_ranges(_plan([100]), WorkerInfo(), 8)) == [
        SplitRange(index=0, first=0, end=100)
    ]


@given(
    num_splits=st.integers(0, 200),
    num_workers=st.integers(1, 6),
    num_mini=st.integers(1, 5),
    epoch=st.integers(0, 3),
)
def test_the_parts_of_all_ranks_cover_the_epoch_once_and_have_equal_sizes(
    num_splits: int, num_workers: int, num_mini: int, epoch: int
) -> None:
    splits = [Split(path=str(i), num_rows=1) for i in range(num_splits)]
    parts = [
        rank_splits(splits, num_splits, _mini(worker, num_workers, number, num_mini, epoch))
        for worker in range(num_workers)
        for number in range(num_mini)
    ]
    assert [split for part in parts for split in part] == list(
        Plan(splits=splits, seed=3, epoch=epoch)
    )
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def _mini(
    worker: Any, num_workers: Any, number: int = 0, num_mini: int = 1, epoch: int = 0
) -> MiniEpoch:
    worker_info = WorkerInfo(index=worker, num_workers=num_workers)
    return MiniEpoch(
        seed=3, epoch=epoch, worker_info=worker_info, number=number, num_mini_epochs=num_mini
    )


def test_each_epoch_gives_a_rank_other_files() -> None:
    splits = [Split(path=str(i), num_rows=1) for i in range(1000)]
    first, second = (
        {s.path for s in rank_splits(splits, 1000, _mini(0, 4, epoch=epoch))} for epoch in (0, 1)
    )
    assert len(first) == len(second) == 250
    assert len(first & second) < 125


def test_a_rank_keeps_only_its_own_part_of_many_files() -> None:
    """For a million files of a real table see benchmarks/rank_listing.py."""

    class Splits(SplitList):
        def __len__(self) -> int:
            return 100_000

        @property
        def num_rows(self) -> int:
            return len(self)

        def _split(self, index: int) -> Split:
            path = f"dt=2026-11-01/part-{index:07d}-of-a-data-file.snappy.parquet"
            return Split(path=path, num_rows=1)

    part = _mini(5, 10, number=3, num_mini=10)
    tracemalloc.start()
    mine = rank_splits(Splits(), 100_000, part)
    kept_bytes, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    one_bytes = kept_bytes / len(mine)
    assert len(mine) == 1000
    assert one_bytes < 1000
    assert peak_bytes < 3 * kept_bytes


def test_a_listing_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a listing of 1 splits, where 2 were expected"):
        rank_splits([Split(path="a", num_rows=1)], 2, _mini(0, 1))


@pytest.mark.parametrize("worker_info", [{"index": -1}, {"index": 2, "num_workers": 2}])
def test_a_worker_index_outside_of_the_workers_is_refused(worker_info: Any) -> None:
    with pytest.raises(ValueError, match="expected 0 <= index < num_workers"):
        WorkerInfo(**worker_info)


def test_a_mini_epoch_outside_of_their_number_is_refused() -> None:
    with pytest.raises(
        ValueError, match="mini-epoch 2 of 2: expected 0 <= number < num_mini_epochs"
    ):
        _mini(0, 1, number=2, num_mini=2)
