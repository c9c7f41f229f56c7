"""Converts columns at both ends of a graph.

Raw columns become what operators expect: the declared type and normalized values. An operator's
result becomes a slot's column: signs, indices or float32. Slots hold no nulls: a missing value is 0
in an id slot and NaN in a float slot.

Declared types are canonical: bool, int64, float64, string, timestamp[us, UTC], lists of them, and
maps from string. A raw column may be narrower (int32 for int64), in another encoding (dictionary,
large strings, binary), or hold timestamps of another unit. Naive timestamps are read as UTC.
"""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.native import kernels
from featstore.ops.arrays import (
    Mask,
    array_of,
    bytes_of,
    count_true,
    list_of,
    microseconds,
    nulls_of,
    offsets_of,
    stored_offsets_of,
    struct_of,
    values_of,
    with_counted,
)
from featstore.ops.hashing import MISSING, sign
from featstore.ops.ids import fields_of
from featstore.ops.lists import as_list, drop_elements, flat, is_list, mark_missing, zero_based
from featstore.ops.maps import entries_of, is_map, map_of

_MAX_INT64 = 2**63 - 1
_NAN_MARK = np.float32(np.nan).tobytes()
_is = pa.types
# The raw types that are read as a declared one; all others are read as themselves.
_READABLE = (
    (
        _is.is_string,
        (
            *(_is.is_string, _is.is_large_string, _is.is_string_view),
            *(_is.is_binary, _is.is_large_binary, _is.is_fixed_size_binary, _is.is_binary_view),
        ),
    ),
    (_is.is_timestamp, (_is.is_timestamp, _is.is_date)),
    (_is.is_floating, (_is.is_floating, _is.is_integer, _is.is_decimal)),
    (_is.is_integer, (_is.is_integer,)),
)


def readable(raw: pa.DataType, declared: pa.DataType) -> bool:
    """Whether `read_column` accepts a raw column of this type for a declared, canonical type."""
    if _is.is_dictionary(raw):
        return readable(raw.value_type, declared)
    if _is.is_null(raw):
        return True
    if is_list(declared):
        return is_any_list(raw) and readable(raw.value_type, declared.value_type)
    if is_map(declared):
        return (
            is_map(raw)
            and readable(raw.key_type, declared.key_type)
            and readable(raw.item_type, declared.item_type)
        )
    for is_declared, accepted in _READABLE:
        if is_declared(declared):
            return any(is_raw(raw) for is_raw in accepted)
    return bool(raw == declared)


def read_column(array: pa.Array, *, declared: pa.DataType, counts: Counter[str]) -> pa.Array:
    """Converts a raw column to its declared type.

    Integers and timestamps that are out of range become null, and invalid UTF-8 is replaced by
    U+FFFD. Both are counted.

    Args:
        array: A column whose type is `readable` as declared.
        declared: The canonical type.
        counts: Receives `out of range` and `invalid utf-8`.

    Returns:
        An array of the declared type, with as many rows.
    """
    if _is.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_list(declared) and not _is.is_null(array.type):
        offsets, values = zero_based(as_list(array))
        elements = read_column(values, declared=declared.value_type, counts=counts)
        return list_of(offsets, elements, nulls_of(array))
    if is_map(declared) and not _is.is_null(array.type):
        return _read_maps(array, declared, counts)
    if _is.is_string(declared):
        return _read_strings(array, counts)
    array = _drop_out_of_range(array, declared, counts)
    if _is.is_timestamp(declared):
        return microseconds(array).cast(declared)
    if _is.is_decimal(array.type):
        # Arrow (26) rounds twice, so that the double would depend on the decimal's scale.
        array = array.cast(pa.string())
    return array if array.type == declared else array.cast(declared, safe=False)


def clean(array: pa.Array, *, counts: Counter[str]) -> pa.Array:
    """Normalizes a column of declared type for operators.

    NaN becomes null and -0.0 becomes 0.0. Null elements of lists, and map entries without a value,
    are dropped.

    Args:
        array: A column as `read_column` returns it.
        counts: Receives `nan` and `null elements`. Changes of -0.0 are not counted.

    Returns:
        An array of the same type; lists are in flat form (see `lists`).
    """
    if is_map(array.type):
        return _clean_maps(array, counts)
    if is_list(array.type):
        lists = flat(array, counts)
        if not _is.is_floating(lists.type.value_type):
            return lists
        values = _clean_floats(lists.values, counts)
        return flat(list_of(offsets_of(lists), values, nulls_of(lists)))
    return _clean_floats(array, counts) if _is.is_floating(array.type) else array


