"""Delta's column mapping: where data files hold the columns of a table that renames or drops them
without writing files again. In mode `name` under a physical name, in mode `id` under a field id.

Format: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#column-mapping
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from featstore.base.schema import BY_ID, FIELD_ID, STORED_NAME, FieldId
from featstore.native.column_types import is_list

_MODE = "delta.columnMapping.mode"
_ID = b"delta.columnMapping.id"
_NAME_MODE, _ID_MODE = "name", "id"
# Readers of earlier versions, delta-rs too, look for the names of the schema.
_READER_VERSION = 2


def mapping_of(properties: Mapping[str, str]) -> str | None:
    """The mode of a table's column mapping; None if it has none. The property decides, since Delta
    1.2 to 2.x set no feature.
    """
    mode = properties.get(_MODE, "none").lower()
    return None if mode == "none" else mode


def unknown_mapping(properties: Mapping[str, str], reader_version: int) -> str:
    """What featstore cannot read of the mapping, in words, if anything."""
    mode = mapping_of(properties)
    if mode in (_NAME_MODE, _ID_MODE) and reader_version < _READER_VERSION:
        return f"{mapping_text(properties)} and reader version {reader_version}, which has none"
    return "" if mode in (None, _NAME_MODE, _ID_MODE) else mapping_text(properties)


def mapping_text(properties: Mapping[str, str]) -> str:
    """The mapping in words; empty if there is none."""
    mode = mapping_of(properties)
    return "" if mode is None else f"column mapping ({_MODE} = {mode})"


def mapped(schema: pa.Schema, properties: Mapping[str, str]) -> pa.Schema:
    """The columns of a table, each with what finds it in data files; the same if none is mapped.

    Args:
        schema: The table's schema, with Delta's metadata of fields, which delta-rs has checked.
        properties: The table's properties.
    """
    mode = mapping_of(properties)
    return schema if mode is None else pa.schema([_with_place(field, mode) for field in schema])


def _with_place(field: pa.Field, mode: str) -> pa.Field:
    metadata = dict(field.metadata)
    if mode == _NAME_MODE:
        place = FieldId(names=(metadata[STORED_NAME].decode(),))
    else:
        place = FieldId(number=int(metadata[_ID]))
        field = field.with_type(_with_ids(field.type))
    return field.with_metadata({**metadata, BY_ID: str(place).encode()})


def _with_ids(type_: pa.DataType) -> pa.DataType:
    """The type with the ids of the members of structs where files have them, too."""

    def member(field: pa.Field) -> pa.Field:
        metadata: dict[Any, Any] = dict(field.metadata or {})
        ids = {FIELD_ID: metadata[_ID]} if _ID in metadata else {}
        return field.with_type(_with_ids(field.type)).with_metadata({**metadata, **ids})

    if pa.types.is_struct(type_):
        return pa.struct(map(member, type_))
    if pa.types.is_map(type_):
        return pa.map_(member(type_.key_field), member(type_.item_field))
    return pa.list_(member(type_.value_field)) if is_list(type_) else type_
