"""Finds malformed values of raw columns: values that the declared type cannot hold.

Nulls, null elements of lists, NaN and infinities are not malformed: they have a meaning of their
own (docs/contracts.md).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.ops.arrays import (
    Integers,
    Mask,
    count_true,
    list_of,
    nulls_of,
    offsets_of,
    values_of,
)
from featstore.ops.columns import as_strings, fits, invalid_utf8, is_any_list, readable
from featstore.ops.lists import as_list, is_list, lengths_of, zero_based
from featstore.ops.maps import entries_of, is_map
from featstore.ops.texts import DECIMAL

INVALID_UTF8, OUT_OF_RANGE, NOT_WHOLE = "invalid utf-8", "out of range", "not whole"
WRONG_TYPE, ABSENT, LENGTHS_DIFFER = "wrong type", "column absent", "lengths differ"
NOT_A_NUMBER = "not a number"
KINDS = (INVALID_UTF8, OUT_OF_RANGE, NOT_WHOLE, NOT_A_NUMBER, WRONG_TYPE, ABSENT, LENGTHS_DIFFER)
MAX_EXAMPLES = 3
_MAX_TEXT = 60
# Python refuses to convert integers of more than 4,300 digits (14,284 bits) to text.
_MAX_BITS = 4_096
_MAX_DECIMAL_DIGITS, _INT64_DIGITS = 76, 19
NOT_FINITE = "nan|[+-]?inf(inity)?"  # in any case
WHOLE = r"([+-]?)0*([0-9]+)\.?0*"
_is = pa.types


@dataclass(frozen=True, kw_only=True)
class MalformedValues:
    """The malformed values of one kind in one column of a batch.

    Attributes:
        what: The kind, one of `KINDS`.
        rows: int64 `(num_values,)`, the row of each value, ascending.
        text: Returns the i-th value as short text.
    """

    what: str
    rows: Integers
    text: Callable[[int], str]

    def examples(self) -> Iterator[tuple[int, str]]:
        """Row and text of the first value in each of the first `MAX_EXAMPLES` affected rows."""
        rows, numbers = np.unique(self.rows, return_index=True)
        for row, number in zip(
            rows[:MAX_EXAMPLES].tolist(), numbers[:MAX_EXAMPLES].tolist(), strict=True
        ):
            yield row, self.text(number)


def find_malformed(array: pa.Array, declared: pa.DataType) -> list[MalformedValues]:
    """Finds the values that `read_column` replaces.

    Args:
        array: A column that is `readable` as declared.
        declared: The canonical type.

    Returns:
        One `MalformedValues` for each kind that occurs. Values under a null row are ignored.
    """
    if _is.is_dictionary(array.type):
        array = array.dictionary_decode()
    if _is.is_null(array.type):
        return []
    if is_list(declared):
        _, values = zero_based(as_list(array))
        return [_by_rows(found, array) for found in find_malformed(values, declared.value_type)]
    if is_map(declared):
        keys, items = entries_of(array)
        inner = find_malformed(keys, declared.key_type) + find_malformed(items, declared.item_type)
        return [_by_rows(found, array) for found in inner]
    if _is.is_string(declared):
        return _found(INVALID_UTF8, array, invalid_utf8(array))
    fitting = fits(array, declared)
    return (
        []
        if fitting is None
        else _found(OUT_OF_RANGE, array, values_of(pc.fill_null(pc.invert(fitting), False)))
    )


def narrowable(raw: pa.DataType, declared: pa.DataType, *, text: bool = False) -> bool:
    """Whether `narrow` can convert a column that is not `readable` as declared.

    It converts floats and decimals to declared longs where they are whole numbers, and with `text`
    also texts to numbers.
    """
    if _is.is_dictionary(raw):
        return narrowable(raw.value_type, declared, text=text)
    if is_list(declared):
        return is_any_list(raw) and narrowable(raw.value_type, declared.value_type, text=text)
    is_decimal = _is.is_decimal(raw) and raw.scale >= 0
    return bool(
        (text and is_number_as_text(raw, declared))
        or (_is.is_integer(declared) and (_is.is_floating(raw) or is_decimal))
    )


def is_number_as_text(raw: pa.DataType, declared: pa.DataType) -> bool:
    """Whether a column holds texts, or lists of them, where numbers are declared."""
    if is_list(declared):
        return is_any_list(raw) and is_number_as_text(raw.value_type, declared.value_type)
    is_number = _is.is_integer(declared) or _is.is_floating(declared)
    return is_number and not _is.is_null(raw) and readable(raw, pa.string())


def narrow(
    array: pa.Array, declared: pa.DataType, counts: Counter[str]
) -> tuple[pa.Array, list[MalformedValues]]:
    """Converts a `narrowable` column to its declared type.

    Args:
        array: Floats, decimals or texts, or lists of them.
        declared: int64, of texts also float64, or a list of it.
        counts: Receives `nan`.

    Returns:
        The column, null where a value is malformed or NaN, and the malformed values.
    """
    if _is.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_list(declared):
        offsets, values = zero_based(as_list(array))
        elements, inner = narrow(values, declared.value_type, counts)
        return list_of(offsets, elements, nulls_of(array)), [
            _by_rows(found, array) for found in inner
        ]
    if _is.is_decimal(array.type):
        return _whole_decimals(array)
    if _is.is_floating(array.type):
        return _whole_floats(array, counts)
    return _numbers_of_texts(array, declared)


def all_wrong(array: pa.Array) -> list[MalformedValues]:
    """Marks every value of a column whose type can never be read as declared."""
    return _found(WRONG_TYPE, array, values_of(pc.is_valid(array)))


def find_unequal(lists: list[pa.Array]) -> list[MalformedValues]:
    """Finds rows where the lists of one sequence differ in length.

    A missing list has the length -1, so rows where only some lists are missing are found too.
    """
    lengths, differ = lengths_of(lists)
    rows: Integers = np.flatnonzero(differ)

    def text(number: int) -> str:
        return ", ".join(str(length[rows[number]]) for length in lengths)

    return [MalformedValues(what=LENGTHS_DIFFER, rows=rows, text=text)] if len(rows) else []


def without_views(array: pa.Array) -> pa.Array:
    """Casts string and binary views to layouts that Arrow's filter kernels support."""
    arrow_type = _without_views(array.type)
    return array if arrow_type == array.type else array.cast(arrow_type, safe=False)


