"""One unit of an extraction: raw rows in, one data file out, or several if the rows are wide.
Runners decide where units run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from featstore.base.errors import InputError
from featstore.base.redaction import redact
from featstore.base.schema import SlotSchema
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.findings import BatchOrigin, Malformed, Rejects
from featstore.extraction.units.raw import RawRange, Unit, check_constant, open_range, read_batches
from featstore.extraction.units.unit_statistics import Gathering
from featstore.extraction.units.unit_values import ValueGathering, store_values
from featstore.extraction.units.writer import DataFileWriter, open_data_file
from featstore.files.retry import RetryPolicy, current_policy
from featstore.files.storage import join
from featstore.spec.model import Spec
from featstore.table.layout import data_file_name, partition_path
from featstore.table.metadata import FileMetadata

Progress = Callable[[int, int, int], None]
"""Called with (files done, files in total, rows done), one call at a time, from any thread. The
files of one unit count as one."""


def ignore_progress(num_files: int, num_files_total: int, num_rows: int) -> None:
    """Ignores progress."""


OnRows = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class UnitReport:
    """One data file that a unit wrote, or that it wrote none because it had no rows.

    What a unit counted is in the report of its last file, or in one without a file if files of
    buckets hold its rows.

    Attributes:
        path: Path of the file, relative to the table.
        crc32: CRC-32 of the file's bytes.
        counts: Number of dropped or replaced values, by `<slot or column>: <kind>`.
        examples: The first malformed values of each raw column.
        has_statistics: Whether the statistics of all rows of the unit are stored under this path.
        has_values: Whether texts of the unit's values are stored under it.
        num_rows_cut: The rows that it gave to buckets, whose files hold them.
        num_events_cut: The events that it gave to buckets, on Spark; of a bucket less than 0, those
            that it got.
        times: By history, the first and last `as_of` of rows with a key; by `times_key`, when the
            first and the last event of a file became known: int64 microseconds.
        rejects: Rows with malformed values, if the task asks for them.
    """

    path: str
    partition: Mapping[str, str]
    num_rows: int = 0
    size_bytes: int = 0
    crc32: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    num_rows_skipped: int = 0
    examples: tuple[Malformed, ...] = ()
    has_statistics: bool = False
    has_values: bool = False
    num_rows_cut: int = 0
    num_events_cut: int = 0
    times: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    rejects: Rejects | None = None


@dataclass(frozen=True, kw_only=True)
class UnitTask:
    """What all units of a run have in common. Picklable, so that it can be sent to other processes.

    Attributes:
        tag: Part of the names of the files that are written. Unique to this start of the run, even
            if another process uses the same run id.
        retry: How the clients of stores retry, wherever the units run.
        events: By history, the units of its log of events.
        max_rejects: How many rows with malformed values each unit reports.
    """

    spec: Spec
    table_url: str = field(repr=False)
    run_id: str
    tag: str
    retry: RetryPolicy = field(default_factory=current_policy)
    events: Mapping[str, Sequence[Unit]] = field(default_factory=dict)
    max_rejects: int = 0

    def extractor(self) -> Extractor:
        """An extractor of its spec, for one unit."""
        extractor = Extractor(self.spec)
        if self.max_rejects:
            extractor.findings.rejects = Rejects(most=self.max_rejects)
        return extractor

    def stored(self, schema: SlotSchema) -> SlotSchema:
        """Returns the part of the extractor's schema that is written."""
        return schema

    def rows_per_row_group(self, unit: int, part: int = 0) -> int:
        return self.spec.output.rows_per_row_group

    @property
    def rows_per_file(self) -> int:
        return self.spec.output.rows_per_file

    def rows_left(self, unit: int, part: int, writer: DataFileWriter) -> int:
        """How many rows to write to one of the unit's files before this is asked again; 0 if it
        ends here.

        A file ends after the row group with which its size comes nearest to `bytes_per_file`.
        """
        output, group_rows = self.spec.output, self.rows_per_row_group(unit, part)
        num_groups, num_more = divmod(writer.num_rows, group_rows)
        if num_groups and not num_more:
            # With another row group of the same size it would be farther from it, or as far.
            size_bytes = writer.size_bytes
            if 2 * size_bytes + size_bytes // num_groups >= 2 * output.bytes_per_file:
                return 0
        return min(group_rows - num_more, self.rows_per_file - writer.num_rows)

    def file_metadata(self, unit: int = 0, part: int = 0) -> FileMetadata:
        return FileMetadata(spec_hash=self.spec.hash, spec_version=self.spec.version)

    def path(self, partition: Mapping[str, str], unit: int, attempt: int, part: int = 0) -> str:
        """Returns the path, relative to the table, of the file that an attempt writes."""
        name = data_file_name(self.tag, unit, attempt, part)
        return f"{partition_path(partition)}/{name}" if partition else name


