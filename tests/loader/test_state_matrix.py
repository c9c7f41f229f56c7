"""Saved at the start, in the middle, at the exact end and in the second epoch, by 1, 2 or 4 workers; resumed by 1, 3 or 8."""

import itertools
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from featstore.loader.loader import FeatureLoader

NUM_ROWS = 280
WHEN = {"start": 0, "middle": 4, "end": 1000, "epoch 2": 4}


def workers(table_url, store, num_workers, monkeypatch, **options) -> list[FeatureLoader]:
    dispatch = {"store": f"sqlite://{store}", "run_id": "a"}
    monkeypatch.setenv("WORLD_SIZE", str(num_workers))
    return [FeatureLoader(table_url, slots=["row"], batch_size=11, dispatch=dispatch, **options) for _ in range(num_workers)]


def begun(loaders, monkeypatch) -> list:
    found = []
    for rank, loader in enumerate(loaders):
        monkeypatch.setenv("RANK", str(rank))
        found.append(iter(loader))
    return found


def rows_of(batches) -> list[int]:
    return [row for batch in batches for row in batch["row"].tolist()]


def together(shares) -> list[int]:
    with ThreadPoolExecutor(len(shares)) as threads:
        return [row for rows in threads.map(rows_of, shares) for row in rows]


def saved(loaders, shares, num_batches) -> tuple[list[int], dict]:
    """Rows of some batches that the workers took in turn, and their state, the last batches counted."""
    rows, turns, num_ended = [], itertools.cycle(shares), 0
    for _ in range(num_batches):
        batch = next(next(turns), None)
        num_ended = num_ended + 1 if batch is None else 0
        rows += [] if batch is None else batch["row"].tolist()
        if len(rows) == NUM_ROWS or num_ended == len(shares):
            break
    for loader in loaders:
        loader.ack()
    state = FeatureLoader.merge_states([json.loads(json.dumps(loader.state_dict())) for loader in loaders])
    for loader in loaders:
        loader.close()
    return rows, state


CASES = [(*case, True) for case in itertools.product([1, 2, 4], [1, 3, 8])] + [(1, 1, False)]


@pytest.mark.parametrize(("num_saved", "num_resumed", "is_shuffled"), CASES)
@pytest.mark.parametrize("when", WHEN)
def test_the_epoch_is_complete(table_url, tmp_path, monkeypatch, when, num_saved, num_resumed, is_shuffled):
    shuffle = {"window_rows": 30, "interleave": 2} if is_shuffled else None
    loaders = workers(table_url, tmp_path / "saved.sqlite", num_saved, monkeypatch, shuffle=shuffle)
    if when == "epoch 2":
        for loader in loaders:
            loader.set_epoch(1)
    before, state = saved(loaders, begun(loaders, monkeypatch), WHEN[when])
    resumed = workers(table_url, tmp_path / "resumed.sqlite", num_resumed, monkeypatch, shuffle=shuffle)
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