def short_text(value: object) -> str:
    """A value as Python would write it, on one line and at most 60 characters."""
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"an integer of {value.bit_length():,} bits"
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def _without_views(arrow_type: pa.DataType) -> pa.DataType:
    if is_any_list(arrow_type):
        value = _without_views(arrow_type.value_type)
        return arrow_type if value == arrow_type.value_type else pa.large_list(value)
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return plain.get(arrow_type, arrow_type)


def _found(what: str, array: pa.Array, mask: Mask) -> list[MalformedValues]:
    rows: Integers = np.flatnonzero(mask)
    found = MalformedValues(
        what=what, rows=rows, text=lambda number: value_text(array, int(rows[number]))
    )
    return [found] if len(rows) else []


def value_text(array: pa.Array, row: int) -> str:
    """A raw value as short text, whatever it is."""
    value = array.slice(row, 1)
    if _is.is_timestamp(value.type) or _is.is_date(value.type):
        value = value.view(pa.int32() if _is.is_date32(value.type) else pa.int64())
    try:
        return short_text(value[0].as_py())
    except UnicodeDecodeError:
        return short_text(value.cast(pa.string(), safe=False).cast(pa.binary())[0].as_py())
    except (ValueError, OverflowError):  # a Python value cannot be every Arrow value
        return short_text(str(value[0]))


def _by_rows(found: MalformedValues, array: pa.Array) -> MalformedValues:
    """Maps findings in the elements of lists or maps to the rows that hold the elements.

    Elements under a null row are dropped.
    """
    offsets = offsets_of(array if is_map(array.type) else as_list(array))
    rows: Integers = np.searchsorted(offsets - offsets[0], found.rows, side="right") - 1
    nulls = nulls_of(array)
    if nulls is None:
        return replace(found, rows=rows)
    kept = np.flatnonzero(~nulls[rows])
    return replace(found, rows=rows[kept], text=lambda number: found.text(int(kept[number])))


