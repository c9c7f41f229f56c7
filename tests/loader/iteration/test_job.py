"""What follows from a loader's arguments alone: its key, and how many batches, rows and steps."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.dispatch.orders import WorkerInfo
from featstore.dispatch.plan import Rows, Split, as_ranges
from featstore.dispatch.recording import Recording
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.step_agreement import tail_of
from featstore.loader.iteration.worker import LoaderWorker
from featstore.loader.plan.ordering import Ordering
from featstore.loader.plan.shuffle import Shuffle
from featstore.loader.plan.splitting import Listing, WholeFiles, make_splits
from featstore.loader.request.matching import Partition, SelectedFiles, matching, selected
from featstore.loader.request.request import resolve
from featstore.table.snapshot import Snapshot

STATIC, ALONE = (
    Ordering(kind="static"),
    LoaderWorker(index=0, num_workers=1, session="s", is_dataloader=False),
)
SPLITS = st.lists(st.integers(0, 9), min_size=1, max_size=5)


def job_of(snapshot: Snapshot, *sizes: int, **options: Any) -> Job:
    """Splits of these sizes; where there are none, of the table's files."""
    partition = Partition(values={}, is_decided=True)
    splits = [Split(path=f"{number}", num_rows=size) for number, size in enumerate(sizes)]
    known: dict[str, Any] = {
        "request": resolve(snapshot.schema, slots=["row"]),
        "files": SelectedFiles.of((file, partition) for file in snapshot.data_files),
        "table": snapshot.digest,
        "splits": tuple(splits or make_splits(snapshot.data_files)),
    }
    return Job(**{**known, **options})


def no_recording(key: str) -> Recording:
    raise AssertionError(f"nothing is replayed, and {key} was looked up")


@st.composite
def states(draw: st.DrawFn, sizes: list[int]) -> Mapping[int, Rows]:
    """What is delivered, by position."""
    done: dict[int, Rows] = {}
    for index, size in enumerate(sizes):
        first = draw(st.integers(0, size))
        end = draw(st.integers(first, size))
        done[index] = draw(st.sampled_from([0, first, "complete", ((first, end),)]))
    return done


@given(SPLITS, st.integers(1, 6), st.integers(1, 3), st.booleans(), st.data())
def test_batches_in_static_order_are_as_many_as_the_claims_of_all_epochs_make(
    snapshot: Snapshot,
    sizes: list[int],
    batch_size: int,
    num_workers: int,
    drop_last: bool,
    data: st.DataObject,
) -> None:
    job = job_of(
        snapshot,
        *sizes,
        batch_size=batch_size,
        num_epochs=2,
        ordering=STATIC,
        drop_last=drop_last,
    )
    done, ahead = data.draw(states(sizes)), data.draw(states(sizes))
    start = replace(job.start(7, 7, ALONE), done=done, ahead=ahead)
    for worker in range(num_workers):
        seat = WorkerInfo(index=worker, num_workers=num_workers)
        expected = 0
        for epoch, done in ((7, start.done), (8, start.ahead)):
            [(_, claims)] = job.turns(epoch, seat, done, no_recording)
            rows = sum(claim.end_row - claim.start_row for claim in claims)
            expected += rows // batch_size if drop_last else -(-rows // batch_size)
        assert job.num_static_batches(start, seat) == expected


@given(SPLITS, st.integers(1, 3), st.data())
def test_the_rows_that_are_left_are_those_of_all_epochs_without_the_delivered_ones(
    snapshot: Snapshot, sizes: list[int], num_epochs: int, data: st.DataObject
) -> None:
    job = job_of(snapshot, *sizes, num_epochs=num_epochs)
    done = data.draw(states(sizes))
    num_done = sum(
        end - first
        for index, rows in done.items()
        for first, end in as_ranges(rows, job.plan(3)[index].num_rows)
    )
    start = replace(job.start(3, 3, ALONE), done=done)
    assert job.num_rows_left(start) == num_epochs * sum(sizes) - num_done
    next_two = replace(start, ahead=done)
    assert num_epochs == 1 or job.num_rows_left(next_two) == num_epochs * sum(sizes) - 2 * num_done
    last = replace(start, first_epoch=4 - num_epochs)
    assert job.num_rows_left(last) == sum(sizes) - num_done


@pytest.mark.parametrize(
    ("where", "null"), [("row % 10 = 1", "raise"), (None, "drop")], ids=["where", "drop"]
)
def test_rows_that_filters_leave_out_cannot_be_counted_before_they_are_read(
    snapshot: Snapshot, where: str | None, null: str
) -> None:
    labels = [{"name": "click", "null": null}]
    request = resolve(snapshot.schema, slots=["row"], labels=labels, where=where)
    files = matching(snapshot, request)
    job = job_of(snapshot, request=request, files=files, ordering=STATIC, tail=tail_of("drop"))
    assert job.filters_rows
    assert job.num_rows_left(job.start(0, 0, ALONE)) is None
    assert job.num_steps(job.start(0, 0, ALONE), replace(ALONE, num_workers=2, num_ranks=2)) is None


def test_a_where_that_the_partitions_decide_leaves_nothing_to_be_read_first(
    snapshot: Snapshot,
) -> None:
    request = resolve(snapshot.schema, slots=["row"], where="dt >= '2026-11-04'")
    files = matching(snapshot, request)
    cut = tuple(make_splits(file for file, _ in files.values()))
    job = job_of(snapshot, request=request, files=files, splits=cut)
    assert not job.filters_rows
    assert job.num_rows_left(job.start(0, 0, ALONE)) == 101 + 64


