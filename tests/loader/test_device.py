"""Batches fed to a device by a thread: the CPU path here; what needs a GPU is skipped without
one.
"""

import gc
import itertools
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from featstore.base.errors import (
    BatchError,
    ConfigError,
    DataFileError,
    DispatchError,
    StateError,
)
from featstore.loader.device import DeviceFeed
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.iteration.batch_iterator import BatchIterator
from featstore.table.open import open_snapshot
from tests.loader.conftest import rows_of
from tests.parquet_files import put_parquet
from tests.process import await_that, our_threads

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
NUM_ROWS = 280


def loader_for(table_url: str, **options: Any) -> FeatureLoader:
    return FeatureLoader(
        table_url, **{"slots": ["row", "tags"], "labels": ["click"], "batch_size": 23, **options}
    )


@pytest.mark.parametrize("prefetch", [1, 2, 100])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_epochs": 2}, {"order": "static"}, {"shuffle": {"window_rows": 40}}],
    ids=str,
)
def test_a_fed_loop_gets_the_same_batches(table_url: str, options: Any, prefetch: int) -> None:
    expected = [batch.clone() for batch in loader_for(table_url, **options)]
    found = list(loader_for(table_url, **options).to_device("cpu", prefetch=prefetch))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine["row"], theirs["row"])
        assert torch.equal(mine["tags"].values, theirs["tags"].values)
        assert torch.equal(mine.labels["click"], theirs.labels["click"])
    assert our_threads() == set()


@pytest.mark.parametrize("order", ["dynamic", "static"])
@pytest.mark.parametrize("num_epochs", [1, 2])
def test_only_what_the_loop_was_given_is_delivered_however_far_the_feed_is_ahead(
    table_url: str, order: str, num_epochs: int
) -> None:
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


def test_a_batch_counts_when_the_next_is_asked_for(table_url: str) -> None:
    loader = loader_for(table_url)
    batches = iter(loader.to_device("cpu", prefetch=3))
    next(batches)
    assert loader.state_dict()["partial"] == {}
    next(batches)
    assert loader.state_dict()["partial"] == {"0": 23}
    del batches
    gc.collect()
    assert our_threads() == set()


def test_many_breaks_and_collected_feeds_leave_no_thread(table_url: str) -> None:
    loader = loader_for(table_url)
    for step in range(30):
        for _ in itertools.islice(loader.to_device("cpu", prefetch=1 + step % 3), step % 4):
            pass
        gc.collect()
        assert our_threads() == set()


def test_what_goes_wrong_in_the_feed_is_raised_in_the_loop_after_the_batches_before_it(
    table_url: str,
) -> None:
    batches = iter(loader_for(table_url, labels=["ripe"]).to_device("cpu"))
    with pytest.raises(DataFileError, match="label 'ripe' is null"):
        next(batches)
    assert our_threads() == set()
    with pytest.raises(
        ConfigError, match="to_device: prefetch: expected an integer of 1 or more, found 0"
    ):
        loader_for(table_url).to_device("cpu", prefetch=0)


def test_the_batches_of_workers_are_fed_too(table_url: str) -> None:
    with loader_for(table_url) as loader:
        feed = DeviceFeed(DataLoader(loader, batch_size=None, num_workers=2), "cpu")
        assert sorted(rows_of(feed)) == list(range(NUM_ROWS))
    assert our_threads() == set()


@pytest.fixture
def hundred(tmp_path: Path) -> str:
    """One file of 100 rows; the first 60 are positives."""
    rows = pa.array(range(100), pa.int64())
    put_parquet(
        tmp_path / "a.parquet",
        {"row": rows, "click": [row < 60 for row in range(100)]},
        row_group_size=20,
    )
    return str(tmp_path)


def of_hundred(hundred: str, **options: Any) -> FeatureLoader:
    return FeatureLoader(hundred, slots=["row"], **{"batch_size": 30, **options})


def until_ahead(loader: FeatureLoader, num_batches: int) -> None:
    """Waits until the feed has fetched so many batches, and a moment for what comes after them."""
    await_that(lambda: loader.stats()["batches"] >= num_batches)
    time.sleep(0.1)


