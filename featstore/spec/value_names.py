"""What the signs of a slot mean, as text that people read: the only place that answers it.

Three sources lead here. A spec alone names the values of operators that have names (hours, buckets,
entries of a vocabulary) and of their crosses, see `names_of_spec`. Extraction keeps texts of other
values, found in rows (`extraction/texts`). Whatever nobody knows is shown as its sign, shortened.
"""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from featstore.base.schema import SlotKind
from featstore.ops import columns, elements, ids, lists
from featstore.ops.arrays import Integers, values_of
from featstore.ops.hashing import sign, value_hash
from featstore.ops.registry import OPERATORS
from featstore.ops.signature import (
    BOOLEANS,
    NamedValues,
    joined_texts,
    readable,
    readable_texts,
)
from featstore.spec.graph import Graph, Step
from featstore.spec.model import Spec

# Slots of more different values may name people, so their texts are not kept unless a spec asks for
# it (`values: top`).
MAX_DISTINCT = 10_000
MAX_ENUMERATED = 10_000  # a slot of more values that a spec could name is named from rows alone
_SIGN_DIGITS = 6
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
# Steps that return values of their first input, and no others.
_PASSING = frozenset(
    {lists.fill_null, ids.hash_operator, elements.take, elements.slice_operator, elements.distinct}
)


@dataclass(frozen=True, kw_only=True)
class ValueText:
    """What a sign means.

    Attributes:
        text: The value, at most `MAX_TEXT` characters; the members of a cross joined by `JOINT`.
        rank: The position of the value in the slot's own order, such as that of an hour; None if
            the slot has no order.
        count: How often extraction saw the value; None if that is not known.
    """

    text: str
    rank: int | None = None
    count: int | None = None


@dataclass(frozen=True, kw_only=True)
class ValueNames:
    """The known texts of a table's or a spec's signs. Immutable, so threads may share it.

    Attributes:
        by_slot: The texts by slot name and sign (or index).
    """

    by_slot: Mapping[str, Mapping[int, ValueText]] = field(default_factory=dict)

    def known(self, slot: str, sign: int) -> str | None:
        """The text of a sign of a slot; None if that is not known."""
        found = self.by_slot.get(slot, {}).get(sign)
        return None if found is None else found.text

    def text(self, slot: str, sign: int) -> str:
        """The text of a sign of a slot; the sign itself, short, if its text is not known."""
        found = self.known(slot, sign)
        return short_sign(sign) if found is None else found

    def has_order(self, slot: str) -> bool:
        """Whether the slot's values have an order of their own."""
        return any(value.rank is not None for value in self.by_slot.get(slot, {}).values())

    def in_order(self, slot: str, signs: Iterable[int]) -> list[int]:
        """The signs in the slot's own order, unknown ones last; as given if it has none."""
        values = self.by_slot.get(slot, {}).items()
        ranks = {sign: value.rank for sign, value in values if value.rank is not None}
        return sorted(signs, key=lambda sign: ranks.get(sign, math.inf))

    def own_order(self, slot: str, signs: Sequence[int]) -> list[int] | None:
        """All signs in the slot's own order, or in that of the numbers that they mean, such as
        hours that were hashed; None if it has neither, or if a sign's text is not known.
        """
        known = [self.known(slot, sign) for sign in signs]
        if self.has_order(slot):
            return None if None in known else self.in_order(slot, signs)
        texts = ["" if text is None else text for text in known]
        if not all(map(_NUMBER.fullmatch, texts)):
            return None
        numbers = dict(zip(signs, map(float, texts), strict=True))
        return sorted(signs, key=numbers.__getitem__)

    def over(self, other: "ValueNames") -> "ValueNames":
        """These names, and for signs that they lack those of `other`."""
        return ValueNames(
            by_slot={
                slot: {**other.by_slot.get(slot, {}), **self.by_slot.get(slot, {})}
                for slot in {**other.by_slot, **self.by_slot}
            }
        )


def short_sign(sign: int) -> str:
    """A sign without a text, short: its first digits."""
    digits = str(sign)
    return digits if len(digits) <= _SIGN_DIGITS + 1 else f"{digits[:_SIGN_DIGITS]}…"


@dataclass(frozen=True, kw_only=True)
class MemberNames:
    """Names of the values of one member of a slot: the slot's own values, or those of a cross.

    Attributes:
        values: The values that the operator names.
        others: Canonical texts of further values that may occur, such as that of a `fill`.
    """

    values: NamedValues
    others: tuple[str, ...] = ()

    @property
    def canonical(self) -> list[str]:
        """The texts of all values as they are hashed."""
        return [*map(str, range(self.values.num_values)), *self.others]

    def has_name(self, canonical: str) -> bool:
        """Whether the operator names the value, given as it is hashed."""
        return canonical.isdecimal() and int(canonical) < self.values.num_values

    def name(self, canonical: str) -> str:
        """The name of a value, given as it is hashed; the same text if it has no name."""
        return self.values.name(int(canonical)) if self.has_name(canonical) else canonical

    def text_of_index(self, index: int) -> str:
        """The value of an index, 1 or more, as people read it."""
        return readable(self.name(str(index - 1)))


