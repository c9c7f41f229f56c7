"""A feed for Lightning: by itself, and in a real Trainer that stops and goes on."""

from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from featstore.base.errors import ConfigError, StateError
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.lightning_feed import LightningFeed
from tests.loader import lightning_jobs
from tests.loader.conftest import NUM_ROWS, rows_of
from tests.process import our_threads

pytestmark = [pytest.mark.filterwarnings(line) for line in lightning_jobs.QUIET]
SOURCES = ["loader", "0 workers", "2 workers"]


def loader_for(table_url: str, **options: Any) -> FeatureLoader:
    known: dict[str, Any] = {"slots": ["row", "half"], "batch_size": 40, "shuffle": True, "seed": 2}
    return FeatureLoader(table_url, **known | options)


def feed_of(loader: FeatureLoader, source: str) -> LightningFeed:
    if source == "loader":
        return LightningFeed(loader)
    num_workers = int(source.split()[0])
    return LightningFeed(StatefulDataLoader(loader, batch_size=None, num_workers=num_workers))


def test_a_source_without_a_state_is_refused(table_url: str) -> None:
    with loader_for(table_url) as loader:
        for source in (DataLoader(loader, batch_size=None), loader.to_device("cpu")):
            with pytest.raises(
                ConfigError,
                match="LightningFeed: expected a loader, or torchdata's StatefulDataLoader over "
                f"one, found .*{type(source).__name__}, which has no state",
            ):
                LightningFeed(source)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["dynamic", "static"])
@pytest.mark.parametrize("source", SOURCES[:2])
def test_a_state_leaves_out_the_batch_that_was_asked_for_last(
    table_url: str, source: str, order: str
) -> None:
    """A Trainer trains on a batch when it has asked for the next one."""
    with loader_for(table_url, order=order) as loader:
        expected = rows_of(loader)
    for num_asked in range(1, 8):
        with loader_for(table_url, order=order) as loader:
            feed = feed_of(loader, source)
            batches = iter(feed)
            asked = [rows_of([batch]) for batch in islice(batches, num_asked)]
            state = feed.state_dict()
            del batches
        with loader_for(table_url, order=order) as loader:
            feed = feed_of(loader, source)
            feed.load_state_dict(state)
            trained = [row for rows in asked[:-1] for row in rows]
            assert trained + rows_of(feed) == expected
    assert our_threads() == set()


@pytest.mark.parametrize("source", SOURCES)
def test_after_its_end_a_feed_goes_on_with_the_next_epoch(table_url: str, source: str) -> None:
    with loader_for(table_url) as loader:
        epochs = [rows_of(loader) for _ in range(3)]
    with loader_for(table_url) as loader:
        feed = feed_of(loader, source)
        assert sorted(rows_of(feed)) == sorted(epochs[0])
        state = feed.state_dict()
    with loader_for(table_url) as loader:
        feed = feed_of(loader, source)
        feed.load_state_dict(state)
        found = [rows_of(feed) for _ in range(2)]
        assert [sorted(rows) for rows in found] == [sorted(rows) for rows in epochs[1:]]
        if source == "loader":
            assert found == epochs[1:]
        loader.close()
        assert loader.state_dict()["epoch"] == 3


@pytest.mark.parametrize("num_epochs", [1, 2])
@pytest.mark.parametrize("source", SOURCES)
def test_iterators_that_are_dropped_skip_no_epoch_that_the_trainer_names(
    table_url: str, source: str, num_epochs: int
) -> None:
    if source == "2 workers" and num_epochs == 2:
        pytest.skip("a StatefulDataLoader of several workers takes one epoch per iteration")
    with loader_for(table_url, num_epochs=num_epochs) as loader:
        epochs = [rows_of(loader) for _ in range(3)]
    with loader_for(table_url, num_epochs=num_epochs) as loader:
        feed = feed_of(loader, source)
        for epoch, expected in enumerate(epochs):
            iter(feed)
            next(iter(feed))  # What a Trainer does where it goes on to fit.
            feed.batch_sampler.sampler.set_epoch(epoch)
            found = rows_of(feed)
            assert sorted(found) == sorted(expected)
            if source == "loader":
                assert found == expected
        loader.close()
        assert loader.state_dict()["epoch"] == 3 * num_epochs


