"""Data files that are rewritten, with the columns of their slot groups, to replace all files of
some partitions in one commit; and compaction, which does it for all that have slot groups.
"""

import posixpath
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat

import pyarrow as pa
from isal import isal_zlib

from featstore.base.closing import noted_on_failure
from featstore.base.errors import DataFileError, InputError
from featstore.base.host import num_cores
from featstore.base.redaction import redact
from featstore.base.schema import SlotSchema
from featstore.extraction.units.writer import open_data_file
from featstore.files.retry import thread_pool
from featstore.files.storage import join, open_read, open_write, source_of
from featstore.reading.aligned import RowsReader, aligned_reader
from featstore.reading.file_columns import FileColumns, Selection
from featstore.reading.histories import StoredReader
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import Rows
from featstore.statistics.stale_groups import require_fresh
from featstore.statistics.values_file import copy_values
from featstore.table import delta
from featstore.table.groups import GroupOrigins, drop_groups, groups_commit
from featstore.table.layout import (
    attempt_name,
    data_file_name,
    is_whole,
    new_tag,
    partition_path,
    unit_and_part,
)
from featstore.table.metadata import KEY, CommitMetadata, FileMetadata, to_json
from featstore.table.open import open_existing
from featstore.table.parquet_dir import without_ids
from featstore.table.running import WrittenFiles, check_not_removed, marked
from featstore.table.snapshot import (
    DataFile,
    FileList,
    Snapshot,
    TableFile,
    by_partition,
    files_digest,
)

_COPIED_BYTES = 8 << 20
# Row groups with histories are joined up to this size in memory: extraction cuts there, too.
_JOINED_BYTES = 128 << 20
_ZSTD = 6  # CompressionCodec.ZSTD in parquet.thrift

CommitFunction = Callable[[str, delta.Change], int]
# For each row group of a data file, which of its rows are kept: bool (num_rows,), without nulls.
Masks = Callable[[OpenFile, Sequence[OpenFile]], Iterator[pa.ChunkedArray]]


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
        if not self.groups and not self.num_files:
            return (
                f"nothing to do: version {self.version} of {redact(self.table_url)} has no slot "
                f"groups"
            )
        folded = f"{', '.join(self.groups)} folded into " if self.groups else "written again: "
        return (
            f"committed version {self.version} of {redact(self.table_url)}: {folded}"
            f"{self.num_files:,} files, {self.num_rows:,} rows, {self.size_bytes:,} bytes"
        )


def compact(
    table_url: str, *, field_ids: bool = False, commit: CommitFunction = delta.commit
) -> CompactReport:
    """Rewrites base files that have slot groups beside them, with the columns of both.

    Rows and their order stay the same. The commit makes the groups' files stale; a second commit
    removes the groups from the table. If the process dies in between, the next compaction makes the
    second commit. Earlier versions remain readable.

    Args:
        table_url: The table.
        field_ids: Also rewrite base files whose columns have no permanent ids.
        commit: Publishes the change.

    Raises:
        TableNotFoundError: There is no Delta table.
        StaleGroupError: A group is stale beside some files, which would be without its columns for
            good; nothing is done.
        CommitConflictError: A partition or one of its groups was written in the meantime; the table
            is unchanged.
    """
    snapshot = open_existing(table_url, "compact", "a Delta table with slot groups")
    require_fresh(snapshot, snapshot.data_files, snapshot.schema.column_names, "")
    chosen = [file for file in snapshot.data_files if file.groups]
    if field_ids:
        chosen += without_ids(snapshot.data_files)
    places = by_partition(chosen).values()
    partitions = named_partitions(table_url, (files[0].partition for files in places))
    version, files = snapshot.version or 0, tuple[DataFile, ...]()

    def write(base: Sequence[DataFile], tag: str) -> list[DataFile]:
        # The pool ends, and with it each of its writes, before files of a failed run are removed.
        with thread_pool(num_cores(), "featstore-compact") as threads:
            done = list(threads.map(partial(rewrite_file, snapshot), base, new_paths(base, tag)))
        for partition in partitions:
            copy_values(snapshot, partition, tag)
        return done

    if partitions:
        again = "Run it again: it does what is left to do."
        version, files = replace_files(snapshot, partitions, write, "the compaction", again, commit)
    if snapshot.groups:
        version = drop_folded(snapshot, files, [group.name for group in snapshot.groups], version)
    return CompactReport(
        table_url=table_url,
        version=version,
        groups=tuple(group.name for group in snapshot.groups),
        num_files=len(files),
        num_rows=sum(file.num_rows for file in files),
        size_bytes=sum(file.size_bytes for file in files),
    )


