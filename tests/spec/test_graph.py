import datetime
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from featstore.base.errors import SpecError
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.extraction.units.extractor import Extractor
from featstore.spec.graph import Graph, build_graph
from featstore.spec.meaning import semantic_hashes
from featstore.spec.parse import load_spec

INPUTS = {
    "user_id": "string",
    "tags": "list<string>",
    "scores": "list<double>",
    "price": "double",
    "ts": "timestamp",
    "clicked": "long",
    "flag": "boolean",
    "request_id": "string",
    "prices": "map<string, double>",
    "nested": "map<string, map<string, long>>",
}
USER = {"slot": 1, "name": "user", "op": "hash", "of": "user_id"}


def graph(*slots: dict[str, Any], **changes: Any) -> Graph:
    return build_graph(load_spec({"spec": 1, "inputs": INPUTS, "slots": list(slots), **changes}))


def node(**changes: Any) -> dict[str, Any]:
    return {"slot": 2, "name": "x", "op": "hash", "of": "user_id"} | changes


def inner(**changes: Any) -> dict[str, Any]:
    return {"name": "inner", "op": "hash", "of": "user_id", "store": False} | changes


def test_slots_have_number_kind_shape_and_operator_in_declared_order() -> None:
    schema = graph(
        USER,
        node(slot=5, name="tag", of="tags", max_len=20, truncate="tail"),
        node(slot=4, name="log_price", op="log1p", of="price"),
        node(slot=3, name="scores", op="identity", of="scores"),
        node(slot=2, name="bin", op="bucketize", of="price", boundaries=[1, 2], encode="index"),
        inner(name="hour", op="hour", of="ts"),
        node(slot=6, name="crossed", op="cross", of=["user", "hour"]),
        node(slot=7, name="crossed_tags", op="cross", of=["tag", "crossed"]),
    ).schema
    assert tuple(replace(one, op_path=None, meaning=None, truncate=None) for one in schema) == (
        Slot(name="user", kind=SlotKind.ID, number=1, op="hash(user_id)"),
        Slot(
            name="tag",
            kind=SlotKind.ID,
            shape=(None,),
            number=5,
            op="hash(tags, max_len=20, truncate=tail)",
        ),
        Slot(name="log_price", kind=SlotKind.FLOAT, number=4, op="log1p(price)"),
        Slot(name="scores", kind=SlotKind.FLOAT, shape=(None,), number=3, op="identity(scores)"),
        Slot(name="bin", kind=SlotKind.ID, number=2, op="bucketize(price)", num_indices=4),
        Slot(name="crossed", kind=SlotKind.ID, number=6, op="cross(user, hour)"),
        Slot(
            name="crossed_tags", kind=SlotKind.ID, shape=(None,), number=7, op="cross(tag, crossed)"
        ),
    )


def test_slots_say_what_they_are_made_of_and_what_they_mean() -> None:
    slots = [
        USER,
        inner(name="hour", op="hour", of="ts"),
        node(slot=6, name="crossed", op="cross", of=["user", "hour"]),
    ]
    crossed = graph(*slots).schema["crossed"]
    spec = load_spec({"spec": 1, "inputs": INPUTS, "slots": slots})
    assert crossed.op_path == "cross(hash(user_id), hour(ts))"
    assert crossed.meaning == semantic_hashes(spec)["crossed"][:16]
    assert Slot.from_field(crossed.to_field()) == crossed


