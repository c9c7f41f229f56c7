"""An Iceberg table shows each version of a table, as other readers of Iceberg find it."""

import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featstore import api
from featstore.base.errors import (
    ConfigError,
    InputError,
    MissingDependencyError,
    StoreError,
    TableNotFoundError,
)
from featstore.explore.table import open_table
from featstore.spec.parse import load_spec
from featstore.table import iceberg_mirror
from featstore.table.delta import open_delta
from featstore.table.iceberg import read_entries
from featstore.table.iceberg_mirror import mirrors_of, register
from featstore.table.metadata import CommitMetadata
from featstore.table.open import open_snapshot
from featstore.table.parquet_dir import without_ids
from featstore.table.snapshot import DataFile
from featstore.table.vacuum import vacuum
from featstore.tools.cli import cli
from tests.iceberg_tables import catalog_at, commit_deletes, position_deletes
from tests.interposed import followed, preceded
from tests.old_files import age
from tests.parquet_files import put_parquet
from tests.table.test_golden import SCHEMA

pytest.importorskip("pyiceberg")
NAME = "iceberg://test/db.ctr"
DAY_S = 86_400.0
READ_BY_DUCKDB = """
import pathlib, sys, duckdb, duckdb_extension_avro, duckdb_extension_iceberg
for extension in (duckdb_extension_avro, duckdb_extension_iceberg):
    [path] = pathlib.Path(extension.__file__).parent.rglob("*.duckdb_extension")
    duckdb.execute(f"LOAD '{path}'")
duckdb.execute(f"COPY (FROM iceberg_scan('{sys.argv[1]}')) TO '{sys.argv[2]}' (FORMAT parquet)")
"""
SLOTS: list[dict[str, Any]] = [
    {"slot": 101, "name": "user_id", "op": "hash", "of": "user"},
    {"slot": 102, "name": "tag_ids", "op": "hash", "of": "tags", "max_len": 3},
]
MORE: list[dict[str, Any]] = [
    {"slot": 103, "name": "price_log", "op": "log1p", "of": "price"},
    {"slot": 104, "name": "prices", "op": "identity", "of": "near", "max_len": 2},
]


def spec_of(slots: list[dict[str, Any]]) -> Any:
    return load_spec(
        {
            "spec": 1,
            "inputs": {
                "user": "string",
                "tags": "list<string>",
                "price": "double",
                "near": "list<double>",
                "clicked": "long",
            },
            "labels": {"click": "clicked"},
            "keep": ["user"],
            "slots": slots,
            "output": {"rows_per_row_group": 20, "rows_per_file": 40},
        }
    )


def write_raw(path: Path, first: int, num_rows: int) -> Path:
    numbers = range(first, first + num_rows)
    columns = {
        "user": pa.array([None if i % 7 == 3 else f"u{i % 11}" for i in numbers], pa.string()),
        "tags": pa.array([[f"t{i % 5}"] * (i % 4) for i in numbers], pa.list_(pa.string())),
        "price": pa.array([None if i % 5 == 2 else i / 3 for i in numbers], pa.float64()),
        "near": pa.array([[i / 2, i / 4][: i % 3] for i in numbers], pa.list_(pa.float64())),
        "clicked": pa.array([None if i % 6 == 5 else i % 2 for i in numbers], pa.int64()),
    }
    return put_parquet(path / "a.parquet", columns)


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with catalog_at(tmp_path, monkeypatch) as catalog:
        yield catalog


