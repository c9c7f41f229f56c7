"""The meaning of the nodes of a spec, as hashes and as text.

The hashes lock what a slot number stands for, and identify what constants were fitted on.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from featstore.base.errors import NotFittedError
from featstore.spec import check
from featstore.spec.lock import Lock, LockedSlot
from featstore.spec.model import (
    VALUES,
    Node,
    Spec,
    changed_options,
    digest,
    plain,
    type_name,
    without_none,
)
from featstore.spec.vocabulary import locked_vocabularies

_MAX_INNER_TEXT = 120
_SHORT = 8  # digits, since each commit has those of all slots


def make_lock(spec: Spec, earlier: Lock | None = None) -> Lock:
    """The lock of a spec.

    Args:
        spec: A spec that `build_graph` accepts.
        earlier: The lock so far. Its numbers that the spec no longer has are retired.
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
    return dict(sorted((node.slot, node.name) for node in spec.all_nodes if node.slot is not None))


def short_meanings(spec: Spec) -> dict[str, str]:
    """The first digits of the semantic hash of each stored slot, by the text of its number."""
    hashes = semantic_hashes(spec)
    return {str(number): hashes[name][:_SHORT] for number, name in slot_names(spec).items()}


def semantic_hashes(spec: Spec) -> dict[str, str]:
    """The semantic hash of each stored slot, by name; slots of histories are among them.

    It is the SHA-256 (hex) of the canonical JSON of everything that determines the column's values:
    number, encoding, operator, params and options, the same (except number and encoding) of each
    node that it reads, and the name and type of each input.

    Names and order of nodes are not part of it. Params and options at their defaults are not
    either, so an operator may get a new param without changing hashes. Fitted constants are part of
    it; the values of a vocabulary are not, because it may grow without changing known indices. Of a
    history it has the rule that says which events a row sees, and not its other slots, which may
    change the order of events of one time.
    """
    meanings: dict[str, str] = {}
    for node in check.ordered(spec):
        meanings[node.name] = meaning(spec, node, meanings)
    hashes = {node.name: stored_hash(spec, node, meanings) for node in spec.nodes if node.store}
    for history in spec.histories:
        hashes |= semantic_hashes(history.events)
        rule = {"spec": spec.version, "history": history.meaning}
        hashes |= {
            node.name: digest(
                rule | {"slot": node.slot, "op": node.op, "params": plain(node.params)}
            )
            for node in history.derived
        }
    return hashes


def stored_hash(spec: Spec, node: Node, meanings: Mapping[str, str]) -> str:
    """The semantic hash of a stored slot, given the `meaning` of each node."""
    content = {
        "spec": spec.version,
        "slot": node.slot,
        "encode": node.encode,
        "share_slot": node.share_slot,
        "node": meanings[node.name],
        "history": None if spec.history is None else spec.history.meaning,
    }
    return digest(without_none(content))


def meaning(spec: Spec, node: Node, meanings: Mapping[str, str]) -> str:
    """The hash of a node, given those of the nodes that it reads."""
    fitted = spec.fitted.get(node.name)
    if fitted is None:
        return fit_hash(spec, node, meanings)
    return digest(_meaning(spec, node, meanings) | {"fitted": plain(fitted.params)})


def fit_hash(spec: Spec, node: Node, meanings: Mapping[str, str]) -> str:
    """The hash of everything but the data that decides what is fitted for a node."""
    return digest(_meaning(spec, node, meanings))


def check_fit(spec: Spec, node: Node, meanings: Mapping[str, str]) -> None:
    """Checks that a node's constants were fitted for its operator, params and sub-DAG.

    Raises:
        NotFittedError: They were fitted for others.
    """
    fitted = spec.fitted.get(node.name)
    if fitted is not None and fitted.hash != fit_hash(spec, node, meanings):
        raise NotFittedError(
            f"{node.where}: {node.op} ({node.name!r}) was changed, or what it reads was, after it "
            f"was fitted: {check.FIT}"
        )


def keep_fits(spec: Spec, lock: Lock | None) -> Spec:
    """Adds the fits of renamed nodes to a spec, found in the lock by their hash."""
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
    changed = {
        name: plain(value)
        for name, value in params.items()
        if value != operator.params[name].default
    }
    options = changed_options(node, VALUES)
    options.pop("default", None)  # at what it replaces
    return {
        "op": node.op,
        "of": [_source(spec, node, i, meanings) for i in range(len(node.of))],
        **({"params": changed} if changed else {}),
        **options,
    }


def _source(spec: Spec, node: Node, i: int, meanings: Mapping[str, str]) -> dict[str, object]:
    name = node.of[i]
    if check.resolve(spec, name, node.name, check.of_path(node, i)):
        found: dict[str, object] = {"node": meanings[name]}
    else:
        found = {"input": name, "type": type_name(spec.inputs[name]), **_sequence(spec, name)}
    default = check.default_of(node, i)
    return found if default is None else found | {"default": plain(default)}


def _sequence(spec: Spec, name: str) -> dict[str, object]:
    """The sequence group of an input: its columns decide which elements of the input remain."""
    for sequence in spec.sequences:
        if name in sequence.of:
            columns = [[other, type_name(spec.inputs[other])] for other in sequence.of]
            return {"sequence": {"of": columns, **sequence.options}}
    return {}


def operator_path(spec: Spec, node: Node, paths: Mapping[str, str]) -> str:
    """The expression of a node down to the inputs, such as `cross(user_id, hour(ts, tz=UTC))`.

    A user operator is shown with its module, `my_package.my_module:function(x)`. Params that are
    lists or mappings are omitted. An inner node whose expression is longer than 120 characters is
    shown by its name, so that texts do not grow exponentially with shared nodes.

    Args:
        spec: The spec.
        node: The node.
        paths: The expressions of the nodes that it reads.
    """
    nodes = check.nodes_read(spec, node)
    members = [
        paths[name] if name in nodes and len(paths[name]) <= _MAX_INNER_TEXT else name
        for name in node.of
    ]
    options = {**dict(sorted(node.params.items())), "default": node.default, "fill": node.fill}
    short = [
        f"{name}={value}"
        for name, value in options.items()
        if value is not None and not isinstance(value, list | tuple | dict)
    ]
    return f"{node.op}({', '.join([*members, *short])})"
