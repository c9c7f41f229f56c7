"""Under torch's DataLoader: every worker is a dispatch client of its own."""

import gc
import itertools
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from featstore.base.errors import BudgetError, DispatchError, StateError
from featstore.dispatch.receipt import receipts
from featstore.loader.feature_loader import FeatureLoader
from tests.loader.conftest import loader_for
from tests.parquet_files import put_row_files
from tests.process import our_files

# Python 3.12 and newer warn of fork in a process with threads; torch's own threads make it one.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]
NUM_ROWS = 280


def check(batch: Any) -> list[int]:
    """The batch's rows, once all of its columns are found to belong to them."""
    rows = batch["row"].tolist()
    assert batch["pair"][:, 1].tolist() == [-row for row in rows]
    assert batch["tags"].lengths().tolist() == [1 if row % 7 == 3 else row % 5 for row in rows]
    assert batch.labels["click"].tolist() == [row % 2 for row in rows]
    assert batch.extras["note"].to_pylist() == [f"n{row}" for row in rows]
    found: list[int] = rows
    return found


def epoch(dataloader: DataLoader[Any]) -> list[int]:
    return [row for batch in dataloader for row in check(batch)]


def test_the_verdict_of_workers_is_said_to_be_in_them(table_url: str) -> None:
    with loader_for(table_url) as loader:
        assert loader.verdict() == ""
        epoch(DataLoader(loader, batch_size=None, num_workers=2))
        assert loader.verdict().startswith("DataLoader workers read the batches: each logs its own")


@pytest.mark.parametrize(
    ("context", "persistent"),
    [("fork", False), ("fork", True), pytest.param("spawn", True, marks=pytest.mark.slow)],
)
def test_two_workers_share_each_epoch_without_a_doubled_or_missing_row(
    table_url: str, context: str, persistent: bool
) -> None:
    before = our_files()
    with loader_for(table_url, shuffle={"window_rows": 40}, staging={"mode": "whole"}) as loader:
        dataloader = DataLoader(
            loader,
            batch_size=None,
            num_workers=2,
            multiprocessing_context=context,
            persistent_workers=persistent,
        )
        epochs = [epoch(dataloader) for _ in range(3)]
        assert our_files() - before
        del dataloader
        gc.collect()
    assert not our_files() - before
    assert all(sorted(rows) == list(range(NUM_ROWS)) for rows in epochs)
    assert len({tuple(rows) for rows in epochs}) == 3


def test_more_workers_than_files_and_another_dataloader_over_the_same_loader(
    table_url: str,
) -> None:
    with loader_for(table_url) as loader:
        for num_workers in (1, 3, 0, 1):
            rows = epoch(DataLoader(loader, batch_size=None, num_workers=num_workers))
            assert Counter(rows) == Counter(range(NUM_ROWS))


def test_an_epoch_after_a_break_is_whole(table_url: str) -> None:
    with loader_for(table_url) as loader:
        dataloader = DataLoader(loader, batch_size=None, num_workers=2)
        for _ in dataloader:
            break
        assert sorted(epoch(dataloader)) == list(range(NUM_ROWS))


class InHand(IterableDataset[list[int]]):
    """The rows of a loader's batches, each told by the worker before it passes them on."""

    def __init__(self, loader: FeatureLoader, told: Any) -> None:
        self.loader, self.told = loader, told

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.loader:
            self.told.put(batch["row"].tolist())
            yield batch["row"].tolist()


def test_what_a_worker_passed_on_last_comes_again_if_its_dataloader_ends_early(
    table_url: str, tmp_path: Path
) -> None:
    dispatch = {"store": f"sqlite://{tmp_path}/dispatch", "run_id": "r"}
    told = multiprocessing.get_context("fork").SimpleQueue()
    with loader_for(table_url, dispatch=dispatch) as loader:
        asked = InHand(loader, told)
        batches = iter(DataLoader(asked, batch_size=None, num_workers=1, prefetch_factor=1))
        trained = next(batches)
        assert told.get() == trained
        last = told.get()
        del batches
    with loader_for(table_url, dispatch=dispatch) as loader:
        rows = epoch(DataLoader(loader, batch_size=None))
    assert sorted(rows + trained) == list(range(NUM_ROWS))
    assert set(last) <= set(rows)
    (receipt,) = receipts(dispatch["store"], "r").values()
    assert (receipt.missing, receipt.repeated_at_most) == (0, 0)


def test_several_epochs_in_one_iteration(table_url: str) -> None:
    with loader_for(table_url, num_epochs=2) as loader:
        rows = epoch(DataLoader(loader, batch_size=None, num_workers=2))
    assert Counter(rows) == Counter(dict.fromkeys(range(NUM_ROWS), 2))


