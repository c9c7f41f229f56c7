"""What the nodes of a spec mean: as hashes, which lock a slot's number and name what a fit was made
of, and as text.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from featstore.errors import NotFittedError
from featstore.spec import check
from featstore.spec.lock import Lock, LockedSlot
from featstore.spec.model import Node, Spec, plain, type_name
from featstore.spec.vocabulary import locked_vocabularies

_MAX_INNER_TEXT = 120


def make_lock(spec: Spec, earlier: Lock | None = None) -> Lock:
    """The lock of a spec that `build_graph` accepts. Numbers that `earlier` knew and the spec has
    no more are retired.
    """
    hashes = semantic_hashes(spec)
    slots = {
        number: LockedSlot(name=name, hash=hashes[name])
        for number, name in slot_names(spec).items()
    }
    known = frozenset() if earlier is None else earlier.retired | frozenset(earlier.slots)
    return Lock(
        spec=spec.version,
        slots=slots,
        retired=spec.retired | (known - frozenset(slots)),
        fitted=spec.fitted,
        vocabularies=locked_vocabularies(spec),
    )


def slot_names(spec: Spec) -> dict[int, str]:
    """The stored slots' names by number, ascending."""
    return dict(sorted((node.slot, node.name) for node in spec.nodes if node.slot is not None))


def semantic_hashes(spec: Spec) -> dict[str, str]:
    """By stored slot: SHA-256 (hex) of the canonical JSON of all that determines its column's
    values.

    That is its number and encoding, operator, params and options and, in place of names, the same
    (but for number and encoding) of each node that it reads, and the name and type of each input.
    So names and order of nodes are no part of it, nor are params and options at their defaults: a
    param that an operator gets later leaves the hashes as they were. What was fitted is part of it;
    a vocabulary's values are not, as it grows without a change of what it has.
    """
    meanings: dict[str, str] = {}
    for node in check.ordered(spec):
        meanings[node.name] = meaning(spec, node, meanings)
    return stored_hashes(spec, meanings)


def stored_hashes(spec: Spec, meanings: Mapping[str, str]) -> dict[str, str]:
    """`semantic_hashes`, given the `meaning` of each node."""
    return {
        node.name: _digest(_stored(spec, node) | {"node": meanings[node.name]})
        for node in spec.nodes
        if node.store
    }


def _stored(spec: Spec, node: Node) -> dict[str, object]:
    content: dict[str, object] = {"spec": spec.version, "slot": node.slot, "encode": node.encode}
    return content if node.share_slot is None else content | {"share_slot": node.share_slot}


def meaning(spec: Spec, node: Node, meanings: Mapping[str, str]) -> str:
    """The hash of a node, given those of the nodes that it reads."""
    fitted = spec.fitted.get(node.name)
    if fitted is None:
        return fit_hash(spec, node, meanings)
    return _digest(_meaning(spec, node, meanings) | {"fitted": plain(fitted.params)})


def fit_hash(spec: Spec, node: Node, meanings: Mapping[str, str]) -> str:
    """The hash of all that decides what is fitted for a node, but the data: the node without what
    was fitted.
    """
    return _digest(_meaning(spec, node, meanings))


def check_fit(spec: Spec, node: Node, meanings: Mapping[str, str]) -> None:
    """NotFittedError where a node's fit was made of another operator, other params or another
    sub-DAG.
    """
    fitted = spec.fitted.get(node.name)
    if fitted is not None and fitted.hash != fit_hash(spec, node, meanings):
        raise NotFittedError(
            f"{node.where}: {node.op} ({node.name!r}) was fitted when it, or what it reads, was "
            f"another: {check.FIT}"
        )


def keep_fits(spec: Spec, lock: Lock | None) -> Spec:
    """The spec with the fits of nodes that were renamed since: a fit of the same hash is theirs."""
    by_hash = {entry.hash: entry for entry in lock.fitted.values()} if lock is not None else {}
    meanings: dict[str, str] = {}
    for node in check.ordered(spec):
        found = by_hash.get(fit_hash(spec, node, meanings))
        if found is not None and node.name not in spec.fitted:
            spec = replace(spec, fitted={**spec.fitted, node.name: found})
        meanings[node.name] = meaning(spec, node, meanings)
    return spec


def _meaning(spec: Spec, node: Node, meanings: Mapping[str, str]) -> dict[str, Any]:
    operator = check.operator_of(node)
    params = check.read_params(node, operator)
    content = {
        "op": node.op,
        "params": {
            name: plain(value)
            for name, value in params.items()
            if value != operator.params[name].default
        }
        or None,
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
    """The columns that an input is cut together with, where there are any: they say which of its
    elements remain.
    """
    for sequence in spec.sequences:
        if name in sequence.of:
            columns = [[other, type_name(spec.inputs[other])] for other in sequence.of]
            options = {
                "max_len": sequence.max_len,
                "truncate": sequence.truncate,
                "empty_as_null": sequence.empty_as_null,
            }
            return {"sequence": {"of": columns, **options}}
    return {}


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def operator_paths(spec: Spec) -> dict[str, str]:
    """By node: its operator over those that it reads, down to the inputs, such as `cross(user_id,
    hour(ts, tz=UTC))`.

    A user operator stands with its module, `my_package.my_module:function(x)`. Params that are
    lists or mappings are left to the spec, and a node that reads one whose own text is longer than
    120 characters names it, so that shared nodes do not multiply.
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
    if (
        not check.resolve(spec, name, node.name, check.of_path(node, i))
        or len(texts[name]) > _MAX_INNER_TEXT
    ):
        return name
    return texts[name]


def _is_short(value: object) -> bool:
    return value is not None and not isinstance(value, list | tuple | dict)
