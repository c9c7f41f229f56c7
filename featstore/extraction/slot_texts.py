"""Texts of signs, found in raw rows: what a graph returns if texts take the place of their hashes.

A text takes the same path as its hash, through crosses, lists and user operators. The sign of what
arrives is computed from it again, so that a sign never gets the text of another.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from featstore.ops.arrays import (
    Integers,
    array_of,
    list_of,
    nulls_of,
    offsets_of,
    struct_of,
    values_of,
)
from featstore.ops.ids import fields_of, hash_values, is_hashed
from featstore.ops.lists import array_of_bits, is_list
from featstore.ops.value_names import readable
from featstore.spec.graph import Graph, Step
from featstore.spec.value_names import ValueText, joined, member_names, rank_of, signs_of


class SlotTexts:
    """Finds the texts of a slot's signs in raw rows. Stateless.

    Args:
        graph: The graph of the spec.
        slot: A slot that holds signs.

    Attributes:
        columns: The positions of the raw columns that are read.
    """

    def __init__(self, graph: Graph, slot: str) -> None:
        self._graph, self._slot = graph, slot
        self._members = member_names(graph, slot)
        num_columns, sources = len(graph.columns), graph.sources[slot]
        sign_step = graph.steps[graph.outputs[graph.schema.names.index(slot)] - num_columns]
        self._signed = sign_step.inputs[0]
        self.columns = sorted(i for i in sources if i < num_columns)
        self._steps = [
            (i, graph.steps[i - num_columns])
            for i in sorted(sources)
            if i >= num_columns and graph.steps[i - num_columns] is not sign_step
        ]

    def __call__(self, columns: Sequence[pa.Array], wanted: Integers) -> dict[int, ValueText]:
        """The texts of those of the rows' signs that are wanted.

        Args:
            columns: The raw columns at the positions `columns`.
            wanted: Signs of the slot, int64, ascending.
        """
        codes = _Codes()
        values = dict(zip(self.columns, columns, strict=True))
        for position, step in self._steps:
            values[position] = codes.run(step, [values[i] for i in step.inputs])
        found = _distinct(values[self._signed])
        canonical = pa.array(codes.canonical, pa.string())
        members = [canonical.take(array_of(of_member)) for of_member in found.T]
        signs = np.array(signs_of(self._graph, self._slot, members), np.int64)
        is_wanted = np.flatnonzero(np.isin(signs, wanted))
        return {int(signs[i]): self._text(found[i].tolist(), codes) for i in is_wanted}

    def _text(self, value: Sequence[int], codes: "_Codes") -> ValueText:
        pairs = zip(self._members, value, strict=True)
        return ValueText(
            text=joined(
                codes.shown[code] if member is None else member.name(codes.canonical[code])
                for member, code in pairs
            ),
            rank=rank_of(self._members, [codes.canonical[code] for code in value]),
        )


@dataclass(kw_only=True)
class _Codes:
    """Texts by number, which take the place of their hashes.

    Attributes:
        canonical: Each text as it is hashed.
        shown: The same as people read it.
    """

    canonical: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    def run(self, step: Step, inputs: Sequence[pa.Array]) -> pa.Array:
        """Runs one step of a graph."""
        if step.function is hash_values:
            return self._coded(inputs[0])
        counts = {"counts": Counter[str]()} if step.counted else {}
        return step.function(*inputs, **step.params, **counts)

    def _coded(self, array: pa.Array) -> pa.Array:
        if is_hashed(array.type):
            return array
        if is_list(array.type):
            return list_of(offsets_of(array), self._coded(array.values), nulls_of(array))
        encoded = _canonical(array).dictionary_encode()
        first, texts = len(self.canonical), encoded.dictionary.to_pylist()
        self.canonical += texts
        self.shown += _times(texts) if pa.types.is_timestamp(array.type) else map(readable, texts)
        codes = array_of(values_of(encoded.indices).astype(np.int64) + first)
        return struct_of([codes], nulls_of(array))


def _canonical(array: pa.Array) -> pa.Array:
    """The values as they are hashed (`ops.hashing`)."""
    if pa.types.is_string(array.type):
        return array
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("us", tz=array.type.tz))
    return array.cast(pa.int64()).cast(pa.string())


def _times(texts: Sequence[str]) -> list[str]:
    """Timestamps, given as they are hashed, as dates and times in UTC."""
    times = pa.array(map(int, texts), pa.timestamp("us")).cast(pa.string())
    return [time.removesuffix(".000000") for time in times.to_pylist()]


def _distinct(codes: pa.Array) -> NDArray[np.int64]:
    """The different values, int64 (num_values, num_members), of codes in the form of hashes."""
    values = codes.flatten() if is_list(codes.type) else codes
    if (nulls := nulls_of(values)) is not None:
        values = values.filter(array_of_bits(~nulls))
    members = [values_of(member) for member in fields_of(values)]
    distinct: NDArray[np.int64] = np.unique(np.stack(members, axis=1), axis=0)
    return distinct
