"""Texts of signs, found in raw rows: what a graph returns if texts take the place of their hashes.

A text takes the same path as its hash, through crosses, lists and user operators. The sign of what
arrives is computed from it again, so that a sign never gets the text of another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.ops.arrays import (
    Integers,
    array_of,
    list_of,
    microseconds,
    nulls_of,
    offsets_of,
    struct_of,
    values_of,
)
from featstore.ops.ids import fields_of, hash_values, is_hashed
from featstore.ops.lists import array_of_bits, is_list
from featstore.ops.signature import joined_texts, readable_texts
from featstore.spec.graph import Graph, Step
from featstore.spec.value_names import MemberNames, member_names, signs_of


@dataclass(frozen=True, kw_only=True)
class FoundTexts:
    """Texts of signs: int64 (num_signs,), and string (num_signs,)."""

    ids: Integers
    texts: pa.Array


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

    def __call__(self, columns: Sequence[pa.Array], wanted: Integers | None = None) -> FoundTexts:
        """The texts of the rows' signs, each once.

        Args:
            columns: The raw columns at the positions `columns`.
            wanted: The signs to find texts of, int64; by default all.
        """
        codes = _Codes()
        values = dict(zip(self.columns, columns, strict=True))
        for position, step in self._steps:
            values[position] = codes.run(step, [values[i] for i in step.inputs])
        members = [array_of(of_member) for of_member in _distinct(values[self._signed])]
        canonical, shown = codes.texts
        hashed = [canonical.take(of_member) for of_member in members]
        signs = signs_of(self._graph, self._slot, hashed)
        if wanted is not None:
            is_wanted = np.isin(signs, wanted)
            signs, kept = signs[is_wanted], array_of_bits(is_wanted)
            members, hashed = ([one.filter(kept) for one in of] for of in (members, hashed))
        texts = [
            shown.take(of_member) if names is None else _named(names, text)
            for names, of_member, text in zip(self._members, members, hashed, strict=True)
        ]
        return FoundTexts(ids=signs, texts=texts[0] if len(texts) == 1 else joined_texts(texts))


@dataclass(kw_only=True)
class _Codes:
    """Texts by number, which take the place of their hashes: as they are hashed, and as people read
    them.
    """

    canonical: list[pa.Array] = field(default_factory=list)
    shown: list[pa.Array] = field(default_factory=list)

    @property
    def texts(self) -> tuple[pa.Array, pa.Array]:
        """All texts by number."""
        none = pa.array([], pa.string())
        return pa.concat_arrays([none, *self.canonical]), pa.concat_arrays([none, *self.shown])

    def run(self, step: Step, inputs: Sequence[pa.Array]) -> pa.Array:
        """Runs one step of a graph."""
        if step.function is hash_values:
            return self._coded(inputs[0])
        return step.run(inputs)

    def _coded(self, array: pa.Array) -> pa.Array:
        if is_hashed(array.type):
            return array
        if is_list(array.type):
            return list_of(offsets_of(array), self._coded(array.values), nulls_of(array))
        encoded = _canonical(array).dictionary_encode()
        first, texts = sum(map(len, self.canonical)), encoded.dictionary
        self.canonical.append(texts)
        is_time = pa.types.is_timestamp(array.type)
        self.shown.append(_times(texts) if is_time else readable_texts(texts))
        codes = array_of(values_of(encoded.indices).astype(np.int64) + first)
        return struct_of([codes], nulls_of(array))


def _named(names: MemberNames, canonical: pa.Array) -> pa.Array:
    """The names of values, given as they are hashed."""
    encoded = canonical.dictionary_encode()
    texts = pa.array(map(names.name, encoded.dictionary.to_pylist()), pa.string())
    return readable_texts(texts).take(encoded.indices)


def _canonical(array: pa.Array) -> pa.Array:
    """The values as they are hashed (`ops.hashing`)."""
    if pa.types.is_string(array.type):
        return array
    if pa.types.is_timestamp(array.type):
        array = microseconds(array)
    return array.cast(pa.int64()).cast(pa.string())


def _times(texts: pa.Array) -> pa.Array:
    """Timestamps, given as they are hashed, as dates and times in UTC."""
    times = texts.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
    return pc.replace_substring_regex(times, r"\.000000$", "")


def _distinct(codes: pa.Array) -> list[Integers]:
    """The different values of codes in the form of hashes: by member, int64 (num_values,)."""
    values = codes.flatten() if is_list(codes.type) else codes
    if (nulls := nulls_of(values)) is not None:
        values = values.filter(array_of_bits(~nulls))
    members = [values_of(member) for member in fields_of(values)]
    # Numbers of tuples: those of pairs of a number so far and a code are smaller than 2^62.
    numbers, firsts = np.zeros(len(values), np.int64), np.zeros(0, np.int64)
    for member in members:
        pairs = numbers << 31 | member
        _, firsts, numbers = np.unique(pairs, return_index=True, return_inverse=True)
    return [member[firsts] for member in members]
