"""Mixtures in the feeds for other frameworks."""

from itertools import islice

import numpy as np
import pytest
from torch.utils.data import DataLoader

from featstore.loader.lightning_feed import LightningFeed
from tests.loader.mix.conftest import Tables, drawn, mixed, round_trip
from tests.loader.test_lightning_callback import warned


@pytest.mark.parametrize("order", ["dynamic", "static"])
@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_a_state_of_a_lightning_feed_leaves_out_the_batch_that_was_asked_for_last(
    tables: Tables, order: str, stop: str
) -> None:
    with mixed(tables, order=order, stop=stop) as loader:
        expected = drawn(loader)
    for num_asked in range(1, len(expected) + 1, 3):
        with mixed(tables, order=order, stop=stop) as loader:
            feed = LightningFeed(loader)
            batches = iter(feed)
            asked = drawn(islice(batches, num_asked))
            state = round_trip(feed.state_dict())
            del batches
        with mixed(tables, order=order, stop=stop) as loader:
            feed = LightningFeed(loader)
            feed.load_state_dict(state)
            assert asked[:-1] + drawn(feed) == expected


def test_epoch_n_of_a_trainer_is_epoch_n_of_a_mixture(tables: Tables) -> None:
    with mixed(tables) as loader:
        epochs = [drawn(loader) for _ in range(3)]
        feed = LightningFeed(loader)
        for epoch in (2, 0):
            feed.batch_sampler.sampler.set_epoch(epoch)
            next(iter(feed))  # A Trainer that fits again drops the first batch that it took.
            assert drawn(feed) == epochs[epoch]


def test_a_checkpoint_beside_a_plain_dataloader_over_a_mixture_is_warned_of(
    tables: Tables,
) -> None:
    with mixed(tables) as loader:
        assert warned(DataLoader(loader, batch_size=None)) == 1
        assert warned(LightningFeed(loader)) == 0


def test_arrays_are_those_of_the_batches(tables: Tables) -> None:
    with mixed(tables) as loader:
        expected = drawn(loader)
        loader.set_epoch(0)
        found = [np.asarray(batch.slots["row"]).tolist() for batch in loader.numpy()]
        assert found == expected


def test_an_iterator_that_is_not_used_skips_no_epoch_and_ends_no_other(tables: Tables) -> None:
    with mixed(tables) as loader:
        epochs = [drawn(loader) for _ in range(2)]
        loader.set_epoch(0)
        iter(loader)
        used = iter(loader)
        found = drawn(islice(used, 2))
        iter(loader)
        assert found + drawn(used) == epochs[0]
        iter(loader)
        assert drawn(loader) == epochs[1]