def member_names(graph: Graph, slot: str) -> tuple[MemberNames | None, ...]:
    """The names of each member of an id slot's values; None for members that only rows can name.

    Args:
        graph: The graph of the spec.
        slot: An id slot of its schema.
    """
    step = _storing(graph, slot)
    if step.function is columns.sign_column:
        return _hashed(graph, step.inputs[0])
    return (_values(graph, step.inputs[0]),)


def names_of_spec(
    graph: Graph, slots: Iterable[str] | None = None, *, most: int = MAX_ENUMERATED
) -> ValueNames:
    """What the signs of slots mean, as far as the spec alone tells it.

    Args:
        graph: The graph of the spec.
        slots: Names of slots; by default all.
        most: A slot of which the spec names more values is left out.
    """
    wanted = graph.schema.names if slots is None else tuple(slots)
    slots_of_ids = (name for name in wanted if graph.schema[name].kind is SlotKind.ID)
    found = {name: _enumerated(graph, name, most) for name in slots_of_ids}
    return ValueNames(by_slot={name: texts for name, texts in found.items() if texts})


def kept_values(spec: Spec, graph: Graph) -> dict[str, str]:
    """The stored id slots whose texts extraction keeps, each with its `values`: `auto` or `top`.

    A slot that says `none` also speaks for slots that hash the same values, such as its crosses,
    unless they say something themselves.
    """
    ids_slots = [
        node for node in spec.nodes if node.store and graph.schema[node.name].kind is SlotKind.ID
    ]
    secret = frozenset[int]().union(
        *(_hashes(graph, node.name) for node in ids_slots if node.values == "none")
    )
    said = {
        node.name: node.values
        or ("none" if secret and secret & _hashes(graph, node.name) else spec.values)
        for node in ids_slots
    }
    return {name: values for name, values in said.items() if values != "none"}


def signs_of(graph: Graph, slot: str, members: Sequence[pa.Array]) -> Integers:
    """The signs, or indices, of a slot for values given as they are hashed.

    Args:
        graph: The graph of the spec.
        slot: An id slot.
        members: The canonical texts of each member, string (num_values,).

    Returns:
        int64 (num_values,).
    """
    step = _storing(graph, slot)
    if step.function is not columns.sign_column:
        return values_of(members[0].cast(pa.int64())) + 1
    return values_of(sign(step.params["slot"], *map(value_hash, members)))


def _enumerated(graph: Graph, slot: str, most: int) -> dict[int, ValueText]:
    members = member_names(graph, slot)
    known = [member for member in members if member is not None]
    count = math.prod(member.values.num_values + len(member.others) for member in known)
    if len(known) < len(members) or not members or count > most:
        return {}
    combined = zip(*itertools.product(*(member.canonical for member in known)), strict=True)
    canonical = [pa.array(texts, pa.string()) for texts in combined]
    named = [
        readable_texts(pa.array(map(member.name, texts.to_pylist()), pa.string()))
        for member, texts in zip(known, canonical, strict=True)
    ]
    texts = named[0] if len(named) == 1 else joined_texts(named)
    has_order = len(known) == 1 and known[0].values.ordered
    num_ranks = known[0].values.num_values if has_order else 0
    return {
        of_value: ValueText(text=text, rank=i if i < num_ranks else None)
        for i, (of_value, text) in enumerate(
            zip(signs_of(graph, slot, canonical).tolist(), texts.to_pylist(), strict=True)
        )
    }


def _hashes(graph: Graph, slot: str) -> frozenset[int]:
    """The positions of the values that a slot hashes."""
    steps = ((position, graph.step(position)) for position in graph.sources[slot])
    return frozenset(i for i, step in steps if step and step.function is ids.hash_values)


def _storing(graph: Graph, slot: str) -> Step:
    """The step that makes a slot's column."""
    position = graph.outputs[graph.schema.names.index(slot)]
    return graph.steps[position - len(graph.columns)]


def _hashed(graph: Graph, position: int) -> tuple[MemberNames | None, ...]:
    """The members of value hashes."""
    step = graph.steps[position - len(graph.columns)]
    if step.function is ids.hash_values:
        return (_values(graph, step.inputs[0]),)
    if step.function is ids.cross:
        return tuple(itertools.chain.from_iterable(_hashed(graph, i) for i in step.inputs))
    if step.function in _PASSING:
        return _hashed(graph, step.inputs[0])
    num_members: int = lists.element_type(step.type).num_fields
    return (None,) * num_members


def _values(graph: Graph, position: int) -> MemberNames | None:
    """The names of values before they are hashed."""
    step = graph.step(position)
    if step is None:
        return None
    operator = OPERATORS.get(step.op)
    if operator is not None and operator.names is not None and operator.function is step.function:
        return MemberNames(values=operator.names(step.params))
    if step.function in _PASSING:
        inner = _values(graph, step.inputs[0])
        return inner if inner is None else _with_constant(inner, step)
    if pa.types.is_boolean(lists.element_type(step.type)):
        return MemberNames(values=BOOLEANS)
    return None


def _with_constant(inner: MemberNames, step: Step) -> MemberNames:
    """Adds the constant of a `fill` or `default`, which need not be a value of the operator."""
    if step.function is not lists.fill_null:
        return inner
    constant = step.params["value"].as_py()
    texts = [str(int(item)) for item in (constant if isinstance(constant, list) else [constant])]
    new = (text for text in dict.fromkeys(texts) if not inner.has_name(text))
    return MemberNames(values=inner.values, others=tuple(dict.fromkeys([*inner.others, *new])))
