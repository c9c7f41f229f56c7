import json
import sys
import threading
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, time
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featstore.base.errors import (
    AccessError,
    ConfigError,
    DataFileError,
    InputError,
    MissingDependencyError,
    StoreError,
    TableNotFoundError,
)
from featstore.explore.description import table_history
from featstore.explore.table import open_table
from featstore.files.storage import absolute
from featstore.table.iceberg import urls_of
from featstore.table.open import open_for_writing, open_snapshot
from tests.iceberg_tables import (
    COLUMNS,
    PATHS,
    as_featstore,
    catalog_at,
    commit_deletes,
    deletion_vectors,
    partitioned,
    position_deletes,
    rows_of,
)

pytest.importorskip("pyiceberg")
URL = "iceberg://test/db.t"
LOWER_BOUNDS, UPPER_BOUNDS = 10, 11  # places in the entry of a file in a manifest of version 3


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with catalog_at(tmp_path, monkeypatch) as catalog:
        yield catalog


def by_text(table: pa.Table) -> list[dict[str, Any]]:
    """The rows, in the order of their texts."""
    return sorted(table.to_pylist(), key=repr)


def require_equal(table: Any, url: str, version: int | str | None = None) -> None:
    """The rows are those that pyiceberg itself reads."""
    opened = open_table(url, version)
    is_current = opened.version == table.current_snapshot().snapshot_id
    snapshot_id = None if is_current else opened.version
    expected = as_featstore(table.scan(snapshot_id=snapshot_id).to_arrow())
    found = opened.to_arrow().select(expected.schema.names)
    assert by_text(found.cast(expected.schema)) == by_text(expected)
    assert opened.num_rows == expected.num_rows


def test_columns_are_found_by_id_after_renames_reorders_and_widening(catalog: Any) -> None:
    from pyiceberg.types import DoubleType, LongType

    table = catalog.create_table("db.t", COLUMNS)
    table.append(rows_of(0, 40))
    with table.update_schema() as update:
        update.rename_column("id", "request")
        update.rename_column("name", "id")  # takes the name of another column
        update.move_first("y")
        update.update_column("n", LongType())
        update.update_column("x", DoubleType())
        update.delete_column("is_new")
    with table.update_schema() as update:
        update.add_column("is_new", LongType())  # another column of a name that files have
    require_equal(table, URL)
    found = open_table(URL).to_arrow()
    assert found.column("is_new").null_count == 40
    assert found.schema.field("id").type == pa.string()


def append(table: Any, number: int, data: st.DataObject) -> None:
    table.append(written(table, number))


def delete(table: Any, number: int, data: st.DataObject) -> None:
    """Deletes rows by writing their files again, as pyiceberg does."""
    if (key := name_of(table, "id")) is not None:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # no such rows
            table.delete(f"{key} < {data.draw(st.integers(0, 100))}")


def divide(table: Any, number: int, data: st.DataObject) -> None:
    """Partitions the files to come by one more transform."""
    from pyiceberg.transforms import (
        BucketTransform,
        DayTransform,
        IdentityTransform,
        TruncateTransform,
    )

    transforms = {
        "name": [IdentityTransform(), TruncateTransform(6)],
        "day": [IdentityTransform()],
        "at": [DayTransform()],
        "id": [BucketTransform(3)],
    }
    column = data.draw(st.sampled_from(sorted(transforms)))
    transform = data.draw(st.sampled_from(transforms[column]))
    key = name_of(table, column)
    if key is None or is_source(table, COLUMNS.names.index(column) + 1):
        return
    with table.update_spec() as update:
        update.add_field(key, transform, f"part_{number}")


def rename(table: Any, number: int, data: st.DataObject) -> None:
    with table.update_schema() as update:
        update.rename_column(a_column(table, data).name, f"renamed_{number}")


def first(table: Any, number: int, data: st.DataObject) -> None:
    with table.update_schema() as update:
        update.move_first(a_column(table, data).name)


def widen(table: Any, number: int, data: st.DataObject) -> None:
    from pyiceberg.types import DoubleType, FloatType, IntegerType, LongType

    wider = {IntegerType(): LongType(), FloatType(): DoubleType()}
    column = a_column(table, data)
    if column.field_type in wider:
        with table.update_schema() as update:
            update.update_column(column.name, wider[column.field_type])


