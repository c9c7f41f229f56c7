"""JSON Schemas of documents, from the types and docstrings of the options that they hold.

Draft 7, which editors know best. A schema accepts every document that the parser accepts, and
refuses unknown keys. Values are checked by the parser alone where a schema cannot tell.
"""

import inspect
import re
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

DRAFT = "http://json-schema.org/draft-07/schema#"
Schema = dict[str, Any]

_SIMPLE: Mapping[Any, Schema] = {
    str: {"type": "string"},
    Path: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    Any: {},
}
_ENTRY = re.compile(r"(?P<names>\w+(?:, \w+)*): (?P<text>.*)")


def object_schema(properties: Mapping[str, Schema], required: Iterable[str] = ()) -> Schema:
    """A mapping with these keys and no others."""
    schema: Schema = {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
    }
    if needed := list(required):
        schema["required"] = needed
    return schema


def of_type(annotation: Any, options: Collection[type] = ()) -> Schema | None:
    """The schema of what a document may hold for an annotation.

    Args:
        annotation: The type.
        options: Dataclasses that a document gives as a mapping of their fields.

    Returns:
        The schema; None if nothing in a document can be of the type, such as a function.
    """
    if annotation in _SIMPLE:
        return dict(_SIMPLE[annotation])
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _of_union(get_args(annotation), options)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object"}
    if isinstance(origin, type) and issubclass(origin, Iterable):
        items = of_type(get_args(annotation)[0], options)
        return {"type": "array"} | ({"items": items} if items else {})
    return of_options(annotation, options) if annotation in options else None


def _of_union(members: Sequence[Any], options: Collection[type]) -> Schema | None:
    given = {member for member in members if member in options}
    if given:  # the fields of the options say more than that there is a mapping
        members = [member for member in members if get_origin(member) is not Mapping]
    found: list[Schema] = []
    for schema in (of_type(member, options) for member in members):
        if schema is not None and schema not in found:
            found.append(schema)
    return any_of(found) if found else None


def any_of(schemas: Sequence[Schema]) -> Schema:
    """What any of the schemas accepts."""
    return dict(schemas[0]) if len(schemas) == 1 else {"anyOf": list(schemas)}


def or_null(schema: Schema) -> Schema:
    """The schema that also accepts null, which counts as not given."""
    null: Schema = {"type": "null"}
    return any_of([*(each for each in schema.get("anyOf", [schema]) if each != null), null])


def of_options(kind: type, options: Collection[type] = ()) -> Schema:
    """The schema of a mapping of a dataclass' fields, described by its docstring."""
    hints, texts = get_type_hints(kind), descriptions(kind, "Attributes")
    assert is_dataclass(kind)
    properties = {
        field.name: (of_type(hints[field.name], options) or {})
        | ({"description": texts[field.name]} if field.name in texts else {})
        for field in fields(kind)
    }
    required = [
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    ]
    return object_schema(properties, required)


def descriptions(documented: Any, section: str) -> dict[str, str]:
    """The texts of a docstring's section, such as `Args` or `Attributes`, by name."""
    lines = inspect.cleandoc(documented.__doc__ or "").splitlines()
    if f"{section}:" not in lines:
        return {}
    found: dict[str, str] = {}
    names: list[str] = []
    for line in lines[lines.index(f"{section}:") + 1 :]:
        if line and not line.startswith(" "):
            break
        entry = _ENTRY.fullmatch(line[4:]) if not line.startswith(" " * 5) else None
        if entry is not None:
            names = entry["names"].split(", ")
        text = line.strip() if entry is None else entry["text"]
        found |= {name: " ".join(filter(None, [found.get(name), text])) for name in names}
    return found