def named_partitions(
    table_url: str, partitions: Iterable[Mapping[str, str | None]]
) -> list[dict[str, str]]:
    """The partitions, none of whose keys is null.

    Raises:
        InputError: A key is null; delta-rs cannot replace such a partition alone.
    """
    return [
        {key: _key_value(table_url, key, value) for key, value in found.items()}
        for found in partitions
    ]


def replacement(
    snapshot: Snapshot,
    partitions: Sequence[Mapping[str, str]],
    files: tuple[DataFile, ...],
    run_id: str,
) -> delta.Change:
    """The change that puts `files` in place of all files of `partitions`.

    It conflicts if a slot group was committed since the snapshot was opened, and if a partition was
    changed that one of the runs wrote, besides these: what is carried on of the run would be wrong.
    """
    origins = tuple(_origins(snapshot, partitions, files))
    replaced = set(map(to_json, partitions))
    written = {to_json(p): p for origin in origins for p in origin.partitions}
    metadata = CommitMetadata(
        run_id=run_id,
        spec_hash=snapshot.spec_hash or "",
        spec_version=1,
        input_digest=None,
        data_digest=files_digest(files),
        origins=origins,
        meanings=snapshot.meanings,
        partitions=tuple(partitions),
        num_files=len(files),
        num_rows=sum(file.num_rows for file in files),
        size_bytes=sum(file.size_bytes for file in files),
    )
    return delta.Change(
        base=snapshot,
        schema=snapshot.schema.with_foreign_kept(),
        partitions=tuple(partitions),
        files=files,
        metadata=metadata,
        unchanged=tuple(p for text, p in written.items() if text not in replaced),
        group_versions=snapshot.group_versions,
    )


def replace_files(
    snapshot: Snapshot,
    partitions: Sequence[Mapping[str, str]],
    write: Callable[[Sequence[DataFile], str], Iterable[DataFile]],
    what: str,
    again: str,
    commit: CommitFunction,
) -> tuple[int, tuple[DataFile, ...]]:
    """Puts new files in place of all files of some partitions. Returns the version and the files.

    Args:
        write: Writes the new files, given the old ones and the tag of the new names.
        what: What is committed, for the note of an error.
        again: What the same call does if it is repeated.
    """
    run_id, url = uuid.uuid4().hex, snapshot.url
    tag = new_tag(run_id)
    own = WrittenFiles(table_url=url, tag=tag, partitions=partitions)
    with marked(url, tag) as mark:
        with own.removed_on_failure():
            written = write(snapshot.in_partitions(partitions), tag)
            files = tuple(sorted(written, key=lambda file: file.path))
            change = replacement(snapshot, partitions, files, run_id)
            check_not_removed(mark, url, files)
        with own.kept_if_committed(mark, what, len(files), again):
            return commit(url, change), files


