from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featstore.base.errors import SpecError
from featstore.spec.graph import build_graph
from featstore.spec.model import Node, OutputOptions
from featstore.spec.parse import load_spec, parse_spec

TEXT = """
spec: 1
inputs: {user_id: string, tags: list<string>, price: double, ts: timestamp, clicked: long, request_id: string}
labels: {click: clicked}
weight: price
keep: [request_id]
retired: [202]
output: {rows_per_row_group: 100, rows_per_file: 1000, bytes_per_file: 2 MiB}
slots:
  - {slot: 101, name: user, op: hash, of: user_id, default: none}
  - {slot: 103, name: tags, op: hash, of: [tags], max_len: 20, empty_as_null: true}
  - {name: hour, op: hour, of: ts, tz: UTC, store: false}
  - {slot: 106, name: user_x_hour, op: cross, of: [user_id, hour]}
  - {slot: 107, name: bin, op: bucketize, of: price, boundaries: [1, 2.5], encode: index}
"""
SLOT = {"slot": 1, "name": "user", "op": "hash", "of": "user_id"}


def document(**changes: Any) -> dict[str, Any]:
    return {"spec": 1, "inputs": {"user_id": "string"}, "slots": [SLOT], **changes}


def test_a_document_becomes_its_model() -> None:
    spec = parse_spec(TEXT)
    assert spec.version == 1
    assert spec.inputs["tags"] == pa.list_(pa.string())
    assert spec.labels == {"click": "clicked"}
    assert (spec.weight, spec.keep, spec.retired) == ("price", ("request_id",), frozenset({202}))
    assert spec.output == OutputOptions(
        rows_per_row_group=100, rows_per_file=1000, bytes_per_file=2 << 20
    )
    user, tags, hour, crossed, bins = spec.nodes
    assert user == Node(
        name="user", op="hash", of=("user_id",), slot=101, default="none", where="slots[0]"
    )
    assert (tags.of, tags.params, tags.empty_as_null) == (("tags",), {"max_len": 20}, True)
    assert (hour.slot, hour.store, hour.params) == (None, False, {"tz": "UTC"})
    assert crossed.of == ("user_id", "hour")
    assert bins.encode == "index"


def test_what_may_be_left_out_has_defaults() -> None:
    spec = load_spec(document())
    assert (spec.labels, spec.weight, spec.keep, spec.retired) == ({}, None, (), frozenset())
    assert spec.output == OutputOptions(
        rows_per_row_group=65_536, rows_per_file=1_048_576, bytes_per_file=512_000_000
    )


def test_a_spec_is_loaded_from_a_path_or_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(TEXT)
    assert (
        load_spec(path) == load_spec(str(path)) == load_spec(f"file://{path}") == parse_spec(TEXT)
    )