@pytest.mark.parametrize(
    ("params", "sequence", "expected"),
    [
        ({}, {}, None),
        ({"max_len": 3}, {}, "head"),
        ({"max_len": 3, "truncate": "tail"}, {}, "tail"),
        ({}, {"max_len": 3, "truncate": "tail"}, "tail"),
        ({}, {"max_len": 3}, "head"),
        ({}, {"truncate": "tail"}, None),
        ({"max_len": 1}, {"max_len": 3, "truncate": "tail"}, "head"),
    ],
)
def test_a_list_slot_says_which_end_its_spec_keeps(
    params: dict[str, Any], sequence: dict[str, Any], expected: str | None
) -> None:
    document = {
        "spec": 1,
        "inputs": {"user": "string", "seen": "list<string>", "at": "list<long>"},
        "sequences": {"history": {"of": ["seen", "at"], **sequence}},
        "slots": [
            {"slot": 1, "name": "seen_id", "op": "hash", "of": "seen", **params},
            {"slot": 2, "name": "user_x_seen", "op": "cross", "of": ["user", "seen_id"]},
            {"slot": 3, "name": "user_id", "op": "hash", "of": "user"},
            {"slot": 4, "name": "at_id", "op": "hash", "of": "at"},
        ],
    }
    schema = build_graph(load_spec(document)).schema
    assert [schema[name].truncate for name in ("seen_id", "user_x_seen", "user_id")] == [
        expected,
        expected,
        None,
    ]
    fields = [SlotSchema.from_arrow(schema.to_arrow())[name] for name in schema.names]
    assert fields == list(schema.slots)
    assert (b"featstore.truncate" in schema["seen_id"].to_field().metadata) is bool(expected)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({"op": "hash", "of": "seen"}, "history"),
        ({"op": "hash", "of": "seen", "max_len": 3}, "history[:3]"),
        ({"op": "hash", "of": "latest", "max_len": 3}, "history[-5:][:3]"),
        ({"op": "identity", "of": "numbers", "max_len": 3, "truncate": "tail"}, "history[-3:]"),
        ({"op": "take", "of": "numbers", "n": 3}, "history[:3]"),
        ({"op": "slice", "of": "numbers", "start": 1, "stop": -1}, "history[1:-1]"),
        ({"op": "slice", "of": "numbers", "stop": 0}, "history[:0]"),
        ({"op": "slice", "of": "numbers"}, "history"),
        ({"op": "time_since", "of": ["ts", "at"], "unit": "hour"}, "history"),
        ({"op": "cross", "of": ["user", "seen"]}, "history"),
        ({"op": "cross", "of": ["user", "seen"], "max_cross": 4}, "history[:4]"),
        ({"op": "cross", "of": ["numbers", "seen"]}, None),  # an id for each pair
        ({"op": "distinct", "of": "seen"}, None),
        ({"op": "combine", "of": "numbers", "by": "sum"}, None),
        ({"op": "hash", "of": "tags"}, None),
        ({"op": "hash", "of": "user"}, None),
    ],
)
def test_a_list_slot_says_of_which_events_it_has_an_element_each(
    node: dict[str, Any], expected: str | None
) -> None:
    document = {
        "spec": 1,
        "inputs": {
            "user": "string",
            "ts": "timestamp",
            "seen": "list<string>",
            "at": "list<timestamp>",
            "numbers": "list<long>",
            "tags": "list<string>",
        },
        "sequences": {"history": {"of": ["seen", "at", "numbers"], "max_len": 9}},
        "slots": [
            {"name": "latest", "op": "take", "of": "seen", "n": 5, "end": "tail", "store": False},
            {"slot": 1, "name": "f", **node},
        ],
    }
    [slot] = build_graph(load_spec(document)).schema
    assert slot.sequence == expected
    assert Slot.from_field(slot.to_field()) == slot


def test_labels_weight_and_kept_columns_have_their_input_types() -> None:
    labels = {"click": "clicked", "paid": "price", "late": "bin"}
    bins = inner(name="bin", op="bucketize", of="price", boundaries=[1])
    schema = graph(USER, bins, labels=labels, weight="price", keep=["request_id", "tags"]).schema
    assert {label.name: label.type for label in schema.labels} == {
        "click": pa.int64(),
        "paid": pa.float64(),
        "late": pa.int64(),
    }
    assert schema.weight is not None
    assert (schema.weight.name, schema.weight.type) == ("price", pa.float64())
    assert [(column.name, column.type) for column in schema.kept] == [
        ("request_id", pa.string()),
        ("tags", pa.list_(pa.string())),
    ]


def test_only_the_columns_that_are_read_are_asked_for() -> None:
    built = graph(
        USER,
        node(name="hour", op="hour", of="ts"),
        labels={"click": "clicked"},
        keep=["request_id"],
    )
    assert list(built.columns) == ["user_id", "ts", "clicked", "request_id"]
    assert built.required == {"user_id", "ts"}


