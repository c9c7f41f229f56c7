"""Whatever opens a table gives a snapshot that keeps the same promises: a Delta table, a directory,
a glob.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import TableNotFoundError
from featstore.extraction.job import ExtractJob, extract_files
from featstore.files.storage import join, open_read
from featstore.spec.parse import load_spec
from featstore.table.open import open_snapshot
from featstore.table.snapshot import Snapshot, files_digest
from tests.parquet_files import put_parquet

DOCUMENT = {
    "spec": 1,
    "inputs": {"user": "string", "tags": "list<string>", "clicked": "long"},
    "labels": {"click": "clicked"},
    "keep": ["user"],
    "slots": [
        {"slot": 1, "name": "user_id", "op": "hash", "of": "user"},
        {"slot": 2, "name": "tag_ids", "op": "hash", "of": "tags"},
    ],
    "output": {"rows_per_row_group": 10, "rows_per_file": 30},
}
Opener = Callable[[], Snapshot]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days in three data files, one of the days with a name that must be escaped."""
    home = tmp_path_factory.mktemp("openers")
    for day, num_rows in (("1", 60), ("a b/c", 20)):
        put_parquet(
            home / "raw.parquet",
            {
                "user": [f"u{i}" for i in range(num_rows)],
                "tags": [["a"]] * num_rows,
                "clicked": [1] * num_rows,
            },
            row_group_size=30,
        )
        raw, target = str(home / "raw.parquet"), str(home / "table")
        extract_files(
            ExtractJob(
                spec=load_spec(DOCUMENT), input_url=raw, table_url=target, partition={"day": day}
            )
        )
    return home / "table"


@pytest.fixture(params=["delta", "file url", "directory", "glob"])
def opened(request: pytest.FixtureRequest, table: Path, tmp_path: Path) -> Opener:
    plain = tmp_path / "plain"
    for file in table.glob("day=*/*.parquet"):
        (plain / file.parent.name).mkdir(parents=True, exist_ok=True)
        (plain / file.parent.name / file.name).write_bytes(file.read_bytes())
    urls = {
        "delta": str(table),
        "file url": f"file://{table}",
        "directory": str(plain),
        "glob": f"{plain}/day=*/part-*.parquet",
    }
    return lambda: open_snapshot(urls[request.param])


def test_files_are_sorted_by_unique_paths_and_open_by_their_urls(opened: Opener) -> None:
    snapshot = opened()
    paths = [file.path for file in snapshot.data_files]
    assert paths == sorted(set(paths))
    assert len(paths) == 3
    for file in snapshot.data_files:
        with open_read(file.url) as source:
            data = source.read()
            assert (len(data), pq.read_metadata(pa.BufferReader(data)).num_rows) == (
                file.size_bytes,
                file.num_rows,
            )


def test_paths_are_relative_to_the_table(opened: Opener) -> None:
    snapshot = opened()
    if "*" not in snapshot.url:
        assert [
            join(snapshot.url, file.path).removeprefix("file://") for file in snapshot.data_files
        ] == [file.url.removeprefix("file://") for file in snapshot.data_files]


def test_partitions_are_those_that_were_written(opened: Opener) -> None:
    snapshot = opened()
    assert sorted(json.dumps(dict(partition)) for partition in snapshot.partitions) == [
        '{"day": "1"}',
        '{"day": "a b/c"}',
    ]
    assert sum(file.num_rows for file in snapshot.in_partitions([{"day": "1"}])) == 60


def test_the_schema_has_slots_by_number_labels_kept_columns_and_keys(opened: Opener) -> None:
    schema = opened().schema
    assert [
        (slot.number, slot.name, slot.kind.value, slot.shape_text, slot.op) for slot in schema
    ] == [
        (1, "user_id", "id", "scalar", "hash(user)"),
        (2, "tag_ids", "id", "list", "hash(tags)"),
    ]
    assert [field.name for field in (*schema.labels, *schema.kept, *schema.partition_keys)] == [
        "click",
        "user",
        "day",
    ]
    assert [str(field.type) for field in schema.partition_keys] == ["string"]


def test_the_spec_hash_is_known(opened: Opener) -> None:
    assert opened().spec_hash == load_spec(DOCUMENT).hash


def test_the_digest_is_of_the_files_alone_and_stays(opened: Opener, table: Path) -> None:
    snapshot = opened()
    assert snapshot.digest == opened().digest == files_digest(snapshot.data_files)
    assert snapshot.digest == open_snapshot(str(table)).digest


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    for url in (
        str(tmp_path),
        str(tmp_path / "nowhere"),
        f"{tmp_path}/*.parquet",
        f"file://{tmp_path}/nowhere",
    ):
        with pytest.raises(TableNotFoundError, match="no table at"):
            open_snapshot(url)


def test_only_a_delta_table_has_versions(opened: Opener) -> None:
    snapshot = opened()
    if snapshot.version is None:
        with pytest.raises(
            TableNotFoundError,
            match="expected a Delta table to open version 1, found plain Parquet files",
        ):
            open_snapshot(snapshot.url, 1)
    else:
        assert open_snapshot(snapshot.url, 0).num_rows == 60
