import errno
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import DataFileError, InputError, StoreError, TableNotFoundError
from featstore.base.schema import SlotSchema
from featstore.explore.table import Table
from featstore.native.footers import CheckedFooter
from featstore.table.parquet_dir import (
    _NUM_FOOTER_THREADS,
    each_footer,
    open_parquet_dir,
    read_footer,
)
from tests.parquet_files import put_parquet
from tests.short_reads import FailingFile, ShortFile


def write(path: Path, **columns: Any) -> None:
    put_parquet(path, columns)


def test_a_foreign_directory_gets_slots_by_type_and_partitions_by_path(tmp_path: Path) -> None:
    write(
        tmp_path / "month=1" / "b.parquet",
        id=[1, 2],
        score=[0.5, 1.5],
        name=["a", "b"],
        tags=[[1], [2, 3]],
    )
    write(tmp_path / "month=2" / "a.parquet", id=[3], score=[2.5], name=["c"], tags=[[4]])
    snapshot = open_parquet_dir(str(tmp_path))
    assert [(slot.name, slot.kind.value, slot.shape_text) for slot in snapshot.schema] == [
        ("id", "id", "scalar"),
        ("score", "float", "scalar"),
        ("tags", "id", "list"),
    ]
    assert [field.name for field in snapshot.schema.kept] == ["name"]
    assert [field.name for field in snapshot.schema.partition_keys] == ["month"]
    assert [(file.path, file.num_rows, file.partition) for file in snapshot.data_files] == [
        ("month=1/b.parquet", 2, {"month": "1"}),
        ("month=2/a.parquet", 1, {"month": "2"}),
    ]
    assert (snapshot.version, snapshot.spec_hash) == (None, None)


def test_a_glob_and_a_file_are_tables_too(tmp_path: Path) -> None:
    write(tmp_path / "month=1" / "a.parquet", id=[1])
    write(tmp_path / "month=2" / "a.parquet", id=[1, 2])
    assert open_parquet_dir(f"{tmp_path}/month=*/a.parquet").num_rows == 3
    assert open_parquet_dir(f"{tmp_path}/month=2/a.parquet").num_rows == 2


def test_the_schema_of_files_with_different_columns_is_their_union(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", id=pa.array([1], pa.int32()), old=[1])
    write(tmp_path / "b.parquet", id=[1], new=[0.5])
    assert open_parquet_dir(str(tmp_path)).schema.names == ("id", "old", "new")


def test_a_column_that_also_names_a_directory_is_a_partition(tmp_path: Path) -> None:
    write(tmp_path / "month=1" / "a.parquet", id=[1], month=[1])
    schema = open_parquet_dir(str(tmp_path)).schema
    assert schema.names == ("id",)
    assert schema.to_arrow(partition_keys=True).names == ["id", "month"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (pa.array(["a"], pa.large_string()), ["b"], pa.string()),
        (["a"], pa.array(["b"], pa.string_view()), pa.string()),
        (pa.array(["a"]).dictionary_encode(), ["b"], pa.string()),
        (pa.nulls(1), ["b"], pa.string()),
        (["a"], pa.nulls(1), pa.string()),
        (pa.array([[]], pa.list_(pa.null())), [["b"]], pa.list_(pa.string())),
        (pa.array([0], pa.timestamp("ms")), pa.array([0], pa.timestamp("ns")), pa.timestamp("ns")),
        (pa.array([0], pa.timestamp("ms")), pa.array([0], pa.date32()), pa.timestamp("ms")),
        (
            [{"a": "x"}],
            pa.array([{"b": 1, "a": "x"}]),
            pa.struct([("a", pa.string()), ("b", pa.int64())]),
        ),
    ],
)
def test_a_column_has_a_type_for_the_values_of_all_files(
    tmp_path: Path, first: Any, second: Any, expected: pa.DataType
) -> None:
    write(tmp_path / "a.parquet", id=[1], x=first)
    write(tmp_path / "b.parquet", id=[2], x=second)
    schema = open_parquet_dir(str(tmp_path)).schema
    assert [(field.name, field.type) for field in schema.kept] == [("x", expected)]


