"""A table as users see it: its contents, rows, samples, profiles, and SQL views."""

import functools
import itertools
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from featstore.base.errors import InputError, SelectionError, nearest
from featstore.base.intervals import spread, spread_with_rows
from featstore.base.named_errors import NamedErrors
from featstore.base.redaction import redact
from featstore.base.schema import OF_TWO_KINDS, Slot, SlotSchema
from featstore.base.table_result import nullable_integers
from featstore.base.text_table import html_table
from featstore.decoded.file_sources import FileSource, SourcesAhead, files_in_place
from featstore.explore.description import Description, describe, stored_findings
from featstore.explore.label_profile import LabelProfile, label_rows
from featstore.explore.partition_profiles import PartitionProfiles, partition_profiles
from featstore.explore.profile import Profile, numeric_labels
from featstore.explore.profiling import profile_rows, stored_profile, with_counted
from featstore.explore.reading_costs import NUM_FILES, ReadingCosts, reading_costs
from featstore.explore.views import duckdb_view, polars_view
from featstore.explore.whatis import named_label_profile, named_profile, named_rows
from featstore.extraction.units.unit_statistics import gather_rows, history_summaries
from featstore.loader.plan.column_sizes import ColumnSizes
from featstore.reading.buffers import Array, rows_left
from featstore.reading.file_columns import ColumnCache, Selection
from featstore.reading.histories import SelectedHistory, selected_histories
from featstore.reading.open_file import OpenFile
from featstore.reading.tables import arrow_schema, read_lists, read_tables
from featstore.selection.slot_names import select
from featstore.selection.where import Where, parse_where
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.staging.options import Staging
from featstore.staging.stager import Stager
from featstore.statistics.column_statistics import (
    Statistics,
    add_counts,
    merge_statistics,
)
from featstore.statistics.data_checks import stored_checks, stored_warnings
from featstore.statistics.stale_groups import ERROR, reading, require_fresh
from featstore.statistics.statistics_file import StoredStatistics, find_statistics
from featstore.statistics.table_check import TableCheckReport, check_snapshot, checked_columns
from featstore.statistics.table_lint import BATCH_SIZE, TableLintReport, lint
from featstore.table.delta import Commit, in_effect
from featstore.table.open import history_of, open_snapshot
from featstore.table.snapshot import DataFile, FileList, Snapshot

# A data file, those of its slot groups, and its deleted rows.
_Opened = tuple[OpenFile, list[OpenFile], Array | None]


def open_table(
    url: str | Path, version: int | str | None = None, *, stale_groups: str = ERROR
) -> "Table":
    """Opens a table.

    Args:
        url: A Delta table, or a directory or glob of Parquet files. Local or remote. Or an Iceberg
            table: `iceberg://CATALOG/NAMESPACE.TABLE` of a catalog of pyiceberg's configuration, or
            `iceberg+URL` of a metadata file.
        version: A version of a Delta table, or the id of a snapshot, or the name of a tag or
            branch, of an Iceberg table; by default the newest.
        stale_groups: What happens if a slot group that is read is stale, because its base files
            were replaced: `error`, or `missing` to read its slots as missing there.

    Returns:
        The table. It holds no open files and needs no closing.

    Raises:
        ConfigError: `stale_groups` has another value.
        TableNotFoundError: There is no table at the URL, or not in this version.
        DataFileError: The files of a plain directory are damaged or do not fit together.
        StoreError: The file store cannot be reached or refuses.
    """
    return Table(reading(open_snapshot(str(url), version), stale_groups))


