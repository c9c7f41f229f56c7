"""The schema of specs against the parser: what one accepts the other does, too."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.documents import load_yaml
from featstore.base.errors import SpecError
from featstore.ops.kinds import options_of
from featstore.ops.registry import OPERATORS
from featstore.spec.graph import build_graph
from featstore.spec.json_schema import spec_schema
from featstore.spec.model import Node, OutputOptions, read_type, type_names
from featstore.spec.parse import TOP_KEYS, load_spec

ROOT = Path(__file__).parents[2]
SCHEMA = spec_schema()
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
NODE = {"slot": 1, "name": "user", "op": "hash", "of": "user_id"}


def spec_of(node: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return {"spec": 1, "inputs": {"user_id": "string"}, "slots": [node or NODE]} | keys


def examples() -> Iterator[tuple[str, Any]]:
    """Every spec of the repository: files, and blocks of YAML in its pages."""
    for path in (*ROOT.glob("featstore/**/*.spec.yaml"), *ROOT.glob("examples/**/spec.yaml")):
        yield str(path.relative_to(ROOT)), load_yaml(path.read_text())
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        found = re.findall(r"```yaml[^\n]*\n(.*?)```", page.read_text(), re.DOTALL)
        for i, block in enumerate(found):
            if re.search(r"^spec: 1\b", block, re.MULTILINE):
                document = load_yaml(block)
                yield f"{page.name} {i}", document


def operator_cases() -> Iterator[tuple[str, Any]]:
    for path in sorted((ROOT / "tests" / "golden" / "operators").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            case = json.loads(line)
            document = spec_of(inputs=case["inputs"], slots=case["slots"])
            if "sequences" in case:
                document["sequences"] = case["sequences"]
            yield case["name"], document


EXAMPLES = dict(examples())


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_spec_of_the_repository_is_accepted(name: str) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(EXAMPLES[name])] == []


def test_there_are_examples_in_files_and_pages() -> None:
    assert {
        "featstore/tools/flights.spec.yaml",
        "examples/compiled_operator/spec.yaml",
        "examples/din/spec.yaml",
    } <= set(EXAMPLES)
    assert any(name.startswith("README.md") for name in EXAMPLES)


def test_every_case_of_an_operator_is_accepted() -> None:
    cases = dict(operator_cases())
    assert len(cases) > 100
    wrong = {
        name: [error.message for error in VALIDATOR.iter_errors(document)]
        for name, document in cases.items()
        if not VALIDATOR.is_valid(document)
    }
    assert wrong == {}


def test_it_is_a_schema_with_a_key_for_each_that_the_parser_knows() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert tuple(SCHEMA["properties"]) == TOP_KEYS
    entry = SCHEMA["properties"]["slots"]["items"]
    assert tuple(entry["properties"]) == tuple(options_of(Node))
    assert entry["properties"]["op"]["anyOf"][0]["enum"] == list(OPERATORS)
    output = SCHEMA["properties"]["output"]["anyOf"][0]
    assert tuple(output["properties"]) == tuple(options_of(OutputOptions))
    texts = [output["properties"][key].get("description") for key in options_of(OutputOptions)]
    assert all(texts)
    assert all(read_type(name) is not None for name in type_names())


@pytest.mark.parametrize(
    "document",
    [
        spec_of(slot=[]),
        spec_of({**NODE, "max_length": 3}),
        spec_of({**NODE, "boundaries": [1]}),
        spec_of({**NODE, "op": "hsh"}),
        spec_of({**NODE, "slot": 0}),
        spec_of({key: value for key, value in NODE.items() if key != "slot"}),
        spec_of({key: value for key, value in NODE.items() if key != "of"}),
        spec_of({**NODE, "store": False}),
        spec_of({**NODE, "max_len": 0}),
        spec_of({**NODE, "truncate": "middle"}),
        spec_of({**NODE, "op": "bucketize"}),
        spec_of({**NODE, "encode": "both"}),
        spec_of(inputs={"user_id": {"type": "string", "optionl": True}}),
        spec_of(output={"row_per_file": 5}),
        spec_of(output={"rows_per_file": 0}),
        spec_of(on_error="ignore"),
        spec_of(spec=2),
        spec_of(sequences={"clicks": {"of": ["user_id"], "max": 3}}),
        {"spec": 1, "inputs": {"user_id": "string"}},
    ],
    ids=lambda document: json.dumps(document)[-60:],
)
def test_what_the_schema_refuses_the_parser_refuses(document: Any) -> None:
    assert not VALIDATOR.is_valid(document)
    with pytest.raises(SpecError):
        build_graph(load_spec(document))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70_000),
    st.floats(-5, 5),
    st.sampled_from(["", "a", "UTC", "head", "tail", "mean", "sum", "any", "2026-11-01"]),
    st.lists(st.integers(-3, 9), max_size=3),
)
PARAMS = [(op.name, name) for op in OPERATORS.values() for name in op.params]


@given(st.sampled_from(PARAMS), VALUES)
def test_a_param_that_its_operator_reads_is_accepted(param: tuple[str, str], value: object) -> None:
    """A schema that refused such a value would mark correct specs as wrong."""
    operator, name = param
    known = OPERATORS[operator].params[name]
    (of_operator,) = [
        each["then"]["properties"][name]
        for each in SCHEMA["properties"]["slots"]["items"]["allOf"][1:]
        if each["if"]["properties"]["op"]["const"] == operator
    ]
    is_valid = jsonschema.Draft7Validator(of_operator).is_valid(value)
    if value is None:
        assert is_valid is not known.required or set(of_operator) == {"description"}
        return
    try:
        known.kind.read(value, name)
    except SpecError:
        return
    assert is_valid


CHECKS = {
    "rows": {"check": "rows", "at_least": 10},
    "rows against": {"check": "rows", "against": "replaced", "at_least": 0.9},
    "coverage": {"check": "coverage", "of": ["user", "u*"], "at_least": 0.5, "severity": "warn"},
    "label_rate": {"check": "label_rate", "of": "click", "at_least": -1.5, "at_most": 2},
    "distinct": {"check": "distinct", "of": "user", "at_most": 10},
    "drift": {"check": "drift", "of": "*", "last": 7, "at_most": 0.25},
}


@pytest.mark.parametrize("check", CHECKS)
def test_checks_are_accepted_and_what_the_schema_refuses_the_parser_refuses(check: str) -> None:
    assert VALIDATOR.is_valid(spec_of(checks=[CHECKS[check]]))
    wrong: list[dict[str, Any]] = [
        {"at_leest": 1},
        {"severity": "error"},
        {"at_most": "1"},
        {"of": []},
        {"check": "row"},
    ]
    wrong += [] if check == "label_rate" else [{"at_most": -1}]
    wrong += [{"at_most": 1.5}] if check in ("rows", "coverage", "distinct") else []
    wrong += [{"against": "before"}, {"against": None}]
    wrong += [] if check.startswith("rows") else [{"against": "replaced"}]
    wrong += [{"last": 0}, {"at_least": 0.1}] if check == "drift" else [{"last": 1}]
    for change in wrong:
        document = spec_of(checks=[CHECKS[check] | change])
        assert not VALIDATOR.is_valid(document), change
        with pytest.raises(SpecError, match=r"^checks\[0\]"):
            load_spec(document)
