"""Claims to batch slices: in order, in place or staged, and nothing runs on once it is closed."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from featstore.base.errors import DataFileError, StateError
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.stores.address import bind
from featstore.dispatch.terms import Claim, WaitFor
from featstore.loader.batches.batch_slices import BatchSlice
from featstore.loader.batches.stats import Stats
from featstore.loader.iteration.delivery import Delivery
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.reports import Reports
from featstore.loader.iteration.slice_source import Resources, SliceSource
from featstore.loader.iteration.worker import LoaderWorker
from featstore.staging.options import Staging
from featstore.staging.stager import Stager
from tests.loader.conftest import data_file, job_on, work_on
from tests.process import our_threads

PLACE = LoaderWorker(index=0, num_workers=1, session="s", is_dataloader=False)
SCHEMA = pa.schema([("row", pa.int64())])


@dataclass
class Reading:
    """A source on a job of two files of 40 rows each, and its parts."""

    job: Job
    stager: Stager | None = None

    def __post_init__(self) -> None:
        self.stats = Stats()
        start = self.job.start(0, 0, PLACE)
        self.delivery = Delivery(start, self.stats.counts, tells=False)
        self.reports = Reports(self.delivery, self.stats, self.job.terms)
        self.source = SliceSource(
            Resources(stats=self.stats, stager=self.stager),
            self.delivery,
            self.reports,
            self.job.share_of_host(PLACE),
        )

    def claims(self) -> list[Claim]:
        return [
            work_on(file, index).claim for index, (file, _) in enumerate(self.job.files.values())
        ]

    def slices(self) -> Iterator[BatchSlice]:
        return self.source.slices(self.job, 0, self.claims())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    files = [
        data_file(tmp_path / f"{index}.parquet", pa.table({"row": range(first, first + 40)}))
        for index, first in enumerate((0, 40))
    ]
    return job_on(*files, schema=SCHEMA, on_bad_file="skip")


@pytest.mark.parametrize("is_staged", [False, True])
def test_batches_of_all_claims_come_in_their_order(job: Job, is_staged: bool) -> None:
    with Stager(Staging(mode="whole")) as stager:
        reading = Reading(job, stager if is_staged else None)
        file, _ = job.files["0.parquet"]
        assert not reading.source.is_staged(file)
        rows = [row for one in reading.slices() for row in one.batch()["row"].tolist()]
        assert rows == list(range(80))
        assert reading.source.is_staged(file) == is_staged
        reading.source.close()
    assert not our_threads()


@pytest.mark.parametrize("transforms", [False, True])
def test_a_feed_that_is_closed_in_the_middle_ends_its_threads_and_says_so(
    job: Job, transforms: bool
) -> None:
    reading = Reading(replace(job, transform=(lambda batch: batch) if transforms else None))
    slices = reading.slices()
    next(slices)
    assert our_threads()
    for _ in range(2):
        reading.source.close()
    assert not our_threads()
    with pytest.raises(StateError, match="closed before its end"):
        list(slices)


def test_a_thread_that_begins_while_the_feed_is_closed_is_ended_at_once(job: Job) -> None:
    reading = Reading(job)
    slices = reading.slices()
    reading.source.close()
    with pytest.raises(StateError):
        next(slices)
    assert not our_threads()


def test_a_bad_file_is_left_out_and_told_of_once_in_each_epoch(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    file, _ = job.files["0.parquet"]
    Path(file.url).write_bytes(b"no Parquet")
    reading = Reading(job)
    with caplog.at_level(logging.WARNING, "featstore.loader.bad_files"):
        numbers = []
        for is_end in (False, True, False):
            assert sum(one.batch().num_rows for one in reading.slices()) == 40
            numbers.append(len(caplog.records))
            if is_end:
                reading.reports.bad_files.clear()
    assert numbers == [1, 1, 2]
    reading.source.close()


def test_a_bad_file_is_an_error_where_the_job_says_so(job: Job) -> None:
    file, _ = job.files["0.parquet"]
    Path(file.url).write_bytes(b"no Parquet")
    reading = Reading(replace(job, on_bad_file="error"))
    with pytest.raises(DataFileError, match=r"^0\.parquet: "):
        next(reading.slices())
    reading.source.close()
    assert not our_threads()


def test_of_a_claim_that_cannot_be_read_nobody_takes_a_part(tmp_path: Path) -> None:
    """It stays this worker's until all is told that was read before: reserved to its end."""
    job = job_on(data_file(tmp_path / "0.parquet", pa.table({"row": range(40)})), schema=SCHEMA)
    reading = Reading(job)
    with Coordinator(
        bind(f"memory://{tmp_path}"), plan=job.plan(0), prefix="p/", worker="0"
    ) as coordinator:
        reading.reports.coordinator = coordinator
        [claim] = coordinator.claims(WaitFor.NOTHING)
        (tmp_path / "0.parquet").write_bytes(b"damaged")
        with pytest.raises(DataFileError):
            list(reading.source.slices(job, 0, [claim]))
        assert coordinator.reserved(claim) == 40
        reading.reports.coordinator = None
    reading.source.close()
