"""Operators on texts: lower, split, tokenize, and weighted, which reads `value:weight` lists.
Arrow's UTF-8 kernels.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featstore.ops.arrays import (
    Integers,
    array_of,
    bytes_of,
    list_of,
    nulls_of,
    offsets_of,
    values_of,
)
from featstore.ops.lists import drop_elements, is_list, offsets_from, positions_of

_LARGEST = float(np.finfo(np.float32).max)
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"

# Unicode's white space, as Python's str.split has it. Arrow's utf8_split_whitespace (26.0) looks at
# bytes behind a text that ends in white space, so that the last word of a batch may keep it.
_WHITE_SPACE = (
    r"[\t-\r\x1C-\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}"
    r"\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}]+"
)


def lower_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    if types[0] not in (pa.string(), pa.list_(pa.string())):
        raise TypeError("string or list<string>")
    return types[0]


def lower(array: pa.Array, *, counts: Counter[str]) -> pa.Array:
    """Each code point in Unicode's simple lower case, whatever its neighbours and the locale."""
    if is_list(array.type):
        return list_of(offsets_of(array), pc.utf8_lower(array.values), nulls_of(array))
    return pc.utf8_lower(array)


def text_list_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    if types[0] != pa.string():
        raise TypeError("string")
    return pa.list_(pa.string())


def split(array: pa.StringArray, *, separator: str, counts: Counter[str]) -> pa.Array:
    """The pieces of a text between separators, "" where two meet; no pieces of an empty text."""
    return drop_elements(*_with_empty(pc.split_pattern(array, separator), array))


def tokenize(array: pa.StringArray, *, by: str, n: int, counts: Counter[str]) -> pa.Array:
    """All runs of n words (between Unicode white space; joined by a space) or of n code points, in
    order.

    A text of fewer than n has none.
    """
    return _word_runs(array, n) if by == "word" else _character_runs(array, n)


def weighted_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    if types[0] != pa.list_(pa.string()):
        raise TypeError("list<string>")
    return pa.list_(pa.string() if params["part"] == "value" else pa.float64())


def weighted(lists: pa.ListArray, *, part: str, separator: str, counts: Counter[str]) -> pa.Array:
    """Of `value:weight` texts the values, or the weights: two nodes of the same list and separator
    are aligned.

    The last separator counts; a text without one has weight 1. Elements whose weight is no decimal
    number within float32 are dropped from both, and counted as `malformed weights`.
    """
    pieces = _flat_pieces(pc.split_pattern(lists.values, separator, max_splits=1, reverse=True))
    starts, num_pieces = offsets_of(pieces)[:-1], np.diff(offsets_of(pieces))
    texts = (
        pieces.values.take(array_of(starts + 1, num_pieces < 2))
        if len(starts)
        else pa.array([], pa.string())
    )
    weights = _decimals(texts)
    dropped = ~(np.abs(weights) <= _LARGEST)
    if num_dropped := int(dropped.sum()):
        counts["malformed weights"] += num_dropped
    values = pieces.values.take(array_of(starts)) if part == "value" else array_of(weights + 0.0)
    return drop_elements(list_of(offsets_of(lists), values, nulls_of(lists)), dropped)


def _decimals(texts: pa.StringArray) -> NDArray[np.float64]:
    """Decimal texts as float64; 1 where null, NaN where it is no number."""
    decimal = pc.match_substring_regex(texts, _DECIMAL)
    numbers = pc.if_else(decimal, texts, "nan").cast(pa.float64())
    return np.where(values_of(pc.is_null(texts)), 1.0, values_of(pc.fill_null(numbers, 1.0)))


def _with_empty(
    pieces: pa.ListArray, texts: pa.StringArray
) -> tuple[pa.ListArray, NDArray[np.bool_]]:
    """Flat pieces, and a mask of the one that an empty text has."""
    pieces = _flat_pieces(pieces)
    empty = values_of(pc.fill_null(pc.equal(pc.binary_length(texts), 0), False))
    return pieces, np.repeat(empty, np.diff(offsets_of(pieces)))


def _flat_pieces(pieces: pa.ListArray) -> pa.ListArray:
    """The result of a kernel that splits, with offsets from 0."""
    offsets = offsets_of(pieces)
    values = pieces.values.slice(offsets[0], offsets[-1] - offsets[0])
    return list_of(offsets - offsets[0], values, nulls_of(pieces))


def _word_runs(array: pa.StringArray, n: int) -> pa.ListArray:
    pieces = _flat_pieces(pc.split_pattern_regex(array, _WHITE_SPACE))
    words = drop_elements(pieces, values_of(pc.equal(pc.binary_length(pieces.values), 0)))
    firsts, num_runs = _runs(offsets_of(words), n)
    if not len(firsts):  # where n is beyond every text, it may be beyond all that one can loop over
        return list_of(offsets_from(num_runs), pa.array([], pa.string()), nulls_of(words))
    columns = [words.values.take(array_of(firsts + i)) for i in range(n)]
    joined = pc.binary_join_element_wise(*columns, " ") if n > 1 else columns[0]
    return list_of(offsets_from(num_runs), joined, nulls_of(words))


def _character_runs(array: pa.StringArray, n: int) -> pa.ListArray:
    """Runs of code points, cut from the bytes: a byte that is no continuation begins a code
    point.
    """
    offsets, data = offsets_of(array), bytes_of(array)
    begins = np.flatnonzero((data & 0xC0) != 0x80)
    begins = begins[(begins >= offsets[0]) & (begins < offsets[-1])]
    ends = np.append(begins, offsets[-1])
    firsts, num_runs = _runs(np.searchsorted(begins, offsets), n)
    lengths = ends[firsts + n] - ends[firsts]
    cut = data[positions_of(ends[firsts], lengths)]
    texts = pa.Array.from_buffers(
        pa.string(),
        len(firsts),
        [None, pa.py_buffer(offsets_from(lengths).astype(np.int32)), pa.py_buffer(cut)],
    )
    return list_of(offsets_from(num_runs), texts, nulls_of(array))


def _runs(offsets: Integers, n: int) -> tuple[Integers, Integers]:
    """Where the runs of n elements begin, and how many each row has."""
    num_runs = np.maximum(np.diff(offsets) - n + 1, 0)
    return positions_of(offsets[:-1], num_runs), num_runs
