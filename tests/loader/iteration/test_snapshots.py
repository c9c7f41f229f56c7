"""StatefulDataLoaders whose states would lack batches that were handed out."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from featstore.base.errors import ConfigError, StateError
from featstore.loader.device import DeviceFeed
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.iteration.worker import require_exact_states
from featstore.loader.lightning_feed import LightningFeed
from featstore.samples.sample_dataset import SampleDataset
from tests.loader.conftest import rows_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]
NUM_ROWS = 280
Options = dict[str, Any]


def loader_for(table_url: str) -> FeatureLoader:
    return FeatureLoader(table_url, slots=["row"], batch_size=40)


def mixture_of(table_url: str) -> Any:
    tables = [{"table": table_url, "where": f"row {sign} 140", "weight": 1} for sign in ("<", ">=")]
    return FeatureLoader.from_config({"tables": tables, "slots": ["row"], "batch_size": 40})


class Wrapping(IterableDataset[Any]):
    """A dataset of the user's own."""

    def __init__(self, loader: FeatureLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return iter(self.loader)


def batches_of(dataset: Any, **options: Any) -> StatefulDataLoader:
    """Spawned workers are refused before they are started, forked ones once they look."""
    spawned = {"num_workers": 2, "multiprocessing_context": "spawn"}
    return StatefulDataLoader(dataset, batch_size=None, **spawned | options)


@pytest.mark.parametrize("every", [2, 5, 100, None])
@pytest.mark.parametrize("of", [loader_for, mixture_of, lambda url: Wrapping(loader_for(url))])
def test_states_of_several_workers_that_lack_batches_are_refused(
    table_url: str, every: int | None, of: Callable[[str], Any]
) -> None:
    batches = batches_of(of(table_url), snapshot_every_n_steps=every)
    for begin in (iter, lambda it: next(iter(LightningFeed(it))), StatefulDataLoader.state_dict):
        with pytest.raises(ConfigError, match=f"snapshot_every_n_steps 1, found {every}:"):
            begin(batches)
    with pytest.raises(ConfigError, match="leave the option out"):
        next(iter(DeviceFeed(batches, "cpu")))


def test_so_are_those_of_forked_workers(table_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    batches = batches_of(
        mixture_of(table_url), snapshot_every_n_steps=5, multiprocessing_context="fork"
    )
    with pytest.raises(ConfigError, match="snapshot_every_n_steps 1, found 5:"):
        iter(batches)
    del batches
    gc.collect()  # torchdata waits for the workers of an iteration that did not begin.


class Starting(DataLoader[Any]):
    """A DataLoader whose workers would begin now."""

    snapshot_every_n_steps = 3

    def _get_iterator(self) -> Any:
        require_exact_states(num_ranks=2)
        return iter(())


def test_workers_of_several_ranks_are_several(table_url: str) -> None:
    batches = Starting(loader_for(table_url), batch_size=None, num_workers=1)
    with pytest.raises(ConfigError, match="snapshot_every_n_steps 1, found 3"):
        iter(batches)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_one_process_may_save_seldom(table_url: str, num_workers: int) -> None:
    def made() -> StatefulDataLoader:
        options = {"num_workers": num_workers, "multiprocessing_context": None}
        return batches_of(loader_for(table_url), snapshot_every_n_steps=3, **options)

    for stop in (1, 3, 5):
        first = made()
        reading = iter(first)
        rows = [row for _ in range(stop) for row in next(reading)["row"].tolist()]
        second = made()
        second.load_state_dict(first.state_dict())
        assert sorted(rows + rows_of(second)) == list(range(NUM_ROWS))


def test_a_state_that_lacks_batches_is_refused_where_it_is_loaded(table_url: str) -> None:
    first = StatefulDataLoader(loader_for(table_url), batch_size=None, num_workers=2)
    next(iter(first))
    state = first.state_dict() | {"_steps_since_snapshot": 4}
    second = batches_of(loader_for(table_url))
    second.load_state_dict(state)
    with pytest.raises(StateError, match="lacks the last 4 batches"):
        next(iter(second))


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize(("options", "num_batches"), [({}, 1), ({"batch_size": 4}, 4)])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataloader_that_collates_batches_is_told_what_it_needs(
    table_url: str, kind: Any, options: Options, num_batches: int, num_workers: int
) -> None:
    batches = kind(loader_for(table_url), num_workers=num_workers, **options)
    with pytest.raises(ConfigError, match=f"batch_size=None.* collates {num_batches} of them"):
        next(iter(batches))


def test_samples_are_joined_and_batches_of_a_loader_refused_in_one_process(table_url: str) -> None:
    samples = SampleDataset(table_url, slots=["row"])
    assert len(next(iter(DataLoader(samples, batch_size=4)))) == 4
    with pytest.raises(ConfigError, match="batch_size=None"):
        next(iter(DataLoader(loader_for(table_url))))
