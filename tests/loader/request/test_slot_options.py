from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from featstore.base.errors import ConfigError, SelectionError
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.loader.request.options import requested_slots

SCHEMA = SlotSchema(
    slots=(
        Slot(name="user", kind=SlotKind.ID, number=1),
        Slot(name="price", kind=SlotKind.FLOAT, number=2),
        Slot(name="price_bin", kind=SlotKind.ID, number=3, num_indices=5),
        Slot(name="tags", kind=SlotKind.ID, shape=(None,), number=4),
    ),
    labels=(pa.field("click", pa.int64()),),
    weight=pa.field("dose", pa.float32()),
    kept=(pa.field("note", pa.string()),),
    partition_keys=(pa.field("dt", pa.string()),),
)


def test_options_of_a_slot_apply_where_a_glob_selects_it() -> None:
    for items in (["t*", {"name": "tags", "max_len": 3}], [{"name": "tags", "max_len": 3}, "t*"]):
        (request,) = requested_slots(SCHEMA, items)
        assert (request.slot.name, request.max_len) == ("tags", 3)


def test_a_slot_that_is_selected_twice_is_delivered_once_with_its_options() -> None:
    options = {"name": "tags", "buckets": 100}
    for items in (["tags", options], [options, "tags"], ["t*", options, options]):
        requests = [one for one in requested_slots(SCHEMA, items) if one.slot.name == "tags"]
        assert [one.buckets for one in requests] == [100]
    with pytest.raises(ConfigError, match=r"'tags': expected options once, found .*100.* and .*5"):
        requested_slots(SCHEMA, [options, {"name": "tags", "buckets": 5}])


def test_an_option_is_in_the_key_of_a_request_only_where_it_is_used() -> None:
    plain, padded = (
        requested_slots(SCHEMA, [{"name": "tags", **options}])[0]
        for options in ({}, {"pad": 2, "dtype": "int64"})
    )
    assert plain.key == ["tags", None, None]
    assert padded.key == ["tags", None, None, {"pad": 2}]


def test_the_last_elements_are_kept_where_asked_or_where_the_spec_keeps_them() -> None:
    tail = SlotSchema(slots=(replace(SCHEMA["tags"], truncate="tail"),))
    head = SlotSchema(slots=(replace(SCHEMA["tags"], truncate="head"),))
    cases: list[tuple[SlotSchema, dict[str, Any], dict[str, Any]]] = [
        (SCHEMA, {"max_len": 3}, {}),
        (head, {"max_len": 3}, {}),
        (SCHEMA, {"max_len": 3, "keep": "first"}, {}),
        (tail, {"max_len": 3, "keep": "first"}, {}),
        (tail, {"max_len": 3}, {"keep": "last"}),
        (tail, {}, {}),  # Whole lists: nothing is cut.
        (SCHEMA, {"max_len": 3, "keep": "last"}, {"keep": "last"}),
        (tail, {"pad": 3, "pad_side": "left"}, {"pad": 3, "keep": "last", "pad_side": "left"}),
        (SCHEMA, {"pad": 3, "pad_side": "right"}, {"pad": 3}),
    ]
    for schema, options, later in cases:
        [request] = requested_slots(schema, [{"name": "tags", **options}])
        assert request.key == ["tags", None, options.get("max_len"), *([later] if later else [])]


SHARED = SlotSchema(
    slots=(
        Slot(name="item", kind=SlotKind.ID, number=1),
        Slot(name="clicked", kind=SlotKind.ID, shape=(None,), number=2, share_slot=1),
        Slot(name="bought", kind=SlotKind.ID, shape=(None,), number=3, share_slot=1),
        Slot(name="other", kind=SlotKind.ID, number=4),
    )
)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([{"name": "item", "buckets": 9}, "clicked"], "'item' and 'clicked' .* found 9 and none"),
        (
            [{"name": "bought", "buckets": 9}, {"name": "clicked", "buckets": 8}],
            "'bought' and 'clicked' .* found 9 and 8",
        ),
    ],
)
def test_slots_that_share_signs_have_the_same_buckets(items: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        requested_slots(SHARED, items)
    same = [{"name": name, "buckets": 9} for name in ("item", "clicked", "bought")]
    assert len(requested_slots(SHARED, [*same, {"name": "other", "buckets": 8}])) == 4
    assert len(requested_slots(SHARED, ["*"])) == 4


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        ("usr", SelectionError, "no slot matches 'usr'.*did you mean 'user'"),
        (
            {"name": "usr"},
            SelectionError,
            "no slot 'usr' in the table; did you mean 'user'",
        ),
        ("click", SelectionError, "found a label of the table: name it in `labels`"),
        ({"name": "click", "pad": 3}, SelectionError, "slots: 'click': .* name it in `labels`"),
        ("note", SelectionError, "found a kept column of the table: name it in `extras`"),
        ("dt", SelectionError, "found a partition key of the table: name it in `extras`"),
        ("dose", SelectionError, "found the weight of the table: name it in `weight`"),
        (7, ConfigError, "slots: expected a name or .* found 7"),
        (
            {"name": "user", "bucket": 9},
            ConfigError,
            "unknown key 'bucket'.*did you mean 'buckets'",
        ),
        ({"buckets": 9}, ConfigError, "slots: expected a name in"),
        (
            {"name": "user", "buckets": 1},
            ConfigError,
            "'user': buckets: expected an integer of 2 or more, found 1",
        ),
        (
            {"name": "price", "buckets": 9},
            ConfigError,
            "'price': buckets are for id slots, found a float slot",
        ),
        (
            {"name": "price_bin", "buckets": 9},
            ConfigError,
            "'price_bin': holds indices below 5, not signs",
        ),
        (
            {"name": "user", "max_len": 9},
            ConfigError,
            "'user': max_len is for lists, found shape scalar",
        ),
        (
            {"name": "user", "pad": 9},
            ConfigError,
            "'user': pad is for lists, found shape scalar",
        ),
        (
            {"name": "tags", "pad": 0},
            ConfigError,
            "'tags': pad: expected an integer of 1 or more, found 0",
        ),
        (
            {"name": "tags", "pad": 9, "max_len": 3},
            ConfigError,
            "'tags': expected pad or max_len, found both",
        ),
        (
            {"name": "user", "dtype": "int16"},
            ConfigError,
            "'user': expected dtype int64 or int32 for id slots, found",
        ),
        (
            {"name": "user", "dtype": "int32"},
            ConfigError,
            "dtype int32 is for ids below 2.31, found signs of 63 bits",
        ),
        (
            {"name": "user", "dtype": "int32", "buckets": 2**31 + 1},
            ConfigError,
            "found ids below 2147483649",
        ),
        (
            {"name": "tags", "max_len": 2, "keep": "lst"},
            ConfigError,
            "'tags': keep: expected first or last, found 'lst'; did you mean 'last'",
        ),
        ({"name": "tags", "keep": "last"}, ConfigError, "expected max_len or pad beside keep"),
        (
            {"name": "tags", "max_len": 2, "pad_side": "left"},
            ConfigError,
            "expected pad beside pad_side",
        ),
        (
            {"name": "price", "dtype": "float64"},
            ConfigError,
            "float32 or float16 or bfloat16 .*did you mean 'float16'",
        ),
    ],
)
def test_an_option_that_a_slot_does_not_allow_is_refused(
    item: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        requested_slots(SCHEMA, [item])
