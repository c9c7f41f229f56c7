"""What a stored slot means, as a hash of its sub-DAG and as a line of text: names and order of nodes are no part of either."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from featstore.spec import check
from featstore.spec.model import Node, Spec, plain, type_name

_MAX_INNER_TEXT = 120


def semantic_hashes(spec: Spec) -> dict[str, str]:
    """By stored slot: SHA-256 (hex) of the canonical JSON of all that determines its column's values.

    That is its number and encoding, operator, params and options and, in place of names, the same (but for number and
    encoding) of each node that it reads, and the name and type of each input. So names and order of nodes are no part of it,
    nor are params and options at their defaults: a param that an operator gets later leaves the hashes as they were.
    """
    meanings: dict[str, str] = {}
    for node in check.ordered(spec):
        meanings[node.name] = _digest(_meaning(spec, node, meanings))
    return {node.name: _digest(_stored(spec, node) | {"node": meanings[node.name]}) for node in spec.nodes if node.store}


def _stored(spec: Spec, node: Node) -> dict[str, object]:
    content: dict[str, object] = {"spec": spec.version, "slot": node.slot, "encode": node.encode}
    return content if node.share_slot is None else content | {"share_slot": node.share_slot}


def _meaning(spec: Spec, node: Node, meanings: Mapping[str, str]) -> dict[str, Any]:
    operator = check.operator_of(node)
    params = check.read_params(node, operator)
    content = {
        "op": node.op,
        "params": {name: plain(value) for name, value in params.items() if value != operator.params[name].default} or None,
        "of": [_source(spec, node, i, meanings) for i in range(len(node.of))],
        "fill": plain(node.fill),
        "empty_as_null": node.empty_as_null or None,
    }
    return {key: value for key, value in content.items() if value is not None}


def _source(spec: Spec, node: Node, i: int, meanings: Mapping[str, str]) -> dict[str, object]:
    name = node.of[i]
    if check.resolve(spec, name, node.name, check.of_path(node, i)):
        found: dict[str, object] = {"node": meanings[name]}
    else:
        found = {"input": name, "type": type_name(spec.inputs[name]), **_sequence(spec, name)}
    default = check.default_of(node, i)
    return found if default is None else found | {"default": plain(default)}


def _sequence(spec: Spec, name: str) -> dict[str, object]:
    """The columns that an input is cut together with, where there are any: they say which of its elements remain."""
    for sequence in spec.sequences:
        if name in sequence.of:
            columns = [[other, type_name(spec.inputs[other])] for other in sequence.of]
            options = {"max_len": sequence.max_len, "truncate": sequence.truncate, "empty_as_null": sequence.empty_as_null}
            return {"sequence": {"of": columns, **options}}
    return {}


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def operator_paths(spec: Spec) -> dict[str, str]:
    """By node: its operator over those that it reads, down to the inputs, such as `cross(user_id, hour(ts, tz=UTC))`.

    A user operator stands with its module, `my_package.my_module:function(x)`. Params that are lists or mappings are left to
    the spec, and a node that reads one whose own text is longer than 120 characters names it, so that shared nodes do not
    multiply.
    """
    texts: dict[str, str] = {}
    for node in check.ordered(spec):
        members = [_member(spec, node, i, texts) for i in range(len(node.of))]
        options = {**dict(sorted(node.params.items())), "default": node.default, "fill": node.fill}
        short = [f"{name}={value}" for name, value in options.items() if _is_short(value)]
        texts[node.name] = f"{node.op}({', '.join([*members, *short])})"
    return texts


def _member(spec: Spec, node: Node, i: int, texts: Mapping[str, str]) -> str:
    name = node.of[i]
    if not check.resolve(spec, name, node.name, check.of_path(node, i)) or len(texts[name]) > _MAX_INNER_TEXT:
        return name
    return texts[name]


def _is_short(value: object) -> bool:
    return value is not None and not isinstance(value, list | tuple | dict)
