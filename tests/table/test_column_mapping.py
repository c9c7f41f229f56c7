"""Columns of mapped Delta tables are those of their ids or physical names, whatever reads them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import DataFileError, InputError
from featstore.explore.table import open_table
from featstore.loader.feature_loader import FeatureLoader
from featstore.samples.sample_dataset import SampleDataset
from featstore.table.snapshot import Snapshot
from tests.masked_tables import add_file, commit, write_vector

MODES = ("name", "id")
PROTOCOLS: list[dict[str, Any]] = [
    {"minReaderVersion": 2, "minWriterVersion": 5},
    {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["columnMapping", "deletionVectors"],
        "writerFeatures": ["columnMapping", "deletionVectors"],
    },
]
DECODED = {"decoded": True}


def column(name: str, type_: Any, number: int, stored: str) -> dict[str, Any]:
    metadata = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": stored}
    return {"name": name, "type": type_, "nullable": True, "metadata": metadata}


def struct(*members: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(members)}


def stored(name: str, type_: pa.DataType, number: int | None) -> pa.Field:
    """A column, or a member of a struct, as a data file has it."""
    ids = None if number is None else {"PARQUET:field_id": str(number)}
    return pa.field(name, type_, metadata=ids)


def mapped_table(
    table: Path,
    mode: str,
    columns: list[dict[str, Any]],
    *files: pa.Table,
    keys: tuple[str, ...] = (),
    protocol: Any = PROTOCOLS[0],
    **add: Any,
) -> str:
    metadata = {
        "id": "x",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(struct(*columns)),
        "partitionColumns": list(keys),
        "configuration": {"delta.columnMapping.mode": mode},
        "createdTime": 0,
    }
    adds = [
        {"add": add_file(table, f"{number}.parquet", rows, row_group_size=2) | add}
        for number, rows in enumerate(files)
    ]
    commit(table, 0, [{"protocol": protocol}, {"metaData": metadata}, *adds])
    return str(table)


def everywhere(url: str, cache: Path, *names: str) -> dict[str, list[Any]]:
    """Columns of numbers, which all readers find alike."""
    found: dict[str, list[Any]] = open_table(url).to_arrow().select(names).to_pydict()
    staging = {"directory": str(cache)}
    for options in ({}, {"staging": {**staging, "mode": "ranges"}}, {"staging": staging | DECODED}):
        with FeatureLoader(
            url, slots=[names[0]], extras=names, batch_size=100, **options
        ) as loader:
            tables = [batch.extras for batch in loader]
        assert pa.concat_tables(tables).to_pydict() == found
    with SampleDataset(url, slots=[names[0]], extras=names, staging=staging) as samples:
        assert samples[:].extras.to_pydict() == found
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_columns_are_found_by_what_the_mode_says(tmp_path: Path, mode: str, protocol: Any) -> None:
    """`a` was renamed to `b`, and `b` to `c`; another `a` was added later."""
    columns = [
        column("b", "long", 1, "a"),
        column("c", "long", 2, "b"),
        column("a", "long", 3, "n"),
    ]
    old = pa.schema([stored("a", pa.int64(), 1), stored("b", pa.int64(), 2)])
    new = pa.schema([stored("n", pa.int64(), 3), *old])
    files = [
        pa.table({"a": [1, 2, 3], "b": [4, 5, 6]}, schema=old),
        pa.table({"n": [7], "a": [8], "b": [9]}, schema=new),
    ]
    url = mapped_table(tmp_path / "table", mode, columns, *files, protocol=protocol)
    assert everywhere(url, tmp_path / "cache", "a", "b", "c") == {
        "a": [None, None, None, 7],
        "b": [1, 2, 3, 8],
        "c": [4, 5, 6, 9],
    }
    found = open_table(url).to_arrow(where="b >= 2 and c < 9 and a is null")
    assert found["c"].to_pylist() == [5, 6]
    with FeatureLoader(url, slots=["a", "b"], where="c = 5") as loader:
        ((a, b),) = [(batch["a"].tolist(), batch["b"].tolist()) for batch in loader]
        assert (a, b) == ([0], [2])
        assert loader.stats()["row_groups_pruned"] == 2


def test_mode_name_does_not_look_at_ids_and_mode_id_not_at_names(tmp_path: Path) -> None:
    columns = [column("x", "long", 1, "p"), column("y", "long", 2, "q")]
    crossed = pa.schema([stored("p", pa.int64(), 2), stored("q", pa.int64(), 1)])
    rows = pa.table({"p": [1], "q": [2]}, schema=crossed)
    for mode, expected in (("name", {"x": [1], "y": [2]}), ("id", {"x": [2], "y": [1]})):
        url = mapped_table(tmp_path / mode, mode, columns, rows)
        assert everywhere(url, tmp_path / "cache", "x", "y") == expected


def test_mode_name_reads_files_without_ids_and_mode_id_refuses_them(tmp_path: Path) -> None:
    columns, rows = [column("x", "long", 1, "p")], pa.table({"p": [1, 2]})
    url = mapped_table(tmp_path / "name", "name", columns, rows)
    assert open_table(url).to_arrow()["x"].to_pylist() == [1, 2]
    url = mapped_table(tmp_path / "id", "id", columns, rows)
    with pytest.raises(DataFileError, match=r"0\.parquet: column 'x': expected .* field ids"):
        open_table(url).to_arrow()


@pytest.mark.parametrize("mode", MODES)
def test_partition_keys_have_physical_names_too(tmp_path: Path, mode: str) -> None:
    columns = [column("x", "long", 1, "p"), column("day", "string", 2, "dt")]
    rows = pa.table({"p": [1, 2]}, schema=pa.schema([stored("p", pa.int64(), 1)]))
    url = mapped_table(
        tmp_path, mode, columns, rows, keys=("day",), partitionValues={"dt": "2026-11-01"}
    )
    table = open_table(url)
    assert table.partitions == ({"day": "2026-11-01"},)
    assert table.to_arrow(where="day = '2026-11-01'").to_pydict() == {
        "x": [1, 2],
        "day": ["2026-11-01"] * 2,
    }
    assert len(table.to_arrow(where="day > '2026-11-01'")) == 0


def members(number: int) -> dict[str, Any]:
    return struct(column("a", "long", number, "b"), column("b", "string", number + 1, "a"))


NESTED = struct(
    column("one", members(11), 13, "s"),
    column("many", {"type": "array", "elementType": members(21), "containsNull": True}, 23, "l"),
)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_as_named", [False, True])
def test_members_of_structs_have_their_own_names(
    tmp_path: Path, mode: str, is_as_named: bool
) -> None:
    """Members `a` and `b` have changed their names; a file may have them in any order."""

    def inner(number: int) -> pa.DataType:
        found = [stored("b", pa.int64(), number), stored("a", pa.string(), number + 1)]
        return pa.struct(found[::-1] if is_as_named else found)

    elements = pa.list_(stored("element", inner(21), None))
    outer = [stored("s", inner(11), 13), stored("l", elements, 23)]
    schema = pa.schema([stored("p", pa.int64(), 1), stored("n", pa.struct(outer), 2)])
    value = {"b": 5, "a": "x"}
    data = {
        "p": [1, 2, 3],
        "n": [{"s": value, "l": [value, None]}, None, {"s": None, "l": []}],
    }
    columns = [column("x", "long", 1, "p"), column("kept", NESTED, 2, "n")]
    url = mapped_table(tmp_path / "table", mode, columns, pa.table(data, schema=schema))
    is_ = {"a": 5, "b": "x"}
    expected: list[Any] = [{"one": is_, "many": [is_, None]}, None, {"one": None, "many": []}]
    assert everywhere(url, tmp_path / "cache", "x", "kept")["kept"] == expected
    # What is written of the rows is found by its own names.
    path = tmp_path / "copy.parquet"
    pq.write_table(open_table(url).to_arrow(), path)
    assert open_table(path).to_arrow()["kept"].to_pylist() == expected


def test_deletion_vectors_and_mapped_columns_go_together(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    vector = write_vector(tmp_path / "table", [1, 2])
    url = mapped_table(
        tmp_path / "table",
        "name",
        [column("x", "long", 1, "p")],
        pa.table({"p": [1, 2, 3, 4]}),
        protocol=PROTOCOLS[1],
        deletionVector=vector,
    )
    assert everywhere(url, tmp_path / "cache", "x") == {"x": [1, 4]}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_field_that_says_nothing_of_its_place_is_told(
    tmp_path: Path, mode: str, protocol: Any
) -> None:
    bare = {"name": "x", "type": "long", "nullable": True, "metadata": {}}
    url = mapped_table(tmp_path, mode, [bare], pa.table({"x": [1]}), protocol=protocol)
    with pytest.raises(DataFileError, match=r"field 'x' lacks the delta\.columnMapping"):
        open_table(url)


@pytest.mark.parametrize("mode", MODES)
def test_a_mapping_that_other_readers_pass_over_is_refused(tmp_path: Path, mode: str) -> None:
    old = {"minReaderVersion": 1, "minWriterVersion": 2}
    columns, rows = [column("x", "long", 1, "p")], pa.table({"p": [1]})
    url = mapped_table(tmp_path, mode, columns, rows, protocol=old)
    with pytest.raises(DataFileError, match=rf"= {mode}\) and reader version 1, which has none"):
        open_table(url)


def test_another_mode_is_refused(tmp_path: Path) -> None:
    url = mapped_table(tmp_path, "position", [column("x", "long", 1, "p")], pa.table({"p": [1]}))
    with pytest.raises(DataFileError, match=r"column mapping \(\S+ = position\), which featstore"):
        open_table(url)


@pytest.mark.parametrize("engine", ["duckdb", "polars"])
def test_a_view_by_names_is_refused(tmp_path: Path, engine: str) -> None:
    url = mapped_table(tmp_path, "name", [column("x", "long", 1, "p")], pa.table({"p": [1]}))
    with pytest.raises(InputError, match=rf"Table\.{engine}\(\): .* columns that files hold under"):
        getattr(open_table(url), engine)()


def test_a_snapshot_of_a_renamed_column_shares_no_decoded_columns(tmp_path: Path) -> None:
    staging = {"directory": str(tmp_path / "cache")}
    files = pa.table({"p": [1, 2], "q": [3, 4]})

    def snapshot(x: str, y: str) -> Snapshot:
        columns = [column("x", "long", 1, x), column("y", "long", 2, y)]
        return open_table(mapped_table(tmp_path / "table", "name", columns, files)).snapshot

    for names, expected in ((("p", "q"), [1, 2]), (("q", "p"), [3, 4])):
        with SampleDataset(snapshot(*names), slots=["x"], staging=staging) as samples:
            assert samples[:]["x"].tolist() == expected