@pytest.mark.parametrize(
    ("declared", "canonical"),
    [
        ("string", pa.string()),
        ("int", pa.int64()),
        ("BIGINT", pa.int64()),
        ("uint8", pa.int64()),
        ("float", pa.float64()),
        ("bool", pa.bool_()),
        ("boolean", pa.bool_()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("array<int>", pa.list_(pa.int64())),
        ("list< double >", pa.list_(pa.float64())),
        ("map<string, double>", pa.map_(pa.string(), pa.float64())),
        ("MAP<STRING,INT>", pa.map_(pa.string(), pa.int64())),
        (
            "map<string, map<string, string>>",
            pa.map_(pa.string(), pa.map_(pa.string(), pa.string())),
        ),
    ],
)
def test_declared_types_are_canonical(declared: str, canonical: pa.DataType) -> None:
    assert load_spec(document(inputs={"user_id": declared})).inputs["user_id"] == canonical


@pytest.mark.parametrize(
    "declared",
    ["map<long, double>", "map<string, list<string>>", "map<string, boolean>", "map<string>"],
)
def test_other_maps_are_no_types(declared: str) -> None:
    with pytest.raises(
        SpecError,
        match=r"^inputs.user_id: expected a type \(string, .*, map<string, ...>\), found 'map<",
    ):
        load_spec(document(inputs={"user_id": declared}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spec": 2}, r"^spec: expected the semantics version 1, found 2$"),
        ({"spec": True}, r"^spec: expected the semantics version 1, found True$"),
        (
            {"slot": []},
            r"^slot: expected one of spec, inputs, .*, found 'slot'; did you mean 'slots'",
        ),
        ({"inputs": None}, r"^inputs: expected a mapping, found None$"),
        (
            {"inputs": {"user_id": "strin"}},
            r"^inputs.user_id: expected a type \(string, .*\), found 'strin'; did you mean 'string'",
        ),
        ({"inputs": {"user_id": "list<list<string>>"}}, r"^inputs.user_id: expected a type"),
        ({"inputs": {"user_id": 7}}, r"^inputs.user_id: expected a type .*, found 7$"),
        ({"inputs": {7: "string"}}, r"^inputs: expected text as key \(quote it\), found 7$"),
        ({"labels": ["click"]}, r"^labels: expected a mapping, found \['click'\]$"),
        ({"labels": {"click": 3}}, r"^labels.click: expected text, found 3$"),
        (
            {"labels": {"my click": "user_id"}},
            r"^labels: expected a name of letters, .*, found 'my click'$",
        ),
        ({"weight": 1}, r"^weight: expected text, found 1$"),
        ({"keep": "user_id"}, r"^keep: expected a list, found 'user_id'$"),
        ({"keep": [1]}, r"^keep\[0\]: expected text, found 1$"),
        ({"retired": ["x"]}, r"^retired\[0\]: expected a slot number, 1 to 2147483647, found 'x'$"),
        (
            {"output": {"rows_per_file": 0}},
            r"^output.rows_per_file: expected an integer of at least 1, found 0$",
        ),
        (
            {"output": {"bytes_per_file": "512 apples"}},
            r"^output.bytes_per_file: expected a number of bytes above 0, or text such as 512MB, "
            r"found '512 apples'$",
        ),
        (
            {"output": {"compression": "snapy"}},
            r"^output.compression: expected snappy or zstd, found 'snapy'; did you mean 'snappy'",
        ),
        (
            {"output": {"statistics": "yes"}},
            r"^output.statistics: expected true or false, found 'yes'",
        ),
        (
            {"output": {"compression": ["zstd"]}},
            r"^output.compression: expected snappy or zstd, found \['zstd'\]$",
        ),
        (
            {"output": {"rows": 5}},
            r"^output.rows: expected one of rows_per_row_group, rows_per_file, "
            r"bytes_per_file, compression, "
            r"statistics, cluster_by, found 'rows'",
        ),
        (
            {"output": {"rows_per_file": 5}},
            r"^output.rows_per_file: expected at least rows_per_row_group \(65536\), found 5$",
        ),
        ({"slots": None}, r"^slots: expected a list, found None$"),
        ({"slots": ["user"]}, r"^slots\[0\]: expected a mapping, found 'user'$"),
    ],
)
def test_what_is_wrong_in_a_document_is_named_by_its_path(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        load_spec(document(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op": None}, r"^slots\[1\].op: expected text, found None$"),
        (
            {"slot": None},
            r"^slots\[1\]: expected a slot number \(`slot: ...`\), or `store: false` .*, found "
            r"neither$",
        ),
        (
            {"store": False},
            r"^slots\[1\]: expected either a slot number or `store: false`, found both$",
        ),
        ({"store": "no"}, r"^slots\[1\].store: expected true or false, found 'no'$"),
        ({"slot": 0}, r"^slots\[1\].slot: expected a slot number, 1 to 2147483647, found 0$"),
        ({"slot": 2**31}, r"^slots\[1\].slot: expected a slot number"),
        ({"slot": True}, r"^slots\[1\].slot: expected a slot number"),
        ({"slot": "101"}, r"^slots\[1\].slot: expected a slot number, .*, found '101'$"),
        (
            {"name": "a-b"},
            r"^slots\[1\].name: expected a name of letters, digits and _, no digit first, found "
            r"'a-b'$",
        ),
        ({"name": 5}, r"^slots\[1\].name: expected a name"),
        ({"of": []}, r"^slots\[1\].of: expected a name or a list of names, found \[\]$"),
        ({"of": ["user_id", 3]}, r"^slots\[1\].of\[1\]: expected text, found 3$"),
        ({"empty_as_null": 1}, r"^slots\[1\].empty_as_null: expected true or false, found 1$"),
        (
            {"encode": "indx"},
            r"^slots\[1\].encode: expected sign or index, found 'indx'; did you mean 'index'",
        ),
    ],
)
def test_what_is_wrong_in_a_slot_is_named_by_its_path(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        load_spec(document(slots=[SLOT, {**SLOT, "slot": 2, "name": "other", **changes}]))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, r"^sequences.clicks.of: expected a name or a list of names, found None$"),
        (
            {"of": ["a", "b"], "max_len": 0},
            r"^sequences.clicks.max_len: expected an integer, 1 to 2147483647, found 0$",
        ),
        (
            {"of": ["a", "b"], "truncate": "end"},
            r"^sequences.clicks.truncate: expected head or tail, found 'end'",
        ),
        (
            {"of": ["a", "b"], "maxlen": 1},
            r"^sequences.clicks.maxlen: expected one of of, max_len, .*; did you mean 'max_len'",
        ),
        (
            {"of": ["a", "b"], "empty_as_null": 1},
            r"^sequences.clicks.empty_as_null: expected true or false, found 1$",
        ),
        (["a", "b"], r"^sequences.clicks: expected a mapping, found \['a', 'b'\]$"),
    ],
)
def test_what_is_wrong_in_a_sequence_is_named_by_its_path(entry: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_spec(document(sequences={"clicks": entry}))


@pytest.mark.parametrize("key", ["name", "op", "of"])
def test_a_slot_needs_name_operator_and_input(key: str) -> None:
    with pytest.raises(
        SpecError, match=rf"^slots\[0\]: expected the keys name, op and of, found no '{key}'"
    ):
        load_spec(document(slots=[{k: v for k, v in SLOT.items() if k != key}]))


def test_a_text_that_is_no_yaml_names_its_source_without_credentials() -> None:
    with pytest.raises(
        SpecError, match=r"^https://host/spec.yaml: expected YAML, found: .*line 1"
    ) as raised:
        parse_spec("{spec: 1", "https://user:secret@host/spec.yaml")
    assert "secret" not in str(raised.value)


def test_a_text_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^document: expected a mapping, found 'spec'$"):
        parse_spec("spec")


def test_a_key_given_twice_is_refused_instead_of_the_last_one_taken() -> None:
    with pytest.raises(SpecError, match="key 'user_id' appears twice"):
        parse_spec("{spec: 1, inputs: {user_id: string, user_id: long}, slots: []}")


def test_a_spec_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"missing\.yaml: expected a spec, found no such file"):
        load_spec(tmp_path / "missing.yaml")


