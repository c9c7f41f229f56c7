"""Attributes counts to slots, for steps and columns that several slots share."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from featstore.extraction.units.findings import FILLED
from featstore.ops.arrays import Mask
from featstore.ops.lists import fill_null
from featstore.spec.graph import Graph
from featstore.spec.model import Spec


class Attribution:
    """Counts by step, and reports each count for every slot that the step contributes to."""

    def __init__(self, graph: Graph, spec: Spec) -> None:
        self._graph, self._spec = graph, spec
        self._num_columns = len(graph.columns)
        self.filling = frozenset(
            position
            for position, step in enumerate(graph.steps, self._num_columns)
            if step.function is fill_null
        )
        """The positions of the steps that replace missing values."""
        self._fillings = {
            slot: sorted(sources & self.filling)
            for slot, sources in graph.sources.items()
            if not self.filling.isdisjoint(sources)
        }
        self._counted = Counter[tuple[int, str]]()
        self._filled = Counter[str]()

    def count(self, position: int, counts: Mapping[str, int]) -> None:
        """Adds the counts of a step."""
        for what, number in counts.items():
            self._counted[position, what] += number

    def fill(self, masks: Mapping[int, Mask]) -> None:
        """Adds the rows of one batch that steps filled.

        A row counts once per slot, even if several steps filled it.
        """
        for slot, positions in self._fillings.items() if masks else ():
            of_slot = [masks[position] for position in positions if position in masks]
            if of_slot:
                self._filled[slot] += int(np.count_nonzero(np.logical_or.reduce(of_slot)))

    def by_slot(self, counts: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Returns the counts by slot.

        Args:
            counts: All counts by `<owner>: <kind>`. What remains after the counts of steps belongs
                to raw columns.
        """
        earlier = Counter(counts)
        for (position, what), number in self._counted.items():
            earlier[f"{self._graph.steps[position - self._num_columns].owner}: {what}"] -= number
        if not (earlier or self._filled):
            return {slot: {} for slot in self._graph.sources}
        return {
            slot: self._of_slot(slot, sources, earlier)
            for slot, sources in self._graph.sources.items()
        }

    def _of_slot(
        self, slot: str, sources: frozenset[int], earlier: Mapping[str, int]
    ) -> dict[str, int]:
        counts = Counter[str]({FILLED: self._filled[slot]})
        for (position, what), number in self._counted.items():
            if position in sources:
                counts[what] += number
        owners = self._owners(sources)
        for key, number in earlier.items():
            owner, _, what = key.rpartition(": ")
            if owner in owners:
                counts[what] += number
        return {what: number for what, number in sorted(counts.items()) if number}

    def _owners(self, sources: frozenset[int]) -> set[str]:
        """The names of the raw columns among the sources, and of the sequences that have them."""
        columns = list(self._graph.columns)
        read = {columns[position] for position in sources if position < self._num_columns}
        return read | {
            sequence.name for sequence in self._spec.sequences if not read.isdisjoint(sequence.of)
        }
