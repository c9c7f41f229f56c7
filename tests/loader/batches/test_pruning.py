"""What statistics of row groups say of a `where`: never that a row is not there that is."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.schema import Slot, SlotKind
from featstore.loader.batches.pruning import may_match
from featstore.loader.request.request import Request, resolve
from featstore.reading.open_file import OpenFile
from featstore.table.open import open_snapshot
from tests.loader.conftest import request_of

TABLE = pa.table(
    {  # Row groups of two rows.
        "id": pa.array([1, 2, 3, 4, None, None, -1, 1], pa.int64()),
        "x": pa.array([0.5, 1.5, 2.5, float("nan"), None, None, 3.5, 3.5], pa.float32()),
        "s": pa.array(["a", "b", "c", "d", None, "f", "g", "h"]),
        "tags": pa.array([[1], [2], [3], None, [5], [6], [7], [8]], pa.list_(pa.int64())),
    }
)


DECLARED = TABLE.schema.set(0, Slot(name="id", kind=SlotKind.ID, number=1).to_field(nullable=True))


def flags(
    path: Path,
    where: str,
    *,
    table: pa.Table = TABLE,
    statistics: bool = True,
    schema: pa.Schema = TABLE.schema,
) -> str:
    """Whether each row group may have a row that matches."""
    pq.write_table(table, path / "a.parquet", 2, write_statistics=statistics)
    request: Request = request_of(schema, "id", "x", "tags", where=where)
    with OpenFile(path / "a.parquet") as file:
        parts = [(file, file.resolve(request.selection))]
        found = may_match(parts, request, lambda field: pa.scalar(None, field.type))
    return "".join("y" if flag else "n" for flag in found)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("id = 2", "ynnn"),
        ("id > 2", "nynn"),
        ("id is null", "nnyn"),
        ("id = 0", "nnny"),
        ("id is not null", "yyny"),
        ("s = 'f'", "nnyn"),
        ("s is null", "nnyn"),
        ("id = 2 or s = 'h'", "ynny"),
    ],
)
def test_a_row_group_is_ruled_out_by_bounds_and_by_its_count_of_nulls(
    tmp_path: Path, where: str, expected: str
) -> None:
    assert flags(tmp_path, where) == expected


def test_an_id_whose_bounds_hold_the_mark_of_missing_may_be_null(tmp_path: Path) -> None:
    assert flags(tmp_path, "id is null", schema=DECLARED) == "nnyy"
    assert flags(tmp_path, "id is null", table=TABLE.slice(0, 2), schema=DECLARED) == "n"


def test_of_floats_nan_is_null_and_no_statistics_tell_of_it(tmp_path: Path) -> None:
    assert flags(tmp_path, "x is null") == "yyyy"
    assert flags(tmp_path, "x > 3") == "nnny"


@pytest.mark.parametrize("where", ["id = 99", "id is null", "tags is null"])
def test_without_statistics_no_row_group_is_ruled_out(tmp_path: Path, where: str) -> None:
    assert flags(tmp_path, where, statistics=False) == "yyyy"


def test_a_column_that_the_file_lacks_is_null_in_all_of_its_rows(tmp_path: Path) -> None:
    older = TABLE.drop_columns(["id"])
    assert flags(tmp_path, "id = 2", table=older) == "nnnn"
    assert flags(tmp_path, "id is null", table=older) == "yyyy"


def test_unsigned_numbers_are_left_alone_as_their_statistics_are_in_another_order(
    tmp_path: Path,
) -> None:
    other = TABLE.set_column(0, "id", pa.array([1, 2**63 - 1] * 4, pa.uint64()))
    assert flags(tmp_path, "id = 99", table=other) == "yyyy"


@pytest.mark.parametrize(("day", "expected"), [("2026-11-01", "yyyy"), ("2026-11-02", "nnnn")])
def test_a_partition_key_is_the_same_in_all_row_groups(
    table_url: str, day: str, expected: str
) -> None:
    request = resolve(
        open_snapshot(table_url).schema, slots=["row"], where="dt = '2026-11-01' and row < 64"
    )
    with OpenFile(Path(open_snapshot(table_url).data_files[0].url)) as file:
        parts = [(file, file.resolve(request.selection))]
        found = may_match(parts, request, lambda field: pa.scalar(day, field.type))
    assert "".join("y" if flag else "n" for flag in found) == expected + "n"
