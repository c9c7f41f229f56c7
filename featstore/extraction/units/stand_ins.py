"""What a graph returns if something stands in for the hashes of values: witnesses or texts of
signs.

It takes the same path as the hash, through crosses, lists and user operators, so it ends at the
same place in the output.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

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
from featstore.ops.columns import sign_column
from featstore.ops.ids import fields_of, hash_values, is_hashed
from featstore.ops.lists import array_of_bits, is_list
from featstore.ops.signature import joined_texts, readable_texts
from featstore.spec.graph import Graph, Step
from featstore.spec.value_names import MemberNames, member_names, signs_of


class Witness:
    """Witnesses of signs: values are hashed by BLAKE2b instead of XXH64.

    They reveal collisions: two values of a slot with the same sign have different witnesses. Only
    the steps of the graph that signs depend on are run. Stateless.
    """

    def __init__(self, graph: Graph) -> None:
        num_columns = len(graph.columns)
        self._outputs = {
            slot.name: position
            for slot, position in zip(graph.schema.slots, graph.outputs, strict=False)
            if graph.steps[position - num_columns].function is sign_column
        }
        needed = frozenset[int]().union(*(graph.sources[name] for name in self._outputs))
        self._steps = _steps(graph, needed, _digests)

    def __call__(self, columns: Sequence[pa.Array]) -> dict[str, pa.Array]:
        """Returns the witnesses by slot, laid out like the slot's column: missing is 0 or `[0]`."""
        values = dict(enumerate(columns))
        for position, step in self._steps:
            values[position] = step.run(values[i] for i in step.inputs)
        return {name: values[position] for name, position in self._outputs.items()}


@dataclass(frozen=True, kw_only=True)
class FoundTexts:
    """Texts of signs: int64 (num_signs,), and string (num_signs,)."""

    ids: Integers
    texts: pa.Array


class SlotTexts:
    """Finds the texts of a slot's signs in raw rows. The sign of what arrives is computed from it
    again, so that a sign never gets the text of another. Stateless.

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
        output = graph.outputs[graph.schema.names.index(slot)]
        self._signed = graph.steps[output - num_columns].inputs[0]
        self.columns = sorted(i for i in sources if i < num_columns)
        self._needed = sources - {output}

    def __call__(self, columns: Sequence[pa.Array], wanted: Integers | None = None) -> FoundTexts:
        """The texts of the rows' signs, each once.

        Args:
            columns: The raw columns at the positions `columns`.
            wanted: The signs to find texts of, int64; by default all.
        """
        codes = _Codes()
        values = dict(zip(self.columns, columns, strict=True))
        for position, step in _steps(self._graph, self._needed, codes.add):
            values[position] = step.run(values[i] for i in step.inputs)
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

    def add(self, array: pa.Array) -> pa.Array:
        """Adds the texts of values; returns their numbers."""
        encoded = _canonical(array).dictionary_encode()
        first, texts = sum(map(len, self.canonical)), encoded.dictionary
        self.canonical.append(texts)
        is_time = pa.types.is_timestamp(array.type)
        self.shown.append(_times(texts) if is_time else readable_texts(texts))
        return array_of(values_of(encoded.indices).astype(np.int64) + first, nulls_of(array))


def _steps(
    graph: Graph, needed: Collection[int], hashes_of: Callable[[pa.Array], pa.Array]
) -> list[tuple[int, Step]]:
    """The steps at these positions, in order, with other hashes than those of `hash_values`.

    Args:
        hashes_of: Returns what stands in for the hash of each value: int64, null where it is null.
    """

    def hashed(array: pa.Array) -> pa.Array:
        if is_hashed(array.type):
            return array
        if is_list(array.type):
            return list_of(offsets_of(array), hashed(array.values), nulls_of(array))
        return struct_of([hashes_of(array)], nulls_of(array))

    steps = ((position, graph.step(position)) for position in sorted(needed))
    return [
        (position, replace(step, function=hashed) if step.function is hash_values else step)
        for position, step in steps
        if step is not None
    ]


def _digests(array: pa.Array) -> pa.Array:
    """The first 8 bytes of each text's BLAKE2b (little-endian). Each distinct text is hashed once,
    in Python.
    """
    numbers = array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array
    encoded = numbers.cast(pa.string()).dictionary_encode()
    texts = encoded.dictionary.cast(pa.binary()).to_pylist()
    digests = b"".join([hashlib.blake2b(text, digest_size=8).digest() for text in texts])
    return array_of(np.frombuffer(digests, "<i8").astype(np.int64)).take(encoded.indices)


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
