"""Which rows are samples is found once for equal filters of equal files."""

from pathlib import Path
from typing import Any

import pytest

from featstore.samples.sample_dataset import SampleDataset
from featstore.staging.cache import Cache, Limits


def titles(cache: Path) -> list[str]:
    entries = Cache(str(cache), Limits(budget_bytes=0)).entries()
    return sorted(e.record.url for e in entries if e.record.url.startswith("row numbers"))


def samples(table_url: str, cache: Path, **options: Any) -> SampleDataset:
    return SampleDataset(table_url, slots=["row"], staging={"directory": str(cache)}, **options)


def test_equal_filters_share_an_index_and_others_have_their_own(
    tmp_path: Path, table_url: str
) -> None:
    rows = [samples(table_url, tmp_path, where="row < 100 and half > 3")[:]["row"] for _ in "ab"]
    assert rows[0].tolist() == rows[1].tolist() == list(range(7, 100))
    assert titles(tmp_path) == ["row numbers of 5 files where row < 100 and half > 3"]
    other = samples(table_url, tmp_path, where="row < 50 and half > 3")
    assert other[:]["row"].tolist() == list(range(7, 50))
    assert len(titles(tmp_path)) == 2


def test_rows_that_a_label_drops_are_not_samples(tmp_path: Path, table_url: str) -> None:
    dropping = samples(table_url, tmp_path, labels=[{"name": "ripe", "null": "drop"}])
    assert dropping[:]["row"].tolist() == [row for row in range(280) if row % 10]
    assert titles(tmp_path) == ["row numbers of 5 files where labels are not null"]


def test_partitions_that_decide_need_no_index(tmp_path: Path, table_url: str) -> None:
    dataset = samples(table_url, tmp_path, where="dt >= '2026-11-04'")
    assert dataset[:]["row"].tolist() == list(range(115, 280))
    assert titles(tmp_path) == []


@pytest.mark.parametrize("where", ["row < 0", "row < 0 and dt = '2026-11-01'"])
def test_filters_that_no_row_passes_leave_no_samples(
    tmp_path: Path, table_url: str, where: str
) -> None:
    dataset = samples(table_url, tmp_path, where=where, extras=["note", "dt"])
    assert len(dataset) == 0
    assert dataset[:]["row"].tolist() == []
    assert dataset[[]].extras.column_names == ["note", "dt"]
