"""`featstore table show`: one row whole, with the texts of its signs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import featstore
from featstore.base.errors import SelectionError
from featstore.explore.row_view import show_row
from featstore.explore.table import Table, open_table
from featstore.spec.parse import load_spec
from tests.parquet_files import put_parquet


@pytest.fixture
def table(tmp_path: Path) -> Table:
    spec = load_spec(
        {
            "spec": 1,
            "inputs": {"id": "string", "tags": "list<string>", "price": "double", "n": "long"},
            "labels": {"click": "n"},
            "keep": ["id"],
            "slots": [
                {"slot": 101, "name": "tag_ids", "op": "hash", "of": "tags"},
                {"slot": 102, "name": "cost", "op": "identity", "of": "price"},
            ],
        }
    )
    raw = put_parquet(
        tmp_path / "raw.parquet",
        {
            "id": ["r1", "r2", "r3"],
            "tags": [["x", "y"], None, ["x"]],
            "price": [1.5, None, 3.0],
            "n": [1, 0, None],
        },
    )
    featstore.extract(spec, raw, tmp_path / "table", partition={"dt": "2026-11-01"})
    return open_table(tmp_path / "table")


def test_every_column_has_a_line_with_its_text(table: Table) -> None:
    found = show_row(table, "id = 'r1'")
    signs = table.to_arrow(where="id = 'r1'")["tag_ids"].to_pylist()[0]
    assert [" ".join(line.split()) for line in str(found).splitlines()[2:]] == [
        f"101 tag_ids id {signs} x, y",
        "102 cost float 1.5",
        "click label 1",
        "id kept r1",
        "dt partition 2026-11-01",
    ]
    assert found.as_dict()["columns"][0] == {
        "slot": 101,
        "name": "tag_ids",
        "kind": "id",
        "value": signs,
        "texts": ("x", "y"),
    }


def test_floats_have_the_digits_that_were_stored(table: Table) -> None:
    price = show_row(table, "id = 'r3'", slots=["cost"]).columns[0]
    float32, float64 = float(np.float32(46.04)), 46.040000915527001
    shown = [replace(price, value=value).cells[3] for value in (float32, float64, 1e300)]
    assert shown == ["46.04", "46.040000915527", "1e+300"]
    assert replace(price, value=[float32, "a", None]).cells[3] == "[46.04, 'a', None]"


def test_what_is_missing_says_so(table: Table) -> None:
    found = show_row(table, "id = 'r2'")
    assert [column.value for column in found.columns] == [None, None, 0, "r2", "2026-11-01"]
    assert str(found).count("missing") == 2


def test_several_rows_that_match_are_told(table: Table) -> None:
    found = show_row(table, "dt = '2026-11-01'")
    assert found.more
    assert str(found).endswith("(the first of several rows that match)")
    assert found.columns[3].value == "r1"


def test_signs_of_unknown_values_are_marked(table: Table, tmp_path: Path) -> None:
    for path in tmp_path.rglob("*.values"):
        path.unlink()
    assert show_row(table, "id = 'r1'").columns[0].texts == (None, None)


def test_no_row_that_matches_is_an_error(table: Table) -> None:
    with pytest.raises(
        SelectionError, match="no row matches \"id = 'r9'\"; `featstore table show --rows"
    ):
        show_row(table, "id = 'r9'")


def test_only_the_slots_asked_for_are_shown_beside_the_other_columns(table: Table) -> None:
    found = show_row(table, "id = 'r1'", ["tag*"])
    assert [column.name for column in found.columns] == ["tag_ids", "click", "id", "dt"]


def test_a_slot_that_is_not_there_is_named(table: Table) -> None:
    with pytest.raises(SelectionError, match="colour"):
        show_row(table, "id = 'r1'", ["colour"])
