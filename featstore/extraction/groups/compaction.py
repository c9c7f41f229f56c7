"""Folds slot groups into the base: rewrites base files with all columns, in one commit."""

import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from featstore.errors import CommitConflictError, InputError, TableNotFoundError
from featstore.files.storage import delete, join, local_path, open_read
from featstore.host import num_cores
from featstore.parquet.checks import CHUNK
from featstore.reading.aligned import RowsReader, aligned_reader
from featstore.reading.file_columns import FileColumns, Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import Rows
from featstore.redaction import redact
from featstore.schema import SlotSchema
from featstore.table import delta
from featstore.table.groups import drop_groups, groups_commit
from featstore.table.layout import attempt_name, data_file_name, new_tag, unit_and_part
from featstore.table.metadata import KEY, CommitMetadata, FileMetadata, to_json
from featstore.table.open import open_table_or_none
from featstore.table.running import check_not_removed, marked
from featstore.table.snapshot import DataFile, Snapshot, files_digest, in_partitions
from featstore.table.statistics.stored_names import copy_values
from featstore.table.writer import open_data_file

_ZSTD = 6  # CompressionCodec.ZSTD in parquet.thrift


@dataclass(frozen=True, kw_only=True)
class CompactReport:
    """The result of a compaction: `num_files` rewritten base files, and the groups folded in."""

    table_url: str = field(repr=False)
    version: int
    groups: tuple[str, ...]
    num_files: int
    num_rows: int
    size_bytes: int

    def __str__(self) -> str:
        if not self.groups:
            return (
                f"nothing to do: version {self.version} of {redact(self.table_url)} has no slot "
                f"groups"
            )
        return (
            f"committed version {self.version} of {redact(self.table_url)}: "
            f"{', '.join(self.groups)} folded into "
            f"{self.num_files:,} files, {self.num_rows:,} rows, {self.size_bytes:,} bytes"
        )


def compact(
    table_url: str, *, commit: Callable[[str, delta.Change], int] = delta.commit
) -> CompactReport:
    """Rewrites base files that have slot groups beside them, with the columns of both.

    Rows and their order stay the same. The commit makes the groups' files stale; a second commit
    removes the groups from the table. If the process dies in between, the next compaction makes the
    second commit. Earlier versions remain readable.

    Raises:
        TableNotFoundError: There is no Delta table.
        CommitConflictError: A partition or one of its groups was written in the meantime; the table
            is unchanged.
    """
    snapshot = open_table_or_none(table_url)
    if snapshot is None:
        raise TableNotFoundError(
            f"no table at {redact(table_url)}: expected a Delta table with slot groups"
        )
    run_id = uuid.uuid4().hex
    grouped = {
        to_json(file.partition): file.partition for file in snapshot.data_files if file.groups
    }
    partitions = [
        {key: _key_value(table_url, key, value) for key, value in found.items()}
        for found in grouped.values()
    ]
    version, files = snapshot.version or 0, tuple[DataFile, ...]()
    if partitions:
        tag, base = new_tag(run_id), snapshot.in_partitions(partitions)
        with (
            marked(table_url, tag) as mark,
            _removing_on_conflict(table_url) as written,
            ThreadPoolExecutor(num_cores(), "featstore-compact") as threads,
        ):
            done = threads.map(
                lambda file, path: written.append(_rewrite_file(snapshot, file, path)),
                *(base, _new_paths(base, tag)),
            )
            # Drains the iterator, which waits for all threads and raises the first error.
            deque(done, maxlen=0)
            files = tuple(sorted(written, key=lambda file: file.path))
            for partition in partitions:
                copy_values(snapshot, partition, tag)
            change = _change(snapshot, partitions, files, run_id)
            check_not_removed(mark, table_url, files)
            version = commit(table_url, change)
    if snapshot.groups:
        version = _drop(snapshot, files)
    return CompactReport(
        table_url=table_url,
        version=version,
        groups=tuple(group.name for group in snapshot.groups),
        num_files=len(files),
        num_rows=sum(file.num_rows for file in files),
        size_bytes=sum(file.size_bytes for file in files),
    )


def _key_value(table_url: str, key: str, value: str | None) -> str:
    if value is None:
        raise InputError(
            f"{redact(table_url)}: partition key {key!r} is null in some rows; such a partition "
            f"cannot be replaced"
        )
    return value


def _drop(snapshot: Snapshot, files: Sequence[DataFile]) -> int:
    metadata = groups_commit(uuid.uuid4().hex, snapshot, files)
    return drop_groups(snapshot, {group.name: group.version for group in snapshot.groups}, metadata)


def _change(
    snapshot: Snapshot,
    partitions: Sequence[dict[str, str]],
    files: tuple[DataFile, ...],
    run_id: str,
) -> delta.Change:
    metadata = CommitMetadata(
        run_id=run_id,
        spec_hash=snapshot.spec_hash or "",
        spec_version=1,
        input_digest=None,
        data_digest=files_digest(files),
        origins=tuple(_origins(snapshot, partitions, files)),
        partitions=tuple(partitions),
        num_files=len(files),
        num_rows=sum(file.num_rows for file in files),
        size_bytes=sum(file.size_bytes for file in files),
    )
    return delta.Change(
        base=snapshot,
        schema=snapshot.schema,
        partitions=tuple(partitions),
        files=files,
        metadata=metadata,
        group_versions=snapshot.group_versions,
    )