Runner = Callable[[UnitTask, Sequence[Unit], Progress], list[UnitReport]]
"""Runs a task over units.

Returns the units' reports, in any order; raises what a unit raises. When it returns or raises, no
unit is still running, as far as the runner can tell.
"""


def run_unit(
    task: UnitTask, unit: Unit, attempt: int = 0, on_rows: OnRows = lambda num_rows: None
) -> list[UnitReport]:
    """Writes the unit's data files, or none if all rows are skipped.

    Args:
        attempt: Number of this attempt; part of the file name, so that attempts do not collide.
        on_rows: Called with the number of rows after each batch; may raise to stop the unit.

    Raises:
        InputError: A raw row or file is not valid; names both. The file that was being written is
            not left.
        OperatorError: An operator failed; names the slot, the file and the row.
    """
    extractor = task.extractor()
    return write_unit(
        task,
        unit.partition,
        extractor,
        extract_unit(unit, extractor),
        index=unit.index,
        attempt=attempt,
        on_rows=on_rows,
    )


def write_unit(
    task: UnitTask,
    partition: Mapping[str, str],
    extractor: Extractor,
    extracted: Iterator[pa.RecordBatch],
    *,
    index: int = 0,
    attempt: int = 0,
    on_rows: OnRows = lambda num_rows: None,
) -> list[UnitReport]:
    """Writes extracted rows to data files, and the statistics of all of them.

    Args:
        index: The unit's index.
        attempt: Number of this attempt.
        on_rows: As for `run_unit`.

    Returns:
        A report of each file; a single one without rows if there are none, and then no file.
    """
    rows = UnitRows(task, extractor, extracted)
    *reports, last = write_files(
        task,
        partition,
        task.stored(extractor.schema),
        iter(rows),
        index=index,
        attempt=attempt,
        on_rows=on_rows,
    )
    size_bytes = last.size_bytes + sum(report.size_bytes for report in reports)
    return [*reports, rows.reported(last, size_bytes)]