def add(table: Any, number: int, data: st.DataObject) -> None:
    from pyiceberg.types import DoubleType, LongType, StringType

    kind = data.draw(st.sampled_from([LongType(), StringType(), DoubleType()]))
    with table.update_schema() as update:
        update.add_column(f"added_{number}", kind)


def drop(table: Any, number: int, data: st.DataObject) -> None:
    """Drops a column, and adds another one of its name."""
    from pyiceberg.types import LongType

    column = a_column(table, data)
    if is_source(table, column.field_id):
        return
    with table.update_schema() as update:
        update.delete_column(column.name)
    with table.update_schema() as update:
        update.add_column(column.name, LongType())


STEPS = [append, append, delete, divide, rename, first, widen, add, drop]


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(st.sampled_from(STEPS), min_size=2, max_size=8), data=st.data())
def test_any_life_of_a_table_is_read_as_pyiceberg_reads_it(
    steps: list[Any], data: st.DataObject, catalog: Any
) -> None:
    if catalog.table_exists("db.t"):
        catalog.drop_table("db.t")
    table = catalog.create_table("db.t", COLUMNS)
    versions = dict[str | int, None]()
    for number, step in enumerate([append, *steps]):
        step(table, number, data)
        current = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_tag(current, f"tag {number}").commit()
        versions |= {current: None, f"tag {number}": None}
    for version in (None, *versions):
        require_equal(table, URL, version)
    require_equal(table, f"iceberg+{table.metadata_location}")


def a_column(table: Any, data: st.DataObject) -> Any:
    return data.draw(st.sampled_from(table.schema().fields))


def is_source(table: Any, field_id: int) -> bool:
    return any(f.source_id == field_id for spec in table.specs().values() for f in spec.fields)


def name_of(table: Any, original: str) -> str | None:
    """The name that a column of `COLUMNS` has now; None if it was dropped."""
    number = COLUMNS.names.index(original) + 1
    return next((f.name for f in table.schema().fields if f.field_id == number), None)


def written(table: Any, number: int) -> pa.Table:
    """Rows in the table's current columns: those of `COLUMNS` by id, others with some values."""
    plain = rows_of(number * 30, 20)
    columns = dict[str, Any]()
    for field, arrow in zip(table.schema().fields, table.schema().as_arrow(), strict=True):
        if field.field_id <= len(COLUMNS):
            columns[field.name] = plain.column(field.field_id - 1).cast(arrow.type)
        else:
            columns[field.name] = pa.array([i % 3 or None for i in range(20)], pa.int64()).cast(
                arrow.type
            )
    return pa.table(
        columns, schema=pa.schema([f.remove_metadata() for f in table.schema().as_arrow()])
    )


def test_partition_values_are_those_of_identity_transforms_in_the_types_of_their_columns(
    catalog: Any,
) -> None:
    from pyiceberg.transforms import DayTransform, IdentityTransform

    table = partitioned(catalog, day=IdentityTransform(), at=DayTransform())
    table.append(rows_of(0, 12))
    opened = open_table(URL)
    assert [(key.name, key.type) for key in opened.schema.partition_keys] == [("day", pa.date32())]
    assert opened.partitions == (
        {"day": "2020-01-01"},
        {"day": "2020-01-02"},
        {"day": "2020-01-03"},
    )
    require_equal(table, URL)
    one = open_table(f"{URL}?day=2020-01-02")
    assert one.num_rows == 4
    with pytest.raises(InputError, match=r"expected version, after or a partition key .*'dya'"):
        open_table(f"{URL}?dya=2020-01-02")