def test_a_column_is_hashed_once_however_many_slots_use_it() -> None:
    crosses = [
        node(slot=10 + i, name=f"x{i}", op="cross", of=["user_id", name])
        for i, name in enumerate(["tags", "flag"])
    ]
    built = graph(USER, *crosses)
    assert [step.function.__name__ for step in built.steps].count("hash_values") == 3


def test_a_default_is_another_value_and_hashed_apart() -> None:
    built = graph(USER, node(default="none"), node(slot=3, name="y", default="other"))
    assert [step.function.__name__ for step in built.steps].count("hash_values") == 3


def test_nodes_may_be_declared_after_those_that_read_them() -> None:
    built = graph(node(op="cross", of=["user_id", "inner"]), inner(op="hour", of="ts"))
    assert built.schema.names == ("x",)


def test_a_node_named_like_its_own_input_reads_the_input() -> None:
    built = graph(node(name="tags", of="tags"), node(slot=3, name="price", op="log1p", of="price"))
    assert built.schema.names == ("tags", "price")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"op": "hsh"},
            r"^slots\[1\].op: expected one of hash, cross, .*, found 'hsh'; did you mean 'hash'",
        ),
        (
            {"of": "user_idd"},
            r"^slots\[1\].of: expected an input column or a node, found 'user_idd'; did you mean "
            r"'user_id'",
        ),
        ({"of": "x"}, r"^slots\[1\].of: expected an input column or a node, found 'x'"),
        (
            {"op": "cross", "of": ["user_id", "tag"]},
            r"^slots\[1\].of\[1\]: expected an input .*, found 'tag'; did you mean 'tags'",
        ),
        (
            {"of": ["user_id", "tags"]},
            r"^slots\[1\].of: expected 1 name for hash, found \['user_id', 'tags'\]$",
        ),
        (
            {"op": "cross"},
            r"^slots\[1\].of: expected 2 or more names for cross, found \['user_id'\]$",
        ),
        (
            {"of": "price"},
            r"^slots\[1\].of: expected string, long, .*bucketize them first\), found 'price', a "
            r"double$",
        ),
        ({"of": "scores"}, r"^slots\[1\].of: expected string, .* found 'scores', a list<double>$"),
        (
            {"op": "log1p"},
            r"^slots\[1\].of: expected double, long or boolean for log1p, found 'user_id', a "
            r"string$",
        ),
        (
            {"op": "log1p", "of": "scores"},
            r"^slots\[1\].of: expected double, .*, found 'scores', a list<double>$",
        ),
        (
            {"op": "log1p", "of": "user"},
            r"^slots\[1\].of: expected double, .*, found 'user', a value hash$",
        ),
        (
            {"op": "identity"},
            r"^slots\[1\].of: expected double, long or boolean, or a list of these for identity, "
            r"found",
        ),
        (
            {"op": "identity", "of": "tags"},
            r"^slots\[1\].of: expected double, .*, found 'tags', a list<string>$",
        ),
        (
            {"op": "hour"},
            r"^slots\[1\].of: expected timestamp for hour, found 'user_id', a string$",
        ),
        (
            {"max_lem": 3},
            r"^slots\[1\].max_lem: expected a param of hash \(max_len, truncate\) .*; did you mean "
            r"'max_len'",
        ),
        (
            {"op": "log1p", "of": "price", "base": 2},
            r"^slots\[1\].base: expected a param of log1p \(it has none\)",
        ),
        (
            {"max_len": 0, "of": "tags"},
            r"^slots\[1\].max_len: expected an integer, 1 to 2147483647, found 0$",
        ),
        ({"max_len": 5}, r"^slots\[1\]: hash `max_len` is for lists$"),
        (
            {"op": "identity", "of": "price", "max_len": 5},
            r"^slots\[1\]: identity `max_len` is for lists$",
        ),
        (
            {"op": "cross", "of": ["user_id", "flag"], "max_cross": 5},
            r"^slots\[1\]: cross `max_cross` is for crosses with a list$",
        ),
        (
            {"truncate": "middle", "of": "tags"},
            r"^slots\[1\].truncate: expected head or tail, found 'middle'$",
        ),
        (
            {"op": "bucketize", "of": "price"},
            r"^slots\[1\]: expected `boundaries` for bucketize \(strictly .*\), found none$",
        ),
        (
            {"op": "hour", "of": "ts", "tz": "Mars"},
            r"^slots\[1\].tz: expected an IANA time zone, .*, found 'Mars'$",
        ),
        ({"op": "hour", "of": "ts", "tz": 1}, r"^slots\[1\].tz: expected an IANA time zone"),
        ({"op": "clip", "of": "price"}, r"^slots\[1\]: clip needs `min`, `max` or both$"),
        (
            {"op": "clip", "of": "price", "min": 2, "max": 1},
            r"^slots\[1\]: clip `min` 2.0 is above `max` 1.0$",
        ),
        (
            {"op": "clip", "of": "price", "min": "0"},
            r"^slots\[1\].min: expected a finite number, found '0'$",
        ),
        (
            {"op": "clip", "of": "price", "min": float("nan")},
            r"^slots\[1\].min: expected a finite number, found nan$",
        ),
        ({"default": 3}, r"^slots\[1\].default: expected a string, found 3$"),
        ({"of": "clicked", "default": 1.5}, r"^slots\[1\].default: expected a long, found 1.5$"),
        (
            {"of": "clicked", "default": 2**63},
            r"^slots\[1\].default: expected a long, found 9223372036854775808$",
        ),
        ({"of": "flag", "default": 1}, r"^slots\[1\].default: expected a boolean, found 1$"),
        (
            {"of": "tags", "default": "x"},
            r"^slots\[1\].default: expected a list<string>, found 'x'$",
        ),
        (
            {"of": "ts", "default": "2013"},
            r"^slots\[1\].default: expected a timestamp, found '2013'$",
        ),
        (
            {"op": "log1p", "of": "price", "default": True},
            r"^slots\[1\].default: expected a double, found True$",
        ),
        (
            {"op": "cross", "of": ["user_id", "flag"], "default": "x"},
            r"^slots\[1\].default: expected a mapping of names",
        ),
        (
            {"op": "cross", "of": ["user_id", "flag"], "default": {"user": "x"}},
            r"^slots\[1\].default.user: expected a name in `of` \(user_id, flag\), found 'user'; "
            r"did you mean 'user_id'",
        ),
        (
            {"of": "user", "default": "x"},
            r"^slots\[1\].default: expected a default at the node that is read",
        ),
        ({"fill": "x"}, r"^slots\[1\].fill: expected `default` with hash, .*, found `fill`$"),
        (
            {"op": "log1p", "of": "price", "fill": "x"},
            r"^slots\[1\].fill: expected a double, found 'x'$",
        ),
        (
            {"of": "clicked", "empty_as_null": True},
            r"^slots\[1\].empty_as_null: expected a string input, found a long$",
        ),
        (
            {"encode": "index"},
            r"^slots\[1\].encode: expected sign: hash has no fixed number of values, found 'index'$",
        ),
        (
            {"op": "bucketize", "of": "price", "boundaries": [1], "encode": "index", "fill": 0},
            r"^slots\[1\].encode: expected a stored slot without `fill` for index",
        ),
        (
            {"slot": 1},
            r"^slots\[1\].slot: expected a unique number, found 1, which is that of slots\[0\] "
            r"\('user'\)$",
        ),
        (
            {"slot": 202},
            r"^slots\[1\].slot: expected a number that was never used before, found 202, which is "
            r"in `retired`$",
        ),
        (
            {"name": "user"},
            r"^slots\[1\].name: expected a unique name, not that of slots\[0\], found 'user'$",
        ),
        (
            {"name": "User"},
            r"^slots\[1\].name: expected a unique column name, not that of slots\[0\].name, "
            r"found 'User'$",
        ),
        (
            {"name": "request_id"},
            r"^keep\[0\]: expected a unique column name, not that of slots\[1\].name, found",
        ),
        (
            {"name": "click"},
            r"^labels.click: expected a unique column name, not that of slots\[1\].name, found "
            r"'click'$",
        ),
        (
            {"name": "price"},
            r"^weight: expected a unique column name, not that of slots\[1\].name, found "
            r"'price'$",
        ),
    ],
)
def test_what_is_wrong_in_a_node_is_named_by_its_path(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        graph(
            USER,
            node(**changes),
            labels={"click": "clicked"},
            weight="price",
            keep=["request_id"],
            retired=[202],
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"op": "hash", "of": "prices"},
            r"^slots\[1\].of: expected string, .*found 'prices', a map<string, double>$",
        ),
        (
            {"op": "lookup", "of": ["tags", "user_id"]},
            r"^slots\[1\].of: expected a map<string, long, double or string> and its",
        ),
        (
            {"op": "lookup", "of": ["nested", "user_id"]},
            r"^slots\[1\].of: expected a map<string, long, double or string> and its",
        ),
        (
            {"op": "lookup", "of": ["prices", "price"]},
            r"^slots\[1\].of: expected a map and a key \(string or long, or a list",
        ),
        (
            {"op": "lookup", "of": ["prices", "user_id"], "combiner": "sum"},
            r"^slots\[1\]: lookup `combiner` is for a list of",
        ),
        (
            {"op": "lookup", "of": ["prices", "tags"], "combiner": "avg"},
            r"^slots\[1\].combiner: expected one of mean, sum, max",
        ),
        (
            {"op": "match", "of": ["prices", "user_id", "user_id"]},
            r"^slots\[1\].of: expected a map<string, map<string, ...>> and",
        ),
        (
            {"op": "match", "of": ["nested", "user_id", "tags"]},
            r"^slots\[1\].of: expected a map of maps and two keys",
        ),
        (
            {"op": "match", "of": ["nested", "user_id"]},
            r"^slots\[1\].of: expected 3 names for match",
        ),
        (
            {"op": "combine", "of": "tags", "by": "sum"},
            r"^slots\[1\].of: expected list<double>, list<long> or list<boolean>",
        ),
        (
            {"op": "combine", "of": "scores"},
            r"^slots\[1\]: expected `by` for combine \(one of mean, sum, max, min\), found none$",
        ),
        (
            {"op": "length", "of": "price"},
            r"^slots\[1\].of: expected a list or string for length, found 'price', a double$",
        ),
        (
            {"op": "take", "of": "price", "n": 1},
            r"^slots\[1\].of: expected a list for take, found 'price', a double$",
        ),
        (
            {"op": "take", "of": "tags", "n": 0},
            r"^slots\[1\].n: expected an integer, 1 to 2147483647, found 0$",
        ),
        (
            {"op": "take", "of": "tags", "n": 1, "end": "last"},
            r"^slots\[1\].end: expected one of head, tail, found 'last'$",
        ),
        (
            {"op": "time_since", "of": ["ts", "price"], "unit": "day"},
            r"^slots\[1\].of: expected a timestamp, then a timestamp or",
        ),
        (
            {"op": "time_since", "of": ["ts", "ts"], "unit": "month"},
            r"^slots\[1\].unit: expected one of second, minute, hour,",
        ),
        ({"op": "fill", "of": "price"}, r"^slots\[1\]: fill needs `value`, or several inputs$"),
        (
            {"op": "fill", "of": "price", "value": "x"},
            r"^slots\[1\]: fill expected `value` in the type of the input \(double\), fo",
        ),
        (
            {"op": "fill", "of": "price", "value": {"a": 1}},
            r"^slots\[1\].value: expected a constant: text, finite number, boolean, time",
        ),
        (
            {"op": "fill", "of": ["price", "user_id"]},
            r"^slots\[1\].of: expected values of one type \(no maps, no value hashes\)",
        ),
        (
            {"op": "fill", "of": "user", "value": 1},
            r"^slots\[1\].of: expected values of one type \(no maps, no value hashes\)",
        ),
        (
            {"op": "where", "of": ["price", "price"]},
            r"^slots\[1\].of: expected boolean, then the values for where",
        ),
        (
            {"op": "where", "of": ["flag", "price", "price"], "then": 1},
            r"^slots\[1\]: where needs a condition, and values for `then` and",
        ),
        (
            {"op": "where", "of": ["flag", "price", "clicked"]},
            r"^slots\[1\].of: expected values of one type",
        ),
        (
            {"op": "where", "of": ["flag", "price"], "otherwise": "x"},
            r"^slots\[1\]: where expected `otherwise` in the type of the",
        ),
        (
            {"op": "compare", "of": "price", "relation": "<"},
            r"^slots\[1\]: compare needs either a second input or `value`$",
        ),
        (
            {"op": "compare", "of": "price", "relation": "~", "value": 1},
            r"^slots\[1\].relation: expected one of ==, !=, <, <=, >",
        ),
        (
            {"op": "compare", "of": "flag", "relation": "<", "value": True},
            r"^slots\[1\]: compare of booleans allows only the relations ==",
        ),
        (
            {"op": "compare", "of": ["price", "user_id"], "relation": "<"},
            r"^slots\[1\].of: expected two values of one type, or",
        ),
        (
            {"op": "compare", "of": "tags", "relation": "==", "value": 1},
            r"^slots\[1\].of: expected values other than lists, maps",
        ),
        (
            {"op": "compare", "relation": "==", "value": 1},
            r"^slots\[1\]: compare expected `value` in the type of the input \(string",
        ),
        (
            {"op": "ratio", "of": ["price", "user_id"]},
            r"^slots\[1\].of: expected two numbers \(double, long or boolean\) for ratio",
        ),
        (
            {"op": "power", "of": "price"},
            r"^slots\[1\]: expected `exponent` for power \(a finite number\), found none$",
        ),
        (
            {"op": "distinct", "of": "price"},
            r"^slots\[1\].of: expected a list of values for distinct, found 'price', a double$",
        ),
        (
            {"op": "slice", "of": "price"},
            r"^slots\[1\].of: expected a list or string for slice, found 'price', a double$",
        ),
        (
            {"op": "slice", "of": "tags", "start": 0.5},
            r"^slots\[1\].start: expected an integer of 32 bits, found 0.5$",
        ),
        (
            {"op": "split", "of": "tags", "separator": ","},
            r"^slots\[1\].of: expected string for split, found 'tags', a list<str",
        ),
        (
            {"op": "split", "separator": ""},
            r"^slots\[1\].separator: expected a text that is not empty, found ''$",
        ),
        (
            {"op": "tokenize", "of": "price", "by": "word"},
            r"^slots\[1\].of: expected string for tokenize, found 'price', a doub",
        ),
        (
            {"op": "lower", "of": "price"},
            r"^slots\[1\].of: expected string or list<string> for lower, found 'price', a double$",
        ),
        (
            {"op": "weighted", "part": "value"},
            r"^slots\[1\].of: expected list<string> for weighted, found 'user_id', a string$",
        ),
        (
            {"op": "overlap", "of": ["tags", "scores"], "measure": "count"},
            r"^slots\[1\].of: expected two lists of one type",
        ),
        (
            {"op": "overlap", "of": ["scores", "scores"], "measure": "count"},
            r"^slots\[1\].of: expected two lists of one type",
        ),
        (
            {"op": "is_weekend"},
            r"^slots\[1\].of: expected timestamp for is_weekend, found 'user_id', a string$",
        ),
    ],
)
def test_what_is_wrong_in_an_operators_inputs_and_params_is_named_by_its_path(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        graph(USER, node(**changes))


@pytest.mark.parametrize(
    "value", [[], [1, 1], [2, 1], [float("nan")], [float("inf")], ["1"], [True], 3]
)
def test_boundaries_must_increase_and_be_finite(value: object) -> None:
    with pytest.raises(
        SpecError,
        match=r"^slots\[0\].boundaries: expected strictly increasing finite numbers, found",
    ):
        graph(node(op="bucketize", of="price", boundaries=value))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"labels": {"click": "clickd"}},
            r"^labels.click: expected an input column or a node, found 'clickd'; did you mean "
            r"'clicked'",
        ),
        (
            {"labels": {"click": "request_id"}},
            r"^labels.click: expected a double, long or boolean, found 'request_id', a string$",
        ),
        (
            {"labels": {"click": "scores"}},
            r"^labels.click: expected a double, .*, found 'scores', a list<double>$",
        ),
        (
            {"labels": {"click": "user"}},
            r"^labels.click: expected a double, .*, found 'user', a value hash$",
        ),
        (
            {"weight": "prise"},
            r"^weight: expected an input column or a node, found 'prise'; did you mean 'price'",
        ),
        (
            {"weight": "ts"},
            r"^weight: expected a double, long or boolean, found 'ts', a timestamp$",
        ),
        (
            {"keep": ["request"]},
            r"^keep\[0\]: expected an input column, found 'request'; did you mean 'request_id'",
        ),
    ],
)
def test_what_is_wrong_in_labels_weight_and_kept_columns_is_named(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        graph(USER, **changes)


def test_a_cycle_is_refused_and_shown() -> None:
    first, second = (
        inner(name="a", op="cross", of=["b", "user_id"]),
        inner(name="b", op="cross", of=["a", "user_id"]),
    )
    with pytest.raises(
        SpecError,
        match=r"^slots\[[01]\].of: expected no cycle, found '[ab]' reads '[ab]' reads '[ab]'$",
    ):
        graph(first, second, USER)


def test_a_node_may_not_shadow_an_input_that_another_node_reads() -> None:
    shadow = node(name="price", op="log1p", of="price")
    reader = node(slot=3, name="bin", op="bucketize", of="price", boundaries=[1])
    message = (
        r"^slots\[2\].of: expected one meaning of 'price' \(an input and the node of slots\[1\]: "
        r"rename that node, which changes none of its values\)"
    )
    with pytest.raises(SpecError, match=message):
        graph(USER, shadow, reader)


@pytest.mark.parametrize(
    "changes",
    [{"max_len": 2}, {"default": ["a"]}, {"fill": ["a"]}, {"op": "distinct"}, {"of": "user_id"}],
)
def test_a_node_that_is_more_than_the_hash_of_its_input_shadows_it(changes: dict[str, Any]) -> None:
    shadow = node(name="tags", of="tags") | changes
    with pytest.raises(SpecError, match=r"expected one meaning of 'tags'"):
        graph(shadow, node(slot=3, name="crossed", op="cross", of=["tags", "flag"]))


def test_the_hash_of_an_input_may_have_its_name_and_both_be_read() -> None:
    rows = pa.record_batch(
        {"tags": [["a", None, "b"], [], None, ["a"]], "flag": [True, False, True, None]}
    )
    one, other = (
        Extractor(load_spec({"spec": 1, "inputs": INPUTS, "slots": slots}))
        for slots in (
            [
                node(name=name, of="tags"),
                node(slot=3, name="crossed", op="cross", of=[name, "flag"]),
            ]
            for name in ("tags", "hashed")
        )
    )
    assert one(rows)["crossed"].equals(other(rows)["crossed"])
    assert one(rows)["crossed"].null_count < 4
    # The values are hashed once, and `values: none` speaks of them by either name.
    assert len(one.graph.steps) == len(other.graph.steps)


def test_a_spec_without_slots_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"^slots: expected at least one slot with a number, found none$"
    ):
        graph(inner())


