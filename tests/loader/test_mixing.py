"""Mixed rows from a table to batches: of how many files a batch has rows, and what survives."""

import random
import threading
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from featstore import FeatureLoader
from featstore.base.errors import ConfigError
from featstore.table.open import open_snapshot
from featstore.table.snapshot import FileList, Snapshot
from tests.parquet_files import put_parquet

NUM_MONTHS = 12


@pytest.fixture(scope="module")
def months(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twelve files of 18,000 to 22,000 rows in row groups of 4,096, each with its number."""
    root, draw = tmp_path_factory.mktemp("months"), random.Random(1)
    first = 0
    for month in range(NUM_MONTHS):
        num_rows = draw.randint(18_000, 22_000)
        table = pa.table(
            {
                "row": pa.array(range(first, first + num_rows), pa.int64()),
                "file": pa.array([month + 1] * num_rows, pa.int64()),
            }
        )
        first += num_rows
        put_parquet(root / f"month={month + 1}" / "a.parquet", table, row_group_size=4096)
    return str(root)


def months_of_batches(table_url: str, shuffle: Any) -> list[int]:
    """In how many files the rows of each whole batch of 1,024 lie."""
    with FeatureLoader(
        table_url, slots=["row", "file"], batch_size=1024, drop_last=True, shuffle=shuffle
    ) as loader:
        return [len(batch["file"].unique()) for batch in loader]


@pytest.mark.parametrize(
    ("shuffle", "least"),
    [({"interleave": 4}, 3.7), ({"interleave": 12}, 11), (True, 11), ({"interleave": 1}, 1)],
)
def test_a_batch_has_rows_of_all_splits_that_are_open(
    months: str, shuffle: Any, least: float
) -> None:
    found = months_of_batches(months, shuffle)
    assert sum(found) / len(found) >= least


@pytest.fixture(scope="module")
def small_months(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twelve files of 1,000 rows in row groups of 100; `row // 1000` is the file's number."""
    root = tmp_path_factory.mktemp("small_months")
    for month in range(NUM_MONTHS):
        rows = pa.table({"row": pa.array(range(1000 * month, 1000 * month + 1000), pa.int64())})
        put_parquet(root / f"{month:02}.parquet", rows, row_group_size=100)
    return str(root)


@pytest.mark.parametrize(
    ("num_workers", "mini_epochs", "files_of_part"), [(2, 1, 6), (0, 3, 4), (0, 1, 12)]
)
def test_in_rank_order_each_batch_has_rows_of_all_files_of_its_part(
    small_months: str, num_workers: int, mini_epochs: int, files_of_part: int
) -> None:
    loader = FeatureLoader(
        small_months,
        slots=["row"],
        batch_size=200,
        num_epochs=2,
        order={"kind": "rank", "mini_epochs": mini_epochs},
        shuffle={"window_rows": 1200, "interleave": 12},
    )
    with loader:
        feed = DataLoader(loader, batch_size=None, num_workers=num_workers)
        rows = [batch["row"] for batch in feed]
    assert sorted(torch.cat(rows).tolist()) == sorted([*range(12_000)] * 2)
    assert [len((of_batch // 1000).unique()) for of_batch in rows] == [files_of_part] * 120


def test_every_row_comes_once_and_another_epoch_is_another_order(months: str) -> None:
    with FeatureLoader(
        months, slots=["row"], batch_size=1000, shuffle=True, num_epochs=2
    ) as loader:
        rows = [row for batch in loader for row in batch["row"].tolist()]
    half = len(rows) // 2
    assert sorted(rows[:half]) == sorted(rows[half:]) == list(range(half))
    assert rows[:half] != rows[half:]


def test_a_loader_that_resumes_gives_the_same_rest(months: str) -> None:
    def loader() -> FeatureLoader:
        return FeatureLoader(months, slots=["row"], batch_size=1000, shuffle={"interleave": 5})

    with loader() as whole:
        batches = [batch["row"].tolist() for batch in whole]
    with loader() as first:
        iteration = iter(first)
        for _ in range(97):
            next(iteration)
        state = first.state_dict()
    with loader() as second:
        second.load_state_dict(state)
        # The batch that was in hand is not yet delivered.
        assert [batch["row"].tolist() for batch in second] == batches[96:]


@pytest.mark.parametrize(("value", "is_same"), [(False, True), (None, True), (True, False)])
def test_shuffle_may_be_a_truth_value(months: str, value: Any, is_same: bool) -> None:
    with FeatureLoader(months, slots=["row"], batch_size=50, shuffle=value) as loader:
        rows = next(iter(loader))["row"].tolist()
    assert (rows == list(range(rows[0], rows[0] + 50))) == is_same
    with pytest.raises(ConfigError, match="shuffle: expected keys of Shuffle, found 'yes'"):
        FeatureLoader(months, slots=["row"], shuffle="yes")  # type: ignore[arg-type]


def test_static_order_is_the_same_for_any_number_of_workers_where_one_split_is_open(
    months: str,
) -> None:
    def batches(num_workers: int, interleave: int) -> list[list[int]]:
        loader = FeatureLoader(
            months,
            slots=["row"],
            batch_size=4096,
            order="static",
            shuffle={"window_rows": 8192, "interleave": interleave},
        )
        with loader:
            feed = DataLoader(loader, batch_size=None, num_workers=num_workers)
            return [batch["row"].tolist() for batch in feed]

    assert batches(2, 1) == batches(0, 1)
    one, two = batches(0, 4), batches(2, 4)
    assert one != two
    assert sorted(chain(*one)) == sorted(chain(*two))


def gated(root: Path, loopback: Any, *, num_files: int, num_rows: int) -> Snapshot:
    """A table of files of two row groups on a server that sends none of them to its end."""
    for index in range(num_files):
        rows = pa.array(range(index * num_rows, (index + 1) * num_rows), pa.int64())
        path = root / f"{index}.parquet"
        put_parquet(path, pa.table({"row": rows}), row_group_size=num_rows // 2)
        loopback.files[f"/{path.name}"] = path.read_bytes()
        loopback.gates[f"/{path.name}"] = threading.Event()
    local = open_snapshot(str(root))
    files = [replace(file, url=f"{loopback.url}/{file.path}") for file in local.data_files]
    return replace(local, data_files=FileList.of(files))


def release_first(loopback: Any, num_files: int) -> None:
    """Sends the files that are asked for first to their end."""
    asked = list[str]()
    while len(asked) < num_files:
        new = [path for _, path, _ in list(loopback.log) if path not in asked][:1]
        for path in new:
            asked.append(path)
            loopback.gates[path].set()
        time.sleep(0.001)


def release_all(loopback: Any) -> None:
    for gate in loopback.gates.values():
        gate.set()


def test_rows_that_are_there_are_delivered_while_the_next_file_is_downloaded(
    tmp_path: Path, loopback: Any
) -> None:
    num_rows, is_late = 1 << 17, threading.Event()
    table = gated(tmp_path / "table", loopback, num_files=4, num_rows=num_rows)

    def give_up() -> None:
        is_late.set()
        release_all(loopback)

    timer = threading.Timer(120, give_up)
    timer.daemon = True
    first = threading.Thread(target=release_first, args=(loopback, 2), daemon=True)
    for thread in (timer, first):
        thread.start()
    options: dict[str, Any] = {
        "shuffle": {"window_rows": num_rows, "interleave": 2},
        "staging": {"directory": str(tmp_path / "cache"), "mode": "whole"},
    }
    delivered = 0
    with FeatureLoader(table, slots=["row"], batch_size=4_096, **options) as loader:
        for batch in loader:
            delivered += batch.num_rows
            if delivered > 1.8 * num_rows:  # Nearly all of two files, without the third.
                release_all(loopback)
    timer.cancel()
    first.join()
    assert delivered == 4 * num_rows
    assert not is_late.is_set()
