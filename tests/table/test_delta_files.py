"""What other writers say of their files: where they are, and how many rows they have."""

from pathlib import Path
from typing import Any

import pytest

import featstore
from tests.table.test_table_rules import field, foreign_table

ROWS: dict[str, Any] = {"x": [1, 2]}
FIELDS = [field("x", "long")]


@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_a_shallow_clone_has_the_files_of_another_directory(tmp_path: Path, scheme: str) -> None:
    source = tmp_path / "a table"
    source.mkdir()
    Path(foreign_table(source, ROWS, FIELDS), "f.parquet").rename(source / "f.parquet")
    path = f"{scheme}{source}/f.parquet".replace(" ", "%20")
    url = foreign_table(tmp_path / "clone", ROWS, FIELDS, path=path)
    Path(url, "f.parquet").unlink()
    table = featstore.open_table(url)
    assert (table.num_rows, table.to_arrow().to_pydict()) == (2, ROWS)
    with featstore.FeatureLoader(url, slots=["x"]) as loader:
        assert [batch["x"].tolist() for batch in loader] == [[1, 2]]


@pytest.mark.parametrize(
    "stats",
    [
        "",
        "null",
        "[]",
        "not json",
        '{"numRecords": -1}',
        '{"numRecords": null}',
        '{"numRecords": 99999999999999999999}',
        '{"numRecords": 2, "minValues": {"x": NaN}}',
        '{"numRecords": 2, "minValues": {"x": 1e400}, "maxValues": {"x": "abc"}}',
        '{"numRecords": 2, "nullCount": {"x": {"a": 0.5}}}',
    ],
)
def test_rows_come_from_footers_where_statistics_are_odd(tmp_path: Path, stats: str) -> None:
    table = featstore.open_table(foreign_table(tmp_path, ROWS, FIELDS, stats=stats))
    assert (table.num_rows, table.to_arrow().to_pydict()) == (2, ROWS)