def test_a_null_in_one_file_leaves_the_slot_of_another(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", id=[1], x=pa.nulls(1), tags=pa.array([[]], pa.list_(pa.null())))
    write(tmp_path / "b.parquet", id=[2], x=[0.5], tags=[[1]])
    assert open_parquet_dir(str(tmp_path)).schema.names == ("id", "x", "tags")


def test_a_column_of_two_kinds_cannot_be_read_and_keeps_nobody_from_the_others(
    tmp_path: Path,
) -> None:
    write(tmp_path / "a.parquet", id=[1], x=[1], name=["x"])
    write(tmp_path / "b.parquet", id=[2], x=["x"], name=[1.5])
    table = Table(open_parquet_dir(str(tmp_path)))
    assert table.profile(slots=["id"]).num_rows == 2
    with pytest.raises(
        DataFileError, match=r"b\.parquet: column 'x': expected int64, found string"
    ):
        table.profile()
    with pytest.raises(
        DataFileError, match=r"b\.parquet: column 'name': expected string, found dou"
    ):
        table.to_arrow(slots=["id"], where="name = 'x'")


def test_a_missing_or_empty_directory_is_not_a_table(tmp_path: Path) -> None:
    with pytest.raises(
        TableNotFoundError,
        match=r"no table at .*nowhere: expected a Delta table, or a directory or glob",
    ):
        open_parquet_dir(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "below", ["", "/day=1", "/day=1/*.parquet", "/*/*.parquet", "/day=1/a.parquet"]
)
def test_files_of_a_delta_table_are_not_opened_without_its_log(tmp_path: Path, below: str) -> None:
    write(tmp_path / "t" / "day=1" / "a.parquet", id=[1])
    (tmp_path / "t" / "_delta_log").mkdir()
    message = (
        r"lies in the Delta table \S+/t, some of whose files may be replaced ones: open \S+/t, and "
        r"choose rows with where"
    )
    for prefix in ("", "file://"):
        with pytest.raises(TableNotFoundError, match=message):
            open_parquet_dir(f"{prefix}{tmp_path}/t{below}")


def test_a_delta_table_under_a_scheme_that_cannot_be_read_is_refused() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe({"/t/_delta_log/0.json": b"{}", "/t/a.parquet": b""})
    try:
        with pytest.raises(
            TableNotFoundError,
            match=r"memory://t is a Delta table, and those cannot be read by memory://",
        ):
            open_parquet_dir("memory://t")
    finally:
        memory.rm("/t", recursive=True)


@pytest.mark.parametrize("content", ["", "id,name\n1,a\n", "PAR1" + "x" * 100 + "\x10\0\0\0PAR1"])
def test_a_file_that_is_not_parquet_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.parquet").write_text(content)
    with pytest.raises(DataFileError, match=r"a\.parquet is not a Parquet file"):
        open_parquet_dir(str(tmp_path))


def test_files_of_featstore_state_their_spec_hash(
    tmp_path: Path, schema: SlotSchema, write_file: Any
) -> None:
    write_file(tmp_path, {"month": "1"}, "r1")
    snapshot = open_parquet_dir(str(tmp_path))
    assert snapshot.spec_hash == "s1"
    assert snapshot.schema == replace(schema, partition_keys=(pa.field("month", pa.string()),))


def test_files_are_opened_over_http(loopback: Any, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", id=[1, 2, 3])
    loopback.files["/data/a.parquet"] = (tmp_path / "a.parquet").read_bytes()
    snapshot = open_parquet_dir(f"{loopback.url}/data/a.parquet")
    assert (snapshot.num_rows, snapshot.data_files[0].url) == (3, f"{loopback.url}/data/a.parquet")


def test_two_columns_of_one_name_are_named_with_their_file(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", id=[1], x=[2])
    table = pa.Table.from_arrays(
        [pa.array([1]), pa.array([2]), pa.array([3])], names=["id", "x", "x"]
    )
    pq.write_table(table, tmp_path / "b.parquet")
    with pytest.raises(
        DataFileError, match=r"b\.parquet: column 'x': expected once, found 2 times"
    ):
        open_parquet_dir(str(tmp_path))


def test_footers_are_let_go_of_while_others_are_read(tmp_path: Path) -> None:
    """One of thousands of columns takes megabytes."""
    urls = [str(tmp_path / f"{number:04}.parquet") for number in range(400)]
    write(tmp_path / "0000.parquet", id=[1, 2])
    for url in urls[1:]:
        Path(url).hardlink_to(urls[0])
    footers = weakref.WeakSet[CheckedFooter]()
    alive, lock = list[int](), threading.Lock()

    def take(footer: CheckedFooter) -> int:
        with lock:
            footers.add(footer)
            alive.append(len(footers))
        return footer.num_rows

    assert list(each_footer(urls, take)) == [2] * len(urls)
    assert len(alive) == len(urls)
    assert 0 < max(alive) <= 2 * _NUM_FOOTER_THREADS


def test_the_first_file_without_a_footer_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no footer")
    for number in range(3):
        write(tmp_path / f"b{number}.parquet", id=[1])
    with pytest.raises(DataFileError, match=r"a\.parquet is not a Parquet file"):
        open_parquet_dir(str(tmp_path))


def test_two_values_of_a_key_in_one_path_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "dt=1/dt=2/a.parquet", id=[1])
    with pytest.raises(
        InputError, match=r"dt=1/dt=2/a\.parquet: expected one value of the partition key 'dt'"
    ):
        open_parquet_dir(str(tmp_path))


def test_hives_default_partition_is_null(tmp_path: Path) -> None:
    write(tmp_path / "month=1" / "day=__HIVE_DEFAULT_PARTITION__" / "a.parquet", id=[1])
    write(tmp_path / "month=1" / "day=2" / "a.parquet", id=[2])
    files = open_parquet_dir(str(tmp_path)).data_files
    assert {file.path.split("/")[1]: file.partition for file in files} == {
        "day=2": {"month": "1", "day": "2"},
        "day=__HIVE_DEFAULT_PARTITION__": {"month": "1", "day": None},
    }


def test_a_footer_of_which_a_read_gives_less_is_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.parquet", id=list(range(7)))
    monkeypatch.setattr(Path, "open", lambda path, *mode, **options: ShortFile(path))
    assert read_footer(str(tmp_path / "a.parquet")).num_rows == 7


def test_a_footer_that_the_system_cannot_read_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.parquet", id=[1])
    monkeypatch.setattr(Path, "open", lambda path, *mode, **options: FailingFile(path))
    with pytest.raises(StoreError, match=r"a\.parquet: cannot be read: Input/output") as found:
        read_footer(str(tmp_path / "a.parquet"))
    assert found.value.errno == errno.EIO


def test_a_footer_of_no_file_is_told_of_as_such(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"a\.parquet: expected a Parquet file, found none"):
        read_footer(str(tmp_path / "a.parquet"))
