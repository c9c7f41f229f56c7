"""Under torchdata's StatefulDataLoader: a state after any batch, and all that is left after loading
it, none twice.
"""

import pickle
from pathlib import Path
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from featstore.base.errors import StateError
from featstore.loader.feature_loader import FeatureLoader
from tests.loader.conftest import rows_of
from tests.process import our_threads

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore:'set_vital' is deprecated:UserWarning"
    ),  # torchdata calls it
]
NUM_ROWS = 280


def loader_for(table_url: str, **options: Any) -> FeatureLoader:
    return FeatureLoader(
        table_url, **{"slots": ["row"], "batch_size": 40, "shuffle": {"window_rows": 40}, **options}
    )


def batches_of(loader: FeatureLoader, num_workers: int, **options: Any) -> StatefulDataLoader:
    return StatefulDataLoader(loader, batch_size=None, num_workers=num_workers, **options)


def steps(
    table_url: str, num_workers: int, **options: Any
) -> list[tuple[list[int], dict[str, Any]]]:
    """What an epoch has delivered after each of its batches, the state then, and both once it has
    ended.
    """
    with loader_for(table_url, **options) as loader:
        batches = batches_of(loader, num_workers)
        rows: list[int] = []
        found: list[tuple[list[int], dict[str, Any]]] = [([], batches.state_dict())]
        for batch in batches:
            rows += batch["row"].tolist()
            found.append((list(rows), pickle.loads(pickle.dumps(batches.state_dict()))))
        return [*found, (rows, batches.state_dict())]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_an_epoch_goes_on_after_any_batch(table_url: str, num_workers: int) -> None:
    found = steps(table_url, num_workers)
    assert sorted(found[-1][0]) == list(range(NUM_ROWS))
    chosen = (
        found[:-1] if num_workers == 0 else (found[0], found[1], found[len(found) // 2], found[-2])
    )
    for before, state in chosen:
        with loader_for(table_url) as loader:
            batches = batches_of(loader, num_workers)
            batches.load_state_dict(state)
            assert sorted(before + rows_of(batches)) == list(range(NUM_ROWS))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_epochs_after_a_restored_one_are_those_that_would_have_come(
    table_url: str, num_workers: int
) -> None:
    with loader_for(table_url) as loader:
        expected = [rows_of(loader) for _ in range(3)]
    for before, state in (steps(table_url, num_workers)[step] for step in (3, -1)):
        with loader_for(table_url) as loader:
            batches = batches_of(loader, num_workers)
            batches.load_state_dict(state)
            epochs = [before + rows_of(batches)] if len(before) < NUM_ROWS else []
            epochs += [rows_of(batches) for _ in range(2)]
            numbers = range(3 - len(epochs), 3) if len(before) == NUM_ROWS else range(3)
            assert all(sorted(rows) == list(range(NUM_ROWS)) for rows in epochs)
            if num_workers == 0:
                assert epochs == [expected[number] for number in numbers]
            loader.close()
            assert loader.state_dict()["epoch"] == 3


def test_persistent_workers_go_on_and_save_their_next_epoch_too(table_url: str) -> None:
    before, state = steps(table_url, 2)[2]
    with loader_for(table_url) as loader:
        batches = batches_of(loader, 2, persistent_workers=True)
        batches.load_state_dict(state)
        assert sorted(before + rows_of(batches)) == list(range(NUM_ROWS))
        second = iter(batches)
        before, state = next(second)["row"].tolist(), batches.state_dict()
        del second, batches
    with loader_for(table_url) as loader:
        batches = batches_of(loader, 2)
        batches.load_state_dict(state)
        assert sorted(before + rows_of(batches)) == list(range(NUM_ROWS))


def test_one_state_may_be_loaded_again(table_url: str) -> None:
    before, state = steps(table_url, 2)[3]
    with loader_for(table_url) as loader:
        for _ in range(2):
            batches = batches_of(loader, 2)
            batches.load_state_dict(state)
            assert sorted(before + rows_of(batches)) == list(range(NUM_ROWS))


@pytest.mark.slow
def test_several_epochs_in_one_iteration_of_several_workers_are_refused(table_url: str) -> None:
    with loader_for(table_url, num_epochs=2) as loader:
        with pytest.raises(
            StateError,
            match="StatefulDataLoader of several workers: expected a loader with num_epochs 1",
        ):
            rows_of(batches_of(loader, 2))
        batches = batches_of(loader, 0)
        assert len(rows_of(batches)) == 2 * NUM_ROWS


def test_a_durable_store_takes_no_states_of_single_workers(table_url: str, tmp_path: Path) -> None:
    dispatch = {"store": f"sqlite://{tmp_path}/store.sqlite", "run_id": "a"}
    before, state = steps(table_url, 2, dispatch=dispatch)[2]
    assert before
    with loader_for(table_url, dispatch=dispatch | {"run_id": "b"}) as loader:
        batches = batches_of(loader, 2)
        batches.load_state_dict(state)
        with pytest.raises(
            StateError,
            match=r"of one DataLoader worker, for a loader with store 'sqlite.*expected auto",
        ):
            rows_of(batches)
    assert not our_threads()