@pytest.mark.parametrize(
    ("metrics", "is_migrated"), [("none", False), ("none", True), ("counts", False)]
)
def test_a_file_whose_partition_alone_has_a_column_is_refused_once_it_is_no_key(
    metrics: str, is_migrated: bool, catalog: Any
) -> None:
    """Hive's files lack the columns by which they are divided."""
    from pyiceberg.transforms import IdentityTransform

    table = partitioned(catalog, day=IdentityTransform())
    with table.transaction() as change:
        change.set_properties({"write.metadata.metrics.default": metrics})
    table.append(rows_of(0, 8))
    if is_migrated:
        for path in table.inspect.files().column("file_path").to_pylist():
            file = Path(path.removeprefix("file://"))
            rows = pq.read_table(file, partitioning=None).drop(["day"])
            pq.write_table(rows, file)
    with table.update_spec() as update:
        update.remove_field("part_day")
    table.append(rows_of(8, 8))
    if is_migrated:
        with pytest.raises(DataFileError, match=r"expected column 'day' in the file, found its"):
            open_table(URL)
    else:
        require_equal(table, URL)


def test_bounds_in_manifests_leave_out_files(catalog: Any) -> None:
    from pyiceberg.transforms import DayTransform

    table = partitioned(catalog, at=DayTransform())
    table.append(rows_of(0, 100))
    opened = open_table(URL)
    where = "at >= '2020-09-15 00:00:00' and at < '2020-09-16 00:00:00'"
    assert len(opened.data_files()) == 5
    assert len(opened.data_files(where)) == 1
    assert opened.to_arrow(where=where).num_rows == 24


def test_a_snapshot_is_opened_by_id_tag_and_branch(catalog: Any) -> None:
    table = catalog.create_table("db.t", COLUMNS)
    assert open_table(URL).num_rows == 0
    table.append(rows_of(0, 10))
    first = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(first, "monday").create_branch(first, "audit").commit()
    table.append(rows_of(10, 10))
    for version in (first, str(first), "monday", "audit"):
        assert open_table(URL, version).version == first
        assert open_table(f"{URL}?version={version}").num_rows == 10
    assert open_table(URL, "main").num_rows == 20
    assert [c.version for c in open_table(URL).history()][-1] == first
    assert str(table_history(URL)).count("append") == 2
    with pytest.raises(TableNotFoundError, match=r"no snapshot, tag or branch 'mondey'.*monday"):
        open_table(URL, "mondey")


def test_a_partition_key_may_be_named_as_versions_are(catalog: Any) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import LongType, NestedField

    columns = Schema(NestedField(1, "x", LongType()), NestedField(2, "version", LongType()))
    by_version = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "version"))
    table = catalog.create_table("db.t", columns, partition_spec=by_version)
    for version in (7, 8):
        table.append(pa.table({"x": [version], "version": [version]}))
    first = table.snapshots()[0].snapshot_id
    assert open_table(f"{URL}?version={first}").to_arrow().to_pylist() == [{"x": 7, "version": 7}]
    assert open_table(f"{URL}?after={first}").to_arrow().to_pylist() == [{"x": 8, "version": 8}]


def test_a_range_of_snapshots_is_what_was_appended(catalog: Any) -> None:
    table = catalog.create_table("db.t", COLUMNS)
    ids = []
    for first in (0, 10, 20):
        table.append(rows_of(first, 10))
        ids.append(table.current_snapshot().snapshot_id)
    found = open_table(f"{URL}?after={ids[0]}&version={ids[1]}").to_arrow()
    assert found.column("id").to_pylist() == list(range(10, 20))
    assert open_table(f"{URL}?after=-1").num_rows == 30
    assert open_table(f"{URL}?after={ids[-1]}").num_rows == 0
    table.delete("id < 5")
    with pytest.raises(InputError, match=r"expected only appends after snapshot .* \(overwrite\)"):
        open_table(f"{URL}?after={ids[0]}")
    with pytest.raises(InputError, match=r"expected a snapshot that .* came from"):
        open_table(f"{URL}?after={ids[2]}&version={ids[0]}")