def test_a_slow_loop_that_is_fed_and_drops_its_last_rows_ends_without_an_error(
    hundred: str,
) -> None:
    """In dynamic order the store is told now and then: after every batch of this loop."""
    with of_hundred(hundred, drop_last=True, dispatch={"lease_s": 0.4}) as loader:
        rows = []
        for batch in loader.to_device("cpu", prefetch=5):
            until_ahead(loader, 3)
            rows += batch["row"].tolist()
        assert rows == list(range(90))
        assert loader.stats()["rows_dropped_last"] == 10
        assert loader.stats().get("leases_lost", 0) == 0


LEAVES_OUT: dict[str, Any] = {
    "drop_last": {"drop_last": True, "where": "row > 4"},
    "where": {"where": "row > 0 and row < 61"},
    "negatives": {"labels": ["click"], "negatives": {"label": "click", "rate": 1e-9}},
}


@pytest.mark.parametrize("leaves_out", LEAVES_OUT)
@pytest.mark.parametrize("order", ["static", "dynamic"])
def test_rows_left_out_count_only_after_the_batches_that_the_fed_loop_still_has(
    hundred: str, order: str, leaves_out: Any
) -> None:
    """All of them come after the last batch."""
    options: dict[str, Any] = {"order": order, **LEAVES_OUT[leaves_out]}
    whole = rows_of(of_hundred(hundred, **options))
    assert len(whole) in (60, 90)
    loader = of_hundred(hundred, **options)
    batches = iter(loader.to_device("cpu", prefetch=5))
    before = next(batches)["row"].tolist()
    until_ahead(loader, len(whole) // 30)
    loader.ack()
    state = loader.state_dict()
    assert (state["complete"], state["partial"]) == ([], {"0": before[-1] + 1})
    assert loader.stats().get("rows_dropped_last", 0) == 0
    resumed = of_hundred(hundred, **options)
    resumed.load_state_dict(state)
    assert before + rows_of(resumed.to_device("cpu")) == whole
    assert before + rows_of(batches) == whole
    assert loader.stats().get("rows_dropped_last", 0) == (5 if leaves_out == "drop_last" else 0)


def test_ranks_that_stop_count_what_the_fed_loop_has_only_when_it_is_acknowledged(
    hundred: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 13 batches of 8 rows the first rank could make 7 steps, and makes the 6 of the other."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    dispatch = {"store": f"sqlite://{tmp_path}/store.sqlite", "run_id": "a"}
    loader = of_hundred(hundred, batch_size=8, order="static", tail="drop", dispatch=dispatch)
    batches = iter(loader.to_device("cpu", prefetch=20))
    rows = next(batches)["row"].tolist()
    until_ahead(loader, 6)
    assert (loader.state_dict()["epoch"], loader.state_dict()["partial"]) == (0, {})
    loader.ack()
    assert (loader.state_dict()["epoch"], loader.state_dict()["partial"]) == (0, {"0": 8})
    for batch in batches:
        assert loader.state_dict()["epoch"] == 0
        rows += batch["row"].tolist()
    assert len(rows) == 6 * 8
    state = loader.state_dict()
    assert (state["epoch"], state["partial"], state["complete"]) == (1, {}, [])
    assert state["ended"]["partial"] == {"0": [[16 * step, 16 * step + 8] for step in range(6)]}
    assert our_threads() == set()


def fail_at_95(batch: Any) -> Any:
    return {"x": torch.tensor([1 / (95 - row) for row in batch["row"].tolist()])}


@pytest.mark.parametrize("fails", ["file", "transform"])
def test_the_store_hears_of_what_the_fed_loop_had_before_an_error(
    tmp_path: Path, fails: str
) -> None:
    pq.write_table(pa.table({"row": range(100)}), tmp_path / "a.parquet", row_group_size=10)
    pq.write_table(pa.table({"row": range(100, 160)}), tmp_path / "b.parquet")
    snapshot = open_snapshot(str(tmp_path))
    if fails == "file":
        (tmp_path / "b.parquet").write_bytes(b"PAR1 no longer Parquet PAR1")
    dispatch = {"store": f"sqlite://{tmp_path}/store.sqlite", "run_id": "a"}
    arguments: dict[str, Any] = {"slots": ["row"], "batch_size": 10, "dispatch": dispatch}
    transform = fail_at_95 if fails == "transform" else None
    loader = FeatureLoader(snapshot, transform=transform, **arguments)
    batches = iter(loader.to_device("cpu", prefetch=20))
    rows = next(batches)["row"].tolist()
    until_ahead(loader, 9)
    with pytest.raises(BatchError if fails == "transform" else DataFileError):
        rows.extend(row for batch in batches for row in batch["row"].tolist())
    assert rows == list(range(90 if fails == "transform" else 100))
    with FeatureLoader(snapshot, on_bad_file="skip", **arguments) as other:
        rest = rows_of(other)
    assert rows + rest == list(range(160 if fails == "transform" else 100))
    assert our_threads() == set()


def test_a_feed_whose_source_fails_to_close_leaves_no_thread(
    table_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = BatchIterator.close

    def failing(self: BatchIterator) -> None:
        closed(self)
        raise DispatchError("the store is lost")

    with loader_for(table_url) as loader:
        batches = iter(loader.to_device("cpu", prefetch=1))
        next(batches)
        until_ahead(loader, 2)  # the thread waits for room
        monkeypatch.setattr(BatchIterator, "close", failing)
        with pytest.raises(DispatchError, match="the store is lost"):
            batches.close()
        assert our_threads() == set()


def test_a_feed_over_what_has_no_state_says_so_when_asked_for_it(table_url: str) -> None:
    with loader_for(table_url) as loader:
        batches = iter(DeviceFeed(DataLoader(loader, batch_size=None), "cpu"))
        next(batches)
        with pytest.raises(
            StateError, match=r"state_dict\(\): the source of this feed has no state"
        ):
            batches.state_dict()
        batches.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_feed_that_is_not_used_skips_no_epoch_and_starts_no_thread(
    table_url: str, num_workers: int
) -> None:
    with loader_for(table_url, shuffle=True) as loader:
        epochs = [rows_of(loader) for _ in range(2)]
        loader.set_epoch(0)
        source = DataLoader(loader, batch_size=None, num_workers=num_workers)
        feed = DeviceFeed(source if num_workers else loader, "cpu")
        for expected in epochs:
            unused = [iter(feed) for _ in range(3)]
            assert our_threads() == set()
            found = rows_of(feed)
            assert sorted(found) == sorted(expected) if num_workers else found == expected
            del unused
    assert loader.state_dict()["epoch"] == 2


def test_a_feed_that_was_closed_before_its_first_batch_says_so(table_url: str) -> None:
    with loader_for(table_url) as loader:
        batches = iter(loader.to_device("cpu"))
        for _ in range(2):
            batches.close()
        with pytest.raises(StateError, match="closed before its end"):
            next(batches)
        assert our_threads() == set()
        assert loader.state_dict()["epoch"] == 0


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_gpu
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_on_a_gpu_hold_what_they_should_while_memory_is_reused(
    table_url: str, num_workers: int
) -> None:
    with loader_for(table_url, num_epochs=5) as loader:
        source = (
            DataLoader(loader, batch_size=None, num_workers=num_workers, pin_memory=True)
            if num_workers
            else loader
        )
        sums = []
        for batch in DeviceFeed(source, "cuda", prefetch=3):
            torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
            assert batch["row"].is_cuda
            sums.append(batch["row"].sum())
        assert sum(map(int, sums)) == 5 * sum(range(NUM_ROWS))


@needs_gpu
def test_a_batch_goes_to_the_gpu_as_one_copy_of_pinned_memory(table_url: str) -> None:
    with loader_for(table_url) as loader, torch.profiler.profile(acc_events=True) as profile:
        for _ in loader.to_device("cuda"):
            pass
    copies = [event for event in profile.events() if "Memcpy HtoD (Pinned" in event.name]
    assert len(copies) == 13
