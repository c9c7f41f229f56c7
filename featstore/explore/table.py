"""A table as users see it: what it holds, its rows, samples, profiles, and views for SQL."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from tabulate import tabulate

from featstore.explore.profile import Profile, profile
from featstore.explore.stored import stored_profile
from featstore.explore.views import duckdb_view, polars_view
from featstore.files import storage
from featstore.loader.rows.staging_source import stage_items
from featstore.reading.open_file import OpenFile
from featstore.reading.tables import read_tables
from featstore.redaction import redact
from featstore.schema import Slot, SlotSchema
from featstore.selection.where import Where, parse_where, select
from featstore.staging.options import Staging
from featstore.staging.stager import Stager
from featstore.table.delta import Commit, history
from featstore.table.open import open_snapshot
from featstore.table.snapshot import DataFile, Snapshot
from featstore.table.statistics.column_statistics import add_counts, merge_statistics
from featstore.table.statistics.statistics_file import StoredStatistics, find_statistics
from featstore.table.statistics.table_lint import BATCH_SIZE, TableLintReport, lint


def open_table(url: str | Path, version: int | None = None) -> "Table":
    """The table at `url`: a Delta table, or a directory or glob of Parquet. TableNotFoundError
    where there is none.
    """
    return Table(open_snapshot(str(url), version))


class Table:
    """A table at one version, for people: every method reads the same snapshot, whatever is
    committed meanwhile.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    @property
    def url(self) -> str:
        return self.snapshot.url

    @property
    def version(self) -> int | None:
        """The Delta version, None for a plain directory."""
        return self.snapshot.version

    @property
    def schema(self) -> SlotSchema:
        return self.snapshot.schema

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.schema.slots

    @property
    def partitions(self) -> tuple[Mapping[str, str | None], ...]:
        return self.snapshot.partitions

    @property
    def num_rows(self) -> int:
        return self.snapshot.num_rows

    def __repr__(self) -> str:
        at = "" if self.version is None else f", version {self.version}"
        return f"Table({redact(self.url)!r}{at}, {len(self.slots)} slots, {self.num_rows:,} rows)"

    def history(self) -> list[Commit]:
        """The commits, newest first, with what featstore stored in each; empty for a plain
        directory.
        """
        return [] if self.version is None else history(self.url)

    def data_files(self, where: str | None = None) -> tuple[DataFile, ...]:
        """The data files that may hold rows matching `where`, by partition values."""
        return self._files(self._where(where))

    def to_batches(
        self, slots: Sequence[str] | None = None, where: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows as record batches, missing as null: chosen slots (names and globs; None: all), then
        labels, weight, kept columns and partition keys. Files are read one after the other, remote
        ones staged whole; memory holds a row group.
        """
        condition = self._where(where)
        yield from self._read(self._files(condition), self._chosen(slots), condition)

    def to_arrow(self, slots: Sequence[str] | None = None, where: str | None = None) -> pa.Table:
        """All rows of `to_batches` as one Arrow table, in memory."""
        schema = self._chosen(slots).to_arrow(nullable=True, partition_keys=True)
        return pa.Table.from_batches(self.to_batches(slots, where), schema)

    def sample(self, num_rows: int = 1000, *, seed: int = 0) -> pa.Table:
        """Up to `num_rows` rows for a look: drawn at random from a few data files, which are drawn
        at random too.

        For a sample that stands for the whole table, use `where="sample(column, rate, seed)"`.
        """
        draw, chosen, gathered = random.Random(seed), [], 0
        for file in draw.sample(self.snapshot.data_files, len(self.snapshot.data_files)):
            chosen.append(file)
            gathered += file.num_rows
            if gathered >= 2 * num_rows:
                break
        schema = self.schema.to_arrow(nullable=True, partition_keys=True)
        rows = pa.Table.from_batches(self._read(chosen, self.schema, None), schema)
        return rows.take(
            pa.array(sorted(draw.sample(range(len(rows)), min(num_rows, len(rows)))), pa.int64())
        )

    def head(self, num_rows: int = 10) -> pa.Table:
        """The first rows, missing as null."""
        schema = self.schema.to_arrow(nullable=True, partition_keys=True)
        batches, gathered = [], 0
        for batch in self.to_batches():
            batches.append(batch.slice(0, num_rows - gathered))
            gathered += batches[-1].num_rows
            if gathered >= num_rows:
                break
        return pa.Table.from_batches(batches, schema)

    def profile(
        self, where: str | None = None, slots: Sequence[str] | None = None, *, stored: bool = False
    ) -> Profile:
        """Per-slot statistics: coverage, distinct values, top values with label rates, list
        lengths, quantiles.

        With `stored`, from the statistics that were gathered when the data was written, without
        reading it, where they are of just the rows asked for: whole partitions, each with
        statistics. Else from the rows. `source` says which.
        """
        chosen = self._chosen(slots)
        labels = [label.name for label in chosen.labels if not pa.types.is_nested(label.type)]
        found = self._stored(self._where(where)) if stored else None
        if found is not None:
            statistics = merge_statistics(part.statistics for part in found)
            return stored_profile(
                statistics, add_counts(part.counts for part in found), chosen.slots, labels
            )
        return profile(lambda: self.to_batches(slots, where), chosen.slots, labels)

    def duckdb(self, connection: Any = None) -> Any:
        """The snapshot's rows as a lazy duckdb relation, missing as null, read by duckdb itself;
        columns go by name.
        """
        return duckdb_view(self.snapshot, connection)

    def polars(self) -> Any:
        """The snapshot's rows as a polars LazyFrame, missing as null, read by polars itself;
        columns go by name.
        """
        return polars_view(self.snapshot)

    def _stored(self, where: Where | None) -> list[StoredStatistics] | None:
        """The statistics of all rows that match, by partition; None where there are none of just
        these rows.

        Those of a partition are of its base files: slot groups have none, and change what the base
        says.
        """
        if self.snapshot.groups:
            return None
        found = []
        for partition in self.partitions:
            matches = True if where is None else where.matches_partition(partition)
            part = (
                find_statistics(self.url, partition, self.snapshot.in_partitions([partition]))
                if matches
                else None
            )
            if matches is None or (matches and part is None):
                return None
            found += [] if part is None else [part]
        return found

    def lint(self, *, batch_size: int = BATCH_SIZE) -> TableLintReport:
        """Why the table is slower to read than it could be, from the footers of its data files."""
        return lint(self.url, self.version, batch_size=batch_size)

    def inspect(self) -> str:
        """What the table holds, as text: versions, rows, bytes, spec hash, partitions and slots."""
        parts = [self._summary(), self._slot_text(), self._group_text(), self._partition_text()]
        return "\n\n".join(part for part in parts if part)

    def _chosen(self, slots: Sequence[str] | None) -> SlotSchema:
        if slots is None:
            return self.schema
        return replace(
            self.schema, slots=tuple(self.schema[name] for name in select(slots, self.schema.names))
        )

    def _where(self, text: str | None) -> Where | None:
        fields = self.schema.to_arrow(nullable=True, partition_keys=True)
        return (
            None
            if text is None
            else parse_where(text, {field.name: field.type for field in fields})
        )

    def _files(self, where: Where | None) -> tuple[DataFile, ...]:
        kept = self.snapshot.data_files
        return (
            kept
            if where is None
            else tuple(
                file for file in kept if where.matches_partition(file.partition) is not False
            )
        )

    def _read(
        self, chosen: Iterable[DataFile], schema: SlotSchema, where: Where | None
    ) -> Iterator[pa.RecordBatch]:
        read = schema if where is None else _with_columns(schema, self.schema, where.columns)
        wanted = schema.to_arrow(nullable=True, partition_keys=True)
        for file, sources in _sources(self._with_groups_of(chosen, read)):
            names = [file.path, *(group.path for group in file.groups)]
            with ExitStack() as stack:
                footer, *groups = [
                    stack.enter_context(OpenFile(*named))
                    for named in zip(sources, names, strict=True)
                ]
                for table in read_tables(footer, read, file.partition, groups):
                    rows = table if where is None else table.filter(where.mask(table))
                    yield from rows.select(wanted.names).combine_chunks().to_batches()

    def _with_groups_of(self, chosen: Iterable[DataFile], read: SlotSchema) -> Iterator[DataFile]:
        """The files, each with the files of those slot groups only that have a column to be
        read.
        """
        names = read.to_arrow().names
        wanted = {group.name for group in self.snapshot.groups if group.has(names)}
        return (
            replace(file, groups=tuple(g for g in file.groups if g.group in wanted))
            for file in chosen
        )

    def _summary(self) -> str:
        version = "none (plain Parquet)" if self.version is None else self.version
        lines = [
            ("table", redact(self.url)),
            ("version", version),
            ("rows", f"{self.num_rows:,}"),
            ("bytes", f"{self.snapshot.size_bytes:,}"),
            ("data files", f"{len(self.snapshot.data_files):,}"),
            ("spec hash", self.snapshot.spec_hash or "unknown"),
            ("commits", len(self.history())),
        ]
        return tabulate(lines, tablefmt="plain", disable_numparse=True)

    def _slot_text(self) -> str:
        rows: list[tuple[object, ...]] = [
            (slot.number, slot.name, slot.kind, slot.shape_text, slot.op) for slot in self.slots
        ]
        columns = [("label", self.schema.labels), ("kept", self.schema.kept)]
        rows += [
            (None, field.name, role, field.type, None)
            for role, fields in columns
            for field in fields
        ]
        return tabulate(
            rows, headers=("slot", "name", "kind", "shape", "operator"), disable_numparse=True
        )

    def _group_text(self) -> str:
        """The slot groups, and the files of them that are stale; empty where there are none."""
        bound = [group.group for file in self.snapshot.data_files for group in file.groups]
        rows = [
            (group.name, group.version, bound.count(group.name), len(group.stale))
            for group in self.snapshot.groups
        ]
        text = (
            tabulate(
                rows, headers=("slot group", "version", "files", "stale"), disable_numparse=True
            )
            if rows
            else ""
        )
        stale = [
            f"stale: {group.name}/{path}" for group in self.snapshot.groups for path in group.stale
        ]
        return "\n".join([text, *stale])

    def _partition_text(self) -> str:
        totals: dict[str, list[int]] = {}
        for file in self.snapshot.data_files:
            name = ", ".join(f"{key}={value}" for key, value in file.partition.items()) or "(none)"
            total = totals.setdefault(name, [0, 0, 0])
            total[:] = [total[0] + 1, total[1] + file.num_rows, total[2] + file.size_bytes]
        rows = [(name, *(f"{number:,}" for number in total)) for name, total in totals.items()]
        align = ("left", "right", "right", "right")
        return tabulate(
            rows,
            headers=("partition", "files", "rows", "bytes"),
            disable_numparse=True,
            colalign=align,
        )


def _with_columns(chosen: SlotSchema, full: SlotSchema, names: Iterable[str]) -> SlotSchema:
    """The chosen schema with the slots that a predicate reads; columns other than slots are all
    there already.
    """
    wanted = {slot.name for slot in chosen} | set(names)
    return replace(chosen, slots=tuple(slot for slot in full if slot.name in wanted))


def _sources(chosen: Iterable[DataFile]) -> Iterator[tuple[DataFile, list[Path | BinaryIO]]]:
    """The files and where they are read, of the base and then of its slot groups: remote ones
    staged ahead of the reader in a private directory and removed after it, damaged ones in
    place."""
    options, chosen = Staging(mode="auto"), list(chosen)
    if not any(options.stages(file.url) for file in chosen):
        for file in chosen:
            yield file, [_in_place(part.url) for part in file.parts]
        return
    with Stager(options) as stager:
        stream = stager.stage(item for file in chosen for item in stage_items(file, file))
        for file in chosen:
            with ExitStack() as stack:
                staged = [stack.enter_context(next(stream)) for _ in file.parts]
                yield file, [part.path or _in_place(part.url) for part in staged]


def _in_place(url: str) -> Path | BinaryIO:
    return storage.local_path(url) or storage.open_read(url)