def drop_folded(
    snapshot: Snapshot, files: Sequence[DataFile], names: Sequence[str], version: int
) -> int:
    """Removes slot groups whose files were all folded from the table; returns its new version.

    Args:
        snapshot: The table before its files were rewritten.
        files: The rewritten files.
        names: The groups.
        version: The version that holds the rewritten files.
    """
    metadata = groups_commit(uuid.uuid4().hex, snapshot, files)
    versions = {group.name: group.version for group in snapshot.groups if group.name in names}
    note = (
        f"The rows are committed (version {version}), with those of {', '.join(names)}. What may "
        f"be left is to drop these slot groups, which nothing reads any more: `featstore table "
        f"compact` does it."
    )
    with noted_on_failure(note):
        return drop_groups(snapshot, versions, metadata)


def _key_value(table_url: str, key: str, value: str | None) -> str:
    if value is None:
        raise InputError(
            f"{redact(table_url)}: partition key {key!r} is null in some rows; such a partition "
            f"cannot be replaced"
        )
    return value


def _origins(
    snapshot: Snapshot, partitions: Sequence[Mapping[str, str]], files: Sequence[DataFile]
) -> Iterator[CommitMetadata]:
    """Yields what is known about the raw input of rewritten rows.

    Units and the order of rows are unchanged, so an equal run is still recognised, and slot groups
    can still be matched by input, unless rows were removed: their numbers then differ.
    """
    groups = GroupOrigins(snapshot)
    folded = {to_json(partition) for partition in partitions}
    kept = [to_json(place) not in folded for place in snapshot.data_files.places]
    after = FileList.of([*files, *snapshot.data_files.at_places(kept)])
    for _, found in delta.with_origins(delta.history(snapshot.url)):
        if found.input_digest is None or folded.isdisjoint(map(to_json, found.partitions)):
            continue
        if found.data_digest == files_digest(snapshot.in_partitions(found.partitions)):
            now = files_digest(after.in_partitions(found.partitions))
            is_whole = folded.issuperset(map(to_json, found.partitions))
            parts = (*found.folded, *(groups.of(found.partitions) if is_whole else ()))
            yield replace(found, data_digest=now, crc32s={}, origins=(), folded=parts, meanings={})


def new_paths(files: Sequence[DataFile], tag: str) -> list[str]:
    """The paths of the rewritten files, all in the table, which sort as those of `files` do within
    each partition.

    Files of one attempt at a unit stay so: only their part distinguishes them. The number of the
    attempt, which has no leading zeros, would sort the tenth before the second.
    """
    attempts, paths = dict[str, int](), list[str]()
    for place, file in enumerate(files):
        own = (
            partition_path(file.partition) if is_whole(file.path) else posixpath.dirname(file.path)
        )
        attempt = attempts.setdefault(attempt_name(file.path), place)
        unit, part = unit_and_part(file.path) or (place, 0)
        paths.append(posixpath.join(own, data_file_name(tag, unit, attempt, part)))
    return paths


def rewrite_file(
    snapshot: Snapshot, file: DataFile, path: str, masks: Masks | None = None
) -> DataFile:
    """Rewrites one base file at a new path, with the columns of its slot groups' files.

    Args:
        snapshot: The table.
        file: The base file.
        path: The new path, below the table.
        masks: Which rows to keep. All by default, in the same row groups; otherwise row groups are
            filled up to the size of the first. Those with histories, whose lists are of one row
            group, are joined up to the size of the largest.

    Raises:
        InputError: A slot holds nulls, as only files of other writers do.
        DataFileError: A row's range is not one of its own key's list.
    """
    schema, url = snapshot.schema.with_foreign_kept(), join(snapshot.url, path)
    with ExitStack() as stack:
        footer, *groups = (stack.enter_context(open_part(part)) for part in file.parts)
        reader = aligned_reader(footer, groups, Selection(slots=schema.slots, others=schema.others))
        stored, lists = _stored(schema, reader.columns), StoredReader(footer, schema, groups)
        sizes, histories = footer.row_group_rows, lists.histories
        cut = max(sizes if histories else sizes[:1], default=0) or 1
        metadata = _file_metadata(footer, file.path)
        # The codec of the columns that are compressed.
        compression = "zstd" if (footer.footer.codecs == _ZSTD).any() else "snappy"
        if groups and histories:
            metadata = replace(metadata, histories=[history.name for history in histories])
        writer = stack.enter_context(
            open_data_file(url, stored, metadata, cut, compression, histories)
        )
        chosen = repeat(None, len(sizes)) if masks is None else masks(footer, groups)
        kept = zip(range(len(sizes)), chosen, strict=True)
        tables = _tables(reader, lists, kept, stored, writer.columns)
        if histories:
            for table in _joined(tables, 0 if masks is None else cut):
                writer.write_row_group(table)
        else:
            for table in tables:
                for batch in table.combine_chunks().to_batches():
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


