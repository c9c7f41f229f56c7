"""Removes rows from a table: rewrites the data files that hold them, in one commit."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.errors import CommitConflictError, InputError
from featstore.base.host import num_cores
from featstore.base.redaction import redact
from featstore.base.schema import SlotSchema
from featstore.extraction.rewriting import (
    CommitFunction,
    copy_file,
    drop_folded,
    named_partitions,
    new_paths,
    open_part,
    replace_files,
    rewrite_file,
)
from featstore.extraction.units.unit_statistics import (
    gather_rows,
    history_statistics,
    merged_histories,
)
from featstore.files.retry import thread_pool
from featstore.ops.arrays import Integers, values_of
from featstore.reading.histories import StoredReader
from featstore.reading.open_file import OpenFile
from featstore.reading.tables import arrow_schema, read_tables
from featstore.selection.where import Where, parse_where
from featstore.statistics.column_statistics import ColumnStatistics, merge_statistics
from featstore.statistics.stale_groups import require_fresh, stale_groups
from featstore.statistics.statistics_file import StoredStatistics, write_statistics
from featstore.statistics.values_file import StoredValues, partition_values, recounted, write_values
from featstore.table import delta
from featstore.table.iceberg_mirror import mirrors_of
from featstore.table.layout import statistics_path, values_path
from featstore.table.open import open_existing
from featstore.table.snapshot import DataFile, Snapshot, by_partition, files_digest


@dataclass(frozen=True, kw_only=True)
class DeletionReport:
    """The result of a deletion.

    Attributes:
        table_url: The table.
        version: The version of the deletion, or with nothing to do or `dry_run` the one read.
        num_rows: Rows that matched.
        num_files: Data files that held them.
        num_partitions: Partitions that held them.
        rows_left: The rows of the table without them.
        dry_run: Whether nothing was changed.
        mirrors: The Iceberg tables that show the table, whose earlier snapshots hold the rows.
    """

    table_url: str = field(repr=False)
    version: int
    num_rows: int
    num_files: int
    num_partitions: int
    rows_left: int
    dry_run: bool
    mirrors: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.num_rows:
            return (
                f"nothing to do: no row of version {self.version} of {redact(self.table_url)} "
                f"matches"
            )
        found = (
            f"{self.num_rows:,} rows of {self.num_files:,} data files in "
            f"{self.num_partitions:,} partitions, {self.rows_left:,} rows left"
        )
        if self.dry_run:
            return f"{redact(self.table_url)}: would delete {found}"
        shown = f", and snapshots of {', '.join(self.mirrors)}," if self.mirrors else ""
        return (
            f"committed version {self.version} of {redact(self.table_url)}: deleted {found}; "
            f"earlier versions{shown} still hold the rows until a vacuum removes them"
        )


def delete_rows(
    table_url: str,
    where: str,
    *,
    dry_run: bool = False,
    commit: CommitFunction = delta.commit,
) -> DeletionReport:
    """Removes the rows that match a predicate, in one commit.

    All files of a partition with such rows get new names: those with matching rows, or with slot
    groups beside them, are rewritten with the columns of both, the others are copied. Statistics
    are gathered again, and texts are kept of values that still occur. Rows that are left keep their
    order. A second commit drops slot groups that no file has beside it any more; if the process
    dies in between, `compact` makes it.

    Args:
        table_url: The table.
        where: A predicate over partition keys, slots, labels and kept columns. Where it is null, a
            row stays.
        dry_run: Only count.
        commit: Publishes the change.

    Raises:
        TableNotFoundError: There is no Delta table.
        SelectionError: The predicate is not one, or names an unknown column.
        StaleGroupError: A slot group with a column of the predicate is stale, so that its values
            are not known; or a group of labels is, in partitions that are rewritten.
        CommitConflictError: A partition or one of its groups was written in the meantime; the table
            is unchanged.
        DataFileError: A file is damaged; the table is unchanged.
    """
    snapshot = open_existing(table_url, "delete")
    columns = arrow_schema(snapshot.schema)
    condition = parse_where(where, {column.name: column.type for column in columns})
    undecided = [
        file for file in snapshot.data_files if condition.matches_partition(file.partition) is None
    ]
    require_fresh(snapshot, undecided, condition.columns, "")
    with thread_pool(num_cores(), "featstore-delete") as threads:
        matching = dict(
            zip(
                (file.path for file in snapshot.data_files),
                threads.map(partial(_num_matching, snapshot, condition), snapshot.data_files),
                strict=True,
            )
        )
    touched = [file for file in snapshot.data_files if matching[file.path]]
    num_rows = sum(matching.values())
    report = DeletionReport(
        table_url=table_url,
        version=snapshot.version or 0,
        num_rows=num_rows,
        num_files=len(touched),
        num_partitions=len(by_partition(touched)),
        rows_left=snapshot.num_rows - num_rows,
        dry_run=dry_run,
        mirrors=tuple(mirrors_of(table_url)),
    )
    if dry_run or not touched:
        return report
    return replace(report, version=_replace(snapshot, condition, matching, commit))


def _replace(
    snapshot: Snapshot,
    condition: Where,
    matching: Mapping[str, int],
    commit: CommitFunction,
) -> int:
    touched = by_partition(file for file in snapshot.data_files if matching[file.path])
    wanted = _replaceable([files[0].partition for files in touched.values()], snapshot.partitions)
    partitions = named_partitions(snapshot.url, wanted)
    base = snapshot.in_partitions(partitions)
    # Older labels in a rewritten file would pass for those of a run.
    require_fresh(snapshot, base, [field.name for field in snapshot.schema.others], "")
    version, files = replace_files(
        snapshot,
        partitions,
        partial(_write, snapshot, condition, matching),
        "the deletion",
        "Run it again: it deletes what rows still match.",
        partial(_commit, commit),
    )
    emptied = _emptied(snapshot, {file.path for file in base})
    if emptied:
        drop_folded(snapshot, files, emptied, version)
    return version


def _write(
    snapshot: Snapshot,
    condition: Where,
    matching: Mapping[str, int],
    base: Sequence[DataFile],
    tag: str,
) -> list[DataFile]:
    """Writes the files that take the place of `base`, and what is stored beside them."""
    left = [
        (file, path)
        for file, path in zip(base, new_paths(base, tag), strict=True)
        if matching[file.path] < file.num_rows
    ]
    # The pool ends, and with it each of its writes, before files of a failed run are removed.
    with thread_pool(num_cores(), "featstore-delete") as threads:
        done = threads.map(lambda pair: _without_rows(snapshot, condition, matching, *pair), left)
        files = sorted(done, key=lambda file: file.path)
        remains = by_partition(files).values()
        list(threads.map(partial(store_remains, snapshot, tag), remains))  # raises the first error
    return files


def _emptied(snapshot: Snapshot, replaced: Set[str]) -> list[str]:
    """The slot groups that were read beside these files and beside no others, and are stale beside
    none: what is missing would be forgotten with them.
    """
    beside = {bound.group for file in snapshot.data_files for bound in file.groups}
    left = (file for file in snapshot.data_files if file.path not in replaced)
    names = snapshot.schema.column_names
    stale = {group.name for group in stale_groups(snapshot, snapshot.data_files, names)}
    return sorted(beside - {bound.group for file in left for bound in file.groups} - stale)


def _commit(commit: CommitFunction, url: str, change: delta.Change) -> int:
    try:
        return commit(url, change)
    except InputError as error:
        # All was well with the snapshot, so another writer has added a partition or a column.
        raise CommitConflictError(
            f"{redact(url)}: another writer changed the table while rows were deleted: {error}; "
            f"nothing is deleted: run it again"
        ) from error


def _replaceable(
    wanted: Sequence[Mapping[str, str | None]], existing: Iterable[Mapping[str, str | None]]
) -> list[Mapping[str, str | None]]:
    """The wanted partitions, and with several keys those that one commit replaces with them:
    delta-rs selects partitions by the values of each key alone.
    """
    values = {key: {partition[key] for partition in wanted} for key in wanted[0]}
    return [p for p in existing if all(p[key] in texts for key, texts in values.items())]


def _num_matching(snapshot: Snapshot, condition: Where, file: DataFile) -> int:
    decided = condition.matches_partition(file.partition)
    if decided is not None:
        return file.num_rows if decided else 0
    with ExitStack() as stack:
        footer, *groups = (stack.enter_context(open_part(part)) for part in file.parts)
        masks = _matches(snapshot, condition, file, footer, groups)
        return sum(pc.sum(mask).as_py() or 0 for mask in masks)


def _without_rows(
    snapshot: Snapshot,
    condition: Where,
    matching: Mapping[str, int],
    file: DataFile,
    path: str,
) -> DataFile:
    if not matching[file.path]:
        return (rewrite_file if file.groups else copy_file)(snapshot, file, path)
    matches = partial(_matches, snapshot, condition, file)
    return rewrite_file(snapshot, file, path, lambda *opened: map(pc.invert, matches(*opened)))


def _matches(
    snapshot: Snapshot,
    condition: Where,
    file: DataFile,
    footer: OpenFile,
    groups: Sequence[OpenFile],
) -> Iterator[pa.ChunkedArray]:
    """Which rows of each row group match: bool (num_rows,), without nulls."""
    schema = snapshot.schema.only(condition.columns)
    return map(condition.mask, read_tables(footer, schema, file.partition, groups))


class TextCounter:
    """Counts how often the values with a text occur. One thread uses it.

    Args:
        values: The texts of a partition.
        schema: The table's slots. Texts of other slots do not occur.
    """

    def __init__(self, values: StoredValues, schema: SlotSchema) -> None:
        self._values = values
        ids = values_of(values.table["id"].combine_chunks())
        numbers = values_of(values.table["number"].combine_chunks())
        self._counts: Integers = np.zeros(len(ids), np.int64)
        # By slot: the places of its texts in the table, in ascending order of ids, and the ids.
        self._known: dict[str, tuple[Integers, Integers]] = {}
        for slot in schema:
            places = np.flatnonzero(numbers == slot.number)
            if len(places):
                places = places[np.argsort(ids[places], kind="stable")]
                self._known[slot.name] = places, ids[places]

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Passes batches on and counts their values."""
        for batch in batches:
            for name, (places, ids) in self._known.items():
                column = batch.column(name)
                flat = pc.list_flatten(column) if pa.types.is_nested(column.type) else column
                found = values_of(pc.drop_null(flat))
                at = np.minimum(np.searchsorted(ids, found), len(ids) - 1)
                at = at[ids[at] == found]
                self._counts[places] += np.bincount(at, minlength=len(ids))
            yield batch

    def counted(self) -> StoredValues:
        """The texts of values that occurred, with their counts."""
        return recounted(self._values, self._counts)