class UnitRows:
    """The extracted rows of a unit, whose statistics and texts are gathered as they pass.

    Args:
        task: The task of the run.
        extractor: What all of the rows come from.
        extracted: The rows.

    Attributes:
        num_rows: The rows that passed.
    """

    def __init__(
        self, task: UnitTask, extractor: Extractor, extracted: Iterator[pa.RecordBatch]
    ) -> None:
        self.num_rows = 0
        self._table_url, self._extractor, self._extracted = task.table_url, extractor, extracted
        self._gathering = Gathering(extractor) if task.spec.output.statistics else None
        self._values = ValueGathering(extractor, task.stored(extractor.schema).names)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The rows, to be taken once; no batch is empty."""
        watched = self._values.watch(batch for batch in self._extracted if batch.num_rows)
        for batch in watched if self._gathering is None else self._gathering.watch(watched):
            self.num_rows += batch.num_rows
            yield batch

    def reported(self, report: UnitReport, size_bytes: int) -> UnitReport:
        """The report with what was counted; statistics and texts are stored under its path. To be
        called once all rows were taken.

        Args:
            report: The report of the unit's last file.
            size_bytes: The bytes of the rows, of which texts take a small share.
        """
        url, findings, has_rows = self._table_url, self._extractor.findings, self.num_rows > 0
        has_statistics = has_rows and self._gathering is not None
        if has_rows and self._gathering is not None:
            self._gathering.store(url, report.path)
        return replace(
            report,
            has_statistics=has_statistics,
            has_values=has_rows and store_values([self._values], url, report.path, size_bytes),
            counts=dict(findings.counts),
            num_rows_skipped=findings.num_rows_skipped,
            examples=findings.examples,
            rejects=findings.rejects,
        )


def write_files(
    task: UnitTask,
    partition: Mapping[str, str],
    schema: SlotSchema,
    batches: Iterator[pa.RecordBatch],
    *,
    index: int,
    attempt: int,
    on_rows: OnRows,
) -> list[UnitReport]:
    """Writes rows to data files.

    Args:
        schema: The columns to write.
        batches: The rows; no batch is empty.
        index: The number of the unit or bucket.
        attempt: Number of this attempt.
        on_rows: As for `run_unit`.

    Returns:
        A report of each file; a single one without rows if there are none, and then no file.
    """
    rows, reports = next(batches, None), list[UnitReport]()
    # A file is opened only once there is a row, so that a unit of skipped rows leaves none.
    while rows is not None:
        part = len(reports)
        path = task.path(partition, index, attempt, part)
        metadata, cut = task.file_metadata(index, part), task.rows_per_row_group(index, part)
        url, compression = join(task.table_url, path), task.spec.output.compression
        with open_data_file(url, schema, metadata, cut, compression) as writer:
            while rows is not None and (most := task.rows_left(index, part, writer)):
                taken, left = rows.slice(0, most), rows.slice(min(most, rows.num_rows))
                writer.write(taken.select(schema.column_names))
                on_rows(taken.num_rows)
                rows = left if left.num_rows else next(batches, None)
            written = writer.close()
        reports.append(UnitReport(path=path, partition=partition, **vars(written)))
    none = UnitReport(path=task.path(partition, index, attempt), partition=partition)
    return reports or [none]


def extract_batches(
    batches: Iterable[pa.RecordBatch],
    extractor: Extractor,
    partition: Mapping[str, str],
    origin: BatchOrigin,
) -> Iterator[pa.RecordBatch]:
    """Yields raw batches, which must agree with the partition, as they are extracted.

    Args:
        origin: The place of the first row; the others follow it.
    """
    for batch in batches:
        if batch.num_rows:
            check_constant(batch, partition, origin.rows(0, batch.num_rows - 1))
            yield extractor.rows(batch, origin)
            origin = origin.after(batch.num_rows)


def raw_columns(
    extractor: Extractor, names: Sequence[str], partition: Mapping[str, str]
) -> list[str]:
    """Returns the columns of `names` that a run reads.

    These are the extractor's columns, and columns named like a partition key, whose values must
    agree with the partition.
    """
    also = [key for key in partition if key in names and key not in extractor.graph.columns]
    return [*extractor.columns_in(names), *also]


def bind(url: str, extractor: Extractor, schema: pa.Schema) -> None:
    """Binds the extractor to a raw schema; an InputError names the file."""
    try:
        extractor.bind(schema)
    except InputError as error:
        raise InputError(f"{redact(url)}: {error}") from None


def extract_unit(unit: Unit, extractor: Extractor) -> Iterator[pa.RecordBatch]:
    """Yields the extracted rows of a unit; errors as of `extract_range`."""
    for raw in unit.ranges:
        yield from extract_range(raw, extractor, unit.partition)


def extract_range(
    raw: RawRange, extractor: Extractor, partition: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """Yields the extracted rows of a range, batch by batch.

    Raises:
        InputError: A row is not valid; names the raw file and the row. Also raised after the last
            batch if the file changed since it was listed.
        OperatorError: An operator failed.
    """
    origin = BatchOrigin(source=redact(raw.url), first_row=raw.first_row)
    with open_range(raw) as file:
        bind(raw.url, extractor, file.schema_arrow)
        columns = raw_columns(extractor, file.schema_arrow.names, partition)
        batches = read_batches(file, raw, columns)
        yield from extract_batches(batches, extractor, partition, origin)