@given(SPLITS, st.integers(1, 6), st.integers(1, 3), st.integers(1, 3))
def test_ranks_make_as_many_steps_as_the_one_with_the_fewest_or_the_most_batches(
    snapshot: Snapshot, sizes: list[int], batch_size: int, num_ranks: int, per_rank: int
) -> None:
    job = job_of(snapshot, *sizes, batch_size=batch_size, ordering=STATIC)
    start = job.start(0, 0, ALONE)
    counts = [
        job.num_static_batches(start, WorkerInfo(index=rank, num_workers=num_ranks))
        for rank in range(num_ranks)
    ]
    for tail, of_each_rank in (("drop", min(counts)), ("pad", max(counts))):
        for rank in range(num_ranks):
            steps = [
                replace(job, tail=tail_of(tail)).num_steps(
                    start,
                    LoaderWorker(
                        index=rank * per_rank + worker,
                        num_workers=num_ranks * per_rank,
                        session="s",
                        is_dataloader=True,
                        rank=rank,
                        num_ranks=num_ranks,
                    ),
                )
                for worker in range(per_rank)
            ]
            # A DataLoader asks its workers in turn.
            assert steps == [len(range(w, of_each_rank, per_rank)) for w in range(per_rank)]
    assert replace(job, tail=tail_of("join")).num_steps(start, ALONE) is None


def test_loaders_share_their_leases_only_if_they_read_the_same(snapshot: Snapshot) -> None:
    job = job_of(snapshot)
    same = [job_of(snapshot), replace(job, batch_size=7), replace(job, num_epochs=3)]
    assert {other.key for other in same} == {job.key}
    others = [
        replace(job, seed=1),
        replace(job, splits=job.splits[:-1]),
        replace(job, shuffle=Shuffle()),
        replace(job, request=resolve(snapshot.schema, slots=["row"], labels=["click"])),
    ]
    assert len({job.key, *(other.key for other in others)}) == 1 + len(others)


@pytest.mark.parametrize("mini_epochs", [1, 2])
def test_in_rank_order_the_turns_of_all_workers_are_the_epoch_each_with_its_own_files(
    snapshot: Snapshot, mini_epochs: int
) -> None:
    whole = job_of(snapshot, shuffle=Shuffle())
    listing = Listing(
        list_files=lambda: snapshot.data_files,
        select=partial(selected, snapshot, whole.request),
        split=WholeFiles,
    )
    ordering = Ordering(kind="rank", mini_epochs=mini_epochs)
    census = listing.count(whole.seed, shuffle=True)
    parts: dict[str, Any] = {
        "files": SelectedFiles.of(()),
        "splits": (),
        "listing": listing,
        "census": census,
    }
    job = replace(whole, ordering=ordering, **parts)
    assert (job.plan_digest, job.key) == (whole.plan_digest, whole.key)
    paths, positions = [], list[int]()
    for worker in range(2):
        for turn, claims in job.turns(3, WorkerInfo(index=worker, num_workers=2), {}, no_recording):
            found = list(claims)
            own = {claim.split.path for claim in found}
            assert own <= set(turn.files) == {split.path for split in turn.splits}
            paths += [split.path for split in turn.splits]
            section = range(len(positions), len(positions) + len(turn.splits))
            positions += section
            # So the rows of all files of a part are mixed, and of no others.
            section_of = turn.section_of(3)
            assert {section_of(index) for index in section} == {section}
            assert {claim.index for claim in found} <= set(section)
    assert paths == [split.path for split in whole.plan(3)]
    assert positions == list(range(len(paths)))


def test_in_other_orders_rows_are_mixed_within_the_sections_of_the_plan(
    snapshot: Snapshot,
) -> None:
    whole = job_of(snapshot, 4, 4, 4, shuffle=Shuffle())
    assert [whole.section_of(3)(index) for index in range(3)] == [range(3)] * 3
    key = pa.field("dt", pa.string())
    files = matching(snapshot, whole.request)
    days = job_of(snapshot, files=files, shuffle=Shuffle(within="dt"), section_key=key)
    assert [days.section_of(3)(index) for index in range(5)] == [
        range(index, index + 1) for index in range(5)
    ]


def test_a_resumed_worker_is_itself_and_goes_on_with_what_all_had_delivered(
    snapshot: Snapshot,
) -> None:
    job, worker = job_of(snapshot), replace(ALONE, index=1, num_workers=3)
    saved = replace(job.start(2, 1, ALONE), done={0: 4}, ended={1: 2}, ahead={2: 1})
    state = job.resumed(saved, worker)
    assert (state.workers, state.num_workers) == ((1,), 3)
    assert (state.delivered, state.ended) == ({2: {0: 4}, 3: {2: 1}}, None)
    job.start(2, 1, ALONE).require_fit(state)


def test_only_the_first_worker_shows_a_progress_bar(snapshot: Snapshot) -> None:
    job = job_of(snapshot, progress=True)
    second = replace(ALONE, index=1, num_workers=2)
    assert job.shows(job.start(0, 0, ALONE))
    assert not job.shows(job.start(0, 0, second))
    assert not replace(job, progress=False).shows(job.start(0, 0, ALONE))
