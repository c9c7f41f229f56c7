"""What each step of a graph made of one row: the result of `Extractor.explain`."""

import datetime
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from featstore.base.errors import SelectionError, nearest
from featstore.base.table_result import TableResult
from featstore.ops.columns import sign_column
from featstore.ops.ids import fields_of, is_hashed
from featstore.ops.lists import is_list
from featstore.ops.registry import OPERATORS
from featstore.ops.signature import BOOLEANS, JOINT, readable
from featstore.spec.graph import Graph, Step

_HEADERS = ("of", "step", "reads", "value")
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("of", "step", "meaning")),
        ("reads", pa.list_(pa.int64())),
        ("stored", pa.bool_()),
        ("value", pa.string()),
    ]
)
# What steps besides operators do, by the names of their functions.
_MEANINGS = {
    "read_column": "the raw value in the declared type",
    "clean": "NaN and null elements made missing",
    "empty_as_null": "empty texts made missing",
    "align": "the events of the sequence, aligned",
    "column_of": "one column of the aligned events",
    "fill_null": "`default` or `fill` in place of missing",
    "hash_values": "xxhash64 of each value's text",
    "sign_column": "sign",
    "index_column": "index, from 1",
    "float_column": "float32",
}
_OPERATORS = {
    "hash": "the hashes, cut to `max_len`",
    "cross": "the hashes of the members side by side",
}
# Steps that the text leaves out, unless one makes a value missing: they prepare, or hash.
_BETWEEN = frozenset({"read_column", "clean", "align", "column_of", "hash_values", *_OPERATORS})


@dataclass(frozen=True, kw_only=True)
class ExplainedStep:
    """One value on the way from raw columns to a slot.

    Attributes:
        of: The node or raw column that the step belongs to.
        step: What was computed: `raw` for a raw column, otherwise the operator, or the name of the
            function that defaults, hashes or stores.
        reads: The positions of what it was computed from.
        meaning: What the step does, in words; empty for most operators, whose page tells it.
        value: The value; None if it is missing. Of hashed values the hash of each member.
        name: What people call the value: the interval of a bucket, or what a sign stands for; empty
            where that is the value itself, or not known.
    """

    of: str
    step: str
    reads: tuple[int, ...]
    meaning: str = ""
    value: Any
    name: str = ""


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanation(TableResult):
    """All values that were computed for one row, in the order of computation.

    Attributes:
        steps: The raw columns, then the steps. `reads` are positions here.
        outputs: The position of each stored column.
        sources: By slot, all positions that it is computed from, its own included.
        table: An Arrow table with a row per step: `of`, `step`, `meaning`, `reads`, `stored`
            (whether it is a stored column) and `value` as text, null if it is missing.
    """

    steps: tuple[ExplainedStep, ...]
    outputs: Mapping[str, int]
    sources: Mapping[str, frozenset[int]]
    table: pa.Table = field(init=False, compare=False)

    def __post_init__(self) -> None:
        stored = set(self.outputs.values())
        rows = [
            asdict(step)
            | {"stored": i in stored, "value": None if step.value is None else _text(step.value)}
            for i, step in enumerate(self.steps)
        ]
        object.__setattr__(self, "table", pa.Table.from_pylist(rows, SCHEMA))

    def of(self, slot: str) -> "Explanation":
        """Only what a slot is made of; positions are renumbered.

        Raises:
            SelectionError: There is no such slot.
        """
        if slot not in self.sources:
            raise SelectionError(f"no slot {slot!r}{nearest(slot, self.sources)}")
        kept = sorted(self.sources[slot])
        place = {old: new for new, old in enumerate(kept)}
        steps = (
            replace(step, reads=tuple(place[i] for i in step.reads))
            for step in (self.steps[i] for i in kept)
        )
        return Explanation(
            steps=tuple(steps),
            outputs={slot: place[self.outputs[slot]]},
            sources={slot: frozenset(place.values())},
        )

    def _head(self) -> str:
        return ""

    def _shown(self) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
        """A stored column ends the steps that it is computed by. Steps that prepare or hash are
        left out.
        """
        stored = {position: name for name, position in self.outputs.items()}
        return _HEADERS, [
            (
                stored.get(i, step.of),
                f"{_words(step)}{', stored' if i in stored else ''}",
                ", ".join(self.steps[j].of for j in _shown_sources(self.steps, step)),
                _text(step.value) + (f": {step.name}" if step.name else ""),
            )
            for i, step in enumerate(self.steps)
            if i in stored or _is_shown(self.steps, step)
        ]

    def as_dict(self) -> dict[str, Any]:
        """The explanation as JSON types."""
        return {"steps": [asdict(step) for step in self.steps], "outputs": dict(self.outputs)}


