"""Saved at the start, in the middle, at the exact end and in the second epoch, by 1, 2 or 4
workers; resumed by 1, 3 or 8. And saved and resumed where a thread copies batches ahead of the
loop, with whatever leaves rows out."""

import itertools
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from featstore.loader.device import DeviceFeed
from featstore.loader.feature_loader import FeatureLoader
from tests.loader.conftest import merged_state, rows_of
from tests.tiers import tiered

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore:'set_vital' is deprecated:UserWarning"
    ),  # torchdata calls it
]

NUM_ROWS = 280
WHEN = {"start": 0, "middle": 4, "end": 1000, "epoch 2": 4}


def workers(
    table_url: str, store: Any, num_workers: Any, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[FeatureLoader]:
    dispatch = {"store": f"sqlite://{store}", "run_id": "a"}
    monkeypatch.setenv("WORLD_SIZE", str(num_workers))
    return [
        FeatureLoader(table_url, slots=["row"], batch_size=11, dispatch=dispatch, **options)
        for _ in range(num_workers)
    ]


def begun(loaders: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found = []
    for rank, loader in enumerate(loaders):
        monkeypatch.setenv("RANK", str(rank))
        found.append(iter(loader))
        found[-1].state_dict()  # It begins, as this rank.
    return found


def together(shares: Any) -> list[int]:
    with ThreadPoolExecutor(len(shares)) as threads:
        return [row for rows in threads.map(rows_of, shares) for row in rows]


def saved(loaders: Any, shares: Any, num_batches: Any) -> tuple[list[int], dict[str, Any]]:
    """Rows of some batches that the workers took in turn, and their state, the last batches
    counted.
    """
    rows: list[int] = []
    turns, num_ended = itertools.cycle(shares), 0
    for _ in range(num_batches):
        batch = next(next(turns), None)
        num_ended = num_ended + 1 if batch is None else 0
        rows += [] if batch is None else batch["row"].tolist()
        if len(rows) == NUM_ROWS or num_ended == len(shares):
            break
    return rows, merged_state(loaders)


CASES = [(*case, True) for case in itertools.product([1, 2, 4], [1, 3, 8])] + [(1, 1, False)]


@pytest.mark.parametrize(("num_saved", "num_resumed", "is_shuffled"), CASES)
@pytest.mark.parametrize("when", WHEN)
def test_the_epoch_is_complete(
    table_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: Any,
    num_saved: Any,
    num_resumed: Any,
    is_shuffled: Any,
) -> None:
    shuffle = {"window_rows": 30, "interleave": 2} if is_shuffled else None
    loaders = workers(table_url, tmp_path / "saved.sqlite", num_saved, monkeypatch, shuffle=shuffle)
    if when == "epoch 2":
        for loader in loaders:
            loader.set_epoch(1)
    before, state = saved(loaders, begun(loaders, monkeypatch), WHEN[when])
    resumed = workers(
        table_url, tmp_path / "resumed.sqlite", num_resumed, monkeypatch, shuffle=shuffle
    )
    for rank, loader in enumerate(resumed):
        monkeypatch.setenv("RANK", str(rank))
        loader.load_state_dict(state)
    after = together(begun(resumed, monkeypatch))
    assert Counter(before + after) == Counter(range(NUM_ROWS))
    assert state["epoch"] == (1 if when == "epoch 2" else 0)
    assert len(before) > 0 or when == "start"
    if num_saved == num_resumed == 1:
        (whole,) = workers(table_url, tmp_path / "whole.sqlite", 1, monkeypatch, shuffle=shuffle)
        whole.set_epoch(state["epoch"])
        assert before + after == rows_of(whole)


LEAVES_OUT: dict[str, Any] = {
    "drop_last": {"drop_last": True},
    "where": {"where": "row % 3 != 1"},
    "negatives": {"labels": ["click"], "negatives": {"label": "click", "rate": 0.5}},
}


def doubled(batch: Any) -> Any:
    return {"double": 2 * batch["row"]}


def expected_of(table_url: str, options: Any) -> set[int]:
    """The rows that are not filtered out."""
    options = {
        key: value for key, value in options.items() if key not in ("drop_last", "transform")
    }
    return set(rows_of(FeatureLoader(table_url, slots=["row"], **options)))


def dropped_by(loaders: Any) -> int:
    counts = [loader.stats() for loader in loaders]
    return sum(count.get(f"rows_dropped_{end}", 0) for count in counts for end in ("last", "tail"))


def together_in_step(feeds: Any, num_steps: int) -> list[int]:
    """The rows of so many steps of each rank; padding has none."""
    with ThreadPoolExecutor(len(feeds)) as threads:
        parts = list(threads.map(lambda feed: list(itertools.islice(feed, num_steps)), feeds))
    return rows_of(batch for batches in parts for batch in batches if not batch.is_padding)


def fed(loaders: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    feeds = []
    for rank, loader in enumerate(loaders):
        monkeypatch.setenv("RANK", str(rank))
        feeds.append(iter(loader.to_device("cpu", prefetch=100)))
        feeds[-1].state_dict()  # It begins, as this rank.
    return feeds


def until_still(loaders: Any) -> None:
    """Waits until the feeds are as far ahead as they come."""
    before = None
    while before != (before := [loader.stats()["batches"] for loader in loaders]):
        time.sleep(0.05)


@pytest.mark.parametrize("num_steps", [1, 7])
@pytest.mark.parametrize("transform", tiered([None, doubled], bool))
@pytest.mark.parametrize("tail", ["drop", "pad", "join"])
@pytest.mark.parametrize("leaves_out", LEAVES_OUT)
@pytest.mark.parametrize("order", ["dynamic", "static"])
def test_fed_ranks_go_on_where_their_loops_were(
    table_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    order: str,
    leaves_out: Any,
    tail: str,
    transform: Any,
    num_steps: int,
) -> None:
    options: dict[str, Any] = {"order": order, "transform": transform, **LEAVES_OUT[leaves_out]}
    expected = expected_of(table_url, options)
    saved_by = workers(table_url, tmp_path / "saved.sqlite", 2, monkeypatch, tail=tail, **options)
    feeds = fed(saved_by, monkeypatch)
    before = together_in_step(feeds, num_steps)
    until_still(saved_by)
    for loader in saved_by:
        loader.ack()
    state = FeatureLoader.merge_states([loader.state_dict() for loader in saved_by])
    num_dropped = dropped_by(saved_by)
    for feed in feeds:
        feed.close()
    resumed = workers(table_url, tmp_path / "resumed.sqlite", 2, monkeypatch, tail=tail, **options)
    for rank, loader in enumerate(resumed):
        monkeypatch.setenv("RANK", str(rank))
        loader.load_state_dict(state)
    after = together_in_step(fed(resumed, monkeypatch), NUM_ROWS)
    rows = Counter(before + after)
    assert len(before) > 0
    assert set(rows.values()) == {1}
    assert set(rows) <= expected
    num_missing = len(expected) - len(rows)
    if tail == "drop":
        assert order == "static" or num_missing <= num_dropped + dropped_by(resumed)
    else:
        assert num_missing == num_dropped + dropped_by(resumed)


@pytest.mark.parametrize("transform", [None, doubled])
@pytest.mark.parametrize("tail", ["drop", "pad", "join"])
@pytest.mark.parametrize("leaves_out", LEAVES_OUT)
@pytest.mark.parametrize("num_workers", tiered([0, 2], bool))
def test_a_feed_over_a_stateful_dataloader_goes_on_where_its_loop_was(
    table_url: str, leaves_out: Any, tail: str, transform: Any, num_workers: Any
) -> None:
    if num_workers and (tail, leaves_out == "drop_last") != ("join", False):
        pytest.skip("one rank alone has no tail; each of several workers drops rows of its own")
    options: dict[str, Any] = {"tail": tail, "transform": transform, **LEAVES_OUT[leaves_out]}

    def feed_of(state: Any = None) -> Any:
        loader = FeatureLoader(table_url, slots=["row"], batch_size=30, **options)
        batches = StatefulDataLoader(loader, batch_size=None, num_workers=num_workers)
        if state is not None:
            batches.load_state_dict(state)
        return iter(DeviceFeed(batches, "cpu", prefetch=100))

    whole = rows_of(feed_of())
    for num_batches in (0, 1, 3, len(whole) // 30):
        feed = feed_of()
        before = rows_of(itertools.islice(feed, num_batches))
        state = feed.state_dict()
        feed.close()
        after = rows_of(feed_of(state))
        assert sorted(before + after) == sorted(whole)
        assert bool(before) is (num_batches > 0)
