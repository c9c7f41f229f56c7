"""The columns as data files hold them, and their permanent ids, by which readers of Iceberg find
them. See `docs/contracts.md`.
"""

import hashlib
import json
from typing import Any

import pyarrow as pa

from featstore.base.errors import InputError
from featstore.base.schema import FIELD_ID, slot_number

# Slot numbers are ids in files of format 1, and few are so large.
_FIRST = 2**30
# Slots of smaller numbers have two ids each: that of the column, and that of its elements.
_NUM_PAIRED = 2**28
_FIRST_HASHED = _FIRST + 2 * _NUM_PAIRED
_NUM_HASHED = 2**29 - 256  # The last 200 ids below 2^31 are Iceberg's own.

# A slot's number or a column's name, then what lies within: a member's name, or of a list
# `element`, of a map `key` and `value`.
_Path = tuple[Any, ...]


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as data files hold them: all with ids, also within lists, structs and maps, and
    fixed-width columns as lists.

    A width is in the field's metadata: Delta knows only lists, and readers that trust the Arrow
    schema in the footer refuse a fixed-size list in a Parquet list.

    An id depends on nothing but the slot's number or, of other columns, the name, so no two writers
    have to agree on it.

    Raises:
        InputError: Two columns have one id, both by the hash of their names.
    """
    owners = dict[int, _Path]()
    columns = [_stored(column, _path_of(column), owners) for column in schema]
    return pa.schema(columns, schema.metadata)


def _path_of(column: pa.Field) -> _Path:
    number = slot_number(column)
    return (column.name if number is None else number,)


def _stored(field: pa.Field, path: _Path, owners: dict[int, _Path]) -> pa.Field:
    type_, number = field.type, _id(path)
    if (other := owners.setdefault(number, path)) != path:
        raise InputError(
            f"expected columns with an id of their own each, found id {number} of both "
            f"{_shown(other)} and {_shown(path)}, by a hash: rename one of them"
        )
    if pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        type_ = pa.list_(_stored(type_.value_field, (*path, "element"), owners))
    elif pa.types.is_large_list(type_):
        type_ = pa.large_list(_stored(type_.value_field, (*path, "element"), owners))
    elif pa.types.is_struct(type_):
        type_ = pa.struct([_stored(member, (*path, member.name), owners) for member in type_])
    elif pa.types.is_map(type_):
        key = _stored(type_.key_field, (*path, "key"), owners)
        item = _stored(type_.item_field, (*path, "value"), owners)
        type_ = pa.map_(key, item, type_.keys_sorted)
    metadata = {**(field.metadata or {}), FIELD_ID: str(number).encode()}
    return field.with_type(type_).with_metadata(metadata)


def _id(path: _Path) -> int:
    """The id of a slot's number or of a column's name, and of what lies within it."""
    if isinstance(path[0], int) and path[0] < _NUM_PAIRED and path[1:] in ((), ("element",)):
        return _FIRST + 2 * path[0] + len(path) - 1
    digest = hashlib.sha256(json.dumps(path).encode()).digest()
    return _FIRST_HASHED + int.from_bytes(digest[:8]) % _NUM_HASHED


def _shown(path: _Path) -> str:
    return ".".join([f"slot {path[0]}" if isinstance(path[0], int) else path[0], *path[1:]])
