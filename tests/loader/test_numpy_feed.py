"""What `loader.numpy()` iterates over, also into JAX."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from featstore.loader.feature_loader import FeatureLoader
from featstore.tensors.numpy_batch import NumpyFeed
from tests.frameworks_environment import PYTHON, needs_frameworks, variables
from tests.loader.conftest import NUM_ROWS, rows_of
from tests.programs import run_with

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def rows_in(feed: NumpyFeed) -> list[int]:
    rows: list[int] = []
    for batch in feed:
        values: Any = batch.slots["row"]
        rows += values.tolist()
    return rows


def over_loader(loader: FeatureLoader) -> NumpyFeed:
    return loader.numpy()


def over_workers(loader: FeatureLoader) -> NumpyFeed:
    return NumpyFeed(DataLoader(loader, batch_size=None, num_workers=2))


@pytest.mark.parametrize("feed_of", [over_loader, over_workers])
def test_epochs_are_those_of_the_loader_and_none_is_skipped_by_an_iterator_that_is_not_used(
    table_url: str, feed_of: Callable[[FeatureLoader], NumpyFeed]
) -> None:
    with FeatureLoader(table_url, slots=["row"], batch_size=60, shuffle=True) as loader:
        epochs = [rows_of(loader) for _ in range(2)]
        loader.set_epoch(0)
        feed = feed_of(loader)
        for expected in epochs:
            iter(feed)
            found = rows_in(feed)
            assert sorted(found) == sorted(expected)
            if feed_of is over_loader:
                assert found == expected


def test_the_state_follows_the_loop(table_url: str) -> None:
    with FeatureLoader(table_url, slots=["row"], batch_size=60) as loader:
        batches = iter(loader.numpy())
        next(batches)
        assert loader.state_dict()["partial"] == {}
        next(batches)
        assert loader.state_dict()["partial"] == {"0": 60}


def test_padding_counts_no_rows(
    table_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatch = {"store": f"sqlite://{tmp_path}/store.sqlite", "run_id": "a"}
    monkeypatch.setenv("WORLD_SIZE", "2")
    feeds = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        loader = FeatureLoader(
            table_url, slots=["row"], batch_size=200, tail="pad", order="static", dispatch=dispatch
        )
        batches = iter(loader)
        batches.state_dict()  # It begins, as this rank.
        feeds.append(NumpyFeed(batches))
    found = [batch for feed in feeds for batch in feed]
    assert sum(batch.num_rows for batch in found) == NUM_ROWS
    assert all((batch.num_rows == 0) == batch.is_padding for batch in found)
    assert all(len(batch.slots["row"]) > 0 for batch in found)


JAX = """
import sys
import jax
import jax.numpy as jnp
import numpy as np
import featstore

loader = featstore.FeatureLoader(
    sys.argv[1],
    slots=["half", "tags", "pair", {"name": "row", "buckets": 1000, "dtype": "int32"}],
    labels=["click"],
    batch_size=40,
)
num_rows, num_traced = 0, []


@jax.jit
def plus_one(slots):
    num_traced.append(1)
    return jax.tree.map(lambda column: column + 1, slots)


for batch in loader.numpy():
    slots = {name: batch.slots[name] for name in ("half", "pair", "row")}
    found = plus_one(slots)
    assert found["row"].dtype == jnp.int32
    for name, column in slots.items():
        assert np.array_equal(np.asarray(found[name]), column + 1)
    values, offsets = jax.tree.leaves(batch.slots["tags"])
    assert values is batch.slots["tags"].values
    num_rows += batch.num_rows
assert num_rows == 280
assert len(num_traced) == 1, num_traced  # All batches have 40 rows.
assert jnp.asarray(np.array([2**40 + 5])).tolist() == [5]  # The page warns of it.
"""


@needs_frameworks
@pytest.mark.slow
def test_jax_takes_the_arrays(table_url: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JAX)
    run_with(PYTHON, tmp_path / "job.py", table_url, variables=variables())
