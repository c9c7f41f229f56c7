"""The JSON Schema of specs, made of the table of options and the registry of operators."""

from typing import Any

from featstore.base.json_schema import (
    DRAFT,
    Schema,
    any_of,
    descriptions,
    object_schema,
    or_null,
)
from featstore.ops.kinds import entry_of, options_of, options_schema
from featstore.ops.registry import OPERATORS
from featstore.ops.signature import Operator
from featstore.spec.model import (
    CHECK_BOUNDS,
    ON_ERROR,
    TYPE,
    VERSION,
    DataCheck,
    EventHistory,
    Input,
    Node,
    Spec,
)
from featstore.spec.parse import TOP_KEYS, check_options


def spec_schema() -> dict[str, Any]:
    """The JSON Schema (draft 7) of a spec."""
    texts = descriptions(Spec, "Attributes") | {
        "spec": "The version of the semantics: hashing, text forms, what missing means.",
        "slots": "The slots and inner nodes.",
        "on_error": "What a malformed value causes, for all inputs that do not say it.",
    }
    input_ = any_of([TYPE.schema(), entry_of(Input).schema()])
    inputs: Schema = {"type": "object", "additionalProperties": input_}
    values: dict[str, Schema] = {
        "spec": {"const": VERSION},
        "inputs": inputs,
        **{name: option.kind.schema() for name, option in options_of(Spec).items()},
        "slots": {"type": "array", "items": _node()},
        "histories": or_null({"type": "array", "items": _history(inputs)}),
        "checks": or_null({"type": "array", "items": _check()}),
        "on_error": ON_ERROR.schema(),
    }
    properties = {key: values[key] | {"description": texts[key]} for key in TOP_KEYS}
    schema = object_schema(properties, ["spec", "inputs", "slots"])
    return {"$schema": DRAFT, "title": "featstore spec", **schema}


def _history(inputs: Schema) -> Schema:
    """An entry of `histories`: its options, event columns, and slots over these."""
    schema = options_schema(EventHistory, options_of(EventHistory))
    texts = descriptions(EventHistory, "Attributes")
    schema["properties"] |= {
        "inputs": inputs | {"description": texts["inputs"]},
        "slots": {"type": "array", "items": _node(), "description": texts["nodes"]},
    }
    schema["required"] += ["inputs", "slots"]
    return schema


def _check() -> Schema:
    """An entry of `checks`: the keys and bounds of its figure."""
    figures = [(figure, False) for figure in CHECK_BOUNDS] + [("rows", True)]
    return {"oneOf": [_check_of(figure, against) for figure, against in figures]}


def _check_of(figure: str, against: bool) -> Schema:
    schema = options_schema(DataCheck, check_options(figure, against=against))
    check = schema["properties"]["check"]
    schema["properties"]["check"] = {"const": figure, "description": check["description"]}
    return schema


def _node() -> Schema:
    """An entry of `slots`: its options, and the params of its operator."""
    options = options_schema(Node, options_of(Node))
    del options["additionalProperties"]  # params are known by their operator
    op = options["properties"]["op"]
    names: list[Schema] = [{"enum": list(OPERATORS)}, {"type": "string", "pattern": ":"}]
    options["properties"]["op"] = any_of(names) | {"description": op["description"]}
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
    params, properties = operator.params, {}
    for name, param in params.items():
        schema = param.kind.schema()
        schema = or_null(schema) if schema and not param.required else schema
        properties[name] = schema | {"description": param.kind.expected}
    then: Schema = {
        "properties": properties,
        "propertyNames": {"enum": [*options_of(Node), *params]},
        "required": [name for name, param in params.items() if param.required],
    }
    return {
        "if": {"properties": {"op": {"const": operator.name}}, "required": ["op"]},
        "then": then,
    }
