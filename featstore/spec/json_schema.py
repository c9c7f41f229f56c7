"""The JSON Schema of specs, made of what the parser and the registry of operators know."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from featstore.base.json_schema import DRAFT, Schema, any_of, descriptions, object_schema, or_null
from featstore.ops import numbers, timestamps
from featstore.ops.registry import OPERATORS
from featstore.ops.signature import (
    MAX_COUNT,
    OPTIONS,
    Operator,
    Param,
    number,
    positive_number,
    read_integer,
    read_name,
    text,
)
from featstore.spec.model import (
    CHECKS,
    COMPRESSIONS,
    ON_ERROR,
    SEVERITIES,
    VALUES,
    VERSION,
    DataCheck,
    Input,
    Node,
    OutputOptions,
    Spec,
    type_names,
)
from featstore.spec.model import Sequence as ListSequence
from featstore.spec.parse import (
    AGAINST,
    CHECK_KEYS,
    ENCODE,
    INPUT_KEYS,
    MAX_SLOT,
    OUTPUT_KEYS,
    SEQUENCE_KEYS,
    TOP_KEYS,
    TRUNCATE,
)

_TEXT: Schema = {"type": "string", "minLength": 1}
_BOOLEAN: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 1}
_NUMBER: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_SLOT}
_NAMES = any_of([_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}])
_VALUES: Schema = {"enum": list(VALUES)}
_ON_ERROR: Schema = {"enum": [*ON_ERROR, None]}
# The first form offers the names to editors; the parser reads more, such as `List<String>`.
_TYPE = any_of([{"enum": list(type_names())}, _TEXT])
_USER_OPERATOR = ":"
_FROM_0: Schema = {"type": "number", "minimum": 0}
# What the bounds of each figure of `checks` may be.
_BOUNDS: Mapping[str, Schema] = {
    "rows": {"type": "integer", "minimum": 0},
    "coverage": _FROM_0 | {"maximum": 1},
    "label_rate": {"type": "number"},
    "distinct": {"type": "integer", "minimum": 0},
    "drift": _FROM_0,
}

# What the functions that read the params of operators accept, as far as a schema can tell.
_READERS: Mapping[Callable[[object], object], Schema] = {
    number: {"type": "number"},
    positive_number: {"type": "number", "exclusiveMinimum": 0},
    text: _TEXT,
    timestamps.time_zone: _TEXT,
    numbers.boundaries: {"type": "array", "items": {"type": "number"}, "minItems": 1},
}


def spec_schema() -> dict[str, Any]:
    """The JSON Schema (draft 7) of a spec."""
    texts = descriptions(Spec, "Attributes") | {
        "spec": "The version of the semantics: hashing, text forms, what missing means.",
        "slots": "The slots and inner nodes.",
        "on_error": "What a malformed value causes, for all inputs that do not say it.",
    }
    values: dict[str, Schema] = {
        "spec": {"const": VERSION},
        "inputs": _by_name(any_of([_TYPE, _described(INPUT_KEYS, _input_values(), Input, "type")])),
        "labels": or_null(_by_name(_TEXT)),
        "weight": or_null(_TEXT),
        "keep": or_null({"type": "array", "items": _TEXT}),
        "retired": or_null({"type": "array", "items": _NUMBER}),
        "sequences": or_null(
            _by_name(_described(SEQUENCE_KEYS, _sequence_values(), ListSequence, "of"))
        ),
        "slots": {"type": "array", "items": _node()},
        "output": or_null(_described(OUTPUT_KEYS, _output_values(), OutputOptions)),
        "checks": or_null({"type": "array", "items": _check()}),
        "values": _VALUES,
        "on_error": _ON_ERROR,
    }
    properties = {key: values[key] | _description(texts.get(key)) for key in TOP_KEYS}
    schema = object_schema(properties, ["spec", "inputs", "slots"])
    return {"$schema": DRAFT, "title": "featstore spec", **schema}


def _by_name(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _described(
    keys: tuple[str, ...], values: Mapping[str, Schema], documented: type, *required: str
) -> Schema:
    """A mapping with these keys, described by the class's docstring."""
    texts = descriptions(documented, "Attributes")
    return object_schema(
        {key: values[key] | _description(texts.get(key)) for key in keys}, required
    )