def empty_as_null(array: pa.Array) -> pa.Array:
    """Strings with "" as null; in lists, "" elements dropped."""
    if is_list(array.type):
        return flat(list_of(offsets_of(array), empty_as_null(array.values), nulls_of(array)))
    return pc.if_else(pc.equal(pc.binary_length(array), 0), pa.scalar(None, array.type), array)


def _clean_floats(array: pa.Array, counts: Counter[str]) -> pa.Array:
    values = values_of(array)
    nulls = with_counted(nulls_of(array), np.isnan(values), counts, "nan")
    return array_of(values + 0.0, nulls)


def _read_maps(array: pa.MapArray, declared: pa.DataType, counts: Counter[str]) -> pa.MapArray:
    offsets = offsets_of(array)
    keys, items = entries_of(array)
    keys = read_column(keys, declared=declared.key_type, counts=counts)
    items = read_column(items, declared=declared.item_type, counts=counts)
    return map_of(offsets - offsets[0], struct_of([keys, items]), nulls_of(array), declared)


def _clean_maps(array: pa.MapArray, counts: Counter[str]) -> pa.MapArray:
    """Drops entries without a value, so that looking them up finds nothing."""
    keys, items = entries_of(array)
    offsets = offsets_of(array)
    entries = list_of(
        offsets - offsets[0], struct_of([keys, items], nulls_of(items)), nulls_of(array)
    )
    entries = flat(entries, counts)
    keys, items = (entries.values.field(i) for i in range(2))
    if is_map(items.type) or _is.is_floating(items.type):
        items = clean(items, counts=counts)
        entries = flat(
            list_of(
                offsets_of(entries), struct_of([keys, items], nulls_of(items)), nulls_of(entries)
            )
        )
    return map_of(offsets_of(entries), entries.values, nulls_of(entries), array.type)


def invalid_utf8(array: pa.Array) -> Mask:
    """Which texts of a column are not valid UTF-8: `(len(array),)`, False at nulls.

    The column must be `readable` as string.
    """
    found = np.zeros(len(array), np.bool_)
    found[list(_repaired(as_strings(array)))] = True
    return found


def _read_strings(array: pa.Array, counts: Counter[str]) -> pa.Array:
    strings = as_strings(array)
    repaired = _repaired(strings)
    if not repaired:
        return strings
    counts["invalid utf-8"] += len(repaired)
    is_invalid = np.zeros(len(strings), np.bool_)
    is_invalid[list(repaired)] = True
    return pc.replace_with_mask(strings, is_invalid, pa.array(repaired.values(), pa.string()))


def as_strings(array: pa.Array) -> pa.StringArray:
    """A column that is `readable` as string as such, not repaired."""
    if _is.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    return array if _is.is_string(array.type) else array.cast(pa.string(), safe=False)


def _repaired(strings: pa.StringArray) -> dict[int, str]:
    """The texts that are not valid UTF-8, by row, with U+FFFD in place of what is not."""
    if _is_valid(strings):
        return {}
    # The texts that are not ASCII are decoded one by one; few batches have an invalid one.
    offsets, data, nulls = offsets_of(strings), bytes_of(strings), nulls_of(strings)
    beyond_ascii = np.concatenate(([0], np.cumsum(data >= 0x80)))[offsets]
    found = {}
    for row in np.flatnonzero(np.diff(beyond_ascii)).tolist():
        text = bytes(data[offsets[row] : offsets[row + 1]])
        try:
            text.decode()
        except UnicodeDecodeError:
            found[row] = text.decode(errors="replace")
    return found if nulls is None else {row: found[row] for row in found if not nulls[row]}


