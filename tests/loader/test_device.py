"""Batches fed to a device by a thread: the CPU path here; what needs a GPU is skipped without one."""

import gc
import itertools
import threading

import pytest
import torch
from torch.utils.data import DataLoader

from featstore.errors import ConfigError, DataFileError
from featstore.loader.device import DeviceFeed
from featstore.loader.loader import FeatureLoader

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
NUM_ROWS = 280


def loader_for(table_url: str, **options) -> FeatureLoader:
    return FeatureLoader(table_url, **{"slots": ["row", "tags"], "labels": ["click"], "batch_size": 23, **options})


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("featstore")]


def rows_of(batches) -> list[int]:
    return [row for batch in batches for row in batch["row"].tolist()]


@pytest.mark.parametrize("prefetch", [1, 2, 100])
@pytest.mark.parametrize("options", [{}, {"num_epochs": 2}, {"order": "static"}, {"shuffle": {"window_rows": 40}}], ids=str)
def test_a_fed_loop_gets_the_same_batches(table_url, options, prefetch):
    expected = [batch.clone() for batch in loader_for(table_url, **options)]
    found = list(loader_for(table_url, **options).to_device("cpu", prefetch=prefetch))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine["row"], theirs["row"])
        assert torch.equal(mine["tags"].values, theirs["tags"].values)
        assert torch.equal(mine.labels["click"], theirs.labels["click"])
    assert our_threads() == []


@pytest.mark.parametrize("order", ["dynamic", "static"])
@pytest.mark.parametrize("num_epochs", [1, 2])
def test_only_what_the_loop_was_given_is_delivered_however_far_the_feed_is_ahead(table_url, order, num_epochs):
    total = len(list(loader_for(table_url, order=order, num_epochs=num_epochs)))
    for step in range(1, total + 1):
        loader = loader_for(table_url, order=order, num_epochs=num_epochs)
        batches = iter(loader.to_device("cpu", prefetch=5))
        before = rows_of(itertools.islice(batches, step))
        loader.ack()
        state = loader.state_dict()
        batches.close()
        resumed = loader_for(table_url, order=order, num_epochs=num_epochs)
        resumed.load_state_dict(state)
        rest = [] if len(before) == num_epochs * NUM_ROWS else rows_of(resumed)
        assert sorted(before + rest) == sorted([*range(NUM_ROWS)] * num_epochs)


def test_a_batch_counts_when_the_next_is_asked_for(table_url):
    loader = loader_for(table_url)
    batches = iter(loader.to_device("cpu", prefetch=3))
    next(batches)
    assert loader.state_dict()["partial"] == {}
    next(batches)
    assert loader.state_dict()["partial"] == {"0": 23}
    del batches
    gc.collect()
    assert our_threads() == []


def test_many_breaks_and_collected_feeds_leave_no_thread(table_url):
    loader = loader_for(table_url)
    for step in range(30):
        for _ in itertools.islice(loader.to_device("cpu", prefetch=1 + step % 3), step % 4):
            pass
        gc.collect()
        assert our_threads() == []


def test_what_goes_wrong_in_the_feed_is_raised_in_the_loop_after_the_batches_before_it(table_url):
    batches = iter(loader_for(table_url, labels=["ripe"]).to_device("cpu"))
    with pytest.raises(DataFileError, match="label 'ripe' is null"):
        next(batches)
    assert our_threads() == []
    with pytest.raises(ConfigError, match="to_device: expected prefetch of 1 or more, found 0"):
        loader_for(table_url).to_device("cpu", prefetch=0)


def test_the_batches_of_workers_are_fed_too(table_url):
    with loader_for(table_url) as loader:
        feed = DeviceFeed(DataLoader(loader, batch_size=None, num_workers=2), "cpu")
        assert sorted(rows_of(feed)) == list(range(NUM_ROWS))
    assert our_threads() == []


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_gpu
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_on_a_gpu_hold_what_they_should_while_memory_is_reused(table_url, num_workers):
    with loader_for(table_url, num_epochs=5) as loader:
        source = DataLoader(loader, batch_size=None, num_workers=num_workers, pin_memory=True) if num_workers else loader
        sums = []
        for batch in DeviceFeed(source, "cuda", prefetch=3):
            torch.cuda._sleep(1_000_000)
            assert batch["row"].is_cuda
            sums.append(batch["row"].sum())
        assert sum(map(int, sums)) == 5 * sum(range(NUM_ROWS))


@needs_gpu
def test_a_batch_goes_to_the_gpu_as_one_copy_of_pinned_memory(table_url):
    with loader_for(table_url) as loader, torch.profiler.profile() as profile:
        for _ in loader.to_device("cuda"):
            pass
    copies = [event for event in profile.events() if "Memcpy HtoD (Pinned" in event.name]
    assert len(copies) == 13
