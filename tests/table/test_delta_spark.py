"""Tables that delta-spark wrote (`write_delta_spark.py`) have the rows that Spark reads in them."""

import json
import tarfile
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featstore.base.errors import InputError
from featstore.explore.table import open_table
from featstore.extraction.deletion import delete_rows
from featstore.extraction.rewriting import compact
from featstore.loader.feature_loader import FeatureLoader
from featstore.samples.sample_dataset import SampleDataset
from featstore.table.vacuum import vacuum

ARCHIVE = Path(__file__).with_name("delta_spark.tar.xz")
VERSIONS = [
    *((f"vectors{suffix}", version) for suffix in ("", "_checkpointed", "_checkpoint_v2")
      for version in ("1", "2", "3", "4", "newest")),
    *((name, "newest") for name in (
        "restored", "mapped_name", "mapped_id", "mapped_later", "widened", "widened_to_double",
        "times")),
]  # fmt: skip
MASKED = {"restored", "mapped_name", "mapped_id"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tables")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    return directory


@pytest.fixture(scope="module")
def expected(tables: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    found: dict[str, Any] = json.loads((tables / "expected.json").read_text())
    assert sorted((n, v) for n, versions in found.items() for v in versions) == sorted(VERSIONS)
    return found


def plain(value: Any) -> Any:
    """The value as `expected.json` has it. All times are in UTC there."""
    if isinstance(value, datetime):
        return (value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value).isoformat()
    if isinstance(value, date | Decimal):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def in_order(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_rows_are_those_that_spark_reads(
    tables: Path, expected: Any, tmp_path: Path, name: str, version: str
) -> None:
    table = open_table(tables / name, None if version == "newest" else int(version))
    wanted = expected[name][version]
    maps = {field.name for field in table.schema.others if pa.types.is_map(field.type)}
    rows = [
        {key: dict(value) if key in maps else value for key, value in row.items()}
        for row in table.to_arrow().to_pylist()
    ]
    assert in_order(map(plain, rows)) == in_order(wanted)
    assert table.num_rows == len(wanted)
    may_be_masked = name in MASKED or (name.startswith("vectors") and version != "1")
    assert table.snapshot.data_files.has_masks == may_be_masked

    if not table.slots:
        return
    slot = next(slot.name for slot in table.slots if not slot.shape)
    values = sorted(row[slot] or 0 for row in wanted)
    with FeatureLoader(table, slots=[slot], shuffle=True, batch_size=7) as loader:
        found = [value for batch in loader for value in batch[slot].nan_to_num().tolist()]
    assert sorted(found) == values
    staging = {"directory": str(tmp_path)}
    with SampleDataset(table, slots=[slot], staging=staging) as samples:
        assert sorted(samples[:][slot].nan_to_num().tolist()) == values


@pytest.mark.parametrize("name", ["vectors", "mapped_name", "mapped_later", "widened"])
def test_they_are_not_written_to(tables: Path, name: str) -> None:
    url, column = str(tables / name), "b" if name == "widened" else "x"
    before = {path: path.read_bytes() for path in Path(url).rglob("*") if path.is_file()}
    for act in (
        lambda: delete_rows(url, f"{column} = 1"),
        lambda: compact(url),
        lambda: vacuum(url),
    ):
        with pytest.raises(InputError, match="expected a table whose rules featstore keeps"):
            act()
    assert before == {path: path.read_bytes() for path in Path(url).rglob("*") if path.is_file()}
