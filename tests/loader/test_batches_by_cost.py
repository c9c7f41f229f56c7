"""Batches of a capped number of values against those of rows: the same rows in the same order."""

import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from featstore.base.errors import ConfigError
from featstore.loader.feature_loader import FeatureLoader
from tests.loader.conftest import NUM_ROWS, rows_of
from tests.parquet_files import put_parquet
from tests.process import await_that
from tests.threads import run_together

SHUFFLES = (None, {"window_rows": 1}, {"window_rows": 40, "interleave": 2}, {"interleave": 3})


def make(table_url: str, max_values: int = 40, **options: Any) -> FeatureLoader:
    batch = {"max_values": max_values, "of": "tags"}
    return FeatureLoader(
        table_url, **{"slots": ["row", "tags"], "batch_size": 23, "batch": batch, **options}
    )


def sizes_of(rows: list[int], batch_size: int, max_values: int) -> list[int]:
    """The rows of each batch, row by row. A missing list has one value."""
    sizes, num_rows, num_values = list[int](), 0, 0
    for row in rows:
        length = 1 if row % 7 == 3 else row % 5
        if num_rows == batch_size or num_values + length > max_values:
            sizes.append(num_rows)
            num_rows = num_values = 0
        num_rows, num_values = num_rows + 1, num_values + length
    return [*sizes, num_rows]


@settings(max_examples=30)
@given(
    st.sampled_from(SHUFFLES),
    st.sampled_from([None, "row % 3 != 1"]),
    st.integers(4, 60),
    st.integers(1, 40),
    st.data(),
)
def test_batches_are_as_large_as_fit_and_resume_exactly(
    table_url: str, shuffle: Any, where: Any, max_values: int, batch_size: int, data: Any
) -> None:
    options = {"shuffle": shuffle, "where": where, "batch_size": batch_size}
    with make(table_url, batch=None, **options) as by_rows:
        rows = rows_of(by_rows)
    found, states = list[list[int]](), list[Any]()
    with make(table_url, max_values, **options) as loader:
        states.append(loader.state_dict())
        for batch in loader:
            states.append(json.loads(json.dumps(loader.state_dict())))
            found.append(batch["row"].tolist())
        used = loader.stats()["batch"]
    assert list(itertools.chain(*found)) == rows
    assert [len(batch) for batch in found] == sizes_of(rows, batch_size, max_values)
    num_values = sum(1 if row % 7 == 3 else row % 5 for row in rows)
    assert used == {"max_values": max_values, "used": num_values / (max_values * len(found))}
    step = data.draw(st.integers(0, len(found) - 1))
    with make(table_url, max_values, **options) as resumed:
        # A batch is delivered when the next one is asked for.
        resumed.load_state_dict(states[step + 1])
        assert [batch["row"].tolist() for batch in resumed] == found[step:]


@pytest.mark.parametrize("tail", ["join", "pad", "drop"])
@pytest.mark.parametrize("order", ["dynamic", "rank"])
def test_ranks_share_an_epoch_with_each_tail(
    table_url: str, tmp_path: Path, tail: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    dispatch = {"store": f"sqlite://{tmp_path}/dispatch", "run_id": "r", "split_rows": 16}
    loaders, iterators = [], list[Any]()
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        loaders.append(make(table_url, tail=tail, order=order, dispatch=dispatch, shuffle=True))
        iterators.append(iter(loaders[-1]))
        iterators[-1].state_dict()  # It begins, as this rank.
    barrier = threading.Barrier(2)

    def train(rank: int) -> list[Any]:
        found = []
        for batch in iterators[rank]:
            found.append(batch)
            if tail != "join":
                barrier.wait(timeout=20)
        return found

    with ThreadPoolExecutor(2) as threads:
        ranks = list(threads.map(train, range(2)))
    dropped = sum(loader.stats()["rows_dropped_tail"] for loader in loaders)
    for loader in loaders:
        loader.close()
    if tail != "join":
        assert len(ranks[0]) == len(ranks[1])
    rows = [row for found in ranks for row in rows_of(b for b in found if not b.is_padding)]
    assert len(rows) == len(set(rows)) == NUM_ROWS - dropped
    assert tail == "drop" or not dropped
    assert all(len(batch["tags"].values) <= 40 for found in ranks for batch in found)


def test_a_slow_rank_holds_nobody_up_although_a_batch_may_have_all_rows_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"row": range(6000), "tags": [[1] * 10] * 6000}
    for name in ("a", "b"):
        put_parquet(tmp_path / "table" / f"{name}.parquet", columns, row_group_size=2000)
    monkeypatch.setenv("WORLD_SIZE", "2")
    dispatch = {"store": f"sqlite://{tmp_path}/dispatch", "run_id": "r"}
    running = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        loader = make(f"{tmp_path}/table", 1000, batch_size=8192, dispatch=dispatch)
        running.append((loader, iter(loader), (0.06, 0.0)[rank]))
        running[-1][1].state_dict()  # Begins, as the rank that it is.

    num_rows = [0, 0]

    def train(rank: int) -> None:
        loader, batches, batch_s = running[rank]
        with loader:
            for batch in batches:
                num_rows[rank] += batch.num_rows
                time.sleep(batch_s)
                if rank == 0:  # Not while the other one only begins.
                    await_that(lambda: num_rows[1] >= 3_000)

    run_together(partial(train, 0), partial(train, 1))
    slow, fast = num_rows
    assert slow + fast == 12_000
    assert slow < 3_000


