"""One run over its epochs, on real files and a real store: what it delivers, and how it ends."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from featstore.base.errors import ConfigError, DataFileError, DispatchError, StateError
from featstore.dispatch.options import Dispatch
from featstore.dispatch.terms import Terms
from featstore.loader.batches.stats import Stats
from featstore.loader.iteration.iteration import Iteration
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.rendezvous import Rendezvous
from featstore.loader.iteration.slice_source import Resources
from featstore.loader.iteration.worker import LoaderWorker
from featstore.loader.plan.follow import Follow, Following
from featstore.loader.plan.ordering import Ordering
from tests.loader.conftest import data_file, job_on
from tests.process import our_threads

ALONE = LoaderWorker(index=0, num_workers=1, session="s", is_dataloader=False)
OF_A_DATALOADER = replace(ALONE, num_workers=2, is_dataloader=True)
SCHEMA = pa.schema([("row", pa.int64())])


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Two files of 40 rows."""
    files = [
        data_file(tmp_path / f"{index}.parquet", pa.table({"row": range(first, first + 40)}))
        for index, first in enumerate((0, 40))
    ]
    return job_on(*files, schema=SCHEMA, terms=Terms(max_failures=2))


Begin = Callable[..., Iteration]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begins a run of one worker; each has the same store and run_id."""
    runs: list[Iteration] = []

    def made(job: Job, worker: LoaderWorker = ALONE, stats: Stats | None = None) -> Iteration:
        dispatch = Dispatch(store=f"sqlite://{tmp_path}/store.db", run_id="r")
        meeting = Rendezvous(dispatch, job.key, job.num_epochs).begin(worker)
        start = job.start(0, 0, worker)
        runs.append(Iteration(job, meeting, start, Resources(stats=stats or Stats())))
        return runs[-1]

    yield made
    for run in runs:
        run.close()
    assert not our_threads()


def read(run: Iteration) -> list[int]:
    """All rows that a loop gets which acknowledges each batch when it asks for the next."""
    rows: list[int] = []
    slices = run.slices()
    while True:
        run.acknowledge()
        if (one := next(slices, None)) is None:
            run.finish()
            return rows
        if one.blocks:
            made = run.batch(one)
            assert made is not None
            run.delivery.add(made.progress, made.check)
            rows += made.batch["row"].tolist()
        else:
            run.add_without_batch(one)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_every_epoch_delivers_every_row_and_is_counted_and_judged(
    job: Job, begin: Begin, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "featstore.loader")
    stats = Stats()
    run = begin(replace(job, ordering=Ordering(kind=kind), num_epochs=3), stats=stats)
    assert sorted(read(run)) == sorted(list(range(80)) * 3)
    assert run.is_exhausted
    assert (stats.counts["epochs"], stats.counts["rows"]) == (3, 240)
    assert stats.verdict.startswith("epoch 2: ")
    assert [record.getMessage()[:9] for record in caplog.records] == [
        f"epoch {epoch}: " for epoch in range(3)
    ]


def test_after_the_end_the_state_is_that_of_the_next_epoch_and_what_was_handed_over_of_the_last(
    job: Job, begin: Begin
) -> None:
    run = begin(replace(job, ordering=Ordering(kind="static")))
    read(run)
    assert (run.delivery.state.epoch, run.delivery.state.done) == (1, {})
    assert run.state_handed_over.epoch == 0
    assert run.state_handed_over.done == {0: "complete", 1: "complete"}


def test_a_worker_among_several_has_no_state_of_an_iteration_of_several_epochs(
    job: Job, begin: Begin
) -> None:
    run = begin(replace(job, num_epochs=2), OF_A_DATALOADER)
    with pytest.raises(StateError, match="expected a loader with num_epochs 1, found 2"):
        _ = run.state_handed_over
    assert begin(job, OF_A_DATALOADER).state_handed_over.epoch == 0


def test_a_run_that_begins_again_after_all_was_read_is_an_error_or_ends_empty(
    job: Job, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(read(begin(job))) == 80
    with pytest.raises(DispatchError, match="epoch 0: nothing is left to read"):
        read(begin(job))
    assert read(begin(replace(job, ends_finished=True))) == []
    assert "nothing is left to read" in caplog.text


@pytest.mark.parametrize("on_bad_file", ["error", "skip"])
def test_a_split_that_no_worker_can_read_is_named_at_the_end(
    job: Job, begin: Begin, tmp_path: Path, on_bad_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "0.parquet").write_bytes(b"PAR1, but no more")
    job = replace(job, on_bad_file=on_bad_file)
    if on_bad_file == "error":
        for _ in range(2):
            with pytest.raises(DataFileError, match=r"0\.parquet"):
                read(begin(job))
        with pytest.raises(DispatchError, match=r"could not be read by any worker.*0\.parquet"):
            read(begin(job))
        return
    assert sorted(read(begin(job))) == list(range(40, 80))
    assert "could not be read by any worker" in caplog.text


def test_a_run_that_is_closed_gives_its_claims_to_the_next_one_at_once(
    job: Job, begin: Begin
) -> None:
    run = begin(job)
    slices = run.slices()
    made = run.batch(next(slices))
    assert made is not None
    run.delivery.add(made.progress)
    batch = made.batch
    run.acknowledge()
    run.close()
    run.close()
    assert not run.is_exhausted
    delivered = batch["row"].tolist()
    assert sorted(delivered + read(begin(job))) == list(range(80))


def test_a_table_is_not_followed_in_a_worker_that_a_dataloader_asks_in_turn(
    job: Job, begin: Begin
) -> None:
    table = Following(
        options=Follow(),
        url="/t",
        version=0,
        until=None,
        select=lambda snapshot: job.files,
        require=lambda snapshot, files: None,
    )
    with pytest.raises(ConfigError, match="iterate the loader without a DataLoader"):
        begin(replace(job, follow=table), OF_A_DATALOADER)