def _description(text_of_key: str | None) -> Schema:
    return {"description": text_of_key} if text_of_key else {}


def _input_values() -> dict[str, Schema]:
    return {"type": _TYPE, "on_error": _ON_ERROR, "optional": _BOOLEAN}


def _sequence_values() -> dict[str, Schema]:
    return {
        "of": _NAMES,
        "max_len": or_null(_COUNT | {"maximum": MAX_COUNT}),
        "truncate": {"enum": list(TRUNCATE)},
        "empty_as_null": _BOOLEAN,
    }


def _output_values() -> dict[str, Schema]:
    return {
        "rows_per_row_group": _COUNT,
        "rows_per_file": _COUNT,
        "bytes_per_file": any_of([_COUNT, _TEXT]),
        "compression": {"enum": list(COMPRESSIONS)},
        "statistics": _BOOLEAN,
    }


def _check() -> Schema:
    """An entry of `checks`: the keys and bounds of its figure."""
    return {"oneOf": [*map(_check_of, CHECKS), _check_of("rows", "against")]}


def _check_of(figure: str, *more: str) -> Schema:
    """An entry for a figure, or with `against` for the share that it is of another one."""
    bound = _FROM_0 if more else _BOUNDS[figure]
    keys = tuple(key for key in CHECK_KEYS[figure] if key != "against" or more)
    values: dict[str, Schema] = {
        "check": {"const": figure},
        "of": _NAMES,
        "at_least": or_null(bound),
        "at_most": or_null(bound),
        "last": _COUNT,
        "against": {"const": AGAINST},
        "severity": {"enum": list(SEVERITIES)},
    }
    required = [key for key in ("check", "of", "last", *more) if key in keys]
    return _described(keys, values, DataCheck, *required)


def _node() -> Schema:
    """An entry of `slots`: its options, and the params of its operator."""
    values: dict[str, Schema] = {
        "slot": or_null(_NUMBER),
        "name": _TEXT,
        "op": any_of([{"enum": list(OPERATORS)}, {"type": "string", "pattern": _USER_OPERATOR}]),
        "of": _NAMES,
        "store": _BOOLEAN,
        "default": {},
        "fill": {},
        "empty_as_null": _BOOLEAN,
        "encode": {"enum": list(ENCODE)},
        "share_slot": or_null(_NUMBER),
        "values": _VALUES,
    }
    options = _described(OPTIONS, values, Node, "name", "op", "of")
    del options["additionalProperties"]  # params are known by their operator
    inner: Schema = {"properties": {"store": {"const": False}}, "required": ["store"]}
    has_slot: Schema = {"required": ["slot"], "properties": {"slot": {"type": "integer"}}}
    return options | {
        "allOf": [
            {"if": inner, "then": {"properties": {"slot": {"type": "null"}}}, "else": has_slot},
            *map(_of_operator, OPERATORS.values()),
        ]
    }


def _of_operator(operator: Operator) -> Schema:
    """The params that a node of this operator may have, and those that it must have."""
    params = operator.params
    then: Schema = {
        "properties": {name: _param(param) for name, param in params.items()},
        "propertyNames": {"enum": [*OPTIONS, *params]},
        "required": [name for name, param in params.items() if param.required],
    }
    return {
        "if": {"properties": {"op": {"const": operator.name}}, "required": ["op"]},
        "then": then,
    }


def _param(param: Param) -> Schema:
    schema = _read_by(param.read)
    if schema and not param.required:
        schema = or_null(schema)
    return schema | {"description": param.expected}


def _read_by(read: Callable[[object], object]) -> Schema:
    """What a `Param.read` accepts; everything where that is not known."""
    if isinstance(read, functools.partial) and read.func is read_integer:
        low, high = read.args
        return {"type": "integer", "minimum": low, "maximum": high}
    if isinstance(read, functools.partial) and read.func is read_name:
        return {"enum": list(read.args[0])}
    return dict(_READERS.get(read, {}))
