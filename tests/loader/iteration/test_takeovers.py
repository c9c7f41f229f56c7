"""Splits that are cut at any row: what their holder reads and what the worker reads that takes the
rest are the rows that one worker alone reads, in its order.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featstore.dispatch.plan import Rows
from featstore.dispatch.terms import Claim
from featstore.loader.batches.progress import delivered
from featstore.loader.iteration.job import Job
from featstore.loader.plan.shuffle import Shuffle
from featstore.loader.request.matching import SelectedFiles
from tests.loader.conftest import data_file, iteration_of, job_on, merged_state, request_of
from tests.loader.iteration.test_slice_source import SCHEMA, Reading
from tests.loader.mix.test_workers import in_turn
from tests.loader.test_resume import make

SIZES = (70, 45, 7)  # In row groups of 16.
ORDERS: list[dict[str, Any]] = [
    {},
    {"shuffle": Shuffle(window_rows=32, interleave=1)},
    {"shuffle": Shuffle(window_rows=96, interleave=3)},
    {"where": "row % 3 = 1"},
    {"where": "row % 3 = 1", "shuffle": Shuffle(window_rows=96, interleave=3)},
]


@pytest.fixture(scope="module", params=ORDERS, ids=str)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    root: Path = tmp_path_factory.mktemp("files")
    files = [
        data_file(root / f"{at}.parquet", pa.table({"row": range(1000 * at, 1000 * at + size)}))
        for at, size in enumerate(SIZES)
    ]
    known = request_of(SCHEMA, "row", where=request.param.get("where"))
    found = job_on(*files, schema=SCHEMA, request=known, shuffle=request.param.get("shuffle"))
    listed = ((file, replace(p, is_decided=False)) for file, p in found.files.values())
    return replace(found, files=SelectedFiles.of(listed))


def read(job: Job, claims: Iterable[Claim]) -> tuple[dict[int, list[int]], dict[int, Rows]]:
    """The rows of each split in their order, and what is delivered of it."""
    rows, done = defaultdict[int, list[int]](list), dict[int, Rows]()
    reading = Reading(job)
    for one in reading.source.slices(job, 0, claims):
        for row in one.batch()["row"].tolist() if one.blocks else []:
            rows[row // 1000].append(row)
        for segment in one.progress.segments:
            index = segment.claim.index
            done[index] = delivered(done.get(index, 0), segment)
    reading.source.close()
    return rows, done


def claims_on(job: Job, first: Sequence[int], end: Sequence[int]) -> list[Claim]:
    return [
        Claim(index=at, split=split, fence=1, start_row=row, part=row, end_row=limit)
        for at, (split, row, limit) in enumerate(zip(job.splits, first, end, strict=True))
        if row < limit
    ]


@settings(max_examples=40, deadline=None)
@given(cuts=st.tuples(*(st.integers(0, size) for size in SIZES)))
def test_what_a_holder_and_a_taker_read_is_what_one_worker_reads(
    job: Job, cuts: tuple[int, ...]
) -> None:
    alone, _ = read(job, claims_on(job, [0, 0, 0], SIZES))
    holder, before = read(job, claims_on(job, [0, 0, 0], cuts))
    taker, after = read(job, claims_on(job, cuts, SIZES))
    for at, (size, cut) in enumerate(zip(SIZES, cuts, strict=True)):
        assert holder[at] + taker[at] == alone[at]
        assert before.get(at, 0) == ("complete" if cut == size else cut)
        rest: Rows = "complete" if cut == 0 else ((cut, size),)
        assert after.get(at, rest) == rest
        assert (at in after) == (cut < size)


CUTS = random.Random(5)
ROWS_OF_FILES = [range(70), range(0), range(70, 115), range(115, 216), range(216, 280)]


def begun(table_url: str, is_shuffled: bool, num_ranks: int = 1, **options: Any) -> Any:
    """The loaders of so many ranks, and their iterations, begun."""
    shuffle: dict[str, Any] = {"shuffle": {"window_rows": 40}} if is_shuffled else {}
    state = options.pop("state", None)
    loaders = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", str(num_ranks))
        for _ in range(num_ranks):
            loaders.append(make(table_url, **shuffle, **options))
        for rank, loader in enumerate(loaders):
            patch.setenv("RANK", str(rank))
            if state is not None:
                loader.load_state_dict(state)
        iterations = []
        for rank, loader in enumerate(loaders):
            patch.setenv("RANK", str(rank))
            iterations.append(iter(loader))
            iterations[-1].begin()
    return loaders, iterations


@pytest.mark.parametrize(
    "order", ["dynamic", "static", {"kind": "rank", "mini_epochs": 1}], ids=str
)
@pytest.mark.parametrize("is_shuffled", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_a_state_with_takeovers_at_any_row_goes_on_with_any_number_of_workers(
    table_url: str, tmp_path: Path, order: Any, is_shuffled: bool, num_ranks: int
) -> None:
    (alone,), (batches,) = begun(table_url, is_shuffled)
    rows = [row for batch in batches for row in batch["row"].tolist()]
    alone.close()
    (first,), (batches,) = begun(table_url, is_shuffled, order=order)
    state, plan = first.state_dict(), iteration_of(first)._job.plan(0)
    paths = sorted(split.path for split in plan)
    first.close()
    expected = set(rows)
    for index, split in enumerate(plan):
        stream = [row for row in rows if row in ROWS_OF_FILES[paths.index(split.path)]]
        ends = sorted(CUTS.sample(range(1, len(stream)), 4)) if stream else []
        ranges = [list(each) for each in zip(ends[::2], ends[1::2], strict=True)]
        ranges = [[0, ends[0] // 2], *ranges] if ends else []
        state["partial"][str(index)] = [each for each in ranges if each[0] < each[1]] or 0
        expected -= {row for begin, end in ranges for row in stream[begin:end]}
    dispatch = {"store": f"sqlite://{tmp_path}/s.sqlite", "run_id": "a"}
    loaders, iterations = begun(
        table_url, is_shuffled, num_ranks, order=order, dispatch=dispatch, state=state
    )
    found = in_turn(iterations)
    assert Counter(found) == Counter(expected)
    merged = merged_state(loaders)
    assert merged["epoch"] == 1 or not merged["partial"]
