from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import featstore
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.findings import FILLED
from featstore.spec.parse import load_spec
from tests.parquet_files import put_parquet

INPUTS = {
    "user": "string",
    "item": "string",
    "tags": "list<string>",
    "weights": "list<string>",
    "price": "double",
}
ROWS = {
    "user": pa.array(["u", None, b"\xff", None], pa.binary()),
    "item": [None, None, "i", "i"],
    "tags": [["a", None, None], None, [], ["b"]],
    "weights": [["x:1", "y:?"], ["z:2"], [], None],
    "price": [1.0, None, float("nan"), -2.0],
}


def counted(
    *slots: dict[str, Any], cuts: tuple[int, ...] = (4,), **more: Any
) -> dict[str, dict[str, int]]:
    numbered = [
        {"slot": i} | slot if slot.get("store", True) else slot for i, slot in enumerate(slots, 1)
    ]
    extractor = Extractor(load_spec({"spec": 1, "inputs": INPUTS, "slots": numbered} | more))
    rows, first = pa.RecordBatch.from_pydict(ROWS), 0
    for cut in cuts:
        extractor(rows.slice(first, cut))
        first += cut
    return extractor.counts_by_slot


def test_what_a_shared_column_lost_is_told_of_every_slot_that_reads_it_and_of_no_other() -> None:
    found = counted(
        {"name": "a", "op": "hash", "of": "tags"},
        {"name": "b", "op": "hash", "of": "tags", "max_len": 1},
        {"name": "c", "op": "cross", "of": ["user", "tags"]},
        {"name": "d", "op": "hash", "of": "item"},
    )
    assert found == {
        "a": {"null elements": 2},
        "b": {"null elements": 2},
        "c": {"invalid utf-8": 1, "null elements": 2},
        "d": {},
    }


def test_a_shared_default_counts_for_each_slot_and_its_first_owner_s_other_counts_do_not() -> None:
    found = counted(
        {"name": "a", "op": "power", "of": "price", "exponent": 0.5, "default": 0.0},
        {"name": "b", "op": "identity", "of": "price", "default": 0.0},
        {"name": "c", "op": "identity", "of": "price"},
    )
    assert found == {
        "a": {FILLED: 2, "nan": 1, "not finite": 1},
        "b": {FILLED: 2, "nan": 1},
        "c": {"nan": 1},
    }


def test_a_row_counts_once_for_a_slot_however_many_of_its_inputs_were_filled() -> None:
    crossed = {
        "name": "x",
        "op": "cross",
        "of": ["user", "item"],
        "default": {"user": "none", "item": "none"},
    }
    assert counted(crossed)["x"][FILLED] == 3
    assert counted(crossed, cuts=(1, 2, 1))["x"][FILLED] == 3


def test_a_fill_and_an_inner_node_s_default_count_for_the_slot_that_reads_the_node() -> None:
    inner = {
        "name": "root",
        "op": "power",
        "of": "price",
        "exponent": 0.5,
        "fill": -1.0,
        "store": False,
    }
    found = counted(
        inner,
        {"name": "a", "op": "identity", "of": "root"},
        {"name": "b", "op": "hash", "of": "item"},
    )
    assert (found["a"][FILLED], found["b"]) == (3, {})


def test_malformed_weights_and_what_on_error_makes_missing_are_told_of_their_slots() -> None:
    found = counted(
        {"name": "w", "op": "weighted", "of": "weights", "part": "weight", "separator": ":"},
        {"name": "u", "op": "hash", "of": "user"},
        inputs=INPUTS | {"user": {"type": "string", "on_error": "skip"}},
    )
    assert found == {"w": {"malformed weights": 1}, "u": {"invalid utf-8": 1}}


def test_a_profile_tells_default_rates_dropped_nulls_and_text_errors_by_day(tmp_path: Path) -> None:
    slots = [
        {"slot": 1, "name": "user_id", "op": "hash", "of": "user", "default": "nobody"},
        {"slot": 2, "name": "tag_ids", "op": "hash", "of": "tags"},
        {"slot": 3, "name": "cost", "op": "identity", "of": "price", "default": 0.0},
    ]
    spec = load_spec(
        {
            "spec": 1,
            "inputs": INPUTS,
            "slots": slots,
            "output": {"rows_per_row_group": 4, "rows_per_file": 4},
        }
    )
    for day, times in (("1", 1), ("2", 2)):
        put_parquet(
            tmp_path / "raw" / f"dt={day}" / "a.parquet",
            pa.concat_tables([pa.table(ROWS)] * times),
            row_group_size=4,
        )
    url = str(tmp_path / "table")
    featstore.extract(spec, str(tmp_path / "raw"), url, partition_from_path=["dt"])
    table = featstore.open_table(url)
    for where, times in (("dt = '1'", 1), ("dt = '2'", 2), (None, 3)):
        found = table.profile(where, stored=True).table
        assert found["default_rate"].to_pylist() == [0.5, 0.0, 0.5]
        assert found["num_nulls_dropped"].to_pylist() == [0, 2 * times, 0]
        assert found["num_text_errors"].to_pylist() == [times, 0, 0]
    rates = np.array(table.to_arrow(["cost"])["cost"]) == 0
    assert rates.mean() == 0.5
    lines = str(table.profile(stored=True)).splitlines()
    assert lines[1].split("  ")[0] == "slot"
    assert "default  nulls dropped  text errors  collisions" in lines[1]
    assert "nulls dropped" not in str(table.profile())
