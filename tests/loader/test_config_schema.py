"""The schema of training configs against the parser."""

import dataclasses
import json
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from featstore.base.documents import load_yaml
from featstore.base.errors import ConfigError
from featstore.loader.config_schema import OPTIONS, train_schema
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.request.options import SLOT_KEYS, SlotRequest
from featstore.loader.request.request import LABEL_KEYS, LabelRequest
from featstore.loader.request.train_config import KEYS, MIX_KEYS
from featstore.table.snapshot import Snapshot

ROOT = Path(__file__).parents[2]
SCHEMA = train_schema()
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)


def with_text_keys(value: Any) -> Any:
    """YAML reads the key of `{null: drop}` as null, which an editor takes for text."""
    if isinstance(value, dict):
        return {
            "null" if key is None else key: with_text_keys(inner) for key, inner in value.items()
        }
    return [with_text_keys(inner) for inner in value] if isinstance(value, list) else value


def examples() -> Iterator[tuple[str, Any]]:
    """Every training config of the repository: files, and blocks of YAML in its pages."""
    for path in ROOT.glob("featstore/**/*.train.yaml"):
        yield str(path.relative_to(ROOT)), load_yaml(path.read_text())
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        found = re.findall(r"```yaml[^\n]*\n(.*?)```", page.read_text(), re.DOTALL)
        for i, block in enumerate(found):
            if re.search(r"^tables?:", block, re.MULTILINE):
                document = load_yaml(block)
                yield f"{page.name} {i}", document


EXAMPLES = dict(examples())


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_config_of_the_repository_is_accepted(name: str) -> None:
    document = with_text_keys(EXAMPLES[name])
    assert [error.message for error in VALIDATOR.iter_errors(document)] == []


def test_there_are_examples_in_files_and_pages() -> None:
    assert "featstore/tools/flights.train.yaml" in EXAMPLES
    assert any(name.startswith("train.md") for name in EXAMPLES)


@pytest.mark.parametrize(
    "keys",
    [
        {"shuffle": True},
        {"shuffle": {"window_rows": 5}},
        {"order": "static"},
        {"order": {"kind": "rank", "mini_epochs": 4}},
        {"staging": {"budget_bytes": "200GB", "ahead_files": 2, "max_connections": None}},
        {"dispatch": "sqlite:///x.db"},
        {"dispatch": {"lease_s": 60, "in_step": "auto", "split_bytes": "200MB"}},
        {"follow": {"until": "dt >= '2026-11-08'", "every_s": 0.5}},
        {"memory_budget": 1_000_000, "decode_threads": "auto"},
        {"negatives": {"label": "click", "rate": 1}},
        {"on_stats": "my.metrics:send"},
        {"on_stats": {"call": "my.metrics:send", "every_s": 60}},
        {"labels": ["a", {"name": "b", "null": "drop"}, {"name": "c", "null": -1.5}]},
        {"slots": ["a", {"name": "b", "buckets": 10, "dtype": "int32", "pad": None}]},
        {"where": None, "weight": None},
    ],
    ids=json.dumps,
)
def test_documented_forms_are_accepted(keys: dict[str, Any]) -> None:
    document = {"table": "t", "slots": ["*"], **keys}
    assert [error.message for error in VALIDATOR.iter_errors(document)] == []


@pytest.mark.parametrize(
    "keys",
    [
        {"batchsize": 5},
        {"slots": []},
        {"slots": None},
        {"table": None},
        {"slots": [{"name": "user", "bucket": 5}]},
        {"slots": [{"buckets": 5}]},
        {"labels": [{"name": "click", "nul": "drop"}]},
        {"shuffle": {"window": 5}},
        {"staging": {"budget": "5GB"}},
        {"dispatch": {"lease": 5}},
        {"follow": {"untl": "x"}},
        {"negatives": {"label": "click", "rate": 0.1, "sed": 3}},
        {"order": {"kinds": "rank"}},
        {"on_stats": {"call": "json:dumps", "every": 3}},
    ],
    ids=json.dumps,
)
def test_unknown_keys_and_missing_ones_are_refused_by_schema_and_loader(
    keys: dict[str, Any], table_url: str
) -> None:
    document = {"table": table_url, "slots": ["row"], "labels": ["click"], **keys}
    assert not VALIDATOR.is_valid(document)
    with pytest.raises(ConfigError):
        FeatureLoader.from_config(document)


ENTRY = {"table": "t", "weight": 0.5, "where": "x > 1"}


def test_tables_take_the_place_of_a_table() -> None:
    for stop in ({}, {"stop": "all_exhausted"}):
        assert VALIDATOR.is_valid({"slots": ["a"], "tables": [ENTRY, {"table": "u"}], **stop})


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"table": "t", "tables": [ENTRY]},
        {"tables": []},
        {"tables": ["t"]},
        {"tables": [{"weight": 1}]},
        {"tables": [{**ENTRY, "weight": 0}]},
        {"tables": [{**ENTRY, "wait": 1}]},
        {"tables": [ENTRY], "stop": "never"},
    ],
    ids=json.dumps,
)
def test_malformed_mixtures_are_refused_by_schema_and_loader(keys: dict[str, Any]) -> None:
    document = {"slots": ["a"], **keys}
    assert not VALIDATOR.is_valid(document)
    with pytest.raises(ConfigError):
        FeatureLoader.from_config(document)


def test_it_is_a_schema_with_a_described_key_for_each_that_the_parser_knows() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert tuple(SCHEMA["properties"]) == (*KEYS, *MIX_KEYS)
    assert all(entry["description"] for entry in SCHEMA["properties"].values())
    for keys, request, own in (
        (SLOT_KEYS, SlotRequest, {"slot", "history"}),
        (LABEL_KEYS, LabelRequest, {"field"}),
    ):
        options = {field.name for field in dataclasses.fields(request)} - own
        assert {*keys} == {"name", *options}


def test_every_option_that_is_a_mapping_has_its_fields_in_the_schema() -> None:
    """An options class that `OPTIONS` lacks would leave its keys unchecked."""
    for key, hint in typing.get_type_hints(FeatureLoader.__init__).items():
        members = typing.get_args(hint)
        if any(typing.get_origin(member) is Mapping for member in members):
            of_names = [each for member in members for each in typing.get_args(member)]
            inner = [each for of_name in of_names for each in typing.get_args(of_name)]
            kinds = [each for each in (*members, *inner) if dataclasses.is_dataclass(each)]
            assert set(kinds) - {Snapshot} <= set(OPTIONS), key
            assert kinds, key