def copy_file(snapshot: Snapshot, file: DataFile, path: str) -> DataFile:
    """Copies a base file that has no slot groups to a new path.

    Raises:
        DataFileError: The file does not have the bytes that its commit recorded.
    """
    url, crc32, num_bytes = join(snapshot.url, path), 0, 0
    with open_read(file.url) as source, open_write(url) as target:
        while block := source.read(_COPIED_BYTES):
            crc32, num_bytes = isal_zlib.crc32(block, crc32), num_bytes + len(block)
            target.write(block)
        if num_bytes != file.size_bytes or file.crc32 not in (None, crc32):
            raise DataFileError(
                f"{redact(file.url)}: expected {file.size_bytes:,} bytes with the CRC-32 "
                f"{file.crc32}, found {num_bytes:,} with {crc32}: the file is damaged, and nothing "
                f"is committed; extract its partition again"
            )
    return replace(file, path=path, url=url, crc32=crc32, version="")


def open_part(part: TableFile) -> OpenFile:
    """Opens a data file, or that of a slot group, in place."""
    return OpenFile(source_of(part.url), part.path)


def _stored(schema: SlotSchema, columns: FileColumns) -> SlotSchema:
    """Returns the columns that any of the files has; a column that none has stays missing."""
    of_files = {**columns.slots, **columns.others}
    names = {name for name, found in of_files.items() if found is not None}
    return replace(schema.only(names), partition_keys=())


def _tables(
    reader: RowsReader,
    lists: StoredReader,
    kept: Iterable[tuple[int, pa.ChunkedArray | None]],
    stored: SlotSchema,
    schema: pa.Schema,
) -> Iterator[pa.Table]:
    """The rows that are kept of each row group, all without a mask, as data files hold them."""
    for index, mask in kept:
        rows = reader.read([index])
        columns = {
            field.name: _column(rows, stored, field, rows.file_name) for field in stored.to_arrow()
        }
        if mask is not None:
            columns = {name: column.filter(mask) for name, column in columns.items()}
        chosen = slice(None) if mask is None else mask.to_numpy()
        for history in lists.read(index):
            columns |= history.columns(chosen)
        yield pa.table(list(columns.values()), schema=schema)


def _joined(tables: Iterable[pa.Table], most_rows: int) -> Iterator[pa.Table]:
    """Joins neighbours of at most `most_rows` together that are not too large, and leaves out those
    without rows. Rows find their lists by the distance to their holders, so lists stay as they are.
    """
    waiting, num_rows, num_bytes = list[pa.Table](), 0, 0
    for table in tables:
        is_full = num_rows + table.num_rows > most_rows
        if waiting and (is_full or num_bytes + table.nbytes > _JOINED_BYTES):
            yield pa.concat_tables(waiting)
            waiting, num_rows, num_bytes = [], 0, 0
        if table.num_rows:
            waiting.append(table)
            num_rows, num_bytes = num_rows + table.num_rows, num_bytes + table.nbytes
    if waiting:
        yield pa.concat_tables(waiting)


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
    found = footer.footer.key_values.get(KEY.encode())
    return (
        FileMetadata(spec_hash="", spec_version=1)
        if found is None
        else FileMetadata.from_json(found, where)
    )
