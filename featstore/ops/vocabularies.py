"""The operator vocabulary: maps values to their index in a list that may only grow."""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featstore.base.processes import module_lock
from featstore.ops.arrays import Integers, array_of, list_of, nulls_of, offsets_of, values_of
from featstore.ops.hashing import value_hash
from featstore.ops.lists import drop_elements, element_type, is_list
from featstore.ops.signature import NamedValues

NOT_FOUND = -1
_UNKNOWN = "not in vocabulary"


@dataclass(frozen=True)
class Vocabulary:
    """Distinct texts by index. Immutable, safe to share between threads, and pickled by content.

    Attributes:
        values: The texts, `(num_values,)`.
        digest: Identifies the content: vocabularies of equal digest are equal.
        marks: Digests of the first 1, 2, 4, ... values.
        num_unrecorded: How many more values the file has than the lock recorded.
    """

    values: pa.StringArray = field(compare=False)
    digest: str
    marks: tuple[str, ...] = field(default=(), compare=False)
    num_unrecorded: int = field(default=0, compare=False)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} values, {self.digest[:12]})"

    def find(self, texts: pa.StringArray) -> Integers:
        """The index of each text: int64 `(len(texts),)`, -1 where it is unknown or null.

        Texts are searched by hash and then compared, so that a collision of hashes is harmless.
        """
        with _SORTING:
            hashes, order = _sorted_hashes(self)
        wanted = values_of(value_hash(texts))
        at = np.searchsorted(hashes, wanted)
        found = np.full(len(texts), NOT_FOUND, np.int64)
        # Each round compares one candidate per text; only collisions of hashes need a second round.
        waiting = np.arange(len(texts))
        while len(waiting):
            waiting = waiting[at[waiting] < len(hashes)]
            waiting = waiting[hashes[at[waiting]] == wanted[waiting]]
            indices = order[at[waiting]]
            same = pc.equal(self.values.take(pa.array(indices)), texts.take(pa.array(waiting)))
            equal = values_of(pc.fill_null(same, False))
            found[waiting[equal]] = indices[equal]
            waiting = waiting[~equal]
            at[waiting] += 1
        return found


# Held while a vocabulary is sorted, so that threads that start together sort it once.
_SORTING = module_lock()


@functools.lru_cache(maxsize=64)
def _sorted_hashes(vocabulary: Vocabulary) -> tuple[NDArray[Any], Integers]:
    """The value hashes in ascending order and the index of each.

    They are cached, because sorting millions takes seconds.
    """
    hashes = values_of(value_hash(vocabulary.values))
    order = np.argsort(hashes, kind="stable")
    return hashes[order], order


def vocabulary_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    value = element_type(types[0])
    if value not in (pa.string(), pa.int64()):
        raise TypeError("string or long, or a list of these")
    return pa.list_(pa.int64()) if is_list(types[0]) else pa.int64()


def find_in_vocabulary(
    array: pa.Array, *, vocabulary: Vocabulary, unknown: str, counts: Counter[str]
) -> pa.Array:
    """The index of x in the vocabulary: its line, counted from 0. Integers are looked up as text.

    With `unknown: missing` an unknown value is missing, or dropped from a list. With
    `unknown: index` it gets 0 and the n-th line n, so that growth of the file moves no index.
    Unknown values are counted either way.
    """
    if is_list(array.type):
        indices = _indices(array.values, vocabulary, unknown, counts)
        lists = list_of(offsets_of(array), array_of(indices), nulls_of(array))
        dropped = indices == NOT_FOUND
        return drop_elements(lists, dropped) if dropped.any() else lists
    indices, nulls = _indices(array, vocabulary, unknown, counts), nulls_of(array)
    missing = indices == NOT_FOUND if nulls is None else (indices == NOT_FOUND) | nulls
    return array_of(indices, missing if missing.any() else None)


def _indices(
    array: pa.Array, vocabulary: Vocabulary, unknown: str, counts: Counter[str]
) -> Integers:
    indices = vocabulary.find(array if array.type == pa.string() else array.cast(pa.string()))
    if num_unknown := int((indices == NOT_FOUND).sum()) - array.null_count:
        counts[_UNKNOWN] += num_unknown
    return indices + 1 if unknown == "index" else indices


def num_indices(params: Mapping[str, Any]) -> int:
    """How many different values the operator has."""
    return len(params["vocabulary"]) + int(params["unknown"] == "index")


def entry_names(params: Mapping[str, Any]) -> NamedValues:
    """The entries by index; with `unknown: index` the first is `(not in vocabulary)`."""
    entries: pa.StringArray = params["vocabulary"].values
    num_before = num_indices(params) - len(entries)

    def name(index: int) -> str:
        known = index >= num_before
        return str(entries[index - num_before]) if known else f"({_UNKNOWN})"

    return NamedValues(num_values=num_indices(params), name=name, ordered=False)