def extract(root: Path, day: str, slots: list[dict[str, Any]], **options: Any) -> Any:
    given = {"partition": {"day": day}, **options}
    return api.extract(spec_of(slots), str(root / f"raw-{day}"), str(root / "table"), **given)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of two days of 90 and 50 rows, which no Iceberg table shows yet."""
    for day, first, num_rows in (("1", 0, 90), ("a b", 90, 50)):
        write_raw(tmp_path / f"raw-{day}", first, num_rows)
        extract(tmp_path, day, SLOTS)
    return tmp_path / "table"


def rows_of(found: pa.Table) -> list[str]:
    """The rows in any order, and those of equal text alike: NaN is equal to NaN."""
    columns = sorted(found.schema.names)
    return sorted(map(str, found.select(columns).to_pylist()))


def files_rows(url: str, version: int | None = None) -> list[str]:
    """The rows of a table without its slot groups, with missing values as files have them."""
    snapshot = open_delta(url, version)
    names = snapshot.schema.to_arrow(nullable=True, partition_keys=True)
    keys = {key.name for key in snapshot.schema.partition_keys}
    found = []
    for file in snapshot.data_files:
        stored = pq.ParquetFile(file.url).read()
        by_number = {(f.metadata or {}).get(b"featstore.slot"): f.name for f in stored.schema}
        by_number.pop(None, None)
        columns = {}
        for field in names:
            name = by_number.get((field.metadata or {}).get(b"featstore.slot"), field.name)
            if field.name in keys:
                value = pa.scalar(file.partition[field.name], pa.string()).cast(field.type)
                columns[field.name] = pa.array([value.as_py()] * stored.num_rows, field.type)
            elif name in stored.schema.names:
                columns[field.name] = stored.column(name).cast(field.type)
            else:
                columns[field.name] = pa.nulls(stored.num_rows, field.type)
        found.append(pa.table(columns))
    empty = names.empty_table()
    return rows_of(pa.concat_tables(found) if found else empty)


def require_shown(catalog: Any, url: str | Path, name: str = "db.ctr") -> Any:
    """pyiceberg and polars read the rows of the newest version."""
    import polars as pl

    mirror, expected = catalog.load_table(name), files_rows(str(url))
    assert mirror.properties["featstore.version"] == str(open_delta(str(url)).version)
    assert rows_of(mirror.scan().to_arrow().cast(as_plain(mirror))) == expected
    with warnings.catch_warnings(action="ignore"):  # that a plugin would plan faster
        found = pl.scan_iceberg(mirror, reader_override="native").collect().to_arrow()
    assert rows_of(found.cast(as_plain(mirror))) == expected
    return mirror


def as_plain(mirror: Any) -> pa.Schema:
    """The columns of an Iceberg table in the types of Arrow that files have."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    from featstore.native.column_types import plain_type

    found = schema_to_pyarrow(mirror.schema(), include_field_ids=False)
    return pa.schema([(field.name, plain_type(field.type)) for field in found])


def test_each_commit_is_shown(catalog: Any, table: Path) -> None:
    root, url = table.parent, str(table)
    made = register(url, NAME)
    assert str(made) == f"{NAME} made; it shows version 1 of {url}: 5 files added, 0 removed"
    require_shown(catalog, url)
    assert "nothing to do" in str(register(url, NAME))

    write_raw(root / "raw-2", 200, 30)
    extract(root, "2", SLOTS)
    assert operations(require_shown(catalog, url)) == ["append", "append"]

    write_raw(root / "raw-1", 0, 45)  # overwrites a partition
    extract(root, "1", SLOTS)
    assert operations(require_shown(catalog, url)) == ["append", "append", "overwrite"]

    extract(root, "1", [*SLOTS, *MORE], group="more")
    assert "price_log" not in require_shown(catalog, url).schema().column_names
    again = str(register(url, NAME))
    assert again.endswith("without slot groups more until `featstore table compact`")

    api.compact(url)
    assert "price_log" in require_shown(catalog, url).schema().column_names

    api.delete_rows(url, "user = 'u1'")
    require_shown(catalog, url)
    api.delete_rows(url, "day = '2'")
    assert len(require_shown(catalog, url).scan(row_filter="day = '2'").to_arrow()) == 0

    age(table)
    vacuum(url, retain_s=0)
    mirror = require_shown(catalog, url)
    assert len(mirror.snapshots()) == 1


