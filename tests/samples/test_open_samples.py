"""Samples of remote tables, of slot groups, and of a cache that others fill."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from featstore import api
from featstore.base.errors import BudgetError, DataFileError
from featstore.decoded.decoded_cache import DecodedCache
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.stage import clear
from featstore.loader.stage import list as listed
from featstore.samples.sample_dataset import SampleDataset
from featstore.table.open import open_snapshot
from featstore.table.snapshot import DataFile
from tests.loader.conftest import NUM_ROWS
from tests.loader.test_groups import url
from tests.loader.test_loader import served
from tests.samples.test_sample_dataset import same
from tests.threads import run_together

__all__ = ["url"]


@pytest.mark.parametrize("mode", ["auto", "whole", "ranges"])
def test_a_remote_table_is_read_once(
    table_url: str, loopback: Any, tmp_path: Path, mode: str
) -> None:
    table = served(table_url, loopback)
    staging = {"directory": str(tmp_path), "mode": mode}
    with SampleDataset(table, slots=["row", "tags"], staging=staging) as dataset:
        assert dataset[:]["row"].tolist() == list(range(NUM_ROWS))
    num_requests = len(loopback.log)
    assert num_requests
    with SampleDataset(table, slots=["tags", "row"], staging=staging) as dataset:
        assert dataset[[7, 200]]["row"].tolist() == [7, 200]
    assert len(loopback.log) == num_requests


def test_a_remote_file_that_is_gone_is_named(table_url: str, loopback: Any, tmp_path: Path) -> None:
    table = served(table_url, loopback)
    del loopback.files["/dt=2026-11-03/part.parquet"]
    with pytest.raises((DataFileError, OSError), match=r"dt=2026-11-03/part.parquet"):
        SampleDataset(table, slots=["row"], staging={"directory": str(tmp_path)})


def test_slots_of_groups_and_labels_that_were_written_later_are_in_samples(
    url: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"slots": ["*"], "labels": ["click"], "extras": ["request"]}
    dataset = SampleDataset(
        url, **options, id_column="request", staging={"directory": str(tmp_path)}
    )
    [expected] = FeatureLoader(url, **options, batch_size=10_000)
    same(dataset[:], expected)
    assert dataset[:].labels["click"].tolist() == [1.0] * len(dataset)
    one = dataset.by_id(["r17"])
    assert (one["row"].tolist(), one["double"].tolist()) == ([17.0], [34.0])


def _files(*tables: str) -> list[tuple[DataFile, ...]]:
    return [tuple(open_snapshot(table).data_files) for table in tables]


def test_a_table_that_is_compacted_gives_the_samples_of_each_snapshot(
    url: str, tmp_path: Path
) -> None:
    table = str(shutil.copytree(url, tmp_path / "table"))
    options: dict[str, Any] = {"slots": ["*"], "id_column": "request"}
    staging = {"directory": str(tmp_path / "cache")}
    before = SampleDataset(table, **options, staging=staging)
    api.compact(table)
    old, new = ({Path(file.url).name for file in of} for of in _files(url, table))
    assert old.isdisjoint(new)
    after = SampleDataset(table, **options, staging=staging)
    wanted = [f"r{row}" for row in (299, 0, 17, 150)]
    for dataset in (before, after):
        found = dataset.by_id(wanted)
        assert found["row"].tolist() == [299.0, 0.0, 17.0, 150.0]
        assert found["double"].tolist() == [598.0, 0.0, 34.0, 300.0]
    assert len(before) == len(after)


def test_the_budget_holds_all_entries_or_the_error_says_so(table_url: str, tmp_path: Path) -> None:
    staging = {"directory": str(tmp_path), "budget_bytes": 30_000}
    with pytest.raises(BudgetError, match="decoded columns have to fit all at once: raise the bud"):
        SampleDataset(table_url, slots=["*"], staging=staging)
    with SampleDataset(
        table_url, slots=["row"], staging=staging | {"budget_bytes": 1_000_000}
    ) as dataset:
        assert len(dataset) == NUM_ROWS


def test_the_commands_list_and_clear_decoded_columns(table_url: str, tmp_path: Path) -> None:
    with SampleDataset(
        table_url, slots=["row", "half"], where="row > 3", staging={"directory": str(tmp_path)}
    ):
        text = listed(str(tmp_path))
        assert text.count("3 decoded columns of ") == 5  # `where` sees nulls of `row`
        assert "row numbers of 5 files where row > 3" in text
        assert text.count("pinned") == 6
        assert clear(str(tmp_path)).startswith("0 files removed")
    assert clear(str(tmp_path)).startswith("6 files removed")


def test_threads_that_look_for_ids_at_once_hold_one_index(
    table_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened() -> SampleDataset:
        staging = {"directory": str(tmp_path)}
        return SampleDataset(table_url, slots=["row"], id_column="note", staging=staging)

    with opened() as alone, opened() as shared:
        alone.by_id(["n7"])
        open_all, have_opened = DecodedCache.open_all, threading.Barrier(4)

        def open_together(*arguments: Any, **options: Any) -> Any:
            entries = open_all(*arguments, **options)
            have_opened.wait(60)
            return entries

        monkeypatch.setattr(DecodedCache, "open_all", open_together)
        run_together(*[lambda: shared.by_id(["n7"])] * 4)
        assert shared.by_id(["n7"])["row"].tolist() == [7]
        assert shared.decoded_bytes == alone.decoded_bytes
