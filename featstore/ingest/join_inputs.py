"""Checks the inputs of a join before any row is read: columns, types, locations and files."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from featstore.base.errors import (
    ChangedInputError,
    DataFileError,
    InputError,
    TableFormatError,
    nearest,
)
from featstore.base.redaction import redact
from featstore.files.hadoop import HADOOP_SCHEMES
from featstore.files.listings import FileEntry, check_unchanged, list_files, listing_digest
from featstore.files.storage import lies_within, scheme
from featstore.formats.text_files import list_raw_files
from featstore.ingest.join_options import Label, LabelJoin, LogSource, Lookup
from featstore.table.iceberg import is_iceberg
from featstore.table.open import DELTA_INPUT
from featstore.table.parquet_dir import columns_of, each_footer

Types = Mapping[str, str]
_INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})
_ROW_ID_TYPES = _INTEGERS | {"string", "boolean", "timestamp", "timestamp_ntz"}
_NUMBERS = _INTEGERS | {"float", "double", "boolean"}


def check_impressions(join: LabelJoin, types: Types) -> None:
    """Checks the columns of the impressions against what the join needs.

    Args:
        types: Spark types by column.

    Raises:
        InputError: A column is missing, has the wrong type, or has a name that the join would add.
    """
    log, source = join.impressions, join.impressions.source
    keys = [name for label in join.labels for name in label.key]
    keys += [name for lookup in join.lookups for name in lookup.key]
    _check_columns(
        source,
        types,
        [
            *log.row_id,
            log.event_time,
            log.log_time,
            *keys,
            *join.partition_by,
        ],
    )
    _check_times(source, types, log.event_time, log.log_time)
    for name in log.row_id:
        if types[name] not in _ROW_ID_TYPES:
            raise InputError(
                f"{source}: row id {name!r}: expected text, integers, booleans or timestamps, "
                f"found {types[name]}"
            )
    _check_added(join, types)


def _check_added(join: LabelJoin, types: Types) -> None:
    source, taken = join.impressions.source, {name.lower() for name in types}
    for name in join.added:
        if name.lower() in taken:
            raise InputError(
                f"{source}: the join would add the column {name!r}, which already exists; choose "
                f"another name"
            )
        taken.add(name.lower())
    for name in types:
        if name.startswith("__"):
            raise InputError(
                f"{source}: columns that begin with '__' are reserved for the join, found "
                f"{name!r}; rename it in a query"
            )


def check_label(label: Label, impressions: Types, types: Types) -> None:
    """Checks that a label's log can be joined to the impressions.

    Args:
        impressions: Spark types of the impressions, by column.
        types: Spark types of the label's log, by column.

    Raises:
        InputError: A column is missing or has the wrong type.
    """
    _check_part(label, impressions, types, [*label.event_id, label.value])
    value_type = "" if label.value is None else types[label.value]
    if value_type and value_type not in _NUMBERS and not value_type.startswith("decimal"):
        raise InputError(
            f"{label.source}: value {label.value!r}: expected numbers or booleans, found "
            f"{value_type}"
        )


def check_lookup(lookup: Lookup, impressions: Types, types: Types) -> None:
    """Checks that a dimension can be looked up for the impressions; arguments as for `check_label`.

    Raises:
        InputError: A column is missing or has the wrong type.
    """
    _check_part(lookup, impressions, types, lookup.columns)


def _check_part(
    part: Label | Lookup, impressions: Types, types: Types, more: Iterable[str | None]
) -> None:
    _check_columns(part.source, types, [*part.key, part.event_time, part.log_time, *more])
    _check_times(part.source, types, part.event_time, part.log_time)
    for name in part.key:
        ours, theirs = impressions[name], types[name]
        if ours != theirs and not {ours, theirs} <= _INTEGERS:
            raise InputError(
                f"{part.source}: key {name!r} is {theirs} here and {ours} in the impressions; cast "
                f"one in a query (sql=...)"
            )


def _check_columns(source: LogSource, types: Types, needed: Iterable[str | None]) -> None:
    for name in needed:
        if name is not None and name not in types:
            raise InputError(f"{source}: no column {name!r}{nearest(name, types)}")


def _check_times(source: LogSource, types: Types, *columns: str | None) -> None:
    for name in columns:
        if name is not None and types[name] not in ("timestamp", "timestamp_ntz"):
            raise InputError(
                f"{source}: time {name!r}: expected a timestamp, found {types[name]}; convert it "
                f"in a query (sql=...)"
            )


def check_apart(join: LabelJoin) -> None:
    """Raises InputError if the output and a log lie within each other.

    The join would otherwise read, or replace, its own data.
    """
    output_url = _place(join.output_url)
    for source in join.sources:
        url = None if source.url is None else _place(source.url)
        if url is not None and (lies_within(output_url, url) or lies_within(url, output_url)):
            raise InputError(
                f"the output {redact(output_url)} and the log {source} lie within each other; "
                f"use separate directories"
            )


def _place(url: str) -> str:
    """The directory that a URL names, which may be that of a Delta table."""
    return url.removeprefix(DELTA_INPUT).partition("?")[0] if url.startswith(DELTA_INPUT) else url


def list_logs(join: LabelJoin) -> dict[LogSource, list[FileEntry]]:
    """Lists the files of each log.

    Call this before Spark lists the files: a file added in between then counts as new in the next
    join. Returns an empty dict if any log is a query or a table, whose files are unknown.

    Raises:
        InputError: A log has no files, or is or lies in a table.
    """
    if any(source.url is None for source in join.sources):
        return {}
    return {source: _files(source, source.url or "") for source in join.sources}


def check_found(join: LabelJoin) -> None:
    """Checks that each log with a URL has files, except those that Spark is to look at.

    Raises:
        InputError: As for `list_logs`.
    """
    for source in join.sources:
        if source.url is not None and scheme(source.url) not in HADOOP_SCHEMES:
            _files(source, source.url)


def input_digest(join: LabelJoin, logs: Mapping[LogSource, Iterable[FileEntry]]) -> str | None:
    """Returns a digest of the input files, None if `logs` is empty.

    It is the SHA-256 (hex) over the SHA-256 of each log's sorted lines `name, size, version`.
    """
    if not logs:
        return None
    return digest_of(listing_digest(logs[source]) for source in join.sources)


def digest_of(logs: Iterable[str]) -> str:
    """The SHA-256 (hex) over the digests of the logs, in the order of the join's sources."""
    return hashlib.sha256("\n".join(logs).encode()).hexdigest()