@pytest.mark.slow  # a process of duckdb for each of four versions
def test_duckdb_reads_the_rows_of_each_commit(catalog: Any, table: Path) -> None:
    duckdb = Path(__file__).parents[2] / "build" / "iceberg" / "duckdb"
    if not duckdb.is_dir():
        pytest.skip("no duckdb with its Iceberg extension: `make iceberg` brings it")
    url, out = str(table), str(table.parent / "found.parquet")
    register(url, NAME)
    write_raw(table.parent / "raw-1", 0, 45)  # overwrites a partition
    changes: list[Callable[[], Any]] = [
        lambda: extract(table.parent, "1", [*SLOTS, *MORE]),
        lambda: api.delete_rows(url, "user = 'u1'"),
        lambda: api.delete_rows(url, "day = '1'"),
    ]
    for change in (lambda: None, *changes):
        change()
        mirror = catalog.load_table("db.ctr")
        subprocess.run(
            [sys.executable, "-c", READ_BY_DUCKDB, mirror.metadata_location, out],
            env={**os.environ, "PYTHONPATH": str(duckdb)},
            check=True,
        )
        assert rows_of(pq.read_table(out).cast(as_plain(mirror))) == files_rows(url)


def operations(mirror: Any) -> list[str]:
    return [snapshot.summary.operation.value for snapshot in mirror.snapshots()]


def test_partitions_are_pruned_and_snapshots_tell_the_version(catalog: Any, table: Path) -> None:
    register(str(table), NAME)
    mirror = catalog.load_table("db.ctr")
    planned = [task.file.file_path for task in mirror.scan(row_filter="day = 'a b'").plan_files()]
    assert len(planned) == 2
    assert all("day=a%20b/" in path for path in planned)
    assert mirror.current_snapshot().summary["featstore.version"] == "1"
    assert mirror.properties["gc.enabled"] == "false"


def test_manifests_hold_no_values_of_rows(catalog: Any, table: Path) -> None:
    register(str(table), NAME)
    files = catalog.load_table("db.ctr").inspect.files()
    assert files.num_rows == 5
    assert not any(files["lower_bounds"].to_pylist() + files["upper_bounds"].to_pylist())


def test_a_renamed_slot_is_the_same_column_there(catalog: Any, table: Path) -> None:
    register(str(table), NAME)
    before = catalog.load_table("db.ctr").schema()
    renamed = [{**SLOTS[0], "name": "tag_ids"}, {**SLOTS[1], "name": "words"}]
    write_raw(table.parent / "raw-2", 200, 30)
    extract(table.parent, "2", renamed)
    after = require_shown(catalog, table).schema()
    for old, new in (("user_id", "tag_ids"), ("tag_ids", "words"), ("user", "user")):
        assert before.find_field(old).field_id == after.find_field(new).field_id


def test_featstore_reads_it_as_the_table_itself(catalog: Any, table: Path) -> None:
    register(str(table), NAME)
    names = ["user_id", "tag_ids", "user", "day"]
    ours, mirrored = open_table(str(table)), open_table(NAME)
    assert rows_of(mirrored.to_arrow().select(names)) == rows_of(ours.to_arrow().select(names))


KEYS: dict[str, list[Any]] = {
    "int32": [3, -7],
    "int64": [2**40, 0],
    "date": [date(2026, 11, 1), date(1969, 12, 31)],
    "bool": [True, False],
    "decimal": [Decimal("1.50"), Decimal("2.25")],
    "timestamp": [
        datetime(2026, 11, 1, 12, 30, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 5, tzinfo=UTC),
    ],
    "string": ["a/b ü", "1"],
}


@pytest.mark.parametrize("kind", KEYS)
def test_partition_values_have_the_type_of_their_key(
    catalog: Any, tmp_path: Path, kind: str
) -> None:
    type_ = pa.decimal128(5, 2) if kind == "decimal" else None
    rows = {"x": [1, 2, 3, 4], "key": pa.array(KEYS[kind] * 2, type_)}
    url = str(tmp_path / "table")
    write_deltalake(url, pa.table(rows), partition_by=["key"])
    api.compact(url, field_ids=True)
    register(url, NAME)
    mirror = catalog.load_table("db.ctr")
    assert sorted(mirror.scan().to_arrow()["x"].to_pylist()) == [1, 2, 3, 4]
    found = mirror.scan().to_arrow().sort_by("x")["key"].to_pylist()
    assert found == open_table(url).to_arrow().sort_by("x")["key"].to_pylist()
    assert {each["partition"]["key"] for each in mirror.inspect.partitions().to_pylist()} == {
        *found
    }


