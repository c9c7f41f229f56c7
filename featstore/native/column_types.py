"""Arrow types of columns that other writers made: the layouts in memory that some of them ask for,
and which types mean values of one kind.
"""

from collections.abc import Callable

import pyarrow as pa

from featstore.base.schema import stored_name

_IsKind = Callable[[pa.DataType], bool]
# The kinds of values without inner ones. What is of one kind is converted value by value.
_KINDS: tuple[tuple[_IsKind, ...], ...] = (
    (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal),
    (pa.types.is_string, pa.types.is_binary),
    (pa.types.is_timestamp,),
    (pa.types.is_date,),
    (pa.types.is_time,),
    (pa.types.is_duration,),
)
_TEXTS = (pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_large_binary, pa.types.is_binary_view)
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def plain_type(type_: pa.DataType) -> pa.DataType:
    """The type without the layout in memory that its writer prefers, which says nothing about
    values: text, not large text, a view of it, or a dictionary; and lists likewise.
    """
    if pa.types.is_dictionary(type_):
        return plain_type(type_.value_type)
    if _is_any(_TEXTS, type_):
        return pa.string()
    if _is_any(_BYTES, type_):
        return pa.binary()
    if _is_any(_LISTS, type_):
        return pa.list_(_plain_field(type_.value_field))
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_plain_field(type_.value_field), type_.list_size)
    if pa.types.is_map(type_):
        key, item = _plain_field(type_.key_field), _plain_field(type_.item_field)
        return pa.map_(key, item, keys_sorted=type_.keys_sorted)
    return pa.struct(map(_plain_field, type_)) if pa.types.is_struct(type_) else type_


def is_of_kind(found: pa.DataType, expected: pa.DataType) -> bool:
    """Whether values of the type `found` may be read as `expected`, both plain: an error is then a
    matter of a value, not of the type. Inner values count, those of structs by name. Nulls are of
    any kind.
    """
    if is_same(found, expected) or pa.types.is_null(found):
        return True
    if is_list(found) and is_list(expected):
        return is_of_kind(found.value_type, expected.value_type)
    if pa.types.is_map(found) and pa.types.is_map(expected):
        pairs = ((found.key_type, expected.key_type), (found.item_type, expected.item_type))
        return all(is_of_kind(*pair) for pair in pairs)
    if pa.types.is_struct(found) and pa.types.is_struct(expected):
        own = {field.name: field.type for field in found}
        common = [field for field in expected if stored_name(field) in own]
        return bool(common) and all(
            is_of_kind(own[stored_name(field)], field.type) for field in common
        )
    is_widened_date = pa.types.is_date(found) and pa.types.is_timestamp(expected)
    return is_widened_date or any(
        _is_any(kind, found) and _is_any(kind, expected) for kind in _KINDS
    )


def is_same(found: pa.DataType, expected: pa.DataType) -> bool:
    """Whether values of the type `found` are those of `expected` as they are. Where files have
    other names for members of structs, what is converted already has the same metadata.
    """
    if found != expected:
        return False
    is_renamed = pa.types.is_nested(expected) and _is_renamed(expected)
    return not is_renamed or bool(found.equals(expected, check_metadata=True))


def _is_renamed(type_: pa.DataType) -> bool:
    """Whether files have other names for members of structs, at any depth."""
    inner = [type_.field(index) for index in range(type_.num_fields)]
    is_struct = pa.types.is_struct(type_)
    return any(
        (is_struct and stored_name(field) != field.name) or _is_renamed(field.type)
        for field in inner
    )


def is_list(type_: pa.DataType) -> bool:
    """Whether rows are lists, of any layout or of a fixed size."""
    return _is_any((*_LISTS, pa.types.is_fixed_size_list), type_)


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(field.type))


def _is_any(kinds: tuple[_IsKind, ...], type_: pa.DataType) -> bool:
    return any(is_kind(type_) for is_kind in kinds)