def explanation_of(graph: Graph, values: Sequence[pa.Array]) -> Explanation:
    """The explanation of one row.

    Args:
        graph: The graph of the spec.
        values: The value at each position of the graph, as arrays of one row.
    """
    raw = [
        ExplainedStep(of=name, step="raw", reads=(), value=_value(values[i]))
        for i, name in enumerate(graph.columns)
    ]
    steps = list(raw)
    for step, array in zip(graph.steps, values[len(graph.columns) :], strict=True):
        made = ExplainedStep(
            of=step.owner, reads=step.inputs, value=_value(array), **_described(step)
        )
        steps.append(replace(made, name=_name(steps, step, made)))
    names = graph.schema.column_names
    return Explanation(
        steps=tuple(steps),
        outputs=dict(zip(names, graph.outputs, strict=True)),
        sources=graph.sources,
    )


def _described(step: Step) -> dict[str, str]:
    """The operator of a step, or the name of the function that prepares or stores its values, and
    what it does.
    """
    known, function = OPERATORS.get(step.op), step.function
    if function is known.function if known else function.__name__ not in _MEANINGS:
        return {"step": step.op, "meaning": _OPERATORS.get(step.op, "")}
    return {"step": function.__name__, "meaning": _MEANINGS.get(function.__name__, "")}


def _words(step: ExplainedStep) -> str:
    """What a step does, without the name of a function."""
    if step.step in _MEANINGS:
        return step.meaning
    return f"{step.step}: {step.meaning}" if step.meaning else step.step


def _is_shown(steps: Sequence[ExplainedStep], step: ExplainedStep) -> bool:
    known = [steps[i].value is not None for i in step.reads]
    return step.step not in _BETWEEN or (step.value is None and all(known))


def _shown_sources(steps: Sequence[ExplainedStep], step: ExplainedStep) -> list[int]:
    """The positions of the shown steps that a step reads, directly or through others."""
    found = (
        [i] if _is_shown(steps, steps[i]) else _shown_sources(steps, steps[i]) for i in step.reads
    )
    return list(dict.fromkeys(itertools.chain.from_iterable(found)))


def _name(steps: Sequence[ExplainedStep], step: Step, made: ExplainedStep) -> str:
    """What people call the value of a step that follows these."""
    if step.function is sign_column:
        if made.value in (0, [0]):
            return "missing"
        members = [steps[i] for i in _shown_sources(steps, made)]
        texts = [member.name or member.value for member in members]
        known = all(isinstance(text, str | int) for text in texts)
        # As top values of profiles show the members of a sign.
        shown = (BOOLEANS.name(text) if isinstance(text, bool) else str(text) for text in texts)
        return JOINT.join(map(readable, shown)) if known else ""
    operator = OPERATORS.get(step.op)
    if operator is None or operator.names is None or operator.function is not step.function:
        return ""
    return operator.names(step.params).name(made.value) if isinstance(made.value, int) else ""


def _text(value: Any) -> str:
    if value is None:
        return "missing"
    return value.isoformat() if isinstance(value, datetime.datetime) else repr(value)


def _value(array: pa.Array) -> Any:
    """The value of an array of one row; of value hashes the hash of each member."""
    if not array[0].is_valid:
        return None
    if not is_hashed(array.type):
        return array[0].as_py()
    hashes = array.flatten() if is_list(array.type) else array
    members = list(zip(*(member.to_pylist() for member in fields_of(hashes)), strict=True))
    return members if is_list(array.type) else members[0]