def test_columns_that_files_lack_have_their_initial_default(catalog: Any, tmp_path: Path) -> None:
    from pyiceberg.table import StaticTable

    table = catalog.create_table("db.t", COLUMNS)
    table.append(rows_of(1, 20))
    metadata = json.loads(table.metadata.model_dump_json(exclude_none=True))
    defaults = {
        "long": 7,
        "double": 0.25,
        "boolean": True,
        "string": "x",
        "date": "2026-11-01",
        "timestamp": "2026-11-01T12:00:00",
        "timestamptz": "2026-11-01T12:00:00+00:00",
        "decimal(9, 2)": "14.20",
    }
    metadata["schemas"][-1]["fields"] += [
        {"id": 100 + at, "name": f"late {type_}", "type": type_, "required": False}
        | {"initial-default": default}
        for at, (type_, default) in enumerate(defaults.items())
    ]
    path = tmp_path / "late.metadata.json"
    path.write_text(json.dumps(metadata))
    expected = StaticTable.from_metadata(str(path)).scan().to_arrow()
    shown = as_featstore(expected)
    opened = open_table(f"iceberg+{path}")
    found = opened.to_arrow().select(shown.schema.names)
    assert by_text(found.cast(shown.schema)) == by_text(shown)
    assert found.column("late long").to_pylist() == [7] * 20
    assert open_table(f"iceberg+{path}").to_arrow(where="`late long` = 7").num_rows == 20
    assert open_table(f"iceberg+{path}").to_arrow(where="`late double` > 0.3").num_rows == 0


@pytest.mark.parametrize("outer", ["struct", "list", "map"])
def test_initial_defaults_of_members_of_structs_are_refused(
    outer: str, catalog: Any, tmp_path: Path
) -> None:
    struct = pa.struct([("a", pa.int64())])
    types = {"struct": struct, "list": pa.list_(struct), "map": pa.map_(pa.string(), struct)}
    table = catalog.create_table("db.t", pa.schema([("id", pa.int64()), ("s", types[outer])]))
    metadata = json.loads(table.metadata.model_dump_json(exclude_none=True))
    type_ = metadata["schemas"][-1]["fields"][1]["type"]
    inner = {"struct": type_, "list": type_.get("element"), "map": type_.get("value")}[outer]
    late = {"id": 100, "name": "late", "type": "long", "required": False}
    path = tmp_path / "late.metadata.json"
    inner["fields"].append(late)
    path.write_text(json.dumps(metadata))
    assert open_table(f"iceberg+{path}").num_rows == 0
    inner["fields"][-1] = {**late, "initial-default": 5}
    path.write_text(json.dumps(metadata))
    with pytest.raises(DataFileError, match=r"column 's': an initial default of the member 'late'"):
        open_table(f"iceberg+{path}")


