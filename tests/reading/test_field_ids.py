from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featstore.base.errors import DataFileError
from featstore.base.schema import BY_ID, FIELD_ID, FieldId, Slot, SlotKind
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader, Rows
from tests.parquet_files import put_parquet


def with_id(name: str, type_: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, type_, metadata={FIELD_ID: str(number)})


def column(
    name: str, type_: pa.DataType, *id_and_names: Any, default: str | None = None
) -> pa.Field:
    """A column of a table that is found by id."""
    number, *names = id_and_names
    by_id = FieldId(number=number, names=tuple(names), default=default)
    return pa.field(name, type_, metadata={BY_ID: str(by_id)})


def read(path: Path, *others: pa.Field, slots: tuple[Slot, ...] = ()) -> Rows:
    with OpenFile(path) as file:
        return RowGroupReader(file, Selection(slots=slots, others=others), as_values=True).read([0])


def written(tmp_path: Path, *fields: pa.Field, **columns: Any) -> Path:
    return put_parquet(tmp_path / "a.parquet", pa.table(columns, schema=pa.schema(fields)))


def test_the_id_decides_whatever_the_name(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        with_id("a", pa.int32(), 1),
        with_id("b", pa.string(), 2),
        a=[5, 6],
        b=["x", None],
    )
    a, b = column("b", pa.int64(), 1), column("a", pa.string(), 2)
    rows = read(path, b, slots=(Slot(name="b", kind=SlotKind.ID, field_id=FieldId(number=1)),))
    assert rows.other(b).to_pylist() == ["x", None]
    values = rows.slot(Slot(name="b", kind=SlotKind.ID, field_id=FieldId(number=1)))
    assert isinstance(values, np.ndarray)
    assert values.tolist() == [5, 6]
    assert read(path, a).other(a).type == pa.int64()


@pytest.mark.parametrize(
    ("type_", "default", "value"),
    [
        (pa.string(), "x", "x"),
        (pa.int64(), "7", 7),
        (pa.bool_(), "1", True),
        (pa.float64(), "0.5", 0.5),
        (pa.date32(), "2026-11-01", 20_758),
        (pa.list_(pa.int64()), None, None),
        (pa.struct([("a", pa.int64())]), None, None),
    ],
)
def test_a_file_without_the_column_has_the_default(
    tmp_path: Path, type_: pa.DataType, default: str | None, value: Any
) -> None:
    path = written(tmp_path, with_id("a", pa.int32(), 1), a=[5, 6])
    late = column("a", type_, 2, default=default)
    found = read(path, late).other(late)
    found = found.cast(pa.int32()) if pa.types.is_date(type_) else found
    assert found.to_pylist() == [value, value]


@pytest.mark.parametrize(
    ("kind", "shape", "default", "expected"),
    [
        (SlotKind.ID, (), None, [0, 0]),
        (SlotKind.ID, (), "1", [1, 1]),
        (SlotKind.FLOAT, (), "0.25", [0.25, 0.25]),
    ],
)
def test_a_file_without_the_slot_has_the_default(
    tmp_path: Path, kind: SlotKind, shape: tuple[int, ...], default: str | None, expected: list[Any]
) -> None:
    path = written(tmp_path, with_id("a", pa.int32(), 1), a=[5, 6])
    slot = Slot(name="s", kind=kind, shape=shape, field_id=FieldId(number=2, default=default))
    values = read(path, slots=(slot,)).slot(slot)
    assert isinstance(values, np.ndarray)
    assert values.tolist() == expected
    assert Slot.from_field(slot.to_field(nullable=True)) == slot


def test_a_file_without_ids_is_read_by_the_names_of_the_column(tmp_path: Path) -> None:
    path = written(tmp_path, pa.field("old", pa.int64()), pa.field("x", pa.int64()), old=[5], x=[6])
    renamed = column("new", pa.int64(), 1, "old", "new")
    assert read(path, renamed).other(renamed).to_pylist() == [5]
    late = column("late", pa.int64(), 9, "late", default="3")
    assert read(path, late).other(late).to_pylist() == [3]
    for names, expected in (
        ((), r"a\.parquet: column 'new': expected a file with field ids.*name-mapping"),
        (("old", "x"), "expected one column of the names old, x, found 2"),
    ):
        with pytest.raises(DataFileError, match=expected):
            read(path, column("new", pa.int64(), 1, *names))


def test_a_file_with_some_ids_or_one_twice_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, with_id("a", pa.int64(), 1), pa.field("b", pa.int64()), a=[1], b=[2])
    with pytest.raises(DataFileError, match=r"ids on all columns of the file or on none.*'b' only"):
        read(path, column("b", pa.int64(), 2, "b"))
    twice = written(
        tmp_path, with_id("a", pa.int64(), 1), with_id("b", pa.int64(), 1), a=[1], b=[2]
    )
    with pytest.raises(DataFileError, match="expected one column of field id 1, found 2"):
        read(twice, column("a", pa.int64(), 1))


def test_members_of_structs_are_read_by_name_where_that_is_right(tmp_path: Path) -> None:
    stored = pa.struct([with_id("x", pa.int64(), 2), with_id("y", pa.int64(), 3)])
    lists = pa.list_(with_id("element", stored, 5))
    path = written(
        tmp_path,
        with_id("s", stored, 1),
        with_id("l", lists, 4),
        s=[{"x": 1, "y": 2}],
        l=[[{"x": 1, "y": 2}]],
    )
    more = pa.struct(
        [with_id("y", pa.int64(), 3), with_id("z", pa.int64(), 6), with_id("x", pa.int64(), 2)]
    )
    grown = column("s", more, 1)
    assert read(path, grown).other(grown).to_pylist() == [{"y": 2, "z": None, "x": 1}]
    renamed = pa.struct([with_id("x", pa.int64(), 2), with_id("z", pa.int64(), 3)])
    replaced = pa.struct([with_id("x", pa.int64(), 2), with_id("y", pa.int64(), 9)])
    for other in (renamed, replaced):
        for wanted in (
            column("s", other, 1),
            column("l", pa.list_(with_id("element", other, 5)), 4),
        ):
            with pytest.raises(DataFileError, match=r"expected the member '[yz]' of a struct"):
                read(path, wanted)