def test_an_inner_node_has_no_index() -> None:
    with pytest.raises(SpecError, match=r"^slots\[1\].encode: expected a stored slot"):
        graph(USER, inner(op="bucketize", of="price", boundaries=[1], encode="index"))


def test_a_timestamp_default_without_zone_is_utc() -> None:
    steps = graph(node(op="hour", of="ts", default=datetime.datetime(2013, 1, 1, 5))).steps
    value: Any = next(step.params["value"] for step in steps if "value" in step.params)
    assert value.as_py() == datetime.datetime(2013, 1, 1, 5, tzinfo=datetime.UTC)


SEQUENCE = {"clicks": {"of": ["tags", "scores"]}}


def test_the_columns_of_a_sequence_are_aligned_once_and_all_are_read() -> None:
    built = graph(
        node(of="tags"), node(slot=3, name="y", op="length", of="tags"), sequences=SEQUENCE
    )
    assert list(built.columns) == ["tags", "scores"]
    assert built.required == {"tags", "scores"}
    assert [step.function.__name__ for step in built.steps].count("align") == 1


def test_a_sequence_that_no_node_reads_asks_for_no_column() -> None:
    assert list(graph(USER, sequences=SEQUENCE).columns) == ["user_id"]


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (["tags"], r"^sequences.clicks.of: expected two or more list columns, found \['tags'\]$"),
        (
            ["tags", "tgs"],
            r"^sequences.clicks.of\[1\]: expected an input column, found 'tgs'; did you mean 'tags'",
        ),
        (
            ["tags", "price"],
            r"^sequences.clicks.of\[1\]: expected a list, found 'price', a double$",
        ),
        (
            ["tags", "tags"],
            r"^sequences.clicks.of\[1\]: expected a column that nothing else uses, not that of sequences.clicks.of\[0\]",
        ),
    ],
)
def test_what_is_wrong_in_a_sequence_is_named_by_its_path(of: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        graph(USER, sequences={"clicks": {"of": of}})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("usr", r"expected an input that a slot, label or kept column reads, found 'usr'; did"),
        ("user", r", found 'user'; did you mean 'user_id'"),
        ("flag", r" reads, found 'flag'"),
        ("tags", r"expected a string, long, boolean or timestamp, found 'tags', a list<string>$"),
        ("price", r", found 'price', a double$"),
        ("prices", r", found 'prices', a map<string, double>$"),
    ],
)
def test_rows_are_clustered_by_an_input_that_is_read_and_has_a_sign(
    name: str, message: str
) -> None:
    kept = ["user_id", "tags", "price", "prices"]
    with pytest.raises(SpecError, match="^output.cluster_by: .*" + message):
        graph(USER, keep=kept, output={"cluster_by": name})
    by_user = graph(USER, output={"cluster_by": "user_id"})
    assert list(by_user.columns) == ["user_id"]