def test_states_of_all_ranks_continue_on_another_number_of_them(
    table_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatch = {"store": f"sqlite://{tmp_path}/store.sqlite", "run_id": "a"}
    monkeypatch.setenv("WORLD_SIZE", "2")
    feeds, rows = [], list[int]()
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        loader = loader_for(table_url, dispatch=dispatch, tail="drop", order="static")
        feeds.append(LightningFeed(loader))
        rows += rows_of([next(batches := iter(feeds[-1]))])
        next(batches)
    states = {"ranks": [feed.state_dict() for feed in feeds]}
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.delenv("RANK")
    with loader_for(table_url, tail="drop", order="static") as loader:
        feed = LightningFeed(loader)
        feed.load_state_dict(states)
        assert sorted(rows + rows_of(feed)) == list(range(NUM_ROWS))
        with pytest.raises(
            StateError, match="LightningFeed: expected the state of 1 ranks, found that of 2"
        ):
            feed_of(loader, "0 workers").load_state_dict(states)
    del feeds, batches


@pytest.mark.parametrize("order", ["dynamic", "static"])
@pytest.mark.parametrize(
    "source", [*SOURCES[:2], pytest.param("2 workers", marks=pytest.mark.slow)]
)
def test_a_trainer_that_stops_and_goes_on_trains_on_every_row_of_each_epoch_once(
    table_url: str, tmp_path: Path, source: str, order: str
) -> None:
    """Of 7 steps an epoch, it stops in its middle, before its last one and at its end."""
    with loader_for(table_url, order=order) as loader:
        epochs = [rows_of(loader) for _ in range(3)]
    for num_steps in (3, 6, 7, 9):
        saving = lightning_jobs.checkpoints(tmp_path, num_steps)
        first, second = lightning_jobs.Model(), lightning_jobs.Model()
        with loader_for(table_url, order=order) as loader:
            lightning_jobs.trainer(
                tmp_path, max_steps=num_steps, enable_checkpointing=True, callbacks=[saving]
            ).fit(first, feed_of(loader, source))
        with loader_for(table_url, order=order) as loader:
            lightning_jobs.trainer(tmp_path, max_epochs=3).fit(
                second, feed_of(loader, source), ckpt_path=tmp_path / f"step={num_steps}.ckpt"
            )
        before, after = (list(chain(*one.epochs.values())) for one in (first, second))
        assert 0 < len(before) <= num_steps * 40
        found = before + after
        parts = [found[first : first + NUM_ROWS] for first in range(0, len(found), NUM_ROWS)]
        assert [sorted(rows) for rows in parts] == [sorted(rows) for rows in epochs]
        if source != "2 workers":
            assert parts == epochs


def test_the_first_check_of_validation_and_another_fit_skip_no_epoch(
    table_url: str, tmp_path: Path
) -> None:
    with loader_for(table_url) as loader:
        epochs = [rows_of(loader) for _ in range(4)]
    model, trainer = lightning_jobs.Model(), lightning_jobs.trainer(tmp_path, max_epochs=2)
    with loader_for(table_url) as loader, loader_for(table_url, seed=5) as checked:
        feed = LightningFeed(loader)
        trainer.fit(model, feed, LightningFeed(checked))
        trainer.fit_loop.max_epochs = 4
        trainer.fit(model, feed, LightningFeed(checked))
    assert model.epochs == dict(enumerate(epochs))
    assert model.num_sanity_checks
    assert {n: sorted(rows) for n, rows in model.checked.items()} == {
        n: list(range(NUM_ROWS)) for n in range(4)
    }


def test_a_checkpoint_of_an_epochs_end_goes_on_with_whole_epochs_though_without_a_state(
    table_url: str, tmp_path: Path
) -> None:
    """Lightning loads no state of a loader there, so one epoch comes in the order of the first."""
    with loader_for(table_url) as loader:
        epochs = [rows_of(loader) for _ in range(4)]
    with loader_for(table_url) as loader:
        trainer = lightning_jobs.trainer(tmp_path, max_epochs=2)
        trainer.fit(lightning_jobs.Model(), LightningFeed(loader))
        trainer.save_checkpoint(tmp_path / "end.ckpt")
    model = lightning_jobs.Model()
    with loader_for(table_url) as loader:
        lightning_jobs.trainer(tmp_path, max_epochs=4).fit(
            model, LightningFeed(loader), ckpt_path=tmp_path / "end.ckpt"
        )
    assert model.epochs == {2: epochs[0], 3: epochs[3]}