class Table:
    """A table at one version, for interactive use.

    Every method reads the same snapshot, whatever is committed meanwhile. An instance may be shared
    by threads. Made by `open_table`.

    In all methods `where` is a SQL predicate over partition keys, slots, labels and kept columns,
    and `slots` are names and globs of slots. Both default to everything. An unknown name raises
    SelectionError, which suggests the nearest names. Missing values are returned as null. A method
    that reads rows raises StaleGroupError if a slot group of the selection is stale, see
    `open_table`.

    Attributes:
        snapshot: The files and the schema of the version.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    @property
    def url(self) -> str:
        """The URL as given to `open_table`."""
        return self.snapshot.url

    @property
    def version(self) -> int | None:
        """The Delta version, the id of the Iceberg snapshot, or None for plain Parquet."""
        return self.snapshot.version

    @property
    def schema(self) -> SlotSchema:
        """Slots, labels, weight, kept columns and partition keys."""
        return self.snapshot.schema

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots in declared order."""
        return self.schema.slots

    @property
    def partitions(self) -> tuple[Mapping[str, str | None], ...]:
        """The values of the partition keys, as text, of each partition."""
        return self.snapshot.partitions

    @property
    def num_rows(self) -> int:
        """The number of rows of the snapshot, from metadata, without deleted ones. Where a table
        does not tell how many rows of a file are deleted, they are loaded.
        """
        return self.snapshot.num_rows

    def __repr__(self) -> str:
        at = "" if self.version is None else f", version {self.version}"
        files = self.snapshot.data_files
        # A repr reads no store.
        told = files.num_rows_told
        rows = (
            f"{files.values('num_rows').sum():,} rows with deleted ones"
            if told is None
            else f"{told:,} rows"
        )
        return f"Table({redact(self.url)!r}{at}, {len(self.slots)} slots, {rows})"

    def _repr_html_(self) -> str:
        """The table in a notebook: its line, and its slots."""
        return html_table(
            f"{self!r}, {len(self.partitions):,} partitions",
            ("number", "slot", "kind", "shape", "operator"),
            (
                ("-" if s.number is None else s.number, s.name, s.kind, s.shape_text, s.op or "-")
                for s in self.slots
            ),
        )

    def history(self) -> list[Commit]:
        """The commits, newest first, with the metadata that featstore stored in each.

        Returns:
            The commits; of an Iceberg table the snapshots. The list is empty for plain Parquet.
        """
        return [] if self.version is None else history_of(self.url)

    def data_files(self, where: str | None = None) -> tuple[DataFile, ...]:
        """The data files that may hold matching rows, judged by partition values, and in an Iceberg
        table also by the bounds of columns by which it is partitioned or sorted.

        Args:
            where: A predicate, such as `"dt >= '2026-11-01'"`.
        """
        return tuple(matching_files(self.snapshot.data_files, self._where(where)))

    def to_batches(
        self, slots: Sequence[str] | None = None, where: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Streams rows as record batches.

        Files are read one after the other, and remote files are first copied whole to a private
        directory on the local disk. Memory holds about one row group.

        Args:
            slots: Names and globs of slots; by default all.
            where: A predicate; by default every row is read.

        Yields:
            Batches of the selected slots, then labels, weight, kept columns and partition keys.
        """
        condition = self._where(where)
        schema = selected_schema(self.schema, slots)
        yield from self._read(self.snapshot.data_files, schema, condition)

    def to_arrow(self, slots: Sequence[str] | None = None, where: str | None = None) -> pa.Table:
        """Reads all rows of `to_batches` into memory, as one Arrow table.

        Args:
            slots: Names and globs of slots; by default all.
            where: A predicate; by default every row is read.

        Returns:
            The rows. Their `to_pandas()` keeps signs: an integer column with nulls becomes pandas'
            `Int64`, where pyarrow alone would make rounded floats.
        """
        schema = arrow_schema(selected_schema(self.schema, slots))
        return nullable_integers(pa.Table.from_batches(self.to_batches(slots, where), schema))

    def sample(
        self, num_rows: int = 1000, slots: Sequence[str] | None = None, *, seed: int = 0
    ) -> pa.Table:
        """Random rows from all over the table, for a quick look.

        They are drawn from 16 data files, evenly spaced in the table's order, such as that of days;
        from more only if these have too few rows. Each file contributes rows in proportion to its
        size, from as few random row groups as possible. Rows of one file may be alike, so take
        figures from a profile, or from `to_arrow` with `where="sample(column, rate, seed)"`, which
        reads all files.

        Args:
            num_rows: The number of rows. Fewer are returned if the table has fewer.
            slots: Names and globs of slots; by default all. Labels, weight, kept columns and
                partition keys are always returned.
            seed: The same seed draws the same rows of the same snapshot, whatever the slots.

        Returns:
            The rows in the table's order.
        """
        rng, schema = random.Random(seed), selected_schema(self.schema, slots)
        files = spread_with_rows(self.snapshot.data_files, lambda file: file.num_left, num_rows)
        ends = list(itertools.accumulate(file.num_left for file in files))
        total = ends[-1] if ends else 0
        rows = rng.sample(range(total), min(num_rows, total))
        wanted = Counter(bisect_right(ends, row) for row in rows)
        chosen = [place for place in range(len(files)) if wanted[place]]
        self._require_fresh(self.snapshot.data_files, schema.column_names)
        opened = self._opened((files[place] for place in chosen), schema.column_names)
        with NamedErrors(self.url):
            parts = [
                _drawn(
                    functools.partial(
                        read_tables,
                        base,
                        schema,
                        file.partition,
                        groups,
                        deleted=file.deleted_rows(),
                    ),
                    _left_in_row_groups(file, base),
                    wanted[place],
                    rng,
                )
                for place, (file, base, groups) in zip(chosen, opened, strict=True)
            ]
        empty = arrow_schema(schema).empty_table()
        return nullable_integers(pa.concat_tables([empty, *parts]).combine_chunks())

    def head(
        self, num_rows: int = 10, slots: Sequence[str] | None = None, where: str | None = None
    ) -> pa.Table:
        """The first rows of the table, or of those that match, with the lists of histories and
        without their ranges.

        Args:
            num_rows: The number of rows. Fewer are returned if there are fewer.
            slots: Names and globs of slots, those of histories too; by default all. Columns are in
                their order. Labels, weight, kept columns and partition keys are always returned,
                after them.
            where: A predicate; by default every row matches.
        """
        known = [slot.name for slot in self.snapshot.all_slots]
        names = None if slots is None else select(slots, known)
        own = None if names is None else [name for name in names if name in self.schema.names]
        schema = selected_schema(self.schema, own)
        histories = selected_histories(self.schema, known if names is None else names)
        return nullable_integers(self._first(num_rows, schema, self._where(where), histories))

    def _first(
        self,
        num_rows: int,
        schema: SlotSchema,
        where: Where | None,
        histories: Sequence[SelectedHistory],
    ) -> pa.Table:
        """The first matching rows, with the lists of histories."""
        files = matching_files(self.snapshot.data_files, where)
        ranges = {field.name for each in self.snapshot.histories for field in each.row_fields}
        shown = [field for field in arrow_schema(schema) if field.name not in ranges]
        lists = [slot.to_field(nullable=True) for each in histories for slot in each.slots]
        fields = pa.schema([*shown[: len(schema.slots)], *lists, *shown[len(schema.slots) :]])
        found = fields.empty_table()
        for opened, index, table, is_match in self._matching(files, schema, where):
            rows = np.flatnonzero(is_match)[: num_rows - found.num_rows]
            if len(rows):
                shown_rows = table.take(pa.array(rows))
                columns = dict(zip(table.column_names, shown_rows, strict=True))
                base, groups, deleted = opened
                columns |= read_lists(base, groups, histories, index, rows, deleted)
                part = [columns[name] for name in fields.names]
                found = pa.concat_tables([found, pa.Table.from_arrays(part, schema=fields)])
            if found.num_rows == num_rows:
                return found
        return found

    def profile(
        self, where: str | None = None, slots: Sequence[str] | None = None, *, stored: bool = False
    ) -> Profile:
        """Per-slot statistics: coverage, distinct values, top values with label rates, list
        lengths, quantiles.

        Rows are counted exactly and in bounded memory: counts beyond it are sorted to a temporary
        file.

        Args:
            where: A predicate; by default every row counts.
            slots: Names and globs of slots; by default all.
            stored: Use the statistics gathered when the data was written, without reading any row.
                This works if `where` selects whole partitions that all have statistics; otherwise
                the rows are read.

        Returns:
            The profile. Its `source` says what it was computed from, and figures that are not exact
            come with their errors.

        Raises:
            DiskFullError: The disk of temporary files is full.
        """
        schema = selected_schema(self.schema, slots)
        found = self._profile(self.partitions, schema, self._where(where), stored=stored)
        return named_profile(found, self.snapshot)

    def profile_partitions(
        self,
        where: str | None = None,
        slots: Sequence[str] | None = None,
        *,
        stored: bool = False,
        last: int | None = None,
    ) -> PartitionProfiles:
        """The slots of each partition, such as a day: coverage, distinct values, and drift from
        partition to partition.

        Args:
            where: A predicate; by default every row counts.
            slots: Names and globs of slots; by default all.
            stored: As for `profile`, for each partition.
            last: The number of last partitions to profile, at least 1; by default all.

        Returns:
            The figures of the partitions that may hold matching rows, in the order of their paths.

        Raises:
            InputError: The table has no partitions.
            DiskFullError: The disk of temporary files is full.
        """
        if not self.schema.partition_keys:
            raise InputError("expected a table with partitions, found one without; use profile()")
        schema, condition = selected_schema(self.schema, slots), self._where(where)
        partitions = [
            partition
            for partition in self.partitions
            if condition is None or condition.matches_partition(partition) is not False
        ]
        return partition_profiles(
            (
                ", ".join(f"{key}={value}" for key, value in partition.items()),
                self._profile([partition], schema, condition, stored=stored),
            )
            for partition in partitions[-(last or len(partitions)) :]
        )

    def _profile(
        self,
        partitions: Sequence[Mapping[str, str | None]],
        schema: SlotSchema,
        where: Where | None,
        *,
        stored: bool,
    ) -> Profile:
        """The profile of the matching rows of some partitions. Statistics describe base files, so
        slots and labels that groups have are counted from the rows.
        """
        labels = numeric_labels(schema)
        parts = self._stored(partitions, where) if stored else None
        of_groups = tuple(slot for slot in schema.slots if self._is_in_group(slot.name))
        if parts is None:
            return self._counted(partitions, schema, where)
        statistics = merge_statistics(part.statistics for part in parts)
        counts = add_counts(part.counts for part in parts)
        in_base = [slot for slot in schema.slots if slot not in of_groups]
        found = replace(
            stored_profile(statistics, counts, in_base, labels),
            histories=history_summaries(statistics, self.snapshot.histories),
        )
        if not of_groups and not any(map(self._is_in_group, labels)):
            return found
        counted = self._counted(partitions, replace(schema, slots=of_groups), where)
        return with_counted(found, counted, schema.names)

    def _counted(
        self,
        partitions: Sequence[Mapping[str, str | None]],
        schema: SlotSchema,
        where: Where | None,
    ) -> Profile:
        """The profile of the matching rows, from the rows."""
        of_partitions = self.snapshot.in_partitions(partitions)
        rows = self._read(of_partitions, replace(schema, kept=()), where)
        return profile_rows(rows, schema.slots, numeric_labels(schema))

    def _is_in_group(self, name: str) -> bool:
        return any(group.has([name]) for group in self.snapshot.groups)

    def named(self, rows: pa.Table) -> pa.Table:
        """Rows of this table with the texts of their ids, for people to read.

        Texts are those of frequent values that extraction kept (`values` in a spec). An id whose
        text is not known is shown as its digits.

        Args:
            rows: Rows as `head` and `sample` return them.

        Returns:
            The same rows, with texts in id slots.
        """
        return named_rows(rows, self.snapshot)

    def label_profile(
        self, label: str, where: str | None = None, slots: Sequence[str] | None = None
    ) -> LabelProfile:
        """Slots against a label: its rate by value, bin and partition with Wilson intervals, and
        the AUC, mutual information and information value of each slot alone.

        The rows are read and counted exactly, in bounded memory.

        Args:
            label: A label of 0 and 1. Rows in which it is null are left out. Of files that
                featstore did not write, any column of single numbers or booleans may be one.
            where: A predicate; by default every row counts.
            slots: Names and globs of slots; by default all.

        Raises:
            SelectionError: There is no such label.
            InputError: The label has values besides 0 and 1.
            DiskFullError: The disk of temporary files is full.
        """
        schema = selected_schema(_with_label(self.schema, label), slots)
        keys = [field.name for field in schema.partition_keys]
        condition = self._where(where)
        rows = self._read(self.snapshot.data_files, replace(schema, kept=()), condition)
        found = label_rows(rows, schema.slots, label, keys)
        return named_label_profile(found, self.snapshot)

    def reading_costs(
        self,
        where: str | None = None,
        slots: Sequence[str] | None = None,
        *,
        decode: bool = True,
    ) -> ReadingCosts:
        """What reading each slot costs: its stored bytes, from the footers of all files, and the
        CPU time of decoding it, measured on the first row groups of four files.

        Args:
            where: A predicate, of which only conditions on partition values are used.
            slots: Names and globs of slots; by default all.
            decode: Whether to measure times; otherwise they are null and only footers are read.

        Raises:
            DataFileError: A file is damaged.
        """
        schema = selected_schema(self.schema, slots)
        files = list(
            self._with_groups_of(
                matching_files(self.snapshot.data_files, self._where(where)), schema.column_names
            )
        )
        sizes = ColumnSizes.of(files, Selection(slots=schema.slots))
        opened = self._opened(spread(files, NUM_FILES) if decode else [], schema.column_names)
        return reading_costs(sizes, schema.slots, ((base, groups) for _, base, groups in opened))

    def duckdb(self, connection: Any = None) -> Any:
        """The rows as a lazy duckdb relation, which duckdb itself reads.

        Columns are matched by name: a slot that was renamed is null in files written before.

        Args:
            connection: A duckdb connection; by default a new one.

        Returns:
            A `DuckDBPyRelation`.

        Raises:
            MissingDependencyError: duckdb is not installed.
        """
        self._require_fresh(self.snapshot.data_files, self.schema.column_names)
        return duckdb_view(self.snapshot, connection)

    def polars(self) -> Any:
        """The rows as a polars LazyFrame, which polars itself reads.

        Columns are matched by name: a slot that was renamed is null in files written before.

        Raises:
            MissingDependencyError: polars is not installed.
        """
        self._require_fresh(self.snapshot.data_files, self.schema.column_names)
        return polars_view(self.snapshot)

    def _stored(
        self, partitions: Sequence[Mapping[str, str | None]], where: Where | None
    ) -> list[StoredStatistics] | None:
        """The stored statistics of each matching one of the partitions, or None if they do not
        cover exactly the matching rows.
        """
        parts = []
        for partition in partitions:
            matches = True if where is None else where.matches_partition(partition)
            part = (
                find_statistics(self.url, partition, self.snapshot.in_partitions([partition]))
                if matches
                else None
            )
            if matches is None or (matches and part is None):
                return None
            parts += [] if part is None else [part]
        return parts

    def lint(self, *, batch_size: int = BATCH_SIZE) -> TableLintReport:
        """Checks for what makes the table slow to read, from the footers of its data files.

        Args:
            batch_size: The batch size, in rows, of the jobs that read the table.

        Returns:
            A report of the findings, each with its remedy.
        """
        return lint(self.url, self.version, batch_size=batch_size)

    def check(
        self, spec: Spec | str | Path | None = None, where: str | None = None
    ) -> TableCheckReport:
        """Runs checks on each partition, from stored statistics, or from the rows where there are
        none.

        Args:
            spec: The spec with the `checks`, or the URL of its YAML file; by default those of the
                newest extraction into the table are run.
            where: A predicate over partition keys; by default all partitions are checked.

        Returns:
            The report. Its `ok` is false if a check of severity `fail` failed.

        Raises:
            InputError: There are no checks.
            SelectionError: `where` names other columns than partition keys.
            SpecError: A check is of a slot or label that the table lacks.
        """
        given = spec if spec is None or isinstance(spec, Spec) else load_spec(spec)
        checks = stored_checks(self._commits()) if given is None else given.checks
        if given is not None and not checks:
            raise InputError(
                f"{redact(given.source) or 'the spec'}: expected `checks`, found none: add some "
                "to it, or give no spec (--spec) to run those that the table was made with"
            )
        names = checked_columns(self.snapshot, checks)
        slots = tuple(slot for slot in self.slots if slot.name in names)
        schema = replace(self.schema, slots=slots, kept=())

        def load(partition: Mapping[str, str | None]) -> Statistics:
            files = self.snapshot.in_partitions([partition])
            # Statistics describe base files; slot groups have none.
            is_in_base = not any(map(self._is_in_group, names))
            stored = find_statistics(self.url, partition, files) if is_in_base else None
            if stored is not None:
                return stored.statistics
            return gather_rows(schema, self._read(files, schema, None))

        return check_snapshot(self.snapshot, checks, self._partitions(where), load)

    def inspect(self) -> Description:
        """A description of the table: version, rows, bytes, spec hash, slots, slot groups,
        partitions and warnings. `str()` of it is the text for people.
        """
        warnings = stored_warnings(self._commits(), self.partitions)
        malformed = stored_findings(self._commits(), self.snapshot)
        return describe(self.snapshot, len(self.history()), warnings, malformed)

    def _commits(self) -> list[Commit]:
        """The commits in effect up to this version, newest first."""
        commits = (each for each in self.history() if each.version <= (self.version or 0))
        return list(in_effect(commits))

    def _partitions(self, where: str | None) -> list[Mapping[str, str | None]]:
        """The partitions that a predicate over partition keys selects."""
        condition = self._where(where)
        if condition is None:
            return list(self.partitions)
        keys = [key.name for key in self.schema.partition_keys]
        if others := sorted(set(condition.columns) - set(keys)):
            raise SelectionError(
                f"where: expected partition keys alone ({', '.join(keys) or 'there are none'}), "
                f"since whole partitions are checked, found {', '.join(others)}"
            )
        return [p for p in self.partitions if condition.matches_partition(p)]

    def _where(self, text: str | None) -> Where | None:
        if text is None:
            return None
        columns = arrow_schema(self.schema)
        return parse_where(text, {field.name: field.type for field in columns})

    def _require_fresh(self, files: Sequence[DataFile], names: Collection[str]) -> None:
        require_fresh(self.snapshot, files, names)

    def _read(
        self, files: FileList, schema: SlotSchema, where: Where | None
    ) -> Iterator[pa.RecordBatch]:
        """The matching rows of these files."""
        for _, _, table, is_match in self._matching(matching_files(files, where), schema, where):
            rows = table if where is None else table.filter(is_match)
            yield from rows.combine_chunks().to_batches()

    def _matching(
        self, files: FileList, schema: SlotSchema, where: Where | None
    ) -> Iterator[tuple[_Opened, int, pa.Table, Any]]:
        """The rows of each row group of files, and which of them match: bool (num_rows,)."""
        condition = () if where is None else where.columns
        names, seen = {*schema.column_names, *condition}, self.schema.only(condition)
        self._require_fresh(files, names)
        with NamedErrors(self.url):
            for file, base, groups in self._opened(files, names):
                deleted = file.deleted_rows()
                read = functools.partial(
                    read_tables, base, partition=file.partition, groups=groups, deleted=deleted
                )
                tables = read(schema)
                masks = iter(()) if where is None else map(where.mask, read(seen))
                for index, table in enumerate(tables):
                    is_match = np.ones(table.num_rows, bool) if where is None else next(masks)
                    yield (base, groups, deleted), index, table, is_match

    def _opened(
        self, files: Iterable[DataFile], names: Collection[str]
    ) -> Iterator[tuple[DataFile, OpenFile, list[OpenFile]]]:
        """Each file, open until the next one is asked for, with the open files of those of its
        groups that have a column of these names.
        """
        column_cache = ColumnCache()
        wanted = list(self._with_groups_of(files, names))
        try:
            for file, sources in zip(wanted, _sources(wanted), strict=True):
                with ExitStack() as stack:
                    base, *groups = [
                        stack.enter_context(
                            OpenFile(each.source, each.path, column_cache=column_cache)
                        )
                        for each in sources
                    ]
                    yield file, base, groups
        finally:  # also where the caller has enough rows
            column_cache.warn_if_none(redact(self.url))

    def _with_groups_of(
        self, files: Iterable[DataFile], names: Collection[str]
    ) -> Iterator[DataFile]:
        """The files, without those of slot groups that have no column to read."""
        needed = {group.name for group in self.snapshot.groups if group.has(names)}
        return (
            replace(file, groups=tuple(g for g in file.groups if g.group in needed))
            for file in files
        )


def selected_schema(schema: SlotSchema, slots: Sequence[str] | None) -> SlotSchema:
    """The schema with only the slots that the names and globs select, and without kept columns that
    cannot be read from all files of a directory; None selects everything.
    """
    if slots is None:
        return schema
    return replace(
        schema,
        slots=tuple(schema[name] for name in select(slots, schema.names)),
        kept=tuple(f for f in schema.kept if OF_TWO_KINDS not in (f.metadata or {})),
    )


def matching_files(files: FileList, where: Where | None) -> FileList:
    """The files that may hold matching rows."""
    if where is None:
        return files
    # None means that the partition values do not decide.
    files = files.at_places([where.matches_partition(p) is not False for p in files.places])
    chosen = files.matching(where)
    return files if chosen is None else files.take(chosen)


def _left_in_row_groups(file: DataFile, base: OpenFile) -> list[int]:
    """The rows of each row group of an open file that are not deleted."""
    left = rows_left(file.deleted_rows(), 0, base.num_rows)
    of_row_groups = np.split(left, np.cumsum(base.row_group_rows)[:-1])
    return [int(np.count_nonzero(each)) for each in of_row_groups]


def _drawn(
    read: Callable[[Sequence[int]], Iterable[pa.Table]],
    row_group_rows: Sequence[int],
    num_rows: int,
    rng: random.Random,
) -> pa.Table:
    """Random rows of a file, from as few of its row groups as hold that many.

    Args:
        read: Reads row groups.
        row_group_rows: The rows of each row group that are not deleted.
        num_rows: How many rows. The file has them.
        rng: Chooses row groups and rows.
    """
    row_groups, num_found = list[int](), 0
    for index in rng.sample(range(len(row_group_rows)), len(row_group_rows)):
        if num_found < num_rows:
            row_groups.append(index)
            num_found += row_group_rows[index]
    rows = pa.concat_tables(read(sorted(row_groups)))
    return rows.take(pa.array(sorted(rng.sample(range(len(rows)), num_rows)), pa.int64()))


def _with_label(schema: SlotSchema, label: str) -> SlotSchema:
    """The schema with a label of this name, which may be a column that no spec declared a slot."""
    known = numeric_labels(schema)
    columns = {slot.name: slot for slot in schema if not slot.is_declared and not slot.shape}
    if label in known:
        return schema
    if label not in columns:
        names = [*known, *columns]
        raise SelectionError(f"no label {label!r}; the table has {names}{nearest(label, names)}")
    return replace(
        schema,
        slots=tuple(slot for slot in schema if slot.name != label),
        labels=(*schema.labels, pa.field(label, columns[label].arrow_type(nullable=True))),
    )


def _sources(files: Sequence[DataFile]) -> Iterator[Sequence[FileSource]]:
    """The sources of each file and of its slot groups' files.

    Remote files are staged ahead of the reader in a private directory, and removed after they are
    read. A file that cannot be staged because it is damaged is read in place, where the reader
    raises its error.
    """
    options = Staging(mode="auto")
    # Local files need no stager, and so no directory and threads of one.
    if not any(options.stages(file.url) for file in files):
        yield from map(files_in_place, files)
        return
    with Stager(options) as stager, SourcesAhead(stager, files) as ahead:
        for file in files:
            with ahead.opened(file) as sources:
                yield sources
