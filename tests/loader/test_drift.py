"""Files of one table that differ: what is delivered of each, and what is refused with file, column,
expected and found.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import featstore
from featstore.base.errors import DataFileError
from featstore.loader.feature_loader import FeatureLoader

LISTS = pa.list_(pa.int64())
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("x", pa.float32()),
        ("tags", LISTS),
        ("pair", pa.list_(pa.float32(), 2)),
        ("note", pa.string()),
    ]
)
FULL = {
    "id": [1, 2],
    "x": [0.5, 1.5],
    "tags": [[1], []],
    "pair": [[1.0, 2.0], [3.0, 4.0]],
    "note": ["a", "b"],
}
MISSING = {
    "id": [0, 0],
    "x": [-1.0, -1.0],
    "tags": [[0], [0]],
    "pair": [[-1.0, -1.0]] * 2,
    "note": [None, None],
}


def not_null(type_: pa.DataType) -> pa.DataType:
    return (
        pa.list_(pa.field("element", type_.value_type, nullable=False))
        if pa.types.is_list(type_)
        else type_
    )


def delivered(snapshot: Any, **arguments: Any) -> Any:
    """Rows of the second file, with missing floats as -1."""
    arguments = {
        "slots": ["id", "x", "tags", "pair"],
        "extras": ["note"],
        "batch_size": 100,
        **arguments,
    }
    (batch,) = FeatureLoader(snapshot, **arguments)
    floats = {name: batch[name].nan_to_num(-1.0).tolist()[2:] for name in ("x", "pair")}
    lists = {
        "tags": [row.tolist() for row in batch["tags"]][2:],
        "note": batch.extras["note"].to_pylist()[2:],
    }
    return {"id": batch["id"].tolist()[2:], **floats, **lists}


def table_with(directory: Any, second: Any) -> Any:
    """A table of two files of its schema, the second of which another writer then replaced."""
    rows = pa.table(FULL, schema=SCHEMA)
    pq.write_table(rows, directory / "a.parquet")
    pq.write_table(rows.slice(0, second.num_rows), directory / "b.parquet")
    snapshot = featstore.open_table(str(directory)).snapshot
    pq.write_table(second, directory / "b.parquet")
    return snapshot


OTHERS = {
    "nulls": (pa.table({name: [None, None] for name in SCHEMA.names}, schema=SCHEMA), MISSING),
    "required": (
        pa.table(
            FULL,
            schema=pa.schema([pa.field(f.name, not_null(f.type), nullable=False) for f in SCHEMA]),
        ),
        FULL,
    ),
    "another order": (pa.table(FULL, schema=SCHEMA).select(SCHEMA.names[::-1]), FULL),
    "narrower ids": (pa.table(FULL, schema=SCHEMA.set(0, pa.field("id", pa.int32()))), FULL),
    "narrower lists": (
        pa.table(FULL, schema=SCHEMA.set(2, pa.field("tags", pa.list_(pa.int16())))),
        FULL,
    ),
    "wide lists": (
        pa.table(FULL, schema=SCHEMA.set(2, pa.field("tags", pa.large_list(pa.int64())))),
        FULL,
    ),
    "double": (pa.table(FULL, schema=SCHEMA.set(1, pa.field("x", pa.float64()))), FULL),
    "lists of one width": (
        pa.table(FULL, schema=SCHEMA.set(3, pa.field("pair", pa.list_(pa.float64())))),
        FULL,
    ),
    "large text": (
        pa.table(FULL, schema=SCHEMA.set(4, pa.field("note", pa.large_string()))),
        FULL,
    ),
    "views of text": (
        pa.table(FULL, schema=SCHEMA.set(4, pa.field("note", pa.string_view()))),
        FULL,
    ),
    "integers that others widen": (
        pa.table({**FULL, "x": pa.array([None, 2], pa.int32())}),
        {**FULL, "x": [-1.0, 2.0]},
    ),
    "integers in place of pairs": (
        pa.table({**FULL, "pair": pa.array([[1, 2], [3, None]], pa.list_(pa.int16()))}),
        {**FULL, "pair": [[1.0, 2.0], [3.0, -1.0]]},
    ),
    "lists without values": (
        pa.table({**FULL, "tags": pa.array([[], None], pa.list_(pa.null()))}),
        {**FULL, "tags": [[], [0]]},
    ),
    "more columns": (pa.table({**FULL, "new": [1, 2], "deep": [{"a": 1}, {"a": 2}]}), FULL),
    "columns of nulls": (pa.table({name: pa.nulls(2) for name in SCHEMA.names}), MISSING),
    "no columns of ours": (pa.table({"other": [1, 2]}), MISSING),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    "where",
    [None, "id is null or id > 0", "x is null or x > 0 or tags is null or pair is null"],
    ids=["all", "filtered", "filtered by values"],
)
def test_rows_of_a_file_that_differs_are_delivered_in_the_table_s_types(
    tmp_path: Path, name: Any, where: str | None
) -> None:
    table, expected = OTHERS[name]
    assert delivered(table_with(tmp_path, table), where=where) == expected


@pytest.mark.parametrize("num_row_groups", [0, 1])
def test_a_file_without_rows_adds_none(tmp_path: Path, num_row_groups: int) -> None:
    snapshot = table_with(tmp_path, SCHEMA.empty_table())
    with pq.ParquetWriter(tmp_path / "b.parquet", SCHEMA) as writer:
        for _ in range(num_row_groups):
            writer.write_table(SCHEMA.empty_table())
    assert pq.ParquetFile(tmp_path / "b.parquet").num_row_groups == num_row_groups
    assert delivered(snapshot)["id"] == []


@pytest.mark.parametrize("where", [None, "id > 0"], ids=["all", "filtered"])
@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("id", pa.array(["1"]), r"column 'id': expected int64, found string"),
        ("id", pa.array([1.0]), r"column 'id': expected int64, found double"),
        ("id", pa.array([[1]]), r"column 'id': expected int64, found list<element: int64>"),
        ("id", pa.array([{"a": 1}]), r"column 'id': expected int64, found struct<a: int64>"),
        (
            "id",
            pa.array([2**63], pa.uint64()),
            r"column 'id': expected int64, found .*9223372036854775808",
        ),
        ("x", pa.array([1]), r"column 'x': expected float, found int64"),
        (
            "tags",
            pa.array([1]),
            r"column 'tags': expected list<element: int64 not null>, found int64",
        ),
        (
            "tags",
            pa.array([[[1]]]),
            r"column 'tags': expected list<element: int64 not null>, found list<element: list",
        ),
        (
            "tags",
            pa.array([["a"]]),
            r"column 'tags': expected list<element: int64 not null>, found list<element: string",
        ),
        (
            "tags",
            pa.array([[("a", 1)]], pa.map_("str", "int64")),
            r"column 'tags': expected list<.*, found map<string, int64",
        ),
        (
            "pair",
            pa.array([[1.0, 2.0, 3.0]], pa.list_(pa.float32(), 3)),
            r"column 'pair': expected .*\[2\], found .*\[3\]",
        ),
        (
            "pair",
            pa.array([[1.0]], pa.list_(pa.float32())),
            r"column 'pair': expected .*\[2\], found a list of another length",
        ),
        ("note", pa.array([1]), r"column 'note': expected string, found int64"),
    ],
)
def test_another_type_is_refused_with_file_column_expected_and_found(
    tmp_path: Path, column: str, values: Any, message: str, where: str | None
) -> None:
    row = {
        "id": [1],
        "x": pa.array([0.5], pa.float32()),
        "tags": [[1]],
        "pair": pa.array([[1.0, 2.0]], SCHEMA.field(3).type),
    }
    snapshot = table_with(tmp_path, pa.table({**row, "note": ["a"], column: values}))
    with pytest.raises(DataFileError, match=rf"b\.parquet: {message}"):
        delivered(snapshot, where=where)