def test_a_table_without_partition_keys_is_shown(catalog: Any, tmp_path: Path) -> None:
    write_raw(tmp_path / "raw-1", 0, 60)
    extract(tmp_path, "1", SLOTS, partition=None, no_partition=True)
    register(str(tmp_path / "table"), NAME)
    require_shown(catalog, tmp_path / "table")
    write_raw(tmp_path / "raw-1", 0, 50)
    extract(tmp_path, "1", SLOTS, partition=None, no_partition=True)
    require_shown(catalog, tmp_path / "table")


def test_what_other_programs_write_there_is_undone_or_told(catalog: Any, tmp_path: Path) -> None:
    write_raw(tmp_path / "raw-1", 0, 60)
    extract(tmp_path, "1", SLOTS, partition=None, no_partition=True)
    register(str(tmp_path / "table"), NAME)
    mirror = catalog.load_table("db.ctr")
    mirror.append(mirror.scan(limit=5).to_arrow())
    assert len(mirror.scan().to_arrow()) == 65
    write_raw(tmp_path / "raw-1", 0, 50)
    extract(tmp_path, "1", SLOTS, partition=None, no_partition=True)
    (task, *_) = require_shown(catalog, tmp_path / "table").scan().plan_files()
    deletes = [position_deletes(tmp_path, [(task.file.file_path, 3)])]
    metadata = commit_deletes(mirror.refresh(), tmp_path, deletes).removeprefix("iceberg+")
    catalog.drop_table("db.ctr")
    catalog.register_table("db.ctr", metadata)
    write_raw(tmp_path / "raw-1", 0, 40)
    with pytest.raises(InputError, match="found rows that another program deleted there"):
        extract(tmp_path, "1", SLOTS, partition=None, no_partition=True)


def test_files_of_format_1_are_read_and_shown_once_they_are_compacted(
    catalog: Any, tmp_path: Path
) -> None:
    url, day = str(tmp_path / "table"), {"day": "1"}
    path = "day=1/part-00000-4e65d3fb-0a1b2c3d-0.parquet"
    (tmp_path / "table" / "day=1").mkdir(parents=True)
    old = Path(__file__).parents[1] / "golden" / "data_file_1.parquet"
    shutil.copy(old, tmp_path / "table" / path)
    file = DataFile(
        path=path,
        url=f"{url}/{path}",
        size_bytes=old.stat().st_size,
        num_rows=2,
        partition=day,
    )
    commit_files(url, [file], day)
    before = open_table(url).to_arrow()
    assert before["user"].to_pylist() == [5, None]
    assert before["tags"].to_pylist() == [[1, 2], []]
    assert before["place"].to_pylist() == [[0.5, 1.5], [2.5, 3.5]]
    with pytest.raises(InputError, match=r"1 of 1 without, such as day=1/.*compact --field-ids"):
        register(url, NAME)
    assert not catalog.table_exists("db.ctr")
    assert "nothing to do" in str(api.compact(url))
    assert "written again: 1 files, 2 rows" in str(api.compact(url, field_ids=True))
    assert "nothing to do" in str(api.compact(url, field_ids=True))
    assert open_table(url).to_arrow().equals(before)
    register(url, NAME)
    require_shown(catalog, url)


def commit_files(url: str, files: list[DataFile], partition: dict[str, str]) -> None:
    from featstore.table.delta import Change, commit

    metadata = CommitMetadata(
        run_id="old",
        spec_hash="5f" * 32,
        spec_version=1,
        input_digest=None,
        data_digest="da" * 32,
        partitions=(partition,),
        num_files=len(files),
        num_rows=2,
        size_bytes=1,
    )
    keys = tuple(pa.field(key, pa.string()) for key in partition)
    schema = replace(SCHEMA, partition_keys=keys)
    change = Change(
        base=None, schema=schema, partitions=(partition,), files=tuple(files), metadata=metadata
    )
    commit(url, change)