def test_the_workers_of_a_dataloader_share_an_epoch(table_url: str) -> None:
    with make(table_url, shuffle=True) as loader:
        batches = list(DataLoader(loader, batch_size=None, num_workers=2))
    assert sorted(rows_of(batches)) == list(range(NUM_ROWS))
    assert all(len(batch["tags"].values) <= 40 for batch in batches)


def test_static_order_has_one_worker(
    table_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(table_url, order="static") as loader:
        assert rows_of(loader) == list(range(NUM_ROWS))
    message = "batch: with order static expected one worker, found 2: static order deals"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    dispatch = {"store": f"sqlite://{tmp_path}/dispatch", "run_id": "r"}
    loader = make(table_url, order="static", dispatch=dispatch)
    with loader, pytest.raises(ConfigError, match=message):
        next(iter(loader))


def test_a_loader_whose_batches_end_by_values_has_no_len(table_url: str) -> None:
    message = "known only when the lengths of their lists are read"
    with make(table_url, order="static") as loader, pytest.raises(TypeError, match=message):
        len(loader)


def test_longer_rows_are_cut_by_max_len(table_url: str) -> None:
    with make(table_url, 3) as loader, pytest.raises(ConfigError, match="found 4 in a row of"):
        list(loader)
    slots = ["row", {"name": "tags", "max_len": 3}]
    with make(table_url, 3, slots=slots) as loader:
        batches = list(loader)
    assert rows_of(batches) == list(range(NUM_ROWS))
    assert max(len(batch["tags"].values) for batch in batches) == 3


def test_a_mixture_tells_the_used_share_of_all_tables(table_url: str) -> None:
    tables = [
        {"table": table_url, "where": f"row % 2 = {rest}", "weight": rest + 1} for rest in (0, 1)
    ]
    config = {"tables": tables, "slots": ["row", "tags"], "stop": "all_exhausted"}
    cap = {"batch": {"max_values": 12, "of": "tags"}}
    with FeatureLoader.from_config({**config, **cap}) as loader:
        batches = list(loader)
        stats = loader.stats()
    lengths = [len(batch["tags"].values) for batch in batches]
    assert max(lengths) == 12
    assert stats["batch"] == {"max_values": 12, "used": sum(lengths) / (12 * len(lengths))}
    assert set(rows_of(batches)) == set(range(NUM_ROWS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"of": "tag"}, "batch.of: expected a list slot that is selected without pad, found 'tag'"),
        ({"of": "row"}, "batch.of: expected a list slot .* found 'row'"),
        ({"max_values": 9}, "batch: expected a key 'of', found"),
    ],
)
def test_a_cap_is_on_a_list_slot_that_is_selected(
    table_url: str, options: Any, message: str
) -> None:
    batch = options if "max_values" in options else {"max_values": 9, **options}
    with pytest.raises(ConfigError, match=message):
        make(table_url, batch=batch)
    padded = [{"name": "tags", "pad": 4}]
    with pytest.raises(ConfigError, match=r"without pad, found 'tags'"):
        make(table_url, slots=padded)
