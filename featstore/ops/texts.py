"""Operators on texts: lower, split, tokenize, and weighted, which reads `value:weight` lists."""

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
    count_true,
    list_of,
    nulls_of,
    offsets_of,
    values_of,
)
from featstore.ops.lists import (
    drop_elements,
    is_list,
    offsets_from,
    positions_of,
    ranges_of,
    zero_based,
)
from featstore.ops.signature import result_for

_LARGEST = float(np.finfo(np.float32).max)
DECIMAL = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"

# Unicode's white space, as in Python's str.split. Arrow's utf8_split_whitespace (26.0) reads bytes
# beyond the end of a text that ends in white space, so the last word of a batch may keep it.
_WHITE_SPACE = (
    r"[\t-\r\x1C-\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}"
    r"\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}]+"
)


lower_type = result_for(
    lambda type_: type_ in (pa.string(), pa.list_(pa.string())), "string or list<string>"
)
text_list_type = result_for(pa.types.is_string, "string", pa.list_(pa.string()))


def lower(array: pa.Array, *, counts: Counter[str]) -> pa.Array:
    """Maps each code point to Unicode's simple lower case, regardless of context and locale."""
    if is_list(array.type):
        return list_of(offsets_of(array), pc.utf8_lower(array.values), nulls_of(array))
    return pc.utf8_lower(array)


def split(array: pa.StringArray, *, separator: str, counts: Counter[str]) -> pa.Array:
    """The pieces between separators, "" between adjacent ones. An empty text has no pieces."""
    pieces = _flat_pieces(pc.split_pattern(array, separator))
    # An empty text yields a single piece.
    is_empty = values_of(pc.fill_null(pc.equal(pc.binary_length(array), 0), False))
    return drop_elements(pieces, np.repeat(is_empty, np.diff(offsets_of(pieces))))


def tokenize(array: pa.StringArray, *, by: str, n: int, counts: Counter[str]) -> pa.Array:
    """The n-grams of a text in order: of words joined by a space, or of code points.

    Words are separated by Unicode white space. A text of fewer than n has no n-grams.
    """
    return _word_runs(array, n) if by == "word" else _character_runs(array, n)


def weighted_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    if types[0] != pa.list_(pa.string()):
        raise TypeError("list<string>")
    return pa.list_(pa.string() if params["part"] == "value" else pa.float64())


def weighted(lists: pa.ListArray, *, part: str, separator: str, counts: Counter[str]) -> pa.Array:
    """The values, or the weights, of `value:weight` texts.

    A text is split at the last separator; without one its weight is 1. Elements whose weight is not
    a decimal number within float32 are dropped from values and weights alike, so that two nodes of
    the same list stay aligned. They are counted as `malformed weights`.
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
    count_true(dropped, counts, "malformed weights")
    values = pieces.values.take(array_of(starts)) if part == "value" else array_of(weights + 0.0)
    return drop_elements(list_of(offsets_of(lists), values, nulls_of(lists)), dropped)


def _decimals(texts: pa.StringArray) -> NDArray[np.float64]:
    """Decimal texts as float64; 1 where null, NaN where the text is not a number."""
    decimal = pc.match_substring_regex(texts, f"^{DECIMAL}$")
    numbers = pc.if_else(decimal, texts, "nan").cast(pa.float64())
    return np.where(values_of(pc.is_null(texts)), 1.0, values_of(pc.fill_null(numbers, 1.0)))


def _flat_pieces(pieces: pa.ListArray) -> pa.ListArray:
    """The result of one of Arrow's split kernels, with offsets that begin at 0."""
    return list_of(*zero_based(pieces), nulls_of(pieces))


def _word_runs(array: pa.StringArray, n: int) -> pa.ListArray:
    pieces = _flat_pieces(pc.split_pattern_regex(array, _WHITE_SPACE))
    words = drop_elements(pieces, values_of(pc.equal(pc.binary_length(pieces.values), 0)))
    firsts, num_runs = _runs(offsets_of(words), n)
    # Here n may be as large as 2**31 - 1, which must not be looped over below.
    if not len(firsts):
        return list_of(offsets_from(num_runs), pa.array([], pa.string()), nulls_of(words))
    columns = [words.values.take(array_of(firsts + i)) for i in range(n)]
    joined = pc.binary_join_element_wise(*columns, " ") if n > 1 else columns[0]
    return list_of(offsets_from(num_runs), joined, nulls_of(words))


def _character_runs(array: pa.StringArray, n: int) -> pa.ListArray:
    """The n-grams of code points, sliced from the bytes."""
    offsets, data = offsets_of(array), bytes_of(array)
    # In UTF-8 every byte but those of the form 10xxxxxx begins a code point.
    begins = np.flatnonzero((data & 0xC0) != 0x80)
    begins = begins[(begins >= offsets[0]) & (begins < offsets[-1])]
    ends = np.append(begins, offsets[-1])
    firsts, num_runs = _runs(np.searchsorted(begins, offsets), n)
    lengths = ends[firsts + n] - ends[firsts]
    cut = ranges_of(data, ends[firsts], lengths)
    texts = pa.Array.from_buffers(
        pa.string(),
        len(firsts),
        [None, pa.py_buffer(offsets_from(lengths).astype(np.int32)), pa.py_buffer(cut)],
    )
    return list_of(offsets_from(num_runs), texts, nulls_of(array))


def _runs(offsets: Integers, n: int) -> tuple[Integers, Integers]:
    """The positions at which runs of n elements begin, and the number of runs of each row."""
    num_runs = np.maximum(np.diff(offsets) - n + 1, 0)
    return positions_of(offsets[:-1], num_runs), num_runs
