"""What one worker claims in an epoch over a real store, and what is known at its end."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featstore.dispatch.options import Dispatch
from featstore.dispatch.terms import Claim
from featstore.loader.batches.progress import Progress, Segment
from featstore.loader.batches.stats import Stats
from featstore.loader.iteration.delivery import Delivery
from featstore.loader.iteration.dynamic_epoch import DynamicEpoch
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.rendezvous import Rendezvous
from featstore.loader.iteration.reports import Reports
from featstore.loader.iteration.worker import LoaderWorker
from tests.loader.conftest import data_file, job_on

PLACE = LoaderWorker(index=0, num_workers=1, session="s", is_dataloader=False)
SCHEMA = pa.schema([("row", pa.int64())])


@pytest.fixture
def job(tmp_path: Path) -> Job:
    files = [
        data_file(tmp_path / f"{index}.parquet", pa.table({"row": range(40)})) for index in range(3)
    ]
    return job_on(*files, schema=SCHEMA)


class Worker:
    """A worker whose loop delivers each claim as a whole."""

    def __init__(
        self,
        job: Job,
        path: Path,
        staged: frozenset[str] = frozenset(),
        place: LoaderWorker = PLACE,
    ) -> None:
        dispatch = Dispatch(store=f"sqlite://{path}/store.db", run_id="r")
        started = Rendezvous(dispatch, job.key, 1).begin(place)
        self.delivery = Delivery(job.start(0, 0, place), Counter(), tells=True)
        self.stats = Stats()
        self.reports = Reports(self.delivery, self.stats, job.terms)
        self.epoch = DynamicEpoch(
            job,
            started,
            0,
            worker="0-1",
            in_step=place.in_step,
            delivery=self.delivery,
            reports=self.reports,
            stats=self.stats,
            is_staged=staged.__contains__,
            done={},
        )

    def deliver(self, claims: Iterable[Claim]) -> list[str]:
        paths = []
        for claim in claims:
            self.delivery.claim(claim)
            rows = claim.split.num_rows
            assert self.reports.coordinator is not None
            assert self.reports.coordinator.reserve(claim, rows) == rows
            self.delivery.add(Progress((Segment(claim, rows, True),)))
            self.reports.tell(is_complete=self.delivery.acknowledge())
            paths.append(claim.split.path)
        return paths


def test_a_worker_alone_claims_each_split_once_and_a_second_finds_all_done(
    job: Job, tmp_path: Path
) -> None:
    for expected in (["0.parquet", "1.parquet", "2.parquet"], []):
        worker = Worker(job, tmp_path)
        with worker.epoch as epoch:
            paths = [path for claims in epoch.rounds() for path in worker.deliver(claims)]
        assert sorted(paths) == expected
        assert epoch.found_all_done == (not expected)
        assert epoch.quarantined == []
        assert worker.reports.coordinator is None


@pytest.mark.parametrize("how", [{"in_step": True}, {"is_dataloader": True}])
def test_workers_of_one_pace_claim_their_share_before_they_claim_what_is_left(
    job: Job, tmp_path: Path, how: dict[str, Any]
) -> None:
    workers = [
        Worker(job, tmp_path, place=replace(PLACE, index=index, num_workers=2, **how))
        for index in range(2)
    ]
    first, second = workers
    with first.epoch, second.epoch:
        of_first, of_second = first.epoch.rounds(), second.epoch.rounds()
        # The first one reads as far ahead as it can before the other has begun.
        early = first.deliver(next(of_first))
        others = second.deliver(next(of_second))
        rest = [path for claims in of_first for path in first.deliver(claims)]
        rest += [path for claims in of_second for path in second.deliver(claims)]
    assert [len(early), len(others), len(rest)] == [1, 1, 1]
    assert sorted(early + others + rest) == ["0.parquet", "1.parquet", "2.parquet"]


def test_workers_that_read_at_a_pace_of_their_own_claim_all_they_can(
    job: Job, tmp_path: Path
) -> None:
    worker = Worker(job, tmp_path, place=replace(PLACE, num_workers=2))
    with worker.epoch as epoch:
        assert len(worker.deliver(next(epoch.rounds()))) == 3


def test_what_is_left_of_an_epoch_that_breaks_is_given_back(job: Job, tmp_path: Path) -> None:
    worker = Worker(job, tmp_path)
    done = list[str]()

    def loop() -> None:
        with worker.epoch as epoch:
            claims = iter(next(epoch.rounds()))
            done.extend(worker.deliver([next(claims)]))
            worker.delivery.claim(next(claims))
            raise ValueError("the loop broke")

    with pytest.raises(ValueError, match="the loop broke"):
        loop()
    other = Worker(job, tmp_path)
    with other.epoch as epoch:
        left = [path for claims in epoch.rounds() for path in other.deliver(claims)]
    assert sorted(done + left) == ["0.parquet", "1.parquet", "2.parquet"]


def test_a_run_that_is_closed_claims_nothing_more(job: Job, tmp_path: Path) -> None:
    worker = Worker(job, tmp_path)
    worker.delivery.close()
    with worker.epoch as epoch:
        assert list(epoch.rounds()) == []
    assert not epoch.found_all_done


def test_splits_whose_files_are_staged_here_are_claimed_first(job: Job, tmp_path: Path) -> None:
    worker = Worker(job, tmp_path, frozenset({"2.parquet"}))
    with worker.epoch as epoch:
        paths = [path for claims in epoch.rounds() for path in worker.deliver(claims)]
    assert paths[0] == "2.parquet"
