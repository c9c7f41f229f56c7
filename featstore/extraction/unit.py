"""One unit of an extraction: raw rows in, one data file out. Runners decide where units run."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from featstore.errors import InputError
from featstore.extraction.extractor import Extractor
from featstore.extraction.findings import BatchOrigin, Malformed
from featstore.extraction.raw import RawRange, Unit, check_constant, open_range, read_batches
from featstore.extraction.unit_statistics import Gathering
from featstore.files.storage import join
from featstore.redaction import redact
from featstore.schema import SlotSchema
from featstore.spec.model import Spec
from featstore.table.layout import data_file_name, partition_path
from featstore.table.metadata import FileMetadata
from featstore.table.writer import DataFileReport, open_data_file

Progress = Callable[[int, int, int], None]
"""Called with (files done, files in total, rows done), one call at a time, from any thread."""


def ignore_progress(num_files: int, num_files_total: int, num_rows: int) -> None:
    """Ignores progress."""


OnRows = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class UnitReport:
    """The result of a unit: the data file that it wrote, or none if it had no rows.

    Attributes:
        path: Path of the file, relative to the table.
        crc32: CRC-32 of the file's bytes.
        counts: Number of dropped or replaced values, by `<slot or column>: <kind>`.
        examples: The first malformed values of each raw column.
    """

    path: str
    partition: Mapping[str, str]
    num_rows: int
    size_bytes: int
    crc32: int
    counts: Mapping[str, int]
    num_rows_skipped: int = 0
    examples: tuple[Malformed, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UnitTask:
    """What all units of a run have in common. Picklable, so that it can be sent to other processes.

    Attributes:
        tag: Part of the names of the files that are written. Unique to this start of the run, even
            if another process uses the same run id.
    """

    spec: Spec
    table_url: str = field(repr=False)
    run_id: str
    tag: str

    def stored(self, schema: SlotSchema) -> SlotSchema:
        """Returns the part of the extractor's schema that is written."""
        return schema

    def rows_per_row_group(self, unit: int) -> int:
        return self.spec.output.rows_per_row_group

    def file_metadata(self, unit: int = 0) -> FileMetadata:
        return FileMetadata(spec_hash=self.spec.hash, spec_version=self.spec.version)

    def path(self, partition: Mapping[str, str], unit: int, attempt: int, part: int = 0) -> str:
        """Returns the path, relative to the table, of the file that an attempt writes."""
        name = data_file_name(self.tag, unit, attempt, part)
        return f"{partition_path(partition)}/{name}" if partition else name


class Runner(Protocol):
    """Runs a task over units.

    Returns one report per unit, in any order; raises what a unit raises. When it returns or raises,
    no unit is still running, as far as the runner can tell.
    """

    def __call__(
        self, task: UnitTask, units: Sequence[Unit], progress: Progress
    ) -> list[UnitReport]: ...


def run_unit(
    task: UnitTask, unit: Unit, attempt: int = 0, on_rows: OnRows = lambda num_rows: None
) -> UnitReport:
    """Writes the unit's data file, or none if all rows are skipped.

    Args:
        attempt: Number of this attempt; part of the file name, so that attempts do not collide.
        on_rows: Called with the number of rows after each batch; may raise to stop the unit.

    Raises:
        InputError: A raw row or file is not valid; names both. No file is left.
        OperatorError: An operator failed; names the slot, the file and the row.
    """
    extractor = Extractor(task.spec)
    path = task.path(unit.partition, unit.index, attempt)
    extracted = (
        batch for raw in unit.ranges for batch in extract_range(raw, extractor, unit.partition)
    )
    return write_unit(
        task, path, unit.partition, extractor, extracted, index=unit.index, on_rows=on_rows
    )


def write_unit(
    task: UnitTask,
    path: str,
    partition: Mapping[str, str],
    extractor: Extractor,
    extracted: Iterator[pa.RecordBatch],
    *,
    index: int = 0,
    on_rows: OnRows = lambda num_rows: None,
    max_rows: float = math.inf,
) -> UnitReport:
    """Writes extracted rows to the file at `path`, with their statistics.

    No file is written if there are no rows.

    Args:
        index: The unit's index.
        on_rows: As for `run_unit`.
        max_rows: No further batch is taken once the file has as many rows.
    """
    output = task.spec.output
    gathering = Gathering(extractor, wanted=output.statistics)
    filled = gathering.watch(batch for batch in extracted if batch.num_rows)
    written = DataFileReport(num_rows=0, size_bytes=0, crc32=0)
    # The file is opened only once there is a row, so that a unit of skipped rows leaves no file.
    first = next(filled, None)
    if first is not None:
        schema, cut = task.stored(extractor.schema), task.rows_per_row_group(index)
        names = schema.to_arrow().names
        with open_data_file(
            join(task.table_url, path), schema, task.file_metadata(index), cut, output.compression
        ) as writer:
            for batch in itertools.chain([first], filled):
                writer.write(batch.select(names))
                on_rows(batch.num_rows)
                if writer.num_rows >= max_rows:
                    break
            written = writer.close()
        gathering.store(task.table_url, path)
    return UnitReport(
        path=path,
        partition=partition,
        **vars(written),
        counts=dict(extractor.counts),
        num_rows_skipped=extractor.findings.num_rows_skipped,
        examples=extractor.findings.examples,
    )


def run_batch(
    extractor: Extractor, batch: pa.RecordBatch, partition: Mapping[str, str], origin: BatchOrigin
) -> pa.RecordBatch:
    """Checks a raw batch against the partition and extracts it."""
    check_constant(batch, partition, origin.rows(0, batch.num_rows - 1))
    return extractor(batch, origin)


def raw_columns(
    extractor: Extractor, names: Sequence[str], partition: Mapping[str, str]
) -> list[str]:
    """Returns the columns of `names` that a run reads.

    These are the extractor's columns, and columns named like a partition key, whose values must
    agree with the partition.
    """
    also = [key for key in partition if key in names and key not in extractor.input_columns]
    return [*extractor.columns_in(names), *also]


def bind(url: str, extractor: Extractor, schema: pa.Schema) -> None:
    """Binds the extractor to a raw schema; an InputError names the file."""
    try:
        extractor.bind(schema)
    except InputError as error:
        raise InputError(f"{redact(url)}: {error}") from None


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
        for batch in read_batches(
            file, raw, raw_columns(extractor, file.schema_arrow.names, partition)
        ):
            yield run_batch(extractor, batch, partition, origin)
            origin = origin.after(batch.num_rows)
