"""The pages of the keys of a spec and of a training config, from their JSON Schemas."""

from collections.abc import Iterator, Mapping
from typing import Any

from featstore.loader.config_schema import train_schema
from featstore.spec.json_schema import spec_schema
from website.reference.markdown import code, table

_MOST_CHOICES = 8


def spec_page() -> str:
    """The keys of a spec."""
    return _page(
        "Keys of a spec",
        "`featstore spec schema`",
        "The parameters of operators are in [their own list](operators.md).",
        spec_schema(),
    )


def train_page() -> str:
    """The keys of a training config."""
    return _page(
        "Keys of a training config",
        "`featstore train schema`",
        "[The loader](../loader.md) describes them.",
        train_schema(),
    )


def _page(title: str, command: str, more: str, schema: Mapping[str, Any]) -> str:
    rows = [(code(path), kind, text) for path, kind, text in keys(schema)]
    head = f"# {title}\n\nMade from the JSON Schema that {command} prints. {more}\n"
    return f"{head}\n{table(('key', 'value', 'what it is'), rows)}"


def keys(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str, str]]:
    """Each key of a schema with the kind of its value and its description, outer ones first.

    The key of a list's elements is `name[]`, that of a mapping's values `name.*`.
    """
    required = set(schema.get("required", ()))
    for name, inner in schema.get("properties", {}).items():
        inner_path = f"{path}.{name}" if path else name
        text = inner.get("description", "")
        if name in required:
            text = f"{text} Required.".strip()
        yield inner_path, kind(inner), text
        yield from _within(inner, inner_path)


def _within(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
    for variant in variants(schema):
        if "properties" in variant:
            yield from keys(variant, path)
        if isinstance(variant.get("items"), dict):
            yield from _within(variant["items"], f"{path}[]")
        if isinstance(variant.get("additionalProperties"), dict):
            yield from _within(variant["additionalProperties"], f"{path}.*")


def variants(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schemas that a value may follow, without those that only join others."""
    if "anyOf" not in schema:
        yield schema
    for variant in schema.get("anyOf", ()):
        yield from variants(variant)


def kind(schema: Mapping[str, Any]) -> str:
    """What a value is, in a few words."""
    words = dict.fromkeys(_word(variant) for variant in variants(schema))
    return " or ".join(words)


def _word(schema: Mapping[str, Any]) -> str:
    if "const" in schema:
        return code(str(schema["const"]))
    if "enum" in schema:
        shown = [code(str(choice)) for choice in schema["enum"][:_MOST_CHOICES]]
        return ", ".join(shown) + (", ..." if len(schema["enum"]) > _MOST_CHOICES else "")
    name = str(schema.get("type", "any value"))
    if name == "array" and isinstance(schema.get("items"), dict):
        return f"list of {kind(schema['items'])}"
    return {"object": "mapping", "string": "text", "array": "list"}.get(name, name)
