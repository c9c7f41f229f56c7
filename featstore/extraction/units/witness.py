"""Witnesses of signs: the output of a graph if values are hashed by BLAKE2b instead of XXH64.

They reveal collisions: two values of a slot with the same sign have different witnesses. A witness
takes the same path as its sign, through crosses, lists and user operators, so both end at the same
place in the output.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from featstore.ops.arrays import array_of, list_of, nulls_of, offsets_of, struct_of
from featstore.ops.columns import sign_column
from featstore.ops.ids import hash_values, is_hashed
from featstore.ops.lists import is_list
from featstore.spec.graph import Graph


class Witness:
    """Runs only the steps of a graph that signs depend on. Picklable if the graph is; stateless."""

    def __init__(self, graph: Graph) -> None:
        num_columns = len(graph.columns)
        self._outputs = {
            slot.name: position
            for slot, position in zip(graph.schema.slots, graph.outputs, strict=False)
            if graph.steps[position - num_columns].function is sign_column
        }
        needed = frozenset[int]().union(*(graph.sources[name] for name in self._outputs))
        steps = enumerate(graph.steps, num_columns)
        self._steps = [
            (
                position,
                replace(step, function=digest_values) if step.function is hash_values else step,
            )
            for position, step in steps
            if position in needed
        ]

    def __call__(self, columns: Sequence[pa.Array]) -> dict[str, pa.Array]:
        """Returns the witnesses by slot, laid out like the slot's column: missing is 0 or `[0]`."""
        values = dict(enumerate(columns))
        for position, step in self._steps:
            values[position] = step.run(values[i] for i in step.inputs)
        return {name: values[position] for name, position in self._outputs.items()}


def digest_values(array: pa.Array) -> pa.Array:
    """Like `hash_values`, with the first 8 bytes of each text's BLAKE2b (little-endian) as the
    hash.

    Each distinct text is hashed once, in Python.
    """
    if is_hashed(array.type):
        return array
    if is_list(array.type):
        return list_of(offsets_of(array), digest_values(array.values), nulls_of(array))
    numbers = array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array
    encoded = numbers.cast(pa.string()).dictionary_encode()
    digests = b"".join(
        hashlib.blake2b(text.encode(), digest_size=8).digest()
        for text in encoded.dictionary.to_pylist()
    )
    hashes = array_of(np.frombuffer(digests, "<i8").astype(np.int64)).take(encoded.indices)
    return struct_of([hashes], nulls_of(hashes))
