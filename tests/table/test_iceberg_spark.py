"""Spark 4.1 with Iceberg's runtime, whose tables have the same rows here, and which reads the same
rows in tables of featstore: one run of `tests/iceberg/spark_tables.py`.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from featstore import api
from featstore.explore.table import open_table
from featstore.loader.feature_loader import FeatureLoader
from featstore.table.iceberg_mirror import register
from tests.iceberg_tables import as_featstore, catalog_at
from tests.programs import run_python
from tests.table.test_iceberg_mirror import (
    MORE,
    NAME,
    SLOTS,
    extract,
    files_rows,
    rows_of,
    write_raw,
)

pytest.importorskip("pyiceberg")
pytestmark = pytest.mark.slow  # a JVM
ROOT = Path(__file__).parents[2]
SPARK = ROOT / "build" / "iceberg" / "spark"
SHOWN = ("made", "column added", "slot group", "compacted", "rows deleted", "partition deleted")
POSITIONS, VECTORS = ("iceberg-positions",), ("delta-vector",)
VERSIONS: dict[str, tuple[tuple[str, ...], ...]] = {  # by table, what masks rows in each version
    "positions": ((), POSITIONS, POSITIONS),
    "positions_of_many": ((), POSITIONS, POSITIONS),
    "vectors": ((), VECTORS, VECTORS),
    "upgraded": ((*VECTORS, *POSITIONS), ()),
    "evolved": (POSITIONS,),
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """Attributes:
    shown: By what was done to a table of featstore, its rows then, and those that Spark reads.
    written: The versions of tables of Spark, as of the script.
    """

    shown: dict[str, tuple[list[str], list[str]]]
    written: list[dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    if shutil.which("java") is None or not (SPARK / "installed").exists():
        pytest.skip("no Spark with Iceberg's runtime: `make iceberg` brings it, and needs Java")
    root = tmp_path_factory.mktemp("spark")
    url, expected, files = str(root / "table"), list[list[str]](), list[str]()
    steps: list[Callable[[], Any]] = [
        lambda: register(url, NAME),
        lambda: extract(root, "1", [*SLOTS, *MORE[:1]]),
        lambda: extract(root, "a b", [*SLOTS, *MORE[1:]], group="more"),
        lambda: api.compact(url),
        lambda: api.delete_rows(url, "user = 'u1'"),
        lambda: api.delete_rows(url, "day = '1'"),
    ]
    for day, first, num_rows in (("1", 0, 90), ("a b", 90, 50)):
        write_raw(root / f"raw-{day}", first, num_rows)
        extract(root, day, SLOTS)
    with pytest.MonkeyPatch.context() as patch, catalog_at(root, patch) as catalog:
        for step in steps:
            step()
            files.append(catalog.load_table("db.ctr").metadata_location)
            expected.append(files_rows(url))
    found_spark = {"PYTHONPATH": str(SPARK), "SPARK_HOME": str(SPARK / "pyspark")}
    script = ROOT / "tests" / "iceberg" / "spark_tables.py"
    run_python(script, root, *files, variables=found_spark)
    read = [rows_of(pq.read_table(root / "read" / str(n))) for n in range(len(files))]
    return Found(
        shown=dict(zip(SHOWN, zip(expected, read, strict=True), strict=True)),
        written=json.loads((root / "written.json").read_text()),
    )


@pytest.mark.parametrize("version", SHOWN)
def test_spark_reads_the_rows_of_each_commit(found: Found, version: str) -> None:
    expected, read = found.shown[version]
    assert read == expected


def test_the_commits_differ(found: Found) -> None:
    """By rows, and by whether the slot group's column is shown."""
    shown = [(len(rows), "'prices'" in rows[0]) for rows, _ in found.shown.values()]
    hidden = [(140, False)] * 3
    assert shown == [*hidden, (140, True), (129, True), (47, True)]


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, n) for name, versions in VERSIONS.items() for n in range(len(versions))],
)
def test_rows_that_spark_wrote_are_those_that_it_reads(
    found: Found, name: str, number: int
) -> None:
    versions = [version for version in found.written if version["table"] == name]
    assert len(versions) == len(VERSIONS[name])
    version = versions[number]
    expected = as_featstore(pq.read_table(version["rows"]))
    # Any earlier version is a snapshot of the newest metadata.
    table = open_table(f"iceberg+file:{versions[-1]['metadata']}", version["snapshot"])
    assert rows_of(table.to_arrow().select(expected.schema.names)) == rows_of(expected)
    masks = [file.mask for file in table.snapshot.data_files if file.mask is not None]
    kinds = {record.kind for mask in masks for record in mask.records}
    assert kinds == set(VERSIONS[name][number])
    with FeatureLoader(table, slots=["id"], shuffle=True, batch_size=7) as loader:
        ids = [id_ for batch in loader for id_ in batch["id"].tolist()]
    assert sorted(ids) == sorted(id_ or 0 for id_ in expected["id"].to_pylist())
