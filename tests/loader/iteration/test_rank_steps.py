"""Ranks in step: how they agree, and what one without rows of its own pads with."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from featstore.base.errors import DispatchError, StateError
from featstore.dispatch.options import Dispatch
from featstore.loader.batches.batch_slices import BatchSlice
from featstore.loader.batches.progress import Progress
from featstore.loader.batches.stats import Stats
from featstore.loader.iteration.delivery import Delivery
from featstore.loader.iteration.hand_over import MadeBatch
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.rank_steps import RankSteps, agreement, some_rows
from featstore.loader.iteration.rendezvous import Meeting, Rendezvous
from featstore.loader.iteration.reports import Reports
from featstore.loader.iteration.step_agreement import Agreed, Counted, tail_of
from featstore.loader.iteration.worker import LoaderWorker
from featstore.loader.plan.ordering import Ordering
from featstore.loader.request.matching import SelectedFiles
from featstore.tensors.batch import Batch
from tests.loader.conftest import data_file, job_on, request_of

TWO = LoaderWorker(index=0, num_workers=2, session="s", is_dataloader=False, num_ranks=2)
SCHEMA = pa.schema([("row", pa.int64()), ("cost", pa.float32())])


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """An empty file, and one of 20 rows."""
    files = [
        data_file(
            tmp_path / f"{size}.parquet",
            pa.table({"row": range(size), "cost": [2.0] * size}, SCHEMA),
        )
        for size in (0, 20)
    ]
    request = request_of(SCHEMA, "row", weight="cost")
    return job_on(*files, schema=SCHEMA, request=request, tail=tail_of("pad"))


def begin(job: Job, path: Path, worker: LoaderWorker = TWO) -> Meeting:
    dispatch = Dispatch(store=f"sqlite://{path}/store.db", run_id="r")
    return Rendezvous(dispatch, job.key, 1).begin(worker)


def test_ranks_count_their_steps_where_they_can_and_ask_the_store_where_not(
    job: Job, tmp_path: Path
) -> None:
    started = begin(job, tmp_path)
    start = job.start(0, 0, TWO)
    assert isinstance(agreement(job, started, start), Agreed)
    static = replace(job, ordering=Ordering(kind="static"))
    assert isinstance(agreement(static, started, start), Counted)
    assert agreement(replace(job, tail=tail_of("join")), started, start) is None
    alone = replace(TWO, num_workers=1, num_ranks=1)
    assert agreement(job, replace(started, worker=alone), start) is None


def test_ranks_that_begin_an_iteration_again_do_not_believe_what_was_announced_in_it(
    job: Job, tmp_path: Path
) -> None:
    begin(job, tmp_path)
    again = begin(job, tmp_path)
    assert again.is_repeated
    with pytest.raises(DispatchError, match="tail pad: this iteration was begun before"):
        agreement(job, again, job.start(0, 0, TWO))


def test_padding_has_the_rows_of_a_batch_and_weighs_nothing(job: Job) -> None:
    batch = some_rows([job]).batch()
    padding = job.tail.padding(batch)
    assert padding.is_padding
    assert padding["row"].tolist() == batch["row"].tolist() == list(range(16))
    for found in (padding, padding.clone()):
        assert isinstance(found.weight, torch.Tensor)
        assert found.weight.tolist() == [0.0] * 16
    assert batch.weight is not None
    assert batch.weight.tolist() == [2.0] * 16


def test_a_rank_without_rows_pads_with_those_of_the_first_split_that_has_some(job: Job) -> None:
    filtered = request_of(SCHEMA, "row", weight="cost", where="row >= 17")
    listed = ((file, replace(p, is_decided=False)) for file, p in job.files.values())
    rows = some_rows([replace(job, request=filtered, files=SelectedFiles.of(listed))])
    assert rows.batch()["row"].tolist() == [17, 18, 19]


def test_what_a_rank_without_rows_pads_with_is_transformed_as_its_batches_would_be(
    job: Job,
) -> None:
    rows = some_rows([replace(job, transform=lambda batch: {"twice": 2 * batch["row"]})])
    assert rows.batch()["twice"].tolist() == list(range(0, 32, 2))


def test_where_no_split_has_rows_there_is_nothing_to_pad_with(job: Job) -> None:
    with pytest.raises(StateError, match="tail pad: this rank has no rows to pad with"):
        some_rows([replace(job, splits=job.splits[:1])])


class Always:
    """Steps that are always made, and a hand-over that only makes batches."""

    def makes(self, step: int, ahead: int) -> bool:
        return True

    def pads(self, step: int) -> bool:
        return True

    def leave(self) -> None:
        """Nobody waits."""

    def made_padding(self, padding: Batch) -> MadeBatch:
        return MadeBatch(padding, Progress(()))

    def made(self, rows: BatchSlice) -> MadeBatch:
        return MadeBatch(rows.batch(), rows.progress)


class LeftMeanwhile(RankSteps):
    """Steps whose loop another thread leaves just when the last batch is kept."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_last" and value is not None:
            self.leave()


@pytest.mark.parametrize("has_rows", [True, False])
def test_a_rank_whose_loop_is_left_meanwhile_still_gets_the_batch_that_it_asked_for(
    job: Job, tmp_path: Path, has_rows: bool
) -> None:
    delivery = Delivery(job.start(0, 0, TWO), Counter(), tells=False)
    always: Any = Always()
    started = begin(job, tmp_path)
    reports = Reports(delivery, Stats(), job.terms)
    steps = LeftMeanwhile(
        always, job, started, lambda: [job], delivery, always, reports, lambda: None
    )
    made = steps.batch(some_rows([job]) if has_rows else None)
    assert made is not None
    batch = made.batch
    assert (batch["row"].tolist(), batch.is_padding) == (list(range(16)), not has_rows)
