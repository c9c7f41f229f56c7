"""What each step of a graph made of one row: the result of `Extractor.explain`."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from featstore.errors import SelectionError, nearest
from featstore.ops.ids import fields_of, is_hashed
from featstore.ops.lists import is_list
from featstore.spec.graph import Graph
from featstore.text_table import text_table

_HEADERS = ("of", "step", "reads", "value")


@dataclass(frozen=True, kw_only=True)
class ExplainedStep:
    """One value on the way from raw columns to a slot.

    Attributes:
        of: The node or raw column that the step belongs to.
        step: What was computed: `raw` for a raw column, otherwise the operator, or the name of the
            function that defaults, hashes or stores.
        reads: The positions of what it was computed from.
        value: The value; None if it is missing. Of hashed values the hash of each member.
    """

    of: str
    step: str
    reads: tuple[int, ...]
    value: Any


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """All values that were computed for one row, in the order of computation.

    Attributes:
        steps: The raw columns, then the steps. `reads` are positions here.
        outputs: The position of each stored column.
        sources: By slot, all positions that it is computed from, its own included.
    """

    steps: tuple[ExplainedStep, ...]
    outputs: Mapping[str, int]
    sources: Mapping[str, frozenset[int]]

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
            ExplainedStep(
                of=step.of,
                step=step.step,
                reads=tuple(place[i] for i in step.reads),
                value=step.value,
            )
            for step in (self.steps[i] for i in kept)
        )
        return Explanation(
            steps=tuple(steps),
            outputs={slot: place[self.outputs[slot]]},
            sources={slot: frozenset(place.values())},
        )

    def text(self, width: int | None = None) -> str:
        """A table of text, of `width` characters at most if given. A stored column ends the steps
        that it is computed by.
        """
        stored = {position: name for name, position in self.outputs.items()}
        rows = [
            (
                stored.get(i, step.of),
                f"{step.step}, stored" if i in stored else step.step,
                ", ".join(f"{self.steps[j].of} ({self.steps[j].step})" for j in step.reads),
                _shown(step.value),
            )
            for i, step in enumerate(self.steps)
        ]
        return text_table(rows, _HEADERS, width=width)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

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
    steps = [
        ExplainedStep(
            of=step.owner,
            step=step.op if step.op in step.function.__name__ else step.function.__name__,
            reads=step.inputs,
            value=_value(array),
        )
        for step, array in zip(graph.steps, values[len(graph.columns) :], strict=True)
    ]
    names = graph.schema.to_arrow().names
    return Explanation(
        steps=(*raw, *steps),
        outputs=dict(zip(names, graph.outputs, strict=True)),
        sources=graph.sources,
    )


def _shown(value: Any) -> str:
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
