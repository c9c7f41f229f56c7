"""The operator vocabulary: values of a fixed, growing list as stable indices."""

import functools
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featstore.ops.arrays import Integers, array_of, list_of, nulls_of, offsets_of, values_of
from featstore.ops.hashing import value_hash
from featstore.ops.lists import drop_elements, is_list

NOT_FOUND = -1
_UNKNOWN = "not in vocabulary"


class Vocabulary:
    """Distinct texts by index, named by a digest: equal digests are equal vocabularies. Pickled by
    content, safe for threads.

    `marks` are digests of its first 1, 2, 4, ... values. `num_unrecorded` says how many values its
    file has beyond these.
    """

    def __init__(
        self,
        values: pa.StringArray,
        digest: str,
        *,
        marks: tuple[str, ...] = (),
        num_unrecorded: int = 0,
    ) -> None:
        self.values = values
        self.digest = digest
        self.marks = marks
        self.num_unrecorded = num_unrecorded

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and (len(self), self.digest) == (
            len(other),
            other.digest,
        )

    def __hash__(self) -> int:
        return hash((len(self), self.digest))

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} values, {self.digest[:12]})"

    def find(self, texts: pa.StringArray) -> Integers:
        """The index of each text, `(len(texts),)`; -1 where it is none of the values, or null.

        Found by hash in sorted order, then compared: two values of one hash stay two values.
        """
        hashes, order = _sorted_hashes(self)
        wanted = values_of(value_hash(texts))
        at = np.searchsorted(hashes, wanted)
        found = np.full(len(texts), NOT_FOUND, np.int64)
        waiting = np.arange(len(texts))
        while len(waiting := _candidates(waiting, at, hashes, wanted)):
            indices = order[at[waiting]]
            same = pc.equal(self.values.take(pa.array(indices)), texts.take(pa.array(waiting)))
            equal = values_of(pc.fill_null(same, False))
            found[waiting[equal]] = indices[equal]
            waiting = waiting[~equal]
            at[waiting] += 1
        return found


def _candidates(
    waiting: Integers, at: Integers, hashes: NDArray[Any], wanted: NDArray[Any]
) -> Integers:
    waiting = waiting[at[waiting] < len(hashes)]
    same: NDArray[np.bool_] = hashes[at[waiting]] == wanted[waiting]
    return waiting[same]


_SORTING = threading.Lock()


def _sorted_hashes(vocabulary: Vocabulary) -> tuple[NDArray[Any], Integers]:
    """Value hashes in ascending order and the indices that they belong to: kept, as sorting
    millions takes seconds.
    """
    with _SORTING:
        return _sort(vocabulary)


@functools.lru_cache(maxsize=64)
def _sort(vocabulary: Vocabulary) -> tuple[NDArray[Any], Integers]:
    hashes = values_of(value_hash(vocabulary.values))
    order = np.argsort(hashes, kind="stable")
    return hashes[order], order


def vocabulary_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    value = types[0].value_type if is_list(types[0]) else types[0]
    if value not in (pa.string(), pa.int64()):
        raise TypeError("string or long, or a list of these")
    return pa.list_(pa.int64()) if is_list(types[0]) else pa.int64()


def find_in_vocabulary(
    array: pa.Array, *, vocabulary: Vocabulary, unknown: str, counts: Counter[str]
) -> pa.Array:
    """The index of x, an integer by its decimal text, in the vocabulary: its line, counted from 0.

    With `unknown: missing` a value that it does not have is missing, in a list dropped. With
    `unknown: index` it is 0 and the n-th line has n, so that no growth moves or takes it. Either is
    counted.
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


def recorded(value: object) -> Vocabulary:
    """A vocabulary."""
    if not isinstance(value, Vocabulary):
        raise TypeError(value)
    return value


def num_indices(params: Mapping[str, Any]) -> int:
    """How many different values the operator has."""
    return len(params["vocabulary"]) + int(params["unknown"] == "index")
