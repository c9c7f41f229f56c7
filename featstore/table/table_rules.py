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
from featstore.table.column_mapping import mapping_text, unknown_mapping

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