def _is_valid(strings: pa.StringArray) -> bool:
    offsets = stored_offsets_of(strings)
    data = bytes_of(strings)[offsets[0] : offsets[-1]]
    # Bytes below 0x80 are valid, and finding the largest byte is ten times faster than decoding.
    if not len(data) or data.max() < 0x80:
        return True
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def fits(array: pa.Array, declared: pa.DataType) -> pa.BooleanArray | None:
    """Which numbers or times of a column the declared type can hold, null at nulls.

    Returns None where the type alone shows that all values fit.
    """
    if _is.is_uint64(array.type) and _is.is_integer(declared):
        return pc.less_equal(array, pa.scalar(_MAX_INT64, pa.uint64()))
    if not _is.is_timestamp(declared) or (ticks_us := _ticks_us(array.type)) == 1:
        return None
    limit = _MAX_INT64 // ticks_us
    numbers = array.view(pa.int32() if _is.is_date32(array.type) else pa.int64()).cast(pa.int64())
    return pc.and_(pc.greater_equal(numbers, -limit), pc.less_equal(numbers, limit))


def _ticks_us(arrow_type: pa.DataType) -> int:
    """Microseconds in one unit of a date or timestamp type; 1 where every value fits in int64."""
    dates = {pa.date32(): 86_400_000_000, pa.date64(): 1_000}
    units = {"s": 1_000_000, "ms": 1_000}
    return dates.get(arrow_type) or units.get(getattr(arrow_type, "unit", ""), 1)


def _drop_out_of_range(array: pa.Array, declared: pa.DataType, counts: Counter[str]) -> pa.Array:
    """Null where the declared type cannot hold the value."""
    fitting = fits(array, declared)
    if fitting is None:
        return array
    if num_found := pc.sum(pc.invert(fitting)).as_py():
        counts["out of range"] += num_found
        return pc.if_else(fitting, array, pa.scalar(None, array.type))
    return array


def is_any_list(arrow_type: pa.DataType) -> bool:
    """Whether rows of this type are lists, in any of Arrow's layouts."""
    return bool(
        _is.is_list(arrow_type)
        or _is.is_large_list(arrow_type)
        or _is.is_fixed_size_list(arrow_type)
    )


def sign_column(hashes: pa.Array, *, slot: int, arrow_type: pa.DataType) -> pa.Array:
    """Value hashes as signs of a slot: int64, missing 0; lists of int64, missing `[0]`."""
    if not is_list(arrow_type):
        return sign(slot, *fields_of(hashes))
    signs = sign(slot, *fields_of(hashes.values))
    return mark_missing(list_of(offsets_of(hashes), signs, nulls_of(hashes)), MISSING, arrow_type)


def index_column(array: pa.Array, *, arrow_type: pa.DataType) -> pa.Array:
    """Indices from 0 as int64 from 1, missing 0; lists of them, missing `[0]`."""
    if is_list(arrow_type):
        indices = array_of(values_of(array.values) + 1)
        lists = list_of(offsets_of(array), indices, nulls_of(array))
        return mark_missing(lists, MISSING, arrow_type)
    return pc.fill_null(pc.add(array, 1), MISSING)


def float_column(array: pa.Array, *, arrow_type: pa.DataType, counts: Counter[str]) -> pa.Array:
    """Float64 as float32, missing NaN; lists of float32, missing `[NaN]`.

    A value that float32 cannot hold becomes missing, or is dropped from a list, and is counted.
    """
    values = values_of(array.values if is_list(arrow_type) else array)
    # Adding 0.0 turns -0.0, to which a value may round, into 0.0 and leaves others as they are.
    with np.errstate(over="ignore", invalid="ignore"):
        floats = values.astype(np.float32)
        floats += np.float32(0)
    if not is_list(arrow_type) and array.null_count:
        kernels.fill_nulls(floats, array.buffers()[0], array.offset, _NAN_MARK)
    overflows = np.isinf(floats)
    has_overflow = count_true(overflows, counts, "overflow")
    if not is_list(arrow_type):
        if has_overflow:
            floats[overflows] = np.nan
        return array_of(floats)
    lists = list_of(offsets_of(array), array_of(floats), nulls_of(array))
    return mark_missing(
        drop_elements(lists, overflows) if has_overflow else lists, np.nan, arrow_type
    )