OF_ALL_TYPES = {
    "uuid": (pa.uuid(), [uuid.UUID(int=1).bytes, None]),
    "fixed": (pa.binary(3), [b"abc", None]),
    "binary": (pa.binary(), [b"a\x00", None]),
    "decimal": (pa.decimal128(9, 2), [Decimal("1.25"), None]),
    "time": (pa.time64("us"), [time(1, 2, 3), None]),
    "timestamp": (pa.timestamp("us"), [datetime(2026, 11, 1), None]),
    "struct": (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": "x"}, None]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None]),
    "structs": (pa.list_(pa.struct([("a", pa.int64())])), [[{"a": 1}], None]),
    "texts": (pa.list_(pa.string()), [["a", "b"], None]),
    "floats": (pa.list_(pa.float32()), [[0.5], None]),
}


@pytest.mark.parametrize("name", OF_ALL_TYPES)
def test_columns_of_any_type_are_read_as_pyiceberg_reads_them(name: str, catalog: Any) -> None:
    type_, values = OF_ALL_TYPES[name]
    table = catalog.create_table("db.t", pa.schema([("id", pa.int64()), (name, type_)]))
    table.append(pa.table({"id": [1, 2], name: pa.array(values, type_)}))
    found, expected = open_table(URL).to_arrow(), table.scan().to_arrow()
    assert found.column(name).to_pylist() == expected.column(name).to_pylist()


def deleted_by(kind: str, root: Path, rows: dict[str, list[int]]) -> list[Any]:
    if kind == "vectors":
        return deletion_vectors(root, rows)
    by_file = [[(path, at) for at in found] for path, found in rows.items()]
    files = by_file if kind == "positions by file" else [[row for of in by_file for row in of]]
    return [position_deletes(root, each) for each in files]


@pytest.mark.parametrize("kind", ["vectors", "positions", "positions by file"])
def test_deleted_rows_are_those_of_the_manifests_of_deletes(
    kind: str, catalog: Any, tmp_path: Path
) -> None:
    from pyiceberg.table import StaticTable

    table = catalog.create_table("db.t", COLUMNS)
    for first in (0, 20, 40):
        table.append(rows_of(first, 20))
    paths = sorted(table.inspect.files().column("file_path").to_pylist())
    rows = {paths[0]: [0, 3, 19], paths[2]: list(range(20))}
    url = commit_deletes(table, tmp_path, deleted_by(kind, tmp_path, rows))
    opened = open_table(url)
    with_mask = [file for file in opened.data_files() if file.mask is not None]
    assert len(with_mask) == (3 if kind == "positions" else 2)  # between the paths of the others
    expected = as_featstore(
        StaticTable.from_metadata(url.removeprefix("iceberg+")).scan().to_arrow()
    )
    assert expected.num_rows == 37
    found = opened.to_arrow().select(expected.schema.names)
    assert by_text(found.cast(expected.schema)) == by_text(expected)
    assert open_table(URL).num_rows == 60


def test_deletes_apply_to_no_newer_files(catalog: Any, tmp_path: Path) -> None:
    table = catalog.create_table("db.t", COLUMNS)
    for first in (0, 20):
        table.append(rows_of(first, 20))
    newer = table.inspect.files().column("file_path").to_pylist()
    found = position_deletes(tmp_path, [(path, 0) for path in newer])
    opened = open_table(commit_deletes(table, tmp_path, [found], sequence=1))
    assert sorted(file.mask is None for file in opened.data_files()) == [False, True]
    assert opened.to_arrow().num_rows == 39


def test_a_vector_stands_for_all_older_deletes_of_its_file(catalog: Any, tmp_path: Path) -> None:
    table = catalog.create_table("db.t", COLUMNS)
    table.append(rows_of(0, 20))
    [path] = table.inspect.files().column("file_path").to_pylist()
    files = [position_deletes(tmp_path, [(path, 3)]), *deletion_vectors(tmp_path, {path: [1, 3]})]
    opened = open_table(commit_deletes(table, tmp_path, files))
    [file] = opened.data_files()
    assert file.mask is not None
    assert [record.kind for record in file.mask.records] == ["delta-vector"]
    assert opened.to_arrow().num_rows == 18


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"content": 2}, "equality deletes"),
        ({"file_format": "ORC"}, "position deletes in Orc files"),
        ({"key_metadata": b"key"}, "encrypted files of deletes"),
    ],
)
def test_deletes_that_are_not_read_are_named(
    change: dict[str, Any], expected: str, catalog: Any, tmp_path: Path
) -> None:
    from pyiceberg.manifest import DataFileContent, FileFormat

    table = catalog.create_table("db.t", COLUMNS)
    table.append(rows_of(0, 20))
    [path] = table.inspect.files().column("file_path").to_pylist()
    deletes = position_deletes(tmp_path, [(path, 3)])
    places = {
        "content": (0, DataFileContent),
        "file_format": (2, FileFormat),
        "key_metadata": (12, bytes),
    }
    for name, value in change.items():
        place, type_ = places[name]
        deletes[place] = type_(value)
    url = commit_deletes(table, tmp_path, [deletes])
    with pytest.raises(
        DataFileError, match=rf"is an Iceberg table with {expected}, which.*deletes.parquet"
    ):
        open_table(url)


