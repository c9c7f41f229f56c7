"""The bytes that other programs rely on, as files and log hold them, frozen under `tests/golden/`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.extraction.units.writer import open_data_file
from featstore.table.delta import Change, commit
from featstore.table.metadata import CommitMetadata, FileMetadata
from featstore.table.snapshot import DataFile

GOLDEN = Path(__file__).parents[1] / "golden"
SCHEMA = SlotSchema(
    slots=(
        Slot(
            name="user",
            kind=SlotKind.ID,
            number=102,
            op="hash(user)",
            op_path="hash(user)",
            meaning="0123456789abcdef",
        ),
        Slot(name="age", kind=SlotKind.ID, number=101, op="bucketize(age)", num_indices=8),
        Slot(name="tags", kind=SlotKind.ID, shape=(None,), number=103, op="hash(tags)"),
        Slot(
            name="seen",
            kind=SlotKind.ID,
            shape=(None,),
            number=105,
            op="hash(seen, max_len=2, truncate=tail)",
            truncate="tail",
        ),
        Slot(name="place", kind=SlotKind.FLOAT, shape=(2,), number=104, op="identity(place)"),
    ),
    labels=(pa.field("click", pa.int64()),),
    weight=pa.field("importance", pa.float64()),
    kept=(pa.field("request", pa.string()), pa.field("at", pa.timestamp("us", tz="UTC"))),
)
PARTITION = {"month": "2013-01", "day": "a b"}
PATH = "month=2013-01/day=a%20b/part-00000-4e65d3fb-0a1b2c3d-0.parquet"


@pytest.fixture
def data_file(tmp_path: Path) -> DataFile:
    """A data file of two rows."""
    rows = {
        "user": [5, 0],
        "age": [1, 7],
        "tags": [[1, 2], []],
        "seen": [[3], [4, 5]],
        "place": [[0.5, 1.5], [2.5, 3.5]],
        "click": [1, None],
        "importance": [1.0, None],
        "request": ["a", None],
        "at": [0, None],
    }
    columns = [pa.array(rows[field.name], field.type) for field in SCHEMA.to_arrow()]
    with open_data_file(
        str(tmp_path / PATH),
        SCHEMA,
        FileMetadata(spec_hash="5f" * 32, spec_version=1),
        rows_per_row_group=100,
    ) as writer:
        writer.write(pa.RecordBatch.from_arrays(columns, schema=SCHEMA.to_arrow()))
        done = writer.close()
    url = str(tmp_path / PATH)
    return DataFile(path=PATH, url=url, size_bytes=done.size_bytes, num_rows=2, partition=PARTITION)


def test_a_data_files_columns_come_in_this_order_with_these_types(data_file: DataFile) -> None:
    schema = pq.ParquetFile(data_file.url).schema
    leaves = [schema.column(i) for i in range(len(schema))]
    arrow = pq.read_schema(data_file.url)
    metadata = {
        field.name: {k.decode(): v.decode() for k, v in sorted((field.metadata or {}).items())}
        for field in arrow
    }
    found = {
        "columns": [
            f"{leaf.path}: {leaf.physical_type} {leaf.logical_type.type}, levels "
            f"{leaf.max_definition_level} and {leaf.max_repetition_level}"
            for leaf in leaves
        ],
        "fields": metadata,
        "footer": pq.read_metadata(data_file.url).metadata[b"featstore"].decode(),
    }
    assert json.dumps(found, indent=1) + "\n" == (GOLDEN / "data_file_columns.json").read_text()


def test_a_commit_in_the_log_matches_the_golden_file(data_file: DataFile, tmp_path: Path) -> None:
    metadata = CommitMetadata(
        run_id="run-1",
        spec_hash="5f" * 32,
        spec_version=1,
        input_digest="1d" * 32,
        data_digest="da" * 32,
        partitions=(PARTITION,),
        num_files=1,
        num_rows=2,
        size_bytes=1000,
        counts={"age: nan": 3},
    )
    schema = replace(SCHEMA, partition_keys=tuple(pa.field(key, pa.string()) for key in PARTITION))
    commit(
        str(tmp_path),
        Change(
            base=None, schema=schema, partitions=(PARTITION,), files=(data_file,), metadata=metadata
        ),
    )
    log = (tmp_path / "_delta_log" / f"{0:020d}.json").read_text()
    found = [described(action) for action in map(json.loads, log.splitlines())]
    assert (
        json.dumps(found, indent=1, sort_keys=True) + "\n"
        == (GOLDEN / "delta_log.json").read_text()
    )


def described(action: dict[str, Any]) -> dict[str, Any]:
    """An action of a log, with times, names and sizes masked that differ between runs or versions
    of a library.
    """
    for kind, names in MASKED.items():
        action.get(kind, {}).update(
            {name: f"<{name}>" for name in names & action.get(kind, {}).keys()}
        )
    if "metaData" in action:
        action["metaData"]["schemaString"] = json.loads(action["metaData"]["schemaString"])
    return action


MASKED = {
    "add": {"modificationTime", "size"},
    "commitInfo": {
        "clientVersion",
        "engineInfo",
        "operationMetrics",
        "operationParameters",
        "timestamp",
    },
    "metaData": {"createdTime", "id"},
    "txn": {"lastUpdated"},
}
