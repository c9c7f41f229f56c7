"""What a Delta table demands of those who read or write it, by its protocol, properties and fields.

A rule that featstore does not keep is a refusal by the rule's name, before any work: a writer that
passes over a constraint, a generated column or a manifest leaves a table that lies to its other
readers. Names are those of the Delta protocol:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md#table-features
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from featstore.base.errors import DataFileError, InputError
from featstore.base.redaction import redact
from featstore.base.schema import BY_ID, FIELD_ID, STORED_NAME, FieldId
from featstore.native.column_types import is_list

# Features that delta-rs commits to, and that ask nothing of a writer unless a property or a field,
# which are looked at, makes use of them.
_HARMLESS = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "generatedColumns", "changeDataFeed"),
        "timestampNtz",
    }
)
# Versions without a list of features, which stand for one that delta-rs does not commit to.
_LEGACY = {5: "column mapping", 6: "identity columns"}
_MAX_READER_VERSION, _MAX_WRITER_VERSION = 3, 7
# Properties that ask something of every commit, and what they are called.
_PROPERTIES = {
    "delta.appendOnly": "append-only",
    "delta.enableChangeDataFeed": "a change data feed",
    "delta.enableRowTracking": "row tracking",
    "delta.enableInCommitTimestamps": "in-commit timestamps",
    "delta.enableTypeWidening": "type widening",
    "delta.enableIcebergCompatV1": "Iceberg compatibility",
    "delta.enableIcebergCompatV2": "Iceberg compatibility",
    "delta.compatibility.symlinkFormatManifest.enabled": "a symlink manifest, which would be stale",
}
_CONSTRAINT = "delta.constraints."
_UNIFORM = "delta.universalFormat.enabledFormats"
# Keys in a field's metadata that make its values, or bind them.
_FIELDS = {
    "delta.generationExpression": "a generated column",
    "delta.identity.start": "an identity column",
    "delta.invariants": "an invariant",
    "CURRENT_DEFAULT": "a default value",
    "__CHAR_VARCHAR_TYPE_STRING": "a char or varchar column",
}

# Of column mapping: data files hold a column under a physical name, or under a field id.
_MODE = "delta.columnMapping.mode"
_ID = b"delta.columnMapping.id"
_NAME_MODE, _ID_MODE = "name", "id"
# Readers of earlier versions, delta-rs too, look for the names of the schema.
_READER_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class TableRules:
    """What a Delta table demands, in words. By default nothing.

    Attributes:
        reading: What featstore cannot read of the table, if anything.
        writing: The rules that a commit of featstore would break.
        vacuuming: The rules that a vacuum would break.
    """

    reading: str = ""
    writing: tuple[str, ...] = ()
    vacuuming: tuple[str, ...] = ()


def rules_of(table: DeltaTable) -> TableRules:
    """The rules of a loaded table.

    A feature that no file and no property makes use of demands nothing of readers.
    """
    protocol, properties = table.protocol(), dict(table.metadata().configuration)
    fields = json.loads(table.schema().to_json())["fields"]
    versions = (protocol.min_reader_version, protocol.min_writer_version)
    features = (*(protocol.reader_features or ()), *(protocol.writer_features or ()))
    unknown = (*_unknown(versions, features), *filter(None, [mapping_text(properties)]))
    return TableRules(
        reading=_unreadable(table, versions, properties),
        writing=(*unknown, *_of_properties(properties), *_of_fields(fields)),
        vacuuming=unknown,
    )


def check_readable(url: str, rules: TableRules) -> None:
    """Checks that the table's rows and columns are read as they are meant.

    Raises:
        DataFileError: They are not.
    """
    if rules.reading:
        raise DataFileError(
            f"{redact(url)} is a Delta table with {rules.reading}, which featstore does not read: "
            f"expected a table without; write its rows with another engine to one that has none"
        )


def check_kept(url: str, broken: tuple[str, ...], what: str) -> None:
    """Checks that no rule would be broken.

    Args:
        url: The table.
        broken: Those of its rules that would be, as of `TableRules`.
        what: What was to be done.

    Raises:
        InputError: There are some.
    """
    if broken:
        raise InputError(
            f"{redact(url)}: {what}: expected a table whose rules featstore keeps, found "
            f"{', '.join(dict.fromkeys(broken))}; nothing was done: do it with the engine that "
            f"set the rule, drop the rule, or take another table"
        )


def _unreadable(
    table: DeltaTable,
    versions: tuple[int, int],
    properties: Mapping[str, str],
) -> str:
    if found := unknown_mapping(properties, versions[0]):
        return found
    if versions[0] > _MAX_READER_VERSION:
        return f"reader version {versions[0]}, newer than {_MAX_READER_VERSION}"
    # Their text in a log has no one form: each engine escapes bytes in its own way.
    schema = pa.schema(table.schema())
    for key in table.metadata().partition_columns:
        if pa.types.is_binary(schema.field(key).type):
            return f"the binary partition key {key!r}"
    return ""


def may_have_vectors(table: DeltaTable) -> bool:
    """Whether files of the table may have deletion vectors."""
    return "deletionVectors" in (table.protocol().reader_features or ())


def _unknown(versions: tuple[int, int], features: Iterable[str]) -> Iterator[str]:
    if versions[0] > _MAX_READER_VERSION or versions[1] > _MAX_WRITER_VERSION:
        yield f"protocol versions {versions[0]} and {versions[1]}, newer than 3 and 7"
    if versions[1] in _LEGACY:
        yield f"writer version {versions[1]} ({_LEGACY[versions[1]]})"
    for feature in sorted(set(features) - _HARMLESS):
        yield f"the table feature {feature}"


def _of_properties(properties: Mapping[str, str]) -> Iterator[str]:
    for key, value in sorted(properties.items()):
        if key.startswith(_CONSTRAINT):
            yield f"the CHECK constraint {key.removeprefix(_CONSTRAINT)} ({value})"
        elif key in _PROPERTIES and value.lower() == "true":
            yield f"{_PROPERTIES[key]} ({key})"
        elif key == _UNIFORM and value:
            yield f"metadata of other formats ({key} = {value})"


def _of_fields(fields: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for field in fields:
        found = [what for key, what in _FIELDS.items() if key in field.get("metadata", {})]
        yield from (f"{what} ({field['name']})" for what in found)


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
