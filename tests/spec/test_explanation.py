"""`Extractor.explain`: every value on the way to a sign, which is that of `Extractor.one`."""

import datetime
from typing import Any

import pandas  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import InputError, SelectionError
from featstore.extraction.units.extractor import Extractor
from featstore.spec.parse import load_spec

SPEC = load_spec(
    {
        "spec": 1,
        "inputs": {
            "user": "string",
            "tags": "list<string>",
            "price": "double",
            "at": "timestamp",
            "clicked": "long",
        },
        "labels": {"click": "clicked"},
        "slots": [
            {"slot": 101, "name": "who", "op": "hash", "of": "user"},
            {"slot": 102, "name": "tag_ids", "op": "hash", "of": "tags", "max_len": 2},
            {"slot": 103, "name": "cost", "op": "log1p", "of": "price", "default": 0},
            {"name": "hour", "op": "hour", "of": "at", "tz": "UTC", "store": False},
            {"slot": 104, "name": "who_x_hour", "op": "cross", "of": ["user", "hour"]},
        ],
    }
)
ROW: dict[str, Any] = {
    "user": "ann",
    "tags": ["x", "y", "z"],
    "price": None,
    "at": datetime.datetime(2026, 11, 1, 17, tzinfo=datetime.UTC),
    "clicked": 1,
}


def test_a_slot_is_explained_from_its_raw_columns_to_its_sign() -> None:
    found = Extractor(SPEC).explain(ROW).of("who_x_hour")
    values = {(step.of, step.step): step.value for step in found.steps}
    assert values["user", "raw"] == "ann"
    assert values["hour", "hour"] == 17
    (user,), (hour,) = values["who", "hash_values"], values["who_x_hour", "hash_values"]
    assert values["who_x_hour", "cross"] == (user, hour)
    assert found.steps[-1].value == Extractor(SPEC).one(ROW)["who_x_hour"]
    assert {step.of for step in found.steps} == {"user", "at", "who", "hour", "who_x_hour"}
    assert "2026-11-01T17:00:00+00:00" in str(found)
    last = str(found).splitlines()[-1].split()
    assert last[:3] == ["who_x_hour", "sign,", "stored"]


def test_reads_are_positions_of_earlier_steps() -> None:
    whole = Extractor(SPEC).explain(ROW)
    for found in (whole, *map(whole.of, whole.sources)):
        for i, step in enumerate(found.steps):
            assert all(0 <= read < i for read in step.reads)
            assert (not step.reads) == (step.step == "raw")


@given(
    st.fixed_dictionaries(
        {
            "user": st.none() | st.text(max_size=5),
            "tags": st.none() | st.lists(st.text(max_size=3), max_size=4),
            "price": st.none() | st.floats(0, 1e6),
            "at": st.none() | st.just(ROW["at"]),
            "clicked": st.none() | st.integers(0, 1),
        }
    )
)
def test_stored_values_are_those_of_one(row: dict[str, Any]) -> None:
    extractor = Extractor(SPEC)
    found = extractor.explain(row)
    assert extractor.counts == {}, "nothing is counted"
    stored = {name: found.steps[position].value for name, position in found.outputs.items()}
    assert str(stored) == str(extractor.one(row))


def test_a_missing_value_is_shown_where_it_becomes_one() -> None:
    shown = str(Extractor(SPEC).explain(ROW | {"user": None}).of("who"))
    assert {line.split()[-1] for line in shown.splitlines()[2:]} == {"missing"}
    assert shown.endswith("  0: missing")


def test_each_step_of_a_hash_has_its_name_and_its_meaning() -> None:
    found = Extractor(SPEC).explain(ROW).of("who")
    assert [(step.step, step.meaning) for step in found.steps] == [
        ("raw", ""),
        ("read_column", "the raw value in the declared type"),
        ("clean", "NaN and null elements made missing"),
        ("hash_values", "xxhash64 of each value's text"),
        ("hash", "the hashes, cut to `max_len`"),
        ("sign_column", "sign"),
    ]
    assert [line.split()[:2] for line in str(found).splitlines()[2:]] == [
        ["user", "raw"],
        ["who", "sign,"],
    ]
    frame = found.to_pandas()
    assert frame["stored"].tolist() == [False] * 5 + [True]
    assert frame["value"].iloc[0] == "'ann'"
    assert "<table>" in found._repr_html_()


def test_a_row_of_pandas_is_missing_where_it_is_nan() -> None:
    row: Any = pandas.DataFrame([ROW | {"user": float("nan"), "tags": float("nan")}]).iloc[0]
    found = Extractor(SPEC).explain(row)
    stored = {name: found.steps[position].value for name, position in found.outputs.items()}
    assert stored == Extractor(SPEC).one(ROW | {"user": None, "tags": None})


def test_json_types_hold_all_steps() -> None:
    found = Extractor(SPEC).explain(ROW)
    content = found.as_dict()
    assert len(content["steps"]) == len(found.steps)
    assert content["steps"][0] == {
        "of": "user",
        "step": "raw",
        "reads": (),
        "meaning": "",
        "value": "ann",
        "name": "",
    }


def test_buckets_are_shown_as_their_intervals_and_signs_as_what_they_stand_for() -> None:
    spec = load_spec(
        {
            "spec": 1,
            "inputs": {"user": "string", "price": "double"},
            "slots": [
                {
                    "slot": 1,
                    "name": "bin",
                    "op": "bucketize",
                    "of": "price",
                    "boundaries": [10, 50],
                },
                {"slot": 2, "name": "user_x_bin", "op": "cross", "of": ["user", "bin"]},
            ],
        }
    )
    row = {"user": "ann", "price": 20.0}
    found = Extractor(spec).explain(row)
    names = {(step.of, step.step): step.name for step in found.steps if step.name}
    assert names == {
        ("bin", "bucketize"): "[10, 50)",
        ("bin", "sign_column"): "[10, 50)",
        ("user_x_bin", "sign_column"): "ann & [10, 50)",
    }
    sign = Extractor(spec).one(row)["user_x_bin"]
    lines = [" ".join(line.split()) for line in str(found.of("user_x_bin")).splitlines()]
    assert lines[2:] == [
        "user raw 'ann'",
        "price raw 20.0",
        "bin bucketize price 1: [10, 50)",
        f"user_x_bin sign, stored user, bin {sign}: ann & [10, 50)",
    ]


def test_an_unknown_slot_and_a_row_without_a_column_are_named() -> None:
    extractor = Extractor(SPEC)
    with pytest.raises(SelectionError, match="no slot 'whom'; did you mean 'who'"):
        extractor.explain(ROW).of("whom")
    with pytest.raises(InputError, match="'user'"):
        extractor.explain({key: value for key, value in ROW.items() if key != "user"})


def test_the_sign_of_a_boolean_is_named_as_in_profiles() -> None:
    slots = [{"slot": 1, "name": "f_new", "op": "hash", "of": "new"}]
    spec = load_spec({"spec": 1, "inputs": {"new": "boolean"}, "slots": slots})
    for value, name in ((True, "true"), (False, "false")):
        explained = Extractor(spec).explain({"new": value})
        assert [step.name for step in explained.steps if step.step == "sign_column"] == [name]