def _origins(
    snapshot: Snapshot, partitions: Sequence[dict[str, str]], files: Sequence[DataFile]
) -> Iterator[CommitMetadata]:
    """Yields what is known about the raw input of rewritten rows.

    Rows, order and units are unchanged, so an equal run is still recognised, and slot groups can
    still be matched by input.
    """
    folded = {to_json(partition) for partition in partitions}
    after = [
        *files,
        *(file for file in snapshot.data_files if to_json(file.partition) not in folded),
    ]
    for found in (maker.metadata for maker in delta.with_origins(delta.history(snapshot.url))):
        if (
            found is None
            or found.input_digest is None
            or folded.isdisjoint(map(to_json, found.partitions))
        ):
            continue
        if found.data_digest == files_digest(snapshot.in_partitions(found.partitions)):
            now = files_digest(in_partitions(after, found.partitions))
            yield replace(found, data_digest=now, crc32s={}, origins=())


def _new_paths(files: Sequence[DataFile], tag: str) -> list[str]:
    """The paths of the rewritten files, which sort as those of `files` do within each partition.

    Files of one attempt at a unit stay so: only their part distinguishes them. The number of the
    attempt, which has no leading zeros, would sort the tenth before the second.
    """
    attempts, paths = dict[str, int](), list[str]()
    for place, file in enumerate(files):
        directory, slash, _ = file.path.rpartition("/")
        attempt = attempts.setdefault(attempt_name(file.path), place)
        unit, part = unit_and_part(file.path) or (place, 0)
        paths.append(f"{directory}{slash}{data_file_name(tag, unit, attempt, part)}")
    return paths


def _rewrite_file(snapshot: Snapshot, file: DataFile, path: str) -> DataFile:
    """Rewrites one base file at a new path, with the same row groups."""
    schema, url = snapshot.schema, join(snapshot.url, path)
    with ExitStack() as stack:
        footer, *groups = (stack.enter_context(_open(part.url, part.path)) for part in file.parts)
        reader = aligned_reader(
            footer, groups, Selection(slots=schema.slots, others=_others(schema))
        )
        stored, cut = _stored(schema, reader.columns), max(footer.row_group_rows[:1] or (1,))
        metadata = _file_metadata(footer, file.path)
        writer = stack.enter_context(
            open_data_file(url, stored, metadata, cut, _compression(footer))
        )
        for batch in _batches(reader, footer, stored):
            writer.write(batch)
        done = writer.close()
    return DataFile(
        path=path,
        url=url,
        size_bytes=done.size_bytes,
        num_rows=done.num_rows,
        partition=file.partition,
        crc32=done.crc32,
    )


def _open(url: str, name: str) -> OpenFile:
    return OpenFile(local_path(url) or open_read(url), name)


def _others(schema: SlotSchema) -> tuple[pa.Field, ...]:
    return tuple(field for field in schema.to_arrow(nullable=True) if field.name not in schema)


def _stored(schema: SlotSchema, columns: FileColumns) -> SlotSchema:
    """Returns the columns that any of the files has; a column that none has stays missing."""
    others = {name for name, found in columns.others.items() if found is not None}
    weight = schema.weight if schema.weight is not None and schema.weight.name in others else None
    return replace(
        schema,
        slots=tuple(slot for slot in schema.slots if columns.slots[slot.name] is not None),
        labels=tuple(field for field in schema.labels if field.name in others),
        weight=weight,
        kept=tuple(field for field in schema.kept if field.name in others),
        partition_keys=(),
    )


def _batches(reader: RowsReader, footer: OpenFile, stored: SlotSchema) -> Iterator[pa.RecordBatch]:
    schema = stored.to_arrow()
    for index in range(len(footer.row_group_rows)):
        rows = reader.read([index])
        table = pa.table(
            [_column(rows, stored, field, footer.name) for field in schema], schema=schema
        )
        yield from table.combine_chunks().to_batches()


def _column(rows: Rows, stored: SlotSchema, field: pa.Field, where: str) -> pa.ChunkedArray:
    if field.name not in stored:
        return rows.other(field)
    column = rows.slot_column(stored[field.name])
    if column.null_count:
        raise InputError(
            f"{where}: slot {field.name!r} holds nulls; only files that featstore wrote can be "
            f"compacted"
        )
    return column.cast(field.type)


def _file_metadata(footer: OpenFile, where: str) -> FileMetadata:
    found = footer.key_values.get(KEY.encode())
    return (
        FileMetadata(spec_hash="", spec_version=1)
        if found is None
        else FileMetadata.from_json(found, where)
    )


def _compression(footer: OpenFile) -> str:
    """The codec of the columns of a file that are compressed."""
    is_zstd = footer.footer.chunks[..., CHUNK["codec"]] == _ZSTD
    return "zstd" if is_zstd.any() else "snappy"


@contextmanager
def _removing_on_conflict(table_url: str) -> Iterator[list[DataFile]]:
    """Yields a list for written files, and removes them on errors that rule out a commit.

    Other errors may follow a commit whose reply was lost; the files are then kept.
    """
    written: list[DataFile] = []
    try:
        yield written
    except (CommitConflictError, InputError):
        for file in written:
            delete(file.url)
        raise