def _numbers_of_texts(
    array: pa.Array, declared: pa.DataType
) -> tuple[pa.Array, list[MalformedValues]]:
    """The nearest double, rounded once, or the long of each text.

    Space around is ignored, and a text of nothing else is missing.
    """
    texts = pc.ascii_trim_whitespace(as_strings(array))
    texts = pc.if_else(pc.equal(pc.binary_length(texts), 0), pa.scalar(None, pa.string()), texts)
    is_decimal = pc.match_substring_regex(texts, f"^{DECIMAL}$")
    is_number = pc.or_(is_decimal, pc.match_substring_regex(texts, f"(?i)^({NOT_FINITE})$"))
    floats = pc.if_else(is_number, texts, pa.scalar(None, pa.string())).cast(pa.float64())
    numbers, beyond = floats, pc.and_(is_decimal, pc.is_inf(floats))
    bad = {NOT_A_NUMBER: pc.invert(is_number)}
    found = list[MalformedValues]()
    if _is.is_integer(declared):
        is_whole = pc.match_substring_regex(texts, f"^{WHOLE}$")
        # Doubles do not tell all longs apart, but these have few enough digits for a decimal.
        beyond = pc.and_(is_whole, pc.greater(pc.abs(floats), 2.0**63))
        digits = pc.replace_substring_regex(texts, f"^{WHOLE}$", r"\1\2")
        short = pc.if_else(pc.and_not(is_whole, beyond), digits, pa.scalar(None, pa.string()))
        numbers, found = _whole_decimals(short.cast(pa.decimal128(38)))
        bad[NOT_WHOLE] = pc.and_not(pc.and_not(is_number, is_whole), pc.is_nan(floats))
    else:
        numbers = pc.if_else(beyond, pa.scalar(None, pa.float64()), numbers)
    for what, mask in (bad | {OUT_OF_RANGE: beyond}).items():
        found += _found(what, array, values_of(pc.fill_null(mask, False)))
    return numbers, found


def _whole_floats(array: pa.Array, counts: Counter[str]) -> tuple[pa.Array, list[MalformedValues]]:
    numbers = array.cast(pa.float64())
    is_nan = pc.is_nan(numbers)
    count_true(values_of(pc.fill_null(is_nan, False)), counts, "nan")
    numbers = pc.if_else(is_nan, pa.scalar(None, pa.float64()), numbers)
    # 2**63 - 1 is not a float64, so the upper bound is exclusive.
    inside = pc.and_(pc.greater_equal(numbers, -(2.0**63)), pc.less(numbers, 2.0**63))
    return _whole(array, numbers, inside)


def _whole_decimals(array: pa.Array) -> tuple[pa.Array, list[MalformedValues]]:
    wide = pa.decimal256(_MAX_DECIMAL_DIGITS, array.type.scale)
    numbers = array.cast(wide)
    inside = pc.equal(numbers, numbers)  # null where that is
    if array.type.scale <= _MAX_DECIMAL_DIGITS - _INT64_DIGITS:  # otherwise all are small
        low, high = (pa.scalar(Decimal(limit), wide) for limit in (-(2**63), 2**63 - 1))
        inside = pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high))
    return _whole(array, numbers, inside)


def _whole(
    array: pa.Array, numbers: pa.Array, inside: pa.BooleanArray
) -> tuple[pa.Array, list[MalformedValues]]:
    """Numbers as int64, null where they are not whole, and the malformed ones.

    Args:
        array: The column as it is.
        numbers: Its numbers, null where there is none.
        inside: Which of these int64 can hold, null where they are.
    """
    whole = pc.equal(pc.trunc(numbers), numbers)
    bad = {OUT_OF_RANGE: pc.invert(inside), NOT_WHOLE: pc.and_not(inside, whole)}
    found = [
        one
        for what, mask in bad.items()
        for one in _found(what, array, values_of(pc.fill_null(mask, False)))
    ]
    good = pc.fill_null(pc.and_(inside, whole), False)
    return pc.if_else(good, numbers, pa.scalar(None, numbers.type)).cast(pa.int64()), found
