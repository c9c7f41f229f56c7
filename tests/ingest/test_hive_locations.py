from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from featstore.base.errors import DataFileError, InputError
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.ingest.hive_locations import (
    columns,
    hive_root,
    hive_type,
    in_order,
    locations,
    make_locations,
    partition_columns,
    remove_vacuumed,
)
from featstore.table.snapshot import DataFile, FileList, Snapshot


def data_file(table: Path, path: str, num_rows: int = 1) -> DataFile:
    (table / path).parent.mkdir(parents=True, exist_ok=True)
    (table / path).write_bytes(path.encode() * num_rows)
    size_bytes = (table / path).stat().st_size
    partition = {"dt": path.partition("/")[0].removeprefix("dt=")}
    return DataFile(
        path=path,
        url=str(table / path),
        size_bytes=size_bytes,
        num_rows=num_rows,
        partition=partition,
    )


def snapshot(table: Path, *files: DataFile) -> Snapshot:
    return Snapshot(
        url=str(table), version=0, schema=SlotSchema(slots=()), data_files=FileList.of(files)
    )


def test_columns_keep_their_order_and_partition_keys_stand_apart(schema: SlotSchema) -> None:
    schema = replace(schema, partition_keys=(pa.field("dt", pa.string()),))
    found = [(column.name, column.type, column.comment) for column in columns(schema)]
    assert found == [
        ("user", "bigint", "slot 101, id, scalar; missing is 0"),
        ("tags", "array<bigint>", "slot 102, id, list; missing is [0]"),
        ("place", "array<float>", "slot 103, float, 2; missing is 2 times NaN"),
        ("click", "bigint", ""),
        ("request", "string", ""),
    ]
    assert [(column.name, column.type) for column in partition_columns(schema)] == [
        ("dt", "string")
    ]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("struct<b:decimal(10,2),a:int>", "struct<a:int,b:decimal(10,2)>", True),
        (
            "struct<c:array<struct<b:int,a:int>>,a:struct<d:int,b:map<string,int>>>",
            "struct<a:struct<b:map<string,int>,d:int>,c:array<struct<a:int,b:int>>>",
            True,
        ),
        ("struct<b:int,a:bigint>", "struct<a:int,b:bigint>", False),
        ("map<string,struct<b:int,a:int>>", "map<string,struct<a:int,b:int>>", False),
        ("array<array<struct<b:int,a:int>>>", "array<array<struct<a:int,b:int>>>", False),
        ("struct<c:map<int,struct<b:int,a:int>>>", "struct<c:map<int,struct<a:int,b:int>>>", False),
    ],
)
def test_members_of_structs_have_an_order_only_where_hive_finds_them_by_place(
    one: str, other: str, is_same: bool
) -> None:
    assert (in_order(one) == in_order(other)) == is_same


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (pa.int8(), "tinyint"),
        (pa.timestamp("us", "UTC"), "timestamp"),
        (pa.decimal128(10, 2), "decimal(10,2)"),
        (pa.map_(pa.string(), pa.list_(pa.float64())), "map<string,array<double>>"),
        (
            pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.date32())]),
            "struct<a:bigint,b:date>",
        ),
    ],
)
def test_kept_columns_of_any_type_that_hive_has(type_: pa.DataType, expected: str) -> None:
    assert hive_type(type_, "kept") == expected


def test_a_type_that_hive_lacks_is_named() -> None:
    with pytest.raises(
        InputError, match=r"column 'kept' is time64\[us\], for which Hive has no type"
    ):
        hive_type(pa.time64("us"), "kept")


def test_a_location_is_named_by_its_files_and_holds_them_alone(tmp_path: Path) -> None:
    one, two = (
        data_file(tmp_path, "dt=1/part-0.parquet"),
        data_file(tmp_path, "dt=2/part-0.parquet"),
    )
    data_file(tmp_path, "dt=1/orphan.parquet")
    first, second = locations(snapshot(tmp_path, one, two))
    assert first.partition == {"dt": "1"}
    assert first.url.startswith(f"file://{tmp_path}/_hive/")
    assert [make_locations([first, second]), make_locations([first])] == [2, 1]
    [held] = Path(first.url.removeprefix("file://")).iterdir()
    assert held.samefile(one.url), "a hard link: no byte is copied"
    assert locations(snapshot(tmp_path, one))[0].url == first.url
    assert locations(snapshot(tmp_path, replace(one, num_rows=2)))[0].url != first.url
    assert make_locations([]) == 0


def former_location(table: Path) -> Path:
    """A location that holds a file which a vacuum has removed from the table."""
    gone = data_file(table, "dt=1/part-gone.parquet")
    (location,) = locations(snapshot(table, gone))
    make_locations([location])
    Path(gone.url).unlink()
    return Path(location.url.removeprefix("file://")) / "part-gone.parquet"


def test_links_to_vacuumed_files_are_removed_also_where_a_name_has_brackets(
    tmp_path: Path,
) -> None:
    table = tmp_path / "table[1]"
    link, live = former_location(table), data_file(table, "dt=1/part-0.parquet")
    (location,) = locations(snapshot(table, live))
    make_locations([location])
    assert remove_vacuumed(snapshot(table, live)) == 1
    assert not link.exists()
    assert len(list((table / "_hive").rglob("*.parquet"))) == 1


def test_nothing_is_removed_if_a_living_file_is_not_seen(tmp_path: Path) -> None:
    link, live = former_location(tmp_path), data_file(tmp_path, "dt=1/part-0.parquet")
    Path(live.url).unlink()
    with pytest.raises(
        DataFileError, match=r"found 1 of 1 missing \(dt=1/part-0.parquet, .*nothing is removed"
    ):
        remove_vacuumed(snapshot(tmp_path, live))
    assert link.exists()


def test_nothing_is_removed_behind_a_symbolic_link(tmp_path: Path) -> None:
    table, elsewhere = tmp_path / "table", tmp_path / "elsewhere"
    link, live = former_location(table), data_file(table, "dt=1/part-0.parquet")
    mine = data_file(elsewhere, "part-mine.parquet")
    (table / "_hive" / "linked").symlink_to(elsewhere)
    assert remove_vacuumed(snapshot(table, live)) == 1
    assert (link.exists(), Path(mine.url).exists()) == (False, True)
    (table / "_hive").rename(tmp_path / "moved")
    (table / "_hive").symlink_to(elsewhere)
    assert remove_vacuumed(snapshot(table, live)) == 0
    assert Path(mine.url).exists()


def test_remote_locations_keep_the_scheme_that_the_table_was_named_with() -> None:
    assert hive_root("s3a://bucket/table") == "s3a://bucket/table/_hive"


def test_partitions_that_cannot_be_shown_are_named(tmp_path: Path) -> None:
    file = data_file(tmp_path, "dt=1/part-0.parquet")
    with pytest.raises(InputError, match="partition dt=__HIVE_DEFAULT_PARTITION__ has a null key"):
        locations(snapshot(tmp_path, replace(file, partition={"dt": None})))
    with pytest.raises(
        InputError, match="two data files of dt=1 have one name; compact the partition"
    ):
        locations(snapshot(tmp_path, file, replace(file, path="other/part-0.parquet")))


def test_an_unnumbered_slot_of_others_is_described_too() -> None:
    [column] = columns(SlotSchema(slots=(Slot(name="x", kind=SlotKind.FLOAT),)))
    assert column.comment == "slot, float, scalar; missing is NaN"