def check_columns(logs: Mapping[LogSource, Sequence[FileEntry]]) -> None:
    """Checks the footers of all files before rows are read.

    If a column occurs twice in one file and once in others, Spark fails in the middle of the join
    without naming the reason.

    Raises:
        InputError: A file is not Parquet, or has two columns of the same name.
    """
    for files in logs.values():
        try:
            schemas = each_footer([file.url for file in files], lambda footer: footer.schema)
            for file, schema in zip(files, schemas, strict=True):
                columns_of(file, schema)
        except DataFileError as error:
            kind = ChangedInputError if error.may_pass else InputError
            raise kind(f"raw input: {error}") from None


def check_logs(logs: Mapping[LogSource, Iterable[FileEntry]]) -> None:
    """Checks, after all rows were read, that no file has changed since it was listed.

    Raises:
        InputError: A file was changed or removed.
    """
    for source, listed in logs.items():
        now = {file.url: file for file in list_files(source.url or "")}
        for file in listed:
            check_unchanged(file, now.get(file.url))


def _files(source: LogSource, url: str) -> list[FileEntry]:
    if (is_delta := url.startswith(DELTA_INPUT)) or is_iceberg(url):
        raise InputError(
            f"{source} is {'a Delta' if is_delta else 'an Iceberg'} table, whose rows Spark's "
            f"Parquet reader does not find: use the engine `local`, or a query on it (sql=...) in "
            f"a session with the format's runtime for Spark"
        )
    try:
        files = list_files(url)
    except TableFormatError as error:
        raise InputError(
            f"{source} lies in the {error.table_format} table {error.directory}, some of whose "
            f"files may be replaced ones: use a query (sql=...)"
        ) from None
    if not files:
        raise no_files(source, list_raw_files(url))
    return files


def no_files(source: LogSource, texts: Sequence[FileEntry]) -> InputError:
    """The error for a log without files of Parquet, but maybe with files of text."""
    if source.url is not None and (source.url.startswith(DELTA_INPUT) or is_iceberg(source.url)):
        return InputError(
            f"no raw files at {source}: expected a table with rows, or partitions of it that it "
            f"has, of one value (?dt=2026-11-01) or of a range (?dt=2026-11-01..2026-11-03), found "
            f"none"
        )
    found = (
        f", found {redact(texts[0].url)}: import text to Parquet first (featstore import "
        "--help), or give a query (sql=...)"
        if texts
        else ", found none; a glob has *, ? and [...], and no braces: name other sets of "
        "directories in a query (sql=...)"
    )
    return InputError(
        f"no raw files at {source}: expected a Parquet file, a directory or a glob of .parquet "
        f"files{found}"
    )
