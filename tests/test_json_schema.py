"""Schemas from types and docstrings."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from featstore.base.json_schema import descriptions, object_schema, of_options, of_type, or_null


@dataclass(frozen=True, kw_only=True)
class Inner:
    """Options within options.

    Attributes:
        size, limit: Two numbers, of which one
            continues here: with a colon.
        names: Names.

    Raises:
        ValueError: Never.
    """

    size: int
    limit: float | None = None
    names: Iterable[str] = field(default_factory=list)


CASES: list[tuple[Any, list[Any], list[Any]]] = [
    (int, [1, -1], ["1", 1.5, True, None]),
    (float, [1, 1.5], ["1", True]),
    (bool, [True], [1, "true"]),
    (str | Path, ["a"], [1, None]),
    (int | str | None, [1, "512MB", None], [True, []]),
    (Iterable[str], [[], ["a"]], ["a", [1], None]),
    (Iterable[str | Mapping[str, Any]], [["a", {"b": 1}]], [[1]]),
    (Mapping[str, Any], [{}, {"a": 1}], [[], "a"]),
    (Inner | Mapping[str, Any] | bool, [True, {"size": 1}], [{}, {"size": 1, "sise": 2}, 1]),
    (Inner, [{"size": 1, "limit": None, "names": ["a"]}], [{"size": 1, "limit": "x"}, None]),
    (Callable[[int], int] | str | None, ["package.module:function", None], [1, {}]),
]


@pytest.mark.parametrize(("annotation", "accepted", "refused"), CASES, ids=str)
def test_a_schema_accepts_what_a_document_may_hold(
    annotation: Any, accepted: list[Any], refused: list[Any]
) -> None:
    validator = jsonschema.Draft7Validator(of_type(annotation, (Inner,)) or {})
    assert [value for value in accepted if not validator.is_valid(value)] == []
    assert [value for value in refused if validator.is_valid(value)] == []


def test_what_no_document_holds_has_no_schema() -> None:
    assert of_type(Callable[[int], int]) is None
    assert of_type(Inner) is None
    assert of_type(Inner | Callable[[], int]) is None


def test_descriptions_are_read_from_docstrings() -> None:
    texts = descriptions(Inner, "Attributes")
    numbers = "Two numbers, of which one continues here: with a colon."
    assert texts == {"size": numbers, "limit": numbers, "names": "Names."}
    assert descriptions(Inner, "Args") == {}
    assert of_options(Inner)["properties"]["names"]["description"] == "Names."
    assert of_options(Inner)["required"] == ["size"]


def test_null_is_added_once() -> None:
    null = {"type": "null"}
    once = or_null({"type": "string"})
    assert once == or_null(once) == {"anyOf": [{"type": "string"}, null]}
    assert "required" not in object_schema({"a": once})