@pytest.mark.parametrize(
    ("column", "bound", "expected"),
    [
        ("y", b"", r"'y': expected lower_bounds of type double in the manifest, found 0 bytes"),
        ("y", b"123", r"'y': expected lower_bounds of type double .* found 3 bytes"),
        ("n", b"123456789", r"'n': expected lower_bounds of type int32 .* found 9 bytes"),
        ("name", b"a\xff", r"'name': expected lower_bounds of type string .* found 2 bytes"),
    ],
)
def test_bounds_that_are_none_of_their_column_are_named(
    column: str, bound: bytes, expected: str, catalog: Any
) -> None:
    from pyiceberg.transforms import IdentityTransform

    whole = catalog.create_table("db.whole", COLUMNS)
    whole.append(rows_of(0, 20))
    [task] = whole.scan().plan_files()
    number = COLUMNS.names.index(column) + 1
    table = catalog.create_table("db.t", COLUMNS)
    with table.update_sort_order() as update:
        update.asc(column, IdentityTransform())
    file = task.file
    file[LOWER_BOUNDS] = {**file.lower_bounds, number: bound}
    with table.transaction() as change, change.update_snapshot().fast_append() as update:
        update.append_data_file(file)
    with pytest.raises(DataFileError, match=rf"\.parquet: column {expected}"):
        open_table(URL)


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    [
        ("vectors", {18: -1}, r"a deletion vector of more than 8 bytes .* from byte -1 on"),
        ("vectors", {19: 8}, r"a deletion vector of more than 8 bytes .*, found 8 bytes from"),
        ("vectors", {19: -5}, r"a deletion vector of more than 8 bytes .*, found -5 bytes from"),
        (
            "positions",
            {LOWER_BOUNDS: {PATHS: b"\xff"}, UPPER_BOUNDS: {PATHS: b"\xff"}},
            r"the path of a data file .*, found b'\\xff' for",
        ),
    ],
)
def test_damaged_records_of_deletes_are_named(
    kind: str, change: dict[int, Any], expected: str, catalog: Any, tmp_path: Path
) -> None:
    table = catalog.create_table("db.t", COLUMNS)
    table.append(rows_of(0, 20))
    [path] = table.inspect.files().column("file_path").to_pylist()
    [deletes] = deleted_by(kind, tmp_path, {path: [3]})
    for place, value in change.items():
        deletes[place] = value
    url = commit_deletes(table, tmp_path, [deletes])
    with pytest.raises(DataFileError, match=rf"expected .*{expected}.*the manifest is damaged"):
        open_table(url)


def test_files_without_ids_are_read_by_the_names_of_the_table(catalog: Any, tmp_path: Path) -> None:
    plain = rows_of(0, 10)
    pq.write_table(plain, tmp_path / "a.parquet")
    table = catalog.create_table("db.t", COLUMNS)
    table.add_files([str(tmp_path / "a.parquet")])
    with table.update_schema() as update:
        update.rename_column("id", "request")
    require_equal(table, URL)
    with table.transaction() as change:
        change.remove_properties("schema.name-mapping.default")
    with pytest.raises(DataFileError, match=r"expected a file with field ids.*name-mapping"):
        open_table(URL).to_arrow()


def test_it_is_looked_into_as_any_table(catalog: Any) -> None:
    table = catalog.create_table("db.t", COLUMNS)
    table.append(rows_of(1, 40))
    opened = open_table(URL)
    assert opened.profile().num_rows == 40
    assert opened.sample(7).num_rows == 7
    assert "id      id     scalar" in str(opened.inspect())
    assert opened.lint().num_files == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "",
                    "/",
                    "a/",
                    "/a//b/",
                    "file:///",
                    "file:/a/",
                    "file:///a/../b/",
                    "s3://k//",
                    "s3://k/a/",
                ]
            ),
            st.sampled_from(["x", "a b", "%20", "~x", "?"]),
        )
    )
)
def test_urls_of_files_are_absolute_paths(parts: list[tuple[str, str]]) -> None:
    paths = [directory + name for directory, name in parts if directory or name != "~x"]
    assert urls_of(paths) == list(map(absolute, paths))


def test_what_is_no_iceberg_table_is_told_in_one_line(catalog: Any, tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match=r"no table at iceberg://test/db\.t: the catalog"):
        open_table(URL)
    with pytest.raises(ConfigError, match=r"has no catalog 'prod'.*PYICEBERG_CATALOG__PROD__URI"):
        open_table("iceberg://prod/db.t")
    for url in ("iceberg://test/t", "iceberg://test", "iceberg+/a/b.json"):
        with pytest.raises(InputError, match="not the URL of an Iceberg table: expected"):
            open_table(url)
    with pytest.raises(InputError, match=r"one value of 'version' after '\?', found 2: name one"):
        open_table(f"{URL}?version=a&version=b")
    gone = tmp_path / "00001-x.metadata.json"
    with pytest.raises(TableNotFoundError, match=r"00001-x\.metadata\.json"):
        open_table(f"iceberg+{gone}")
    gone.write_text("{}")
    with pytest.raises(DataFileError, match="pyiceberg cannot read its metadata"):
        open_table(f"iceberg+file:{gone}")
    with pytest.raises(InputError, match="delete: expected a Delta table, found one of Iceberg"):
        open_for_writing(URL, "delete")