def store_remains(snapshot: Snapshot, tag: str, files: Sequence[DataFile]) -> None:
    """Writes the statistics of a partition's new files, and the texts of values in them.

    Args:
        snapshot: The table as it was.
        tag: The run's tag.
        files: The partition's new files, at least one.
    """
    partition = files[0].partition
    schema = replace(snapshot.schema, partition_keys=())
    counter = TextCounter(partition_values(snapshot, partition), schema)
    of_rows = gather_rows(schema, counter.watch(_rows(schema, files)))
    statistics = merge_statistics([of_rows, merged_histories(_histories(schema, files))])
    stored = StoredStatistics(statistics=statistics, data_digest=files_digest(files))
    write_statistics(snapshot.url, statistics_path(partition, tag), stored)
    texts = counter.counted()
    if texts.table.num_rows or texts.left_out:
        write_values(snapshot.url, values_path(partition, tag), texts)


def _rows(schema: SlotSchema, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
    for file in files:
        with open_part(file) as opened:
            for table in read_tables(opened, schema, file.partition):
                yield from table.combine_chunks().to_batches()


def _histories(schema: SlotSchema, files: Sequence[DataFile]) -> Iterator[ColumnStatistics]:
    """The statistics of each history, of parts of rows."""
    for file in files:
        with open_part(file) as opened:
            lists = StoredReader(opened, schema)
            if not lists.histories:
                continue
            of_rows = schema.only({history.as_of for history in lists.histories})
            for index, table in enumerate(read_tables(opened, of_rows, file.partition)):
                for ranges in lists.read(index):
                    as_of = table.column(ranges.history.as_of).combine_chunks()
                    times = values_of(as_of.cast(pa.int64()).fill_null(0))
                    yield from history_statistics(ranges, times)
