"""Samples with histories: what a loader gives of the same rows."""

import pickle
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from featstore.base.errors import ConfigError, DataFileError
from featstore.loader.feature_loader import FeatureLoader
from featstore.samples.random_order import RandomOrder
from featstore.samples.sample_dataset import SampleDataset, warm_decoded
from featstore.table.delta import commit
from featstore.table.snapshot import DataFile
from featstore.tensors.batch import Batch
from tests.history_tables import HISTORY, US, FatRows, change, make_table, write_files

FILES = [[40, 25, 7], [30], [0, 33]]
NUM_ROWS = sum(map(sum, FILES))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, FatRows]:
    root = tmp_path_factory.mktemp("histories") / "table"
    return str(root), make_table(root, 7, FILES)


def samples_of(url: Any, **options: Any) -> SampleDataset:
    return SampleDataset(
        url, **{"slots": ["row", "clicks_*", "tags"], "labels": ["click"]} | options
    )


def lists_of(batch: Batch, name: str) -> list[list[Any]]:
    values, offsets = batch[name].values.tolist(), batch[name].offsets.tolist()
    return [values[a:b] for a, b in pairwise(offsets)]


def rows_checked(batches: Iterable[Batch], fat: FatRows) -> list[int]:
    found = []
    for batch in batches:
        rows = batch["row"].tolist()
        for name, column in fat.columns().items():
            assert lists_of(batch, name) == [column[row] for row in rows]
        assert lists_of(batch, "tags") == [[row + 1] * (row % 3) for row in rows]
        found += rows
    return found


@pytest.mark.parametrize(
    "indices", [list(range(NUM_ROWS)), [3], [64, 2, 2, 134, 71, -1, 40], []], ids=len
)
def test_samples_have_the_histories_of_their_rows(
    table: tuple[str, FatRows], indices: list[int]
) -> None:
    url, fat = table
    with samples_of(url) as samples:
        found = rows_checked([samples[indices]], fat)
        with pickle.loads(pickle.dumps(samples)) as sent:  # as to a spawned worker
            assert rows_checked([sent[indices]], fat) == found
    assert found == [index % NUM_ROWS for index in indices]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_loader_gives_all_samples(table: tuple[str, FatRows], num_workers: int) -> None:
    url, fat = table
    with samples_of(url, where="clicks_length > 3") as samples:
        order = RandomOrder(len(samples), seed=2).batches(16)
        loader = DataLoader(
            samples, sampler=order, batch_size=None, num_workers=num_workers,
            multiprocessing_context="fork" if num_workers else None,
        )  # fmt: skip
        rows = rows_checked(loader, fat)
    assert sorted(rows) == [row for row in range(NUM_ROWS) if len(fat.item[row]) > 3]


def test_batches_by_cost_count_events(table: tuple[str, FatRows]) -> None:
    url, fat = table
    with samples_of(url) as samples:
        lengths = samples.lengths("clicks_item")
        assert lengths.tolist() == list(map(len, fat.item))
        order = RandomOrder(NUM_ROWS, seed=2).batches_by_cost(lengths, 150, batch_size=64)
        batches = [samples[rows] for rows in order]
    assert sorted(rows_checked(batches, fat)) == list(range(NUM_ROWS))
    assert max(len(batch["clicks_item"].values) for batch in batches) <= 150


HISTORIES = [HISTORY, replace(HISTORY, logged_at="arrived", window_us=1_800 * US)]


@pytest.mark.parametrize("history", HISTORIES, ids=["plain", "late"])
def test_shorter_histories_are_those_of_the_loader(tmp_path: Path, history: Any) -> None:
    make_table(tmp_path / "table", 5, [[40, 12], [30]], history)
    options: dict[str, Any] = {"histories": {"clicks": {"max_len": 4, "window": "20m"}}}
    options["slots"] = ["row", {"name": "clicks_item", "buckets": 50}, "clicks_age"]
    with (
        FeatureLoader(tmp_path / "table", batch_size=100, **options) as loader,
        samples_of(tmp_path / "table", **options) as samples,
    ):
        batches = [batch.clone() for batch in loader]
        found = samples[:]
    for name in ("clicks_item", "clicks_age"):
        assert lists_of(found, name) == [each for one in batches for each in lists_of(one, name)]
    assert 0 < max(map(len, lists_of(found, "clicks_age"))) <= 4


def test_rows_of_a_file_from_before_the_history_have_no_events(tmp_path: Path) -> None:
    root = tmp_path / "table"
    fat, [old, new] = write_files(root, 7, [[20], [30]])
    rows = pq.read_table(old.url)
    names = [name for name in rows.column_names if not name.startswith("clicks_")]
    pq.write_table(rows.select(names), old.url)
    old = replace(old, size_bytes=Path(old.url).stat().st_size)
    commit(str(root), change(HISTORY, [old, new]))
    for column in fat.columns().values():
        column[:20] = [[]] * 20
    with samples_of(root) as samples:
        assert rows_checked([samples[np.arange(50)]], fat) == list(range(50))
    staging = {"directory": str(tmp_path / "cache"), "decoded": True}
    slots = ["row", "clicks_*", "tags"]
    with FeatureLoader(root, slots=slots, batch_size=7, staging=staging) as loader:
        assert sorted(rows_checked(loader, fat)) == list(range(50))


def damaged(root: Path) -> list[DataFile]:
    def damage(number: int, columns: dict[str, Any]) -> None:
        if number == 1:
            columns["clicks_back"][3] = 9

    return write_files(root, 7, [[20, 20], [30]], damage=damage)[1]


def test_a_range_of_another_key_is_an_error_before_the_first_sample(tmp_path: Path) -> None:
    commit(str(tmp_path / "table"), change(HISTORY, damaged(tmp_path / "table")))
    with pytest.raises(DataFileError, match="'clicks_back': row group 1: row 3: expected a row"):
        samples_of(tmp_path / "table")


def test_what_samples_do_not_have_of_histories_is_refused(table: tuple[str, FatRows]) -> None:
    with pytest.raises(ConfigError, match=r"histories\.clicks\.unique: expected false, since"):
        samples_of(table[0], histories={"clicks": {"unique": True}})


def test_a_training_config_warms_them(tmp_path: Path, table: tuple[str, FatRows]) -> None:
    config = tmp_path / "train.yaml"
    directory = str(tmp_path / "cache")
    config.write_text(
        f"table: {table[0]}\nslots: [row, 'clicks_*', tags]\nlabels: [click]\nbatch_size: 8\n"
        f"histories: {{clicks: {{max_len: 5}}}}\nstaging: {{directory: {directory}}}\n"
    )
    assert warm_decoded(str(config)).num_samples == NUM_ROWS