@pytest.mark.parametrize(
    ("uri", "error", "expected"),
    [
        (
            "sqlite:////none/of/this.db",
            StoreError,
            "iceberg://test/db.t: the store failed .*unable",
        ),
        (
            "http://127.0.0.1:1",
            StoreError,
            "iceberg://test/db.t: 127.0.0.1:1 refuses the connection",
        ),
        ("thrift://127.0.0.1:1", ConfigError, "the catalog needs another package .*hive"),
        ("nothing", ConfigError, "configuration of catalog 'test' is wrong .*catalog type"),
    ],
)
def test_a_catalog_that_cannot_be_asked_is_told_in_one_line(
    uri: str, error: type[Exception], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__TEST__URI", uri)
    # As where the package that a Hive catalog needs is not installed.
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog.hive", None)
    with pytest.raises(error, match=expected) as raised:
        open_table(URL)
    assert "\n" not in str(raised.value)


@contextmanager
def rest_catalog(answers: list[tuple[int, str]]) -> Iterator[tuple[str, list[str]]]:
    """A REST catalog of pyiceberg that gives these answers when it is asked for a table, the last
    one from then on: its URL, and the paths that it was asked for.
    """
    asked = list[str]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = 200, '{"defaults": {}, "overrides": {}}'
            if "/v1/config" not in self.path:
                status, body = answers[min(len(asked), len(answers) - 1)]
                asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def said(status: int, words: str) -> tuple[int, str]:
    error = {"message": words, "type": "Said", "code": status}
    return status, json.dumps({"error": error})


def test_secrets_of_a_catalog_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    config = tmp_path / ".pyiceberg.yaml"
    words = "bad token=hidden-1 of hidden-2"
    with rest_catalog([said(418, words)]) as (url, _):
        more = {"uri": url, "type": "rest", "token": "hidden-1", "s3.secret-access-key": "hidden-2"}
        for of in ({"uri": "foo://user:hidden-1@host/db"}, more):
            config.write_text(json.dumps({"catalog": {"s": of}}))  # JSON is YAML
            with pytest.raises((ConfigError, StoreError), match=r"iceberg://s/db\.t") as raised:
                open_table("iceberg://s/db.t")
            assert "hidden" not in str(raised.value)
    with pytest.raises(InputError, match="not the URL of an Iceberg table") as refused:
        open_table("iceberg://user:hidden-1@s/db.t")
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("answers", "kind", "expected", "num_asked"),
    [
        ([503, 429, 500, 404], TableNotFoundError, "the catalog has none of this name", 4),
        ([503], StoreError, r"is in trouble \(.*busy\); try again later", 5),
        ([403], AccessError, "refuses access; check the catalog's credentials in pyiceberg's", 1),
        ([401], AccessError, "refuses access; check the catalog's credentials in pyiceberg's", 2),
        ([422], StoreError, r"refuses the request \(.*busy\); check the URL, and the catalog's", 1),
    ],
)
def test_a_catalog_is_asked_again_after_what_may_pass(
    answers: list[int],
    kind: type[Exception],
    expected: str,
    num_asked: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with rest_catalog([said(status, "busy") for status in answers]) as (url, asked):
        monkeypatch.setenv("PYICEBERG_CATALOG__S__URI", url)
        with pytest.raises(kind, match=rf"iceberg://s/db\.t.*{expected}"):
            open_table("iceberg://s/db.t")
    assert len(asked) == num_asked  # pyiceberg itself asks again for a new token


def test_without_pyiceberg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(MissingDependencyError, match=r"install 'featstore-pipeline\[iceberg\]'"):
        open_table(URL)


def test_a_plain_table_has_no_tags(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="only Iceberg tables have tags"):
        open_snapshot(str(tmp_path), "monday")
