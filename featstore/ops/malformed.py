"""Malformed values of raw columns: what the declared type cannot hold, found row by row and shown
as text.

Not malformed are nulls, null elements of lists, NaN and infinities: these have a meaning of their
own (docs/contracts.md).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.ops.arrays import Integers, Mask, array_of, list_of, nulls_of, offsets_of, values_of
from featstore.ops.columns import fits, invalid_utf8, is_any_list
from featstore.ops.lists import is_list
from featstore.ops.maps import entries_of, is_map

INVALID_UTF8, OUT_OF_RANGE, NOT_WHOLE = "invalid utf-8", "out of range", "not whole"
WRONG_TYPE, ABSENT, LENGTHS_DIFFER = "wrong type", "column absent", "lengths differ"
KINDS = (INVALID_UTF8, OUT_OF_RANGE, NOT_WHOLE, WRONG_TYPE, ABSENT, LENGTHS_DIFFER)
MAX_EXAMPLES = 3
_MAX_TEXT = 60
_MAX_BITS = 4_096
_is = pa.types


@dataclass(frozen=True, kw_only=True)
class Found:
    """Malformed values of one kind: the row of each, ascending, `(num_values,)`, and each as short
    text, by its number.
    """

    what: str
    rows: Integers
    text: Callable[[int], str]

    def examples(self) -> Iterator[tuple[int, str]]:
        """The first value of each of the first few rows that have any, whatever batch they came in:
        row and text.
        """
        rows, numbers = np.unique(self.rows, return_index=True)
        for row, number in zip(
            rows[:MAX_EXAMPLES].tolist(), numbers[:MAX_EXAMPLES].tolist(), strict=True
        ):
            yield row, self.text(number)


def find_malformed(array: pa.Array, declared: pa.DataType) -> list[Found]:
    """What `read_column` replaces in a column that is `readable` as declared; nothing under a
    null.
    """
    if _is.is_dictionary(array.type):
        array = array.dictionary_decode()
    if _is.is_null(array.type):
        return []
    if is_list(declared):
        return [
            _by_rows(found, array)
            for found in find_malformed(_elements(array), declared.value_type)
        ]
    if is_map(declared):
        keys, items = entries_of(array)
        inner = find_malformed(keys, declared.key_type) + find_malformed(items, declared.item_type)
        return [_by_rows(found, array) for found in inner]
    if _is.is_string(declared):
        return list(_found(INVALID_UTF8, array, invalid_utf8(array)))
    fitting = fits(array, declared)
    return (
        []
        if fitting is None
        else list(_found(OUT_OF_RANGE, array, values_of(pc.fill_null(pc.invert(fitting), False))))
    )


def narrowable(raw: pa.DataType, declared: pa.DataType) -> bool:
    """Whether some values of a column that is not `readable` as declared are: whole numbers, where
    longs are declared.
    """
    if _is.is_dictionary(raw):
        return narrowable(raw.value_type, declared)
    if is_list(declared):
        return is_any_list(raw) and narrowable(raw.value_type, declared.value_type)
    is_decimal = _is.is_decimal(raw) and not _is.is_decimal256(raw) and raw.scale >= 0
    return bool(_is.is_integer(declared) and (_is.is_floating(raw) or is_decimal))


def narrow(
    array: pa.Array, declared: pa.DataType, counts: Counter[str]
) -> tuple[pa.Array, list[Found]]:
    """A `narrowable` column as declared, malformed values null, and what was malformed. NaN is
    null, counted as `nan`.
    """
    if _is.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_list(declared):
        array = _as_list(array)
        offsets = offsets_of(array)
        elements, inner = narrow(_elements(array), declared.value_type, counts)
        return list_of(offsets - offsets[0], elements, nulls_of(array)), [
            _by_rows(found, array) for found in inner
        ]
    return _whole_decimals(array) if _is.is_decimal(array.type) else _whole_floats(array, counts)


def all_wrong(array: pa.Array) -> list[Found]:
    """Every value of a column whose type is none that could be read as declared."""
    return list(_found(WRONG_TYPE, array, values_of(pc.is_valid(array))))


def find_unequal(lists: list[pa.Array]) -> list[Found]:
    """Rows whose lists, those of one sequence, differ in length, or of which only some are missing
    (length -1).
    """
    lengths = [
        values_of(pc.fill_null(pc.list_value_length(array), -1).cast(pa.int64())) for array in lists
    ]
    rows: Integers = np.flatnonzero(np.any([length != lengths[0] for length in lengths], axis=0))

    def text(number: int) -> str:
        return ", ".join(str(length[rows[number]]) for length in lengths)

    return [Found(what=LENGTHS_DIFFER, rows=rows, text=text)] if len(rows) else []


def without_views(array: pa.Array) -> pa.Array:
    """The same texts in a layout that Arrow can filter."""
    arrow_type = _without_views(array.type)
    return array if arrow_type == array.type else array.cast(arrow_type, safe=False)


def short_text(value: object) -> str:
    """A value as its reader would write it, on one line and not long."""
    if (
        isinstance(value, int) and value.bit_length() > _MAX_BITS
    ):  # Python refuses to write some of these
        return f"an integer of {value.bit_length():,} bits"
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def _without_views(arrow_type: pa.DataType) -> pa.DataType:
    if is_any_list(arrow_type):
        value = _without_views(arrow_type.value_type)
        return arrow_type if value == arrow_type.value_type else pa.large_list(value)
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return plain.get(arrow_type, arrow_type)


def _found(what: str, array: pa.Array, mask: Mask) -> Iterator[Found]:
    rows: Integers = np.flatnonzero(mask)
    if len(rows):
        yield Found(what=what, rows=rows, text=lambda number: _text(array, int(rows[number])))


def _text(array: pa.Array, row: int) -> str:
    value = array.slice(row, 1)
    if (
        _is.is_string(value.type)
        or _is.is_large_string(value.type)
        or _is.is_string_view(value.type)
    ):
        try:
            return short_text(value[0].as_py())
        except UnicodeDecodeError:
            value = value.cast(pa.string(), safe=False).cast(pa.binary())
    if _is.is_timestamp(value.type) or _is.is_date(value.type):
        return short_text(
            value.view(pa.int32() if _is.is_date32(value.type) else pa.int64())[0].as_py()
        )
    try:
        return short_text(value[0].as_py())
    except (ValueError, OverflowError):  # a Python date cannot be every Arrow date
        return short_text(str(value[0]))


def _elements(array: pa.Array) -> pa.Array:
    lists = _as_list(array)
    offsets = offsets_of(lists)
    return lists.values.slice(offsets[0], offsets[-1] - offsets[0])


def _as_list(array: pa.Array) -> pa.ListArray:
    return array if is_list(array.type) else array.cast(pa.list_(array.type.value_type))


def _by_rows(found: Found, array: pa.Array) -> Found:
    """What was found in the elements of lists or maps, by the rows that hold them; elements under a
    null are none.
    """
    offsets = offsets_of(array if is_map(array.type) else _as_list(array))
    rows: Integers = np.searchsorted(offsets - offsets[0], found.rows, side="right") - 1
    nulls = nulls_of(array)
    return (
        replace(found, rows=rows)
        if nulls is None
        else _outside(replace(found, rows=rows), ~nulls[rows])
    )


def _outside(found: Found, kept: Mask) -> Found:
    numbers = np.flatnonzero(kept)
    return replace(
        found, rows=found.rows[kept], text=lambda number: found.text(int(numbers[number]))
    )


def _whole_floats(array: pa.Array, counts: Counter[str]) -> tuple[pa.Array, list[Found]]:
    values, nulls = values_of(array.cast(pa.float64())), nulls_of(array)
    there = np.ones(len(values), np.bool_) if nulls is None else ~nulls
    is_nan = there & np.isnan(values)
    if num_found := int(is_nan.sum()):
        counts["nan"] += num_found
    there &= ~is_nan
    with np.errstate(invalid="ignore"):
        inside = (values >= -(2.0**63)) & (values < 2.0**63)
        whole = inside & (np.floor(values) == values)
    found = [
        *_found(OUT_OF_RANGE, array, there & ~inside),
        *_found(NOT_WHOLE, array, there & inside & ~whole),
    ]
    good = there & whole
    return array_of(np.where(good, values, 0.0).astype(np.int64), ~good), found


def _whole_decimals(array: pa.Array) -> tuple[pa.Array, list[Found]]:
    wide = pa.decimal256(76, array.type.scale)
    numbers = array.cast(wide)
    low, high = (pa.scalar(Decimal(limit), wide) for limit in (-(2**63), 2**63 - 1))
    inside = pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high))
    whole = pc.equal(pc.trunc(numbers), numbers)
    bad = [(OUT_OF_RANGE, pc.invert(inside)), (NOT_WHOLE, pc.and_not(inside, whole))]
    found = [
        one
        for what, mask in bad
        for one in _found(what, array, values_of(pc.fill_null(mask, False)))
    ]
    good = pc.fill_null(pc.and_(inside, whole), False)
    return pc.if_else(good, numbers, pa.scalar(None, wide)).cast(pa.int64()), found