def test_empty_text_is_made_missing_in_a_whole_sequence_or_not_at_all() -> None:
    with pytest.raises(
        SpecError,
        match=r"^slots\[0\].empty_as_null: expected it at sequences.clicks.empty_as_null, for all",
    ):
        graph(node(of="tags", empty_as_null=True), sequences=SEQUENCE)


def test_a_slot_that_shares_anothers_number_keeps_its_own_in_the_schema() -> None:
    schema = graph(USER, node(of="tags", share_slot=1)).schema
    assert (schema["x"].number, schema["x"].share_slot) == (2, 1)
    assert Slot.from_field(schema["x"].to_field()) == schema["x"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"share_slot": 9},
            r"^slots\[1\].share_slot: expected the number of another slot .*, found 9$",
        ),
        (
            {"share_slot": 2},
            r"^slots\[1\].share_slot: expected the number of another slot .*, found 2$",
        ),
        (
            {"share_slot": 3},
            r"^slots\[1\].share_slot: expected the number of another slot that does not share one itself, found 3$",
        ),
        (
            {"share_slot": 4},
            r"^slots\[1\].share_slot: expected two stored slots that hold signs, found 4, of which 'w' holds none$",
        ),
        (
            {"share_slot": 1, "op": "log1p", "of": "price"},
            r"^slots\[1\].share_slot: expected two stored .* 'x' holds none$",
        ),
        (
            {"share_slot": 1, "slot": None, "store": False},
            r"^slots\[1\].share_slot: expected two stored slots that hold signs, f",
        ),
        (
            {"share_slot": 0},
            r"^slots\[1\].share_slot: expected a slot number, 1 to 2147483647, found 0$",
        ),
    ],
)
def test_a_shared_number_is_that_of_another_slot_of_signs(
    changes: dict[str, Any], message: str
) -> None:
    others = node(slot=3, name="y", share_slot=1), node(slot=4, name="w", op="log1p", of="price")
    with pytest.raises(SpecError, match=message):
        graph(USER, node(**changes), *others)