def test_set_epoch_reaches_workers_that_persist(table_url: str) -> None:
    with loader_for(table_url, shuffle={"window_rows": 40}, seed=4) as loader:
        dataloader = DataLoader(loader, batch_size=None, num_workers=1, persistent_workers=True)
        first, second = epoch(dataloader), epoch(dataloader)
        loader.set_epoch(0)
        assert epoch(dataloader) == first
        assert epoch(dataloader) == second
        del dataloader


def test_a_memory_store_met_by_a_worker_is_an_error(table_url: str) -> None:
    with loader_for(table_url, dispatch="memory://shared") as loader:
        assert sorted(epoch(DataLoader(loader, batch_size=None))) == list(range(NUM_ROWS))
        with pytest.raises(DispatchError, match="memory://shared belongs to process"):
            epoch(DataLoader(loader, batch_size=None, num_workers=1))


def test_the_state_of_workers_is_not_known_to_the_parent(table_url: str) -> None:
    with loader_for(table_url) as loader:
        epoch(DataLoader(loader, batch_size=None, num_workers=1))
        with pytest.raises(
            StateError,
            match=r"read by DataLoader workers.*call ack\(\) and state_dict\(\) in each worker",
        ):
            loader.state_dict()


class InWorkers(IterableDataset[Any]):
    """Saves the state in the worker with each batch, as its error in the parent says."""

    def __init__(self, loader: FeatureLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.loader.ack()
            worker = get_worker_info()
            assert worker is not None
            yield worker.id, batch["row"].tolist(), self.loader.state_dict()


def test_states_taken_in_the_workers_unite_to_one(table_url: str) -> None:
    with loader_for(table_url) as loader:
        states, before = {}, []
        for worker, rows, state in itertools.islice(
            DataLoader(InWorkers(loader), batch_size=None, num_workers=2, prefetch_factor=1), 6
        ):
            states[worker] = state
            before += rows
    with loader_for(table_url) as resumed:
        resumed.load_state_dict(FeatureLoader.merge_states(states.values()))
        assert sorted(before + epoch(DataLoader(resumed, batch_size=None))) == list(range(NUM_ROWS))


def test_a_state_is_not_loaded_past_workers_that_still_run(table_url: str) -> None:
    with loader_for(table_url) as loader:
        batches = iter(loader)
        first = check(next(batches)) + check(next(batches))
        loader.ack()
        state = loader.state_dict()
        dataloader = DataLoader(loader, batch_size=None, num_workers=1, persistent_workers=True)
        assert len(epoch(dataloader)) == NUM_ROWS
        with pytest.raises(
            StateError, match=r"workers of this loader still run.* make a new DataLoader"
        ):
            loader.load_state_dict(state)
        del dataloader
        gc.collect()
        loader.load_state_dict(state)
        assert sorted(first + epoch(DataLoader(loader, batch_size=None, num_workers=1))) == list(
            range(NUM_ROWS)
        )


@pytest.mark.parametrize("num_workers", [0, 1])
def test_epochs_go_on_after_close(table_url: str, num_workers: int) -> None:
    loader = loader_for(table_url, shuffle={"window_rows": 40}, seed=4)
    epochs = []
    for _ in range(3):
        with loader:
            epochs.append(epoch(DataLoader(loader, batch_size=None, num_workers=num_workers)))
    loader.set_epoch(1)
    assert epoch(DataLoader(loader, batch_size=None)) == epochs[1]
    assert len({tuple(rows) for rows in epochs}) == 3


def test_a_restored_loader_goes_on_in_workers(table_url: str) -> None:
    with loader_for(table_url) as loader:
        batches = iter(loader)
        first = check(next(batches)) + check(next(batches))
        loader.ack()
        loader.load_state_dict(loader.state_dict())
        dataloader = DataLoader(loader, batch_size=None, num_workers=2)
        assert sorted(first + epoch(dataloader)) == list(range(NUM_ROWS))
        assert sorted(epoch(dataloader)) == list(range(NUM_ROWS))


def test_workers_whose_files_cannot_all_be_pinned_are_refused_and_those_that_fit_end(
    tmp_path: Path,
) -> None:
    put_row_files(tmp_path, [400] * 6)
    size = max(path.stat().st_size for path in tmp_path.glob("*.parquet"))

    def num_rows(budget_bytes: Any) -> Any:
        staging = {
            "mode": "whole",
            "directory": str(tmp_path / "cache"),
            "budget_bytes": budget_bytes,
        }
        loader = FeatureLoader(
            str(tmp_path / "*.parquet"), slots=["row"], batch_size=100, staging=staging
        )
        batches = DataLoader(
            loader, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
        )
        return sum(batch.num_rows for batch in batches)

    with pytest.raises(BudgetError, match="4 files that are open at once"):
        num_rows(3 * size)
    assert num_rows(4 * size + 100) == 2_400
