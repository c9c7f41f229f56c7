"""What was found on the way to each slot, of the steps and columns that it shares with others."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from featstore.extraction.findings import FILLED
from featstore.ops.arrays import Mask
from featstore.ops.lists import fill_null
from featstore.spec.graph import Graph
from featstore.spec.model import Spec


class Attribution:
    """Counts by step, and gives them to every slot that the step is a source of."""

    def __init__(self, graph: Graph, spec: Spec) -> None:
        self._graph = graph
        self._num_columns = len(graph.columns)
        self.filling = frozenset(self._positions(fill_null))
        """The positions of the steps that put a value in place of missing ones."""
        self._fillings = {
            slot: sorted(sources & self.filling) for slot, sources in graph.sources.items()
        }
        self._of_columns = _owners_by_slot(graph, spec)
        self._counted = Counter[tuple[int, str]]()
        self._filled = Counter[str]()

    def count(self, position: int, counts: Mapping[str, int]) -> None:
        """Adds what a step counted."""
        for what, number in counts.items():
            self._counted[position, what] += number

    def fill(self, masks: Mapping[int, Mask]) -> None:
        """Adds the rows of one batch in which steps filled; a row counts once for a slot, however
        many did.
        """
        for slot, positions in self._fillings.items() if masks else ():
            found = [masks[position] for position in positions if position in masks]
            if found:
                self._filled[slot] += int(np.count_nonzero(np.logical_or.reduce(found)))

    def by_slot(self, counts: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """By slot what was found, of steps and, given all `counts` by `<owner>: <what>`, of columns
        before any step.
        """
        earlier = Counter(counts)
        for (position, what), number in self._counted.items():
            earlier[f"{self._graph.steps[position - self._num_columns].owner}: {what}"] -= number
        return {
            slot: self._of_slot(slot, sources, earlier)
            for slot, sources in self._graph.sources.items()
        }

    def _of_slot(
        self, slot: str, sources: frozenset[int], earlier: Mapping[str, int]
    ) -> dict[str, int]:
        found = Counter[str]({FILLED: self._filled[slot]})
        for (position, what), number in self._counted.items():
            if position in sources:
                found[what] += number
        for key, number in earlier.items():
            owner, _, what = key.rpartition(": ")
            if owner in self._of_columns[slot]:
                found[what] += number
        return {what: number for what, number in sorted(found.items()) if number}

    def _positions(self, function: object) -> list[int]:
        return [
            i
            for i, step in enumerate(self._graph.steps, self._num_columns)
            if step.function is function
        ]


def _owners_by_slot(graph: Graph, spec: Spec) -> dict[str, frozenset[str]]:
    """By slot the names of the raw columns that it is made of, and of the sequences that these are
    in.
    """
    columns = list(graph.columns)
    owners = {}
    for slot, sources in graph.sources.items():
        read = {columns[position] for position in sources if position < len(columns)}
        owners[slot] = frozenset(
            read | {sequence.name for sequence in spec.sequences if read & set(sequence.of)}
        )
    return owners
