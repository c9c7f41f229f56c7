"""What a loader stages, and how much of it each DataLoader worker may."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from featstore.base.errors import BudgetError
from featstore.base.schema import SlotSchema
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.staging_share import (
    decoded_room,
    divided,
    limited,
    share_of,
    staging_for,
)
from featstore.loader.plan.shuffle import Shuffle
from featstore.loader.request.matching import Partition, SelectedFiles
from featstore.loader.request.request import Request
from featstore.staging.options import Staging
from featstore.table.snapshot import DataFile, GroupFile

SIZES = st.lists(st.integers(1, 100), min_size=1, max_size=6)
OPTIONS = Staging(directory="/cache", budget_bytes=1000, mode="whole", ahead_bytes=500)


def job_of(
    *sizes: int, interleave: int = 1, num_groups: int = 0, place: str = "http://store"
) -> Job:
    """Files of these sizes, each with slot groups whose files are of the same size."""
    files = [
        DataFile(
            path=f"{number}",
            url=f"{place}/{number}",
            size_bytes=size,
            num_rows=1,
            partition={},
            groups=tuple(
                GroupFile(
                    group=f"g{group}",
                    path=f"g{group}/{number}",
                    url=f"{place}/g{group}/{number}",
                    size_bytes=size,
                    num_rows=1,
                )
                for group in range(num_groups)
            ),
        )
        for number, size in enumerate(sizes)
    ]
    partition = Partition(values={}, is_decided=True)
    return Job(
        request=Request(slots=(), schema=SlotSchema(slots=())),
        files=SelectedFiles.of((file, partition) for file in files),
        table="t",
        shuffle=Shuffle(interleave=interleave),
    )


@given(SIZES, st.integers(1, 3), st.integers(0, 2), st.integers(1, 4), st.integers(1, 4_000))
def test_what_all_workers_pin_and_stage_ahead_fits_the_budget_they_share(
    sizes: list[int], interleave: int, num_groups: int, num_workers: int, budget_bytes: int
) -> None:
    job = job_of(*sizes, interleave=interleave, num_groups=num_groups)
    options = replace(OPTIONS, budget_bytes=budget_bytes)
    num_open = interleave * (1 + num_groups)
    largest = sorted(sizes * (1 + num_groups), reverse=True)
    pinned_bytes = sum(largest[: (num_open + 1) * num_workers])
    try:
        share = share_of(options, job, num_workers)
    except BudgetError:
        assert pinned_bytes > budget_bytes
        return
    assert pinned_bytes <= budget_bytes
    ahead_bytes = share.num_ahead_bytes
    assert 1 <= ahead_bytes <= options.num_ahead_bytes
    assume(ahead_bytes > 1)
    assert num_workers * (num_open * max(sizes) + ahead_bytes) <= budget_bytes


@given(st.integers(1, 8), st.integers(2, 4000))
def test_by_ranges_each_worker_stages_ahead_its_part_of_half_the_budget(
    num_workers: int, budget_bytes: int
) -> None:
    options = replace(OPTIONS, mode="ranges", budget_bytes=budget_bytes)
    ahead_bytes = share_of(options, job_of(10**6), num_workers).num_ahead_bytes
    assert ahead_bytes == max(1, min(500, budget_bytes // (2 * num_workers)))


def test_workers_with_caches_of_their_own_have_the_whole_budget_each() -> None:
    options = replace(OPTIONS, directory=None)
    assert share_of(options, job_of(900), 8) == options


@pytest.mark.parametrize("mode", ["auto", "whole", "ranges"])
def test_remote_files_are_staged_as_the_options_say(mode: str) -> None:
    options = replace(OPTIONS, mode=mode)
    assert staging_for(options, job_of(10)) == options
    assert staging_for(None, job_of(10)) == Staging()


def test_files_that_are_read_where_they_are_need_no_stager() -> None:
    assert staging_for(None, job_of(10, place="/disk")) is None
    assert staging_for(OPTIONS, job_of()) is None


def test_files_open_at_once_that_exceed_the_budget_are_refused_before_a_download() -> None:
    assert staging_for(OPTIONS, job_of(400, 400, 201, interleave=3)) == OPTIONS
    for job in (
        job_of(501, num_groups=1),
        job_of(1001),
    ):
        with pytest.raises(BudgetError, match=r"staging\.budget_bytes is 1 kB"):
            staging_for(OPTIONS, job)
        by_ranges = replace(OPTIONS, mode="ranges")
        assert staging_for(by_ranges, job) == by_ranges
        assert staging_for(replace(OPTIONS, mode="auto"), job) == by_ranges


def test_workers_whose_whole_files_do_not_fit_together_stage_ranges() -> None:
    options, job = replace(OPTIONS, mode="auto"), job_of(300, 300, 300, 300)
    assert share_of(options, job, 1).mode == "auto"
    assert share_of(options, job, 2).mode == "ranges"


@pytest.mark.parametrize(
    ("sizes", "interleave", "num_workers", "num_open"),
    [
        ((400, 400, 200), 3, 0, 3),
        ((400, 400, 201), 3, 0, 2),
        ((900, 900), 8, 0, 1),
        ((100,) * 20, 8, 0, 8),
        ((100,) * 20, 8, 2, 4),  # Each worker pins the files of 4 splits and the next one.
        ((100,) * 3, 8, 2, 8),  # All files fit.
    ],
)
def test_as_many_splits_are_open_as_have_room_in_the_cache(
    caplog: pytest.LogCaptureFixture,
    sizes: tuple[int, ...],
    interleave: int,
    num_workers: int,
    num_open: int,
) -> None:
    job = limited(OPTIONS, job_of(*sizes, interleave=interleave), num_workers)
    assert job.num_open == num_open
    warnings = [each.message for each in caplog.records]
    assert len(warnings) == (num_open < interleave)
    assert all(f"{num_open} instead of {interleave} splits" in warning for warning in warnings)
    if num_workers:
        share_of(OPTIONS, job, num_workers)
    else:
        staging_for(OPTIONS, job)


def test_an_error_names_the_file_without_the_secrets_of_its_url() -> None:
    with pytest.raises(BudgetError) as raised:
        staging_for(OPTIONS, job_of(1001, place="https://me:secret@store"))
    assert "secret" not in str(raised.value)
    assert "store/0" in str(raised.value)


def test_decoded_columns_of_local_files_take_the_cache_though_nothing_is_staged() -> None:
    local = job_of(10, place="/data")
    assert staging_for(Staging(mode="auto"), local) is None
    options = Staging(mode="auto", decoded=True)
    assert staging_for(options, local) == options


@pytest.mark.parametrize(
    ("options", "num_workers", "expected"),
    [
        ({}, 0, 1000 - 2 * 100),
        ({}, 2, (1000 - 6 * 100) // 2),
        ({"directory": None}, 2, 1000 - 2 * 100),
        ({"mode": "ranges"}, 2, 250),
        ({"budget_bytes": 100}, 0, -100),
    ],
)
def test_open_decoded_columns_take_what_pinned_files_leave(
    options: dict[str, Any], num_workers: int, expected: int
) -> None:
    job = job_of(*[100] * 8, interleave=2)
    assert decoded_room(replace(OPTIONS, **options), job, num_workers) == expected


def test_half_of_the_budget_is_for_files_that_are_listed_later() -> None:
    assert decoded_room(OPTIONS, replace(job_of(10), files=SelectedFiles.of(()))) == 500


@given(st.integers(1, 4000), st.integers(1, 8), st.integers(1, 20), st.integers(1, 10**6))
def test_private_directories_of_loaders_read_in_turn_share_what_is_allowed(
    budget_bytes: int, num_loaders: int, connections: int, rate: int
) -> None:
    options = Staging(
        budget_bytes=budget_bytes,
        ahead_bytes=budget_bytes,
        max_connections=connections,
        max_bytes_per_s=rate,
    )
    part = divided(options, num_loaders)
    for name in ("budget_bytes", "ahead_bytes", "max_connections", "max_bytes_per_s"):
        of_all, of_one = getattr(options, name), getattr(part, name)
        assert of_one >= 1
        assert of_one * num_loaders <= max(of_all, num_loaders)


def test_what_is_unlimited_stays_so_when_it_is_divided() -> None:
    part = divided(Staging(), 3)
    assert (part.max_connections, part.max_bytes_per_s) == (None, None)
    assert part.num_budget_bytes == Staging().num_budget_bytes // 3


def test_of_a_directory_that_loaders_share_each_pins_its_part() -> None:
    job = replace(job_of(200, 200, 200, interleave=3), num_sharing=2)
    assert staging_for(OPTIONS, job) == OPTIONS
    limit = limited(OPTIONS, job, 1)
    assert (limited(OPTIONS, job).num_open, limit.num_open) == (2, 1)
    assert share_of(OPTIONS, limit, 1).num_ahead_bytes == 300
    with pytest.raises(BudgetError, match="600"):
        staging_for(OPTIONS, replace(job_of(600), num_sharing=2))
