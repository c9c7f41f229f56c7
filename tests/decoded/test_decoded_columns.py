"""Columns come back from an entry's record batches as they were read."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.schema import Slot, SlotKind
from featstore.decoded.decoded_file import (
    decoded_batch,
    decoded_schema,
    no_rows,
    num_bytes_beside,
    piece_of,
)
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader, Rows
from tests.decoded.conftest import listed, selection_of
from tests.loader.conftest import rows_table
from tests.parquet_files import put_parquet

IDS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
FLOATS = st.one_of(st.none(), st.floats(width=32))


def read(path: Path, selection: Selection, row_groups: range) -> Rows:
    with OpenFile(path) as file:
        return RowGroupReader(file, selection, as_values=True).read(row_groups)


@given(
    rows=st.lists(
        st.tuples(
            IDS,
            FLOATS,
            st.one_of(st.none(), st.lists(IDS, max_size=3)),
            st.one_of(st.none(), st.lists(FLOATS, min_size=2, max_size=2)),
        ),
        min_size=1,
        max_size=20,
    ),
    group_rows=st.integers(1, 7),
)
def test_values_are_those_that_the_reader_gives(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], group_rows: int
) -> None:
    types = (pa.int64(), pa.float32(), pa.list_(pa.int64()), pa.list_(pa.float32(), 2))
    turned = zip(*rows, strict=True)
    columns = [pa.array(column, type_) for column, type_ in zip(turned, types, strict=True)]
    table = pa.table(columns, names=["id", "float", "list", "pair"])
    path = put_parquet(tmp_path_factory.mktemp("t") / "a", table, row_group_size=group_rows)
    selection = selection_of(table)
    expected = read(path, selection, range(-(-len(rows) // group_rows)))
    piece = piece_of(decoded_batch(expected, selection), selection, "a")
    assert piece.num_rows == len(rows)
    for slot in selection.slots:
        np.testing.assert_equal(listed(piece.slots[slot.name]), listed(expected.slot(slot)))


def test_other_columns_keep_their_type_and_numbers_are_floats_beside(tmp_path: Path) -> None:
    table = rows_table(0, 40)
    selection = Selection(
        others=tuple(table.schema.field(name) for name in ("click", "ripe", "note"))
    )
    path = put_parquet(tmp_path / "a.parquet", table, row_group_size=16)
    batch = decoded_batch(read(path, selection, range(3)), selection)
    piece = piece_of(batch, selection, "a")
    for field in selection.others:
        assert piece.rows.other(field).combine_chunks() == table[field.name].combine_chunks()
    assert set(piece.numbers) == {"click", "ripe"}
    ripe = [np.nan if value is None else value for value in table["ripe"].to_pylist()]
    np.testing.assert_equal(piece.numbers["ripe"].tolist(), ripe)
    assert batch.schema.names == decoded_schema(selection).names
    assert num_bytes_beside(selection, 40) == 2 * 4 * 40


def test_a_slot_that_a_file_lacks_is_missing_in_each_row(tmp_path: Path) -> None:
    path = put_parquet(tmp_path / "a.parquet", {"row": [1, 2]})
    slots = (
        Slot(name="row", kind=SlotKind.ID),
        Slot(name="late", kind=SlotKind.FLOAT, shape=(2,)),
        Slot(name="more", kind=SlotKind.ID, shape=(None,)),
    )
    selection = Selection(slots=slots)
    piece = piece_of(decoded_batch(read(path, selection, range(1)), selection), selection, "a")
    np.testing.assert_equal(listed(piece.slots["late"]), [[np.nan, np.nan]] * 2)
    assert listed(piece.slots["more"]) == [[0], [0]]


def test_a_piece_without_rows_has_all_columns() -> None:
    selection = selection_of(rows_table(0, 1))
    piece = no_rows(selection)
    assert piece.num_rows == 0
    assert {name: len(values) for name, values in piece.slots.items()} == dict.fromkeys(
        (slot.name for slot in selection.slots), 0
    )
