"""What the signs of a slot mean, as far as the spec alone tells it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featstore.extraction.units.extractor import Extractor
from featstore.spec.graph import build_graph
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.spec.value_names import (
    ValueNames,
    ValueText,
    names_of_spec,
    short_sign,
)
from featstore.spec.vocabulary import record_vocabularies

INPUTS = {"ts": "timestamp", "price": "double", "flag": "boolean", "user": "string"}
SLOTS: list[dict[str, Any]] = [
    {"slot": 1, "name": "hour", "op": "hour", "of": "ts"},
    {"slot": 2, "name": "day", "op": "day_of_week", "of": "ts", "fill": -1},
    {"slot": 3, "name": "weekend", "op": "is_weekend", "of": "ts"},
    {"slot": 4, "name": "bucket", "op": "bucketize", "of": "price", "boundaries": [10, 50, 99.5]},
    {
        "slot": 5,
        "name": "bucket_index",
        "op": "bucketize",
        "of": "price",
        "boundaries": [10, 50],
        "encode": "index",
    },
    {"slot": 6, "name": "flag_slot", "op": "hash", "of": "flag"},
    {"slot": 7, "name": "user_slot", "op": "hash", "of": "user"},
    {"slot": 8, "name": "hour_x_flag", "op": "cross", "of": ["hour", "flag"]},
    {"slot": 9, "name": "user_x_hour", "op": "cross", "of": ["user", "hour"]},
    {"slot": 10, "name": "cheap", "op": "compare", "of": "price", "relation": "<", "value": 10.0},
    {"slot": 11, "name": "log_price", "op": "log1p", "of": "price"},
]


def spec_of(*slots: dict[str, Any]) -> Spec:
    return load_spec({"spec": 1, "inputs": INPUTS, "slots": list(slots)})


def extracted(spec: Spec) -> dict[str, list[Any]]:
    rows = {
        "ts": pa.array(
            [1_700_000_000_000_000, 1_700_050_000_000_000, None], pa.timestamp("us", "UTC")
        ),
        "price": pa.array([5.0, 50.0, 1e9]),
        "flag": pa.array([True, False, True]),
        "user": pa.array(["a", "b", "c"]),
    }
    columns: dict[str, list[Any]] = Extractor(spec)(pa.RecordBatch.from_pydict(rows)).to_pydict()
    return columns


def test_values_that_operators_name_are_named_by_the_signs_that_extraction_gives() -> None:
    spec = spec_of(*SLOTS)
    names, columns = names_of_spec(build_graph(spec)), extracted(spec)

    def texts(slot: str) -> list[str]:
        return [names.text(slot, sign) for sign in columns[slot] if sign]

    assert texts("hour") == ["22:00", "12:00"]
    assert texts("day") == ["Tuesday", "Wednesday", "-1"]
    assert texts("weekend") == ["weekday", "weekday"]
    assert texts("bucket") == ["< 10", "[50, 99.5)", ">= 99.5"]
    assert texts("bucket_index") == ["< 10", ">= 50", ">= 50"]
    assert texts("flag_slot") == ["true", "false", "true"]
    assert texts("hour_x_flag") == ["22:00 & true", "12:00 & false"]
    assert texts("cheap") == ["true", "false", "false"]


def test_entries_of_a_vocabulary_are_named_also_in_lists(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("red\ngreen\n")
    words = {"op": "vocabulary", "of": "words", "file": str(tmp_path / "words.txt")}
    spec = record_vocabularies(
        load_spec(
            {
                "spec": 1,
                "inputs": {"words": "list<string>"},
                "slots": [
                    {"slot": 1, "name": "sign", "unknown": "index"} | words,
                    {"slot": 2, "name": "index", "encode": "index"} | words,
                    {"name": "inner", "store": False} | words,
                    {"slot": 3, "name": "last", "op": "take", "of": "inner", "n": 1, "end": "tail"},
                ],
            }
        )
    )
    names = names_of_spec(build_graph(spec))
    batch = pa.RecordBatch.from_pydict({"words": [["green", "blue", "red"]]})
    (row,) = Extractor(spec)(batch).to_pylist()
    assert {name: [names.text(name, sign) for sign in signs] for name, signs in row.items()} == {
        "sign": ["green", "(not in vocabulary)", "red"],
        "index": ["green", "red"],
        "last": ["red"],
    }
    assert not any(map(names.has_order, row))


def test_slots_that_only_rows_can_name_are_left_out() -> None:
    names = names_of_spec(build_graph(spec_of(*SLOTS)))
    assert set(names.by_slot) == {
        *("hour", "day", "weekend", "bucket", "bucket_index", "flag_slot", "hour_x_flag", "cheap")
    }


def test_names_of_some_slots() -> None:
    assert set(names_of_spec(build_graph(spec_of(*SLOTS)), ["day", "log_price"]).by_slot) == {"day"}


def test_a_slot_of_very_many_values_is_left_out() -> None:
    boundaries = [float(i) for i in range(9_999)]
    few = {"slot": 1, "name": "few", "op": "bucketize", "of": "price", "boundaries": boundaries}
    many = few | {"slot": 2, "name": "many", "boundaries": [*boundaries, 9_999.0]}
    names = names_of_spec(build_graph(spec_of(few, many)))
    assert {slot: len(texts) for slot, texts in names.by_slot.items()} == {"few": 10_000}


def test_hours_buckets_and_days_have_an_order_and_crosses_and_booleans_by_value_too() -> None:
    names = names_of_spec(build_graph(spec_of(*SLOTS)))
    assert [slot for slot in names.by_slot if not names.has_order(slot)] == ["hour_x_flag"]
    hours = names.by_slot["hour"]
    ordered = names.in_order("hour", sorted(hours))
    assert [names.text("hour", sign) for sign in ordered] == [f"{h:02}:00" for h in range(24)]


def test_unknown_values_come_last_in_a_slots_order() -> None:
    names = ValueNames(
        by_slot={"s": {3: ValueText(text="b", rank=1), 9: ValueText(text="a", rank=0)}}
    )
    assert names.in_order("s", [5, 3, 9]) == [9, 3, 5]
    assert names.in_order("other", [5, 3, 9]) == [5, 3, 9]


@pytest.mark.parametrize(
    ("boundaries", "shown"),
    [
        ([0.1], ["< 0.1", ">= 0.1"]),
        ([0.1 + 0.2, 2.0], ["< 0.3", "[0.3, 2)", ">= 2"]),
        ([1.0000001, 1.0000002], ["< 1.0000001", "[1.0000001, 1.0000002)", ">= 1.0000002"]),
        ([1_000_000.0, 2.5e20], ["< 1000000", "[1000000, 2.5e+20)", ">= 2.5e+20"]),
    ],
)
def test_intervals_show_as_many_digits_as_they_need(
    boundaries: list[float], shown: list[str]
) -> None:
    slot = {"slot": 1, "name": "s", "op": "bucketize", "of": "price", "boundaries": boundaries}
    names = names_of_spec(build_graph(spec_of(slot))).by_slot["s"]
    assert [value.text for value in names.values()] == shown


def test_what_is_not_known_is_shown_as_its_sign_short() -> None:
    assert ValueNames().text("slot", 4_020_641_234_567_890_123) == "402064…"
    assert ValueNames().text("slot", 17) == "17"
    assert short_sign(1_234_567) == "1234567"


def test_names_over_others_win() -> None:
    above = ValueNames(by_slot={"s": {1: ValueText(text="new")}})
    below = ValueNames(by_slot={"s": {1: ValueText(text="old"), 2: ValueText(text="two")}, "t": {}})
    both = above.over(below)
    assert (both.text("s", 1), both.text("s", 2), set(both.by_slot)) == ("new", "two", {"s", "t"})


def _named(texts: dict[int, ValueText]) -> ValueNames:
    return ValueNames(by_slot={"slot": texts})


def test_signs_of_an_ordered_slot_are_in_its_order() -> None:
    hours = {900 - h: ValueText(text=f"{h:02}:00", rank=h) for h in range(24)}
    signs = sorted(hours)
    assert _named(hours).own_order("slot", signs) == signs[::-1]


def test_signs_that_mean_numbers_are_in_the_order_of_the_numbers() -> None:
    texts = {7: ValueText(text="10"), 8: ValueText(text="-2.5"), 9: ValueText(text="9")}
    assert _named(texts).own_order("slot", [7, 8, 9]) == [8, 9, 7]


@pytest.mark.parametrize(
    "texts",
    [
        {7: ValueText(text="10"), 8: ValueText(text="ten")},
        {7: ValueText(text="10")},
        {7: ValueText(text="1", rank=1)},
        {},
    ],
)
def test_other_slots_have_no_order_nor_have_those_with_unknown_signs(
    texts: dict[int, ValueText],
) -> None:
    assert _named(texts).own_order("slot", [7, 8]) is None