def test_a_directory_is_no_spec(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="expected a spec in YAML"):
        load_spec(tmp_path)


def test_an_input_is_a_type_or_says_what_malformed_values_do_and_if_it_may_be_absent() -> None:
    inputs = {
        "user_id": "string",
        "a": {"type": "list<long>", "on_error": "skip", "optional": True},
        "b": {"type": "double", "on_error": None},
        "c": {"type": "long"},
    }
    spec = load_spec(document(inputs=inputs))
    assert spec.inputs["a"] == pa.list_(pa.int64())
    assert spec.on_error == {"a": "skip", "b": "null"}
    assert spec.optional == {"a"}
    strict = load_spec(document(inputs=inputs, on_error="fail"))
    assert strict.on_error == {"user_id": "fail", "a": "skip", "b": "null", "c": "fail"}
    assert set(load_spec(document(inputs=inputs, on_error=None)).on_error.values()) == {
        "null",
        "skip",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"on_error": "stop"},
            r"^on_error: expected fail, null or skip, found 'stop'$",
        ),
        ({"on_error": ["skip"]}, r"^on_error: expected fail, null or skip, found \['skip'\]$"),
        (
            {"inputs": {"user_id": {"type": "string", "on_error": "skp"}}},
            r"^inputs.user_id.on_error: .*did you mean 'skip'\?$",
        ),
        (
            {"inputs": {"user_id": {"on_error": "skip"}}},
            r"^inputs.user_id.type: expected a type .*, found None$",
        ),
        (
            {"inputs": {"user_id": {"type": "string", "optional": 1}}},
            r"^inputs.user_id.optional: expected true or false, found 1$",
        ),
        (
            {"inputs": {"user_id": {"type": "string", "onerror": 1}}},
            r"^inputs.user_id.onerror: expected one of type, on_error, ",
        ),
    ],
)
def test_what_is_wrong_in_an_input_is_named_by_its_path(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        load_spec(document(**changes))


def test_an_error_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(TEXT.replace("op: hash, of: user_id", "op: hash, of: [user_id, 3]"))
    with pytest.raises(SpecError, match=rf"^{path}: slots\[0\]\.of\[1\]: expected text, found 3$"):
        load_spec(path)
    path.write_text(TEXT.replace("op: hash, of: user_id", "op: hash, of: usr_id"))
    with pytest.raises(
        SpecError,
        match=rf"^{path}: slots\[0\]\.of: expected an input column or a node, found 'usr_id'; did "
        rf"you",
    ):
        build_graph(load_spec(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "spec: 1\nslots: [a, b",
            r"^a\.yaml: expected YAML, found: expected ',' or '\]', but got '<stream end>' \(line "
            r"2, column 13\)$",
        ),
        (
            "spec: 1\nspec: 2",
            r"^a\.yaml: expected YAML, found: key 'spec' appears twice \(line 2, column 1\)$",
        ),
        ("\0", r"^a\.yaml: expected YAML, found: unacceptable character #x0000: .*$"),
    ],
)
def test_broken_yaml_is_one_line_with_line_and_column(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as raised:
        parse_spec(text, "a.yaml")
    assert "\n" not in str(raised.value)


def test_keys_of_a_merge_give_way_to_those_beside_it() -> None:
    text = """
spec: 1
inputs: {u: string, v: string}
slots:
  - &base {slot: 1, name: a, op: hash, of: u, empty_as_null: true}
  - &next {<<: *base, slot: 2, name: b, of: v}
  - {name: c, <<: *next, slot: 3}
"""
    assert [
        (node.slot, node.name, node.of, node.empty_as_null) for node in parse_spec(text).nodes
    ] == [
        (1, "a", ("u",), True),
        (2, "b", ("v",), True),
        (3, "c", ("v",), True),
    ]


def test_a_key_twice_beside_a_merge_is_refused() -> None:
    with pytest.raises(SpecError, match=r"key 'slot' appears twice"):
        parse_spec(
            "spec: 1\ninputs: {u: string}\nslots: [&a {slot: 1}, {<<: *a, slot: 2, slot: 3}]\n"
        )


def test_the_semantics_version_is_an_integer() -> None:
    with pytest.raises(SpecError, match=r"spec: expected the semantics version 1, found 1\.0"):
        parse_spec("spec: 1.0\ninputs: {u: string}\nslots: []\n")
