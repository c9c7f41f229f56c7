"""Table lint: what makes a table slow to read, from the footers of its data files alone."""

from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from featstore.base.errors import DataFileError, InputError
from featstore.base.intervals import spread
from featstore.base.redaction import redact
from featstore.base.schema import FIELD_ID, MEANING, ROLE, SLOT, Role, Slot
from featstore.files.listings import FileEntry
from featstore.files.retry import thread_pool
from featstore.native.format import FooterError
from featstore.statistics.lint_rules import ColumnFacts, FileFacts, Finding, find
from featstore.table.delta import is_delta, open_delta
from featstore.table.iceberg import is_iceberg
from featstore.table.metadata import KEY
from featstore.table.open import open_snapshot
from featstore.table.parquet_dir import list_data_files, read_footer

# The most footers that are read. More find rarer deviations, and take longer.
MAX_FOOTERS = 256
BATCH_SIZE = 8_192  # The default of the loader.
_NUM_THREADS = 8  # They wait for remote footers most of the time.


@dataclass(frozen=True, kw_only=True)
class TableLintReport:
    """The findings of a table lint.

    Attributes:
        url: The table.
        num_files: The number of its data files.
        num_read: The number of footers read, spread evenly over the sorted paths.
        findings: The findings.
    """

    url: str = field(repr=False)
    num_files: int
    num_read: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def __str__(self) -> str:
        lines = [str(finding) for finding in self.findings]
        summary = f"{len(lines)} warnings" if lines else "nothing found"
        sampled = (
            "" if self.num_read == self.num_files else f", with {self.num_read:,} footers read"
        )
        return "\n".join(
            [*lines, f"{redact(self.url)}: {summary} in {self.num_files:,} data files{sampled}"]
        )

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        return {
            "table": redact(self.url),
            "ok": self.ok,
            "num_files": self.num_files,
            "num_read": self.num_read,
            "findings": [asdict(finding) for finding in self.findings],
        }


def lint(url: str, version: int | None = None, *, batch_size: int = BATCH_SIZE) -> TableLintReport:
    """Checks the footers of a table's data files. No rows are read.

    Of more than `MAX_FOOTERS` files a sample is read, spread evenly over the paths. Encodings are
    those of a file's first row group. A footer does not state the page version: version 1 is
    noticed only by its encodings.

    Args:
        url: A Delta table, or a directory or glob of Parquet.
        version: A version of a Delta table; by default the newest.
        batch_size: The batch size, in rows, of the jobs that read the table.

    Raises:
        TableNotFoundError: There is no table.
        DataFileError: A file is not Parquet.
        InputError: The batch size is below 1, or the table has no data files.
    """
    if batch_size < 1:
        raise InputError(f"batch_size: expected at least 1, found {batch_size}")
    files = _listed(url, version)
    if not files:
        raise InputError(f"{redact(url)}: expected a table with data files, found none in it")
    sampled = spread(files, MAX_FOOTERS)
    with thread_pool(min(_NUM_THREADS, len(sampled))) as threads:
        facts = list(threads.map(_read_facts, sampled))
    listed = [(file.name, file.size_bytes) for file in files]
    return TableLintReport(
        url=url, num_files=len(files), num_read=len(facts), findings=find(facts, listed, batch_size)
    )


def _listed(url: str, version: int | None) -> list[FileEntry]:
    """The table's files. A directory is only listed, not opened as a snapshot, so that files with
    conflicting columns can be linted.
    """
    if is_delta(url) or is_iceberg(url):
        snapshot = open_delta(url, version) if is_delta(url) else open_snapshot(url, version)
        return [
            FileEntry(name=file.path, url=file.url, size_bytes=file.size_bytes)
            for file in snapshot.data_files
        ]
    if version is not None:
        open_snapshot(url, version)  # raises: plain files have no versions
    return list_data_files(url)


def _read_facts(file: FileEntry) -> FileFacts:
    checked = read_footer(file.url)
    schema = checked.schema
    try:
        footer = checked.arrow_metadata(with_statistics=True)
    except FooterError as error:
        raise DataFileError(f"{redact(file.url)} is not a Parquet file ({error})") from None
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    return FileFacts(
        path=file.name,
        size_bytes=file.size_bytes,
        footer_bytes=len(checked.data),
        group_rows=tuple(group.num_rows for group in groups),
        group_bytes=tuple(group.total_byte_size for group in groups),
        columns=tuple(
            _column(groups[0].column(i), footer.schema.column(i), schema)
            for i in range(footer.num_columns if groups else 0)
        ),
        fields=tuple((field.name, _field_text(field)) for field in schema),
        is_own=KEY.encode() in checked.key_values,
    )


def _column(chunk: pq.ColumnChunkMetaData, leaf: pq.ColumnSchema, schema: pa.Schema) -> ColumnFacts:
    field = schema.field(leaf.path if leaf.path in schema.names else leaf.path.partition(".")[0])
    return ColumnFacts(
        name=field.name,
        physical_type=chunk.physical_type,
        is_slot=_is_slot(field),
        may_be_null=leaf.max_definition_level > leaf.max_repetition_level,
        num_nulls=chunk.statistics.null_count
        if chunk.is_stats_set and chunk.statistics.has_null_count
        else None,
        has_field_id=not {SLOT, FIELD_ID}.isdisjoint(field.metadata or {}),
        has_dictionary=chunk.has_dictionary_page,
        codec=chunk.compression,
        encodings=frozenset(chunk.encodings),
        num_values=chunk.num_values,
        stored_bytes=chunk.total_compressed_size,
        raw_bytes=chunk.total_uncompressed_size,
    )


def _is_slot(field: pa.Field) -> bool:
    """Whether its metadata declares it a slot, or, without metadata, its type can be a slot's."""
    declared = (field.metadata or {}).get(ROLE)
    return (
        Slot.from_field(field) is not None if declared is None else declared == Role.SLOT.encode()
    )


def _field_text(field: pa.Field) -> str:
    """Type, id and meaning, which must be the same in all files of a table. The id is that of a
    slot's number: field ids of older files are others.
    """
    metadata = field.metadata or {}
    key = FIELD_ID if ROLE not in metadata else SLOT
    parts = [
        f"{word} {metadata[key].decode()}"
        for word, key in (("id", key), ("meaning", MEANING))
        if key in metadata
    ]
    return ", ".join([str(field.type), *parts])
