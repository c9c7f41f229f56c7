"""The part of a spec that a slot group needs: its columns, what they are made of, and nothing else.
Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from featstore.schema import SlotSchema
from featstore.spec.model import Node, Spec


@dataclass(frozen=True, kw_only=True)
class Part:
    """A spec that gives the columns `names`, and others besides that only decide which rows there
    are.

    `base` is the spec without those columns and what is made for them alone.
    """

    spec: Spec
    names: frozenset[str]
    base: Spec

    def stored(self, schema: SlotSchema) -> SlotSchema:
        """The columns of the group, of those that the spec gives."""
        return replace(
            schema,
            slots=tuple(slot for slot in schema.slots if slot.name in self.names),
            kept=tuple(field for field in schema.kept if field.name in self.names),
        )


def slots_part(spec: Spec, names: Iterable[str], keep: Iterable[str] = ()) -> Part:
    """The part for stored slots, by name. `keep` are raw columns that are read besides.

    Slots that they are made of, or whose number they share, are computed and not stored. A column
    that says `on_error: skip` is read if the spec reads it: the rows that it skips are not the
    table's.
    """
    names = frozenset(names)
    base = _without(spec, names)
    shared = {node.share_slot for node in spec.nodes if node.name in names}
    stored = names | {node.name for node in spec.nodes if node.slot in shared}
    needed = _closure(spec, stored)
    nodes = [_as_inner(node, stored) for node in spec.nodes if node.name in needed]
    return Part(spec=_part(spec, nodes, [*keep, *_skipping(base)]), names=names, base=base)


def labels_part(spec: Spec, keep: Iterable[str] = ()) -> Part:
    """The part for the labels and the weight."""
    sources = {*spec.labels.values(), *([spec.weight] if spec.weight else [])}
    needed = _closure(spec, sources)
    nodes = [_as_inner(node, frozenset()) for node in spec.nodes if node.name in needed]
    part = replace(_part(spec, nodes, keep), labels=spec.labels, weight=spec.weight)
    return Part(
        spec=part,
        names=frozenset({*spec.labels, *([spec.weight] if spec.weight else [])}),
        base=spec,
    )


def _part(spec: Spec, nodes: Iterable[Node], keep: Iterable[str]) -> Spec:
    nodes = tuple(nodes)
    names = {node.name for node in nodes}
    read = {name for node in nodes for name in node.of}
    return replace(
        spec,
        nodes=nodes,
        labels={},
        weight=None,
        keep=tuple(dict.fromkeys(keep)),
        sequences=tuple(sequence for sequence in spec.sequences if read & set(sequence.of)),
        fitted={name: fitted for name, fitted in spec.fitted.items() if name in names},
        is_part=True,
        output=replace(spec.output, statistics=False),
    )


def _without(spec: Spec, names: frozenset[str]) -> Spec:
    left = {node.name for node in spec.nodes if node.store} - names
    read = _closure(
        spec, left | set(spec.labels.values()) | ({spec.weight} if spec.weight else set())
    )
    only_theirs = _closure(spec, names) - read
    nodes = tuple(node for node in spec.nodes if node.name not in only_theirs)
    fitted = {name: fitted for name, fitted in spec.fitted.items() if name not in only_theirs}
    return replace(spec, nodes=nodes, fitted=fitted)


def _closure(spec: Spec, names: Iterable[str]) -> set[str]:
    """The nodes of these names, and all nodes that they are made of."""
    found, waiting = set[str](), list(names)
    while waiting:
        node = spec.by_name.get(waiting.pop())
        if node is not None and node.name not in found:
            found.add(node.name)
            waiting += [name for name in node.of if name != node.name]
    return found


def _as_inner(node: Node, stored: frozenset[str]) -> Node:
    """The node as it is if it is stored, else as one that others read: its values there are the
    same.
    """
    return (
        node
        if node.name in stored
        else replace(node, slot=None, store=False, encode="sign", share_slot=None)
    )


def _skipping(base: Spec) -> list[str]:
    """The raw columns that skip rows, of those that the base reads."""
    read = {name for node in base.nodes for name in node.of} | {*base.labels.values(), *base.keep}
    read |= {base.weight} if base.weight else set()
    together = {
        name for sequence in base.sequences if read & set(sequence.of) for name in sequence.of
    }
    read |= together
    skips = {
        name
        for name, on_error in base.on_error.items()
        if on_error == "skip" and name in base.inputs
    }
    whole = {
        name
        for sequence in base.sequences
        if skips & set(sequence.of) & read
        for name in sequence.of
    }
    return [name for name in base.inputs if name in (skips & read) | whole]