@contextmanager
def unconfigured() -> Iterator[None]:
    """No catalog is configured in the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYICEBERG_CATALOG__TEST__URI")
        patch.delenv("PYICEBERG_CATALOG__TEST__WAREHOUSE")
        yield


def test_a_failed_registration_is_told_and_made_up_for(catalog: Any, table: Path) -> None:
    register(str(table), NAME)
    write_raw(table.parent / "raw-2", 200, 30)
    with unconfigured(), pytest.raises(ConfigError, match="no catalog 'test'") as failed:
        extract(table.parent, "2", SLOTS)
    assert "The table itself is written" in failed.value.__notes__[0]
    assert "committed version 2" in failed.value.__notes__[0]
    assert catalog.load_table("db.ctr").properties["featstore.version"] == "1"
    extract(table.parent, "2", SLOTS)  # commits nothing
    require_shown(catalog, table)


def test_a_vacuum_removes_nothing_where_snapshots_cannot_be_expired(
    catalog: Any, table: Path
) -> None:
    register(str(table), NAME)
    report = api.delete_rows(str(table), "user = 'u1'")
    assert f"snapshots of {NAME}, still hold the rows" in str(report)
    age(table)
    before = sorted(table.rglob("*.parquet"))
    with unconfigured(), pytest.raises(ConfigError, match="no catalog 'test'") as failed:
        vacuum(str(table), retain_s=0)
    assert failed.value.__notes__ == ["Nothing was removed."]
    mirror = catalog.load_table("db.ctr")
    with mirror.manage_snapshots() as manage:
        manage.create_tag(mirror.snapshots()[0].snapshot_id, "monday")
    with pytest.raises(InputError, match="tag 'monday' keeps snapshot"):
        vacuum(str(table), retain_s=0)
    assert sorted(table.rglob("*.parquet")) == before
    assert len(vacuum(str(table), retain_s=0, dry_run=True).removed) > 0
    with catalog.load_table("db.ctr").manage_snapshots() as manage:
        manage.remove_tag("monday")
    assert len(vacuum(str(table), retain_s=0).removed) > 0
    require_shown(catalog, table)
    assert len(catalog.load_table("db.ctr").snapshots()) == 1


def test_a_vacuum_keeps_snapshots_of_retained_versions(catalog: Any, table: Path) -> None:
    register(str(table), NAME)
    api.delete_rows(str(table), "user = 'u1'")
    age(table)
    vacuum(str(table), retain_s=DAY_S)  # the version before was current within a day
    assert len(catalog.load_table("db.ctr").snapshots()) == 2


def test_an_iceberg_table_that_was_dropped_is_told(catalog: Any, table: Path) -> None:
    register(str(table), NAME)
    catalog.drop_table("db.ctr")
    with pytest.raises(InputError, match=r"has no such table.*remove .*_iceberg/test/db\.ctr"):
        api.compact(str(table))
    register(str(table), NAME)
    require_shown(catalog, table)
    catalog.drop_table("db.ctr")
    shutil.rmtree(table / "_iceberg")
    api.compact(str(table))


def test_a_name_of_another_table_is_refused(catalog: Any, table: Path) -> None:
    other = catalog.create_table("db.ctr", pa.schema([("x", pa.int64())]))
    with pytest.raises(InputError, match="already exists and does not show"):
        register(str(table), NAME)
    assert catalog.load_table("db.ctr").metadata == other.metadata


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("iceberg://test/none.ctr", "no namespace 'none': make it first"),
        ("iceberg://test/db.ctr?version=3", "expected iceberg://CATALOG/NAMESPACE.TABLE"),
        ("iceberg+file:/a.metadata.json", "expected iceberg://CATALOG/NAMESPACE.TABLE"),
        ("iceberg://test", "not the URL of an Iceberg table"),
    ],
)
def test_a_name_that_cannot_be_made_is_told(
    catalog: Any, table: Path, name: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        register(str(table), name)
    assert not (table / "_iceberg").exists()


def test_without_pyiceberg_the_extra_is_named(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(MissingDependencyError, match=r"install 'featstore-pipeline\[iceberg\]'"):
        register(str(table), NAME)


def test_what_is_no_table_is_told(catalog: Any, tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="no table at"):
        register(str(tmp_path / "none"), NAME)


def test_registrations_at_once_end_at_the_newest_version(
    catalog: Any, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(str(table), NAME)
    write_raw(table.parent / "raw-2", 200, 30)
    with unconfigured(), pytest.raises(ConfigError):
        extract(table.parent, "2", SLOTS)
    # Another registration comes first, between what this one looked at and what it commits.
    rivals = [register]
    overtaken = preceded(without_ids, lambda: rivals.pop()(str(table), NAME) if rivals else None)
    monkeypatch.setattr(iceberg_mirror, "without_ids", overtaken)
    done = register(str(table), NAME)
    assert not rivals
    assert done.num_added == 0
    mirror = require_shown(catalog, table)
    assert operations(mirror) == ["append", "append"]


def test_threads_that_commit_and_register_show_the_last_version(catalog: Any, table: Path) -> None:
    register(str(table), NAME)
    for day in "2345":
        write_raw(table.parent / f"raw-{day}", int(day) * 100, 30)
    threads = [threading.Thread(target=extract, args=(table.parent, day, SLOTS)) for day in "2345"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    require_shown(catalog, table)


def test_commands_show_a_table(catalog: Any, tmp_path: Path) -> None:
    write_raw(tmp_path / "raw", 0, 60)
    text = yaml.safe_dump({"spec": 1, "inputs": {"user": "string"}, "slots": SLOTS[:1]})
    (tmp_path / "spec.yaml").write_text(text)
    given: list[str | Path] = ["--spec", tmp_path / "spec.yaml", "--input", tmp_path / "raw"]
    wanted = [*given, "--table", tmp_path / "table", "--partition", "day=1", "--register"]
    wrong = run("extract", *wanted, "db.ctr")
    assert isinstance(wrong.exception, InputError)
    assert "expected iceberg://CATALOG/NAMESPACE.TABLE" in str(wrong.exception)
    assert not (tmp_path / "table").exists()
    done = run("extract", *wanted, NAME)
    assert f"{NAME} made; it shows version 0" in done.output
    again = run("table", "register", tmp_path / "table", "--name", NAME)
    assert again.output.startswith("nothing to do: ")
    require_shown(catalog, tmp_path / "table")


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli, list(map(str, arguments)))


def write_clicks(path: Path, clicked: int) -> Path:
    numbers = range(40)
    columns = {
        "user": pa.array([f"k{i}" for i in numbers]),
        "tags": pa.array([["a"] for _ in numbers], pa.list_(pa.string())),
        "price": pa.array([1.0 for _ in numbers]),
        "near": pa.array([[0.5] for _ in numbers], pa.list_(pa.float64())),
        "clicked": pa.array([clicked for _ in numbers], pa.int64()),
    }
    return put_parquet(path / "a.parquet", columns)


def test_labels_that_were_replaced_are_shown_once_they_are_compacted(
    catalog: Any, tmp_path: Path
) -> None:
    url, day = str(tmp_path / "table"), {"day": "1"}
    write_clicks(tmp_path / "raw-1", 0)
    extract(tmp_path, "1", SLOTS)
    register(url, NAME)
    later = str(write_clicks(tmp_path / "later", 1))
    with pytest.raises(InputError) as failed:
        api.relabel(spec_of(SLOTS), later, url, partition=day, key="user")
    message = str(failed.value)
    assert f"cannot show version 1 of {url}, in which slot groups labels replace" in message
    assert message.endswith("run `featstore table compact` first; it still shows version 0")
    with pytest.raises(InputError, match="cannot show version 1"):
        register(url, NAME)
    with pytest.raises(InputError, match=r"`featstore table compact` first$"):
        register(url, "iceberg://test/db.other")
    assert not catalog.table_exists("db.other")
    api.compact(url)
    assert set(require_shown(catalog, url).scan().to_arrow()["click"].to_pylist()) == {1}


def test_columns_of_other_writers_have_the_types_of_their_files(
    catalog: Any, tmp_path: Path
) -> None:
    url = str(tmp_path / "table")
    rows = pa.table({"is_new": [True, None], "ctr": [0.1, None], "all": [[0.1], [0.2, 1e300]]})
    write_deltalake(url, rows)
    api.compact(url, field_ids=True)
    register(url, NAME)
    found = catalog.load_table("db.ctr").scan().to_arrow()
    assert found.to_pylist() == rows.to_pylist()


def test_a_vacuum_tells_of_snapshots_of_versions_that_the_log_lost(
    catalog: Any, table: Path
) -> None:
    register(str(table), NAME)
    api.delete_rows(str(table), "user = 'u1'")
    mirror = catalog.load_table("db.ctr")
    tagged = mirror.snapshots()[0].snapshot_id
    with mirror.manage_snapshots() as manage:
        manage.create_tag(tagged, "monday")
    DeltaTable(str(table)).create_checkpoint()
    for version in (0, 1):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    age(table)
    assert {each.kind for each in vacuum(str(table), retain_s=0, dry_run=True).removed} >= {
        "orphan"
    }
    with pytest.raises(InputError, match="tag 'monday' keeps snapshot"):
        vacuum(str(table), retain_s=0)
    assert len(mirror.scan(snapshot_id=tagged).to_arrow()) == 140


def test_a_vacuum_looks_again_where_another_commit_came_first(
    catalog: Any, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(str(table), NAME)
    api.delete_rows(str(table), "user = 'u1'")
    age(table)
    rivals = [catalog.load_table("db.ctr")]

    def commit() -> None:
        if rivals:
            with rivals.pop().transaction() as transaction:
                transaction.set_properties({"owner": "ads"})

    overtaken = preceded(read_entries, commit)
    monkeypatch.setattr(iceberg_mirror, "read_entries", overtaken)
    assert len(vacuum(str(table), retain_s=0).removed) > 0
    mirror = require_shown(catalog, table)
    assert not rivals
    assert mirror.properties["owner"] == "ads"
    assert len(mirror.snapshots()) == 1


def test_a_catalog_that_fails_keeps_no_other_from_its_update(
    catalog: Any, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    of = {key: catalog.properties[key] for key in ("uri", "warehouse")}
    for key, value in of.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__OTHER__{key.upper()}", value)
    with SqlCatalog("other", **of) as other:
        other.create_namespace("db")
    register(str(table), NAME)
    register(str(table), "iceberg://other/db.ctr")
    for key in of:
        monkeypatch.delenv(f"PYICEBERG_CATALOG__OTHER__{key.upper()}")
    with pytest.raises(ConfigError, match="no catalog 'other'"):
        api.delete_rows(str(table), "user = 'u1'")
    require_shown(catalog, table)
    catalog.drop_table("db.ctr")
    with pytest.raises(ConfigError, match="no catalog 'other'") as failed:
        api.delete_rows(str(table), "user = 'u2'")
    assert f"{NAME}: the catalog has no such table" in failed.value.__notes__[0]


def test_others_that_keep_committing_hold_up_no_registration(
    catalog: Any, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit() -> None:
        held = DeltaTable(str(table))
        held.alter.set_table_description(f"after version {held.version()}")

    monkeypatch.setattr(iceberg_mirror, "open_delta", followed(open_delta, commit))
    assert register(str(table), NAME).version == 1
    assert open_delta(str(table)).version == 2


def test_a_registration_that_failed_fails_no_later_commit(
    catalog: Any, table: Path, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        read_only = f"sqlite:///file:{tmp_path}/catalog.db?mode=ro&uri=true"
        patch.setenv("PYICEBERG_CATALOG__TEST__URI", read_only)
        with pytest.raises(StoreError):
            register(str(table), NAME)
    assert mirrors_of(str(table)) == []
    api.delete_rows(str(table), "user = 'u1'")
    register(str(table), NAME)
    require_shown(catalog, table)


def test_a_registration_takes_back_what_other_programs_did(catalog: Any, table: Path) -> None:
    register(str(table), NAME)
    api.delete_rows(str(table), "user = 'u1'")
    mirror = catalog.load_table("db.ctr")
    with mirror.manage_snapshots() as manage:
        manage.rollback_to_snapshot(mirror.snapshots()[0].snapshot_id)
    assert len(catalog.load_table("db.ctr").scan().to_arrow()) == 140
    assert register(str(table), NAME).num_added > 0
    require_shown(catalog, table)
    assert "nothing to do" in str(register(str(table), NAME))


def test_a_table_is_the_same_through_a_link_and_a_copy_is_another(
    catalog: Any, table: Path, tmp_path: Path
) -> None:
    register(str(table), NAME)
    (tmp_path / "link").symlink_to(table)
    assert "nothing to do" in str(register(str(tmp_path / "link"), NAME))
    api.delete_rows(str(tmp_path / "link"), "user = 'u1'")
    mirror = require_shown(catalog, table)

    copy = tmp_path / "copy"
    shutil.copytree(table, copy)
    with pytest.raises(InputError, match=r"copy/_iceberg/test/db.ctr, which belongs to another"):
        api.delete_rows(str(copy), "user = 'u2'")
    shutil.rmtree(copy / "_iceberg")
    api.delete_rows(str(copy), "user = 'u3'")
    with pytest.raises(InputError, match=r"does not show .*; choose another name$"):
        register(str(copy), NAME)
    assert catalog.load_table("db.ctr").metadata_location == mirror.metadata_location


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("iceberg://tst/db.ctr", "no catalog 'tst'"),
        ("iceberg://test/none.ctr", "no namespace 'none': make it first"),
        ("iceberg://test/db.taken", "already exists and does not show"),
    ],
)
def test_a_name_that_cannot_be_made_is_told_before_the_extraction(
    catalog: Any, tmp_path: Path, name: str, message: str
) -> None:
    catalog.create_table("db.taken", pa.schema([("x", pa.int64())]))
    write_raw(tmp_path / "raw", 0, 60)
    text = yaml.safe_dump({"spec": 1, "inputs": {"user": "string"}, "slots": SLOTS[:1]})
    (tmp_path / "spec.yaml").write_text(text)
    given: list[str | Path] = ["--spec", tmp_path / "spec.yaml", "--input", tmp_path / "raw"]
    given += ["--table", tmp_path / "table", "--partition", "day=1", "--register", name]
    failed = run("extract", *given)
    assert message in str(failed.exception)
    assert not (tmp_path / "table").exists()


def test_a_path_that_readers_take_for_parts_of_a_url_is_refused(
    catalog: Any, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"without '\?' and '#'"):
        register(str(tmp_path / "a#b"), NAME)


Step = Callable[[Path, int], None]


def overwrite(root: Path, number: int) -> None:
    write_raw(root / f"raw-{number % 3}", number * 7, 10 + number)
    extract(root, str(number % 3), SLOTS if number % 2 else [*SLOTS, *MORE])


def drop(root: Path, number: int) -> None:
    api.delete_rows(root / "table", f"user = 'u{number % 11}'")


def drop_day(root: Path, number: int) -> None:
    api.delete_rows(root / "table", f"day = '{number % 3}'")


def sweep(root: Path, number: int) -> None:
    age(root / "table")
    vacuum(str(root / "table"), retain_s=0)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from([overwrite, drop, drop_day, sweep]), min_size=2, max_size=6))
def test_a_random_life_is_shown(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    root = tmp_path_factory.mktemp("life")
    with pytest.MonkeyPatch.context() as patch, catalog_at(root, patch) as catalog:
        for number, step in enumerate([overwrite, *steps]):
            step(root, number)
            if number == 0:
                register(str(root / "table"), NAME)
            mirror = require_shown(catalog, root / "table")
            for snapshot in mirror.snapshots():  # Whatever is left there can be read.
                mirror.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
            assert open_snapshot(str(root / "table")).num_rows == len(mirror.scan().to_arrow())
