"""Rows of one key side by side (`output.cluster_by`), in two passes.

The first pass extracts units as always, and gives each batch of rows to the buckets: each key of a
partition has one. The second one writes the files of a bucket, whose rows are in the order of their
keys, then of the input.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from featstore.base.errors import InputError
from featstore.extraction.units.blocks import Blocks, BucketRows, RowBlock
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.history_rows import HistoryRows
from featstore.extraction.units.raw import Unit
from featstore.extraction.units.unit import (
    OnRows,
    UnitReport,
    UnitRows,
    UnitTask,
    extract_unit,
    write_files,
)
from featstore.extraction.units.unit_statistics import store_histories
from featstore.extraction.units.writer import DataFileWriter, open_data_file
from featstore.files.storage import join
from featstore.histories.stored import with_ranges
from featstore.ops import hashing
from featstore.ops.arrays import Integers, values_of
from featstore.ops.columns import clean, read_column
from featstore.spec.model import Spec
from featstore.table.metadata import FileMetadata
from featstore.table.snapshot import by_partition

_ROW_BITS = 40  # for the rows of a unit; its number is before them
# A block has so many rows or bytes, if its unit has as many.
_BLOCK_ROWS, _BLOCK_BYTES = 65_536, 32 << 20
# The share of `rows_per_file` that buckets are planned to have, as no two have equally many rows
# and the next row would begin another file.
_FILLED = 15, 16


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The rows of some keys of a partition; `index` is its number in the run."""

    index: int
    partition: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class BucketTask(UnitTask):
    """The writing of one bucket: row groups, and files, of equal size."""

    num_rows: int

    def rows_per_row_group(self, unit: int = 0, part: int = 0) -> int:
        return _evenly(self.num_rows, self.spec.output.rows_per_row_group)

    @property
    def rows_per_file(self) -> int:
        group_rows = self.rows_per_row_group()
        num_groups = -(-self.num_rows // group_rows)
        return group_rows * _evenly(num_groups, self.spec.output.rows_per_file // group_rows)

    def has_room(self, writer: DataFileWriter, num_groups: int, num_rows: int) -> bool:
        """Whether a file with so many row groups takes one more, of so many rows. As of
        `rows_left`, of row groups that differ.
        """
        size_bytes = writer.size_bytes
        return not num_groups or (
            writer.num_rows + num_rows <= self.rows_per_file
            and 2 * size_bytes + size_bytes // num_groups < 2 * self.spec.output.bytes_per_file
        )

    def file_metadata(self, unit: int = 0, part: int = 0) -> FileMetadata:
        return replace(super().file_metadata(), cluster_by=self.spec.cluster_by)


def plan_buckets(
    units: Sequence[Unit], rows_per_file: int
) -> tuple[list[tuple[Unit, range]], list[Bucket]]:
    """The buckets of a run, and with each unit the numbers of those of its partition. Pure."""
    cuts, buckets = list[tuple[Unit, range]](), list[Bucket]()
    for own in by_partition(units).values():
        first, partition = len(buckets), own[0].partition
        num_buckets = count_buckets(sum(unit.num_rows for unit in own), rows_per_file)
        numbers = range(first, first + num_buckets)
        buckets += (Bucket(index=index, partition=partition) for index in numbers)
        cuts += ((unit, numbers) for unit in own)
    return cuts, buckets


def count_buckets(num_rows: int, rows_per_file: int) -> int:
    """How many buckets a partition of so many rows has, each about a file."""
    filled, of = _FILLED
    return 1 if num_rows <= rows_per_file else -(-num_rows * of // (rows_per_file * filled))


def key_signs(column: pa.Array, declared: pa.DataType) -> Integers:
    """The signs of keys, int64 (num_rows,); 0 where there is none.

    Args:
        column: The raw column, of a type that is readable as declared.
        declared: The canonical type.
    """
    counts = Counter[str]()  # Whatever reads the column besides has counted it.
    column = clean(read_column(column, declared=declared, counts=counts), counts=counts)
    return values_of(hashing.key_signs(column))


def _see_keys(spec: Spec, seen: list[Integers], raw: pa.RecordBatch) -> None:
    name = str(spec.cluster_by)
    seen[:] = [key_signs(raw.column(name), spec.inputs[name])]


class CutRows:
    """The rows of a unit in blocks, as the first pass gives them to buckets.

    Args:
        task: The task of the run, whose spec says `cluster_by`.
        extractor: What all of the rows come from.
        extracted: The rows.
        buckets: The numbers of the buckets of the unit's partition.
        index: The unit's number.
        block_bytes: Larger batches are cut into blocks of about this size.
    """

    def __init__(
        self,
        task: UnitTask,
        extractor: Extractor,
        extracted: Iterator[pa.RecordBatch],
        buckets: range,
        index: int,
        block_bytes: int | None = None,
    ) -> None:
        self._rows = UnitRows(task, extractor, extracted)
        self._task, self._buckets, self._index = task, buckets, index
        self._block_bytes = block_bytes
        self._num_bytes = 0
        # The signs of the keys of the batch that the extractor gave last.
        self._keys = list[Integers]()
        # No method: a cycle with the extractor would keep batches until Python's collector comes.
        extractor.watch(partial(_see_keys, task.spec, self._keys))

    def __iter__(self) -> Iterator[RowBlock]:
        """The blocks, to be taken once."""
        number = first_row = 0
        for batch, keys in self._joined():
            self._num_bytes += batch.nbytes
            if self._task.spec.histories:
                rows = np.arange(first_row, first_row + batch.num_rows) + (self._index << _ROW_BITS)
                batch = batch.append_column("row", pa.array(rows))
            first_row += batch.num_rows
            most = batch.num_rows
            if self._block_bytes is not None:
                most = max(self._block_bytes * most // batch.nbytes, 1)
            for first in range(0, batch.num_rows, most):
                rows = batch.slice(first, most)
                yield self._block(rows, keys[first : first + most], (self._index, number))
                number += 1

    def _joined(self) -> Iterator[tuple[pa.RecordBatch, Integers]]:
        """The rows with their keys, in batches of many files: the second pass looks into each block
        for each of its batches.
        """
        batches, keys = list[pa.RecordBatch](), list[Integers]()
        num_rows = num_bytes = 0
        for batch in self._rows:
            batches.append(batch)
            keys += self._keys
            num_rows, num_bytes = num_rows + batch.num_rows, num_bytes + batch.nbytes
            if num_rows >= _BLOCK_ROWS or num_bytes >= _BLOCK_BYTES:
                yield _one(batches), np.concatenate(keys)
                batches, keys, num_rows, num_bytes = [], [], 0, 0
        if batches:
            yield _one(batches), np.concatenate(keys)

    def _block(self, rows: pa.RecordBatch, keys: Integers, place: tuple[int, int]) -> RowBlock:
        buckets = bucket_of(keys, len(self._buckets), self._index)
        order = np.lexsort((keys, buckets))
        ends = np.cumsum(np.bincount(buckets, minlength=len(self._buckets)))
        rows = rows.take(pa.array(order)).append_column("key", pa.array(keys[order]))
        return RowBlock(place=place, rows=rows, first_bucket=self._buckets.start, ends=ends)

    def report(self, partition: Mapping[str, str], attempt: int = 0) -> UnitReport:
        """What the unit found, whose statistics are stored. To be called once all blocks were
        taken.

        Args:
            partition: The unit's partition.
            attempt: The number of this attempt.
        """
        path = self._task.path(partition, self._index, attempt)
        none = UnitReport(path=path, partition=partition)
        reported = self._rows.reported(none, self._num_bytes)
        return replace(reported, num_rows_cut=self._rows.num_rows)


def cut_unit(task: UnitTask, unit: Unit, buckets: range, block_bytes: int | None = None) -> CutRows:
    """The rows of a unit in blocks; arguments as of `CutRows`, errors as of `run_unit`."""
    extractor = task.extractor()
    extracted = extract_unit(unit, extractor)
    return CutRows(task, extractor, extracted, buckets, unit.index, block_bytes)


def _one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def bucket_of(keys: Integers, num_buckets: int, unit: int) -> Integers:
    """The bucket of each row, int64 (num_rows,), counted from the first of its partition.

    Rows without a key go where the unit's number says, so that those of all units are spread, and
    a repeated attempt, which may get its rows in another order, gives the same rows.
    """
    # By ranges of keys, so that events in order of their keys serve any number of buckets.
    of_keys = ((keys >> 32) * num_buckets) >> 31
    buckets: Integers = np.where(keys == 0, unit % num_buckets, of_keys)
    return buckets


def in_buckets(events: RowBlock, buckets: range) -> RowBlock:
    """Events in the order of their keys, none of them without, as those of a partition's buckets.

    Args:
        events: The events.
        buckets: The numbers of the buckets.
    """
    own = bucket_of(values_of(events.rows.columns[-1]), len(buckets), unit=0)
    ends = np.searchsorted(own, np.arange(len(buckets)), "right")
    return replace(events, first_bucket=buckets.start, ends=ends)


def block_schema(spec: Spec) -> pa.Schema:
    """The columns of rows on their way to buckets."""
    schema = Extractor(spec).schema.to_arrow()
    return schema.append(pa.field("row", pa.int64())) if spec.histories else schema


def write_bucket(
    task: UnitTask,
    bucket: Bucket,
    blocks: Blocks,
    attempt: int = 0,
    on_rows: OnRows = lambda num_rows: None,
    events: Mapping[str, Blocks] | None = None,
) -> list[UnitReport]:
    """Writes the data files of a bucket; returns a report of each.

    Args:
        task: The task of the run.
        bucket: The bucket.
        blocks: All that was given to it, and maybe to others.
        attempt: Number of this attempt.
        on_rows: As for `run_unit`.
        events: By history, the events of all keys.
    """
    rows = blocks.of_bucket(bucket.index)
    if not rows.num_rows:
        return []
    own = BucketTask(**vars(task), num_rows=rows.num_rows)
    if events:
        groups = HistoryRows(task.spec, events)
        return _write_row_groups(own, bucket, rows, groups, attempt, on_rows)
    return write_files(
        own,
        bucket.partition,
        Extractor(task.spec).schema,
        rows.batches(),
        index=bucket.index,
        attempt=attempt,
        on_rows=on_rows,
    )


def _write_row_groups(
    task: BucketTask,
    bucket: Bucket,
    rows: BucketRows,
    histories: HistoryRows,
    attempt: int,
    on_rows: OnRows,
) -> list[UnitReport]:
    """Writes rows with their histories; arguments as of `write_bucket`."""
    schema = with_ranges(Extractor(task.spec).schema, task.spec)
    stored, metadata = histories.stored, task.file_metadata()
    metadata = replace(metadata, histories=[history.name for history in stored])
    compression, reports = task.spec.output.compression, list[UnitReport]()
    most = task.rows_per_row_group()
    groups = histories.row_groups(rows.tables(most))
    group = next(groups, None)
    while group is not None:
        path = task.path(bucket.partition, bucket.index, attempt, len(reports))
        url = join(task.table_url, path)
        with open_data_file(url, schema, metadata, most, compression, stored) as writer:
            num_groups = 0
            while group is not None and task.has_room(writer, num_groups, group.num_rows):
                writer.write_row_group(group.select(writer.columns.names).cast(writer.columns))
                on_rows(group.num_rows)
                num_groups += 1
                group = next(groups, None)
            written = writer.close()
        reports.append(UnitReport(path=path, partition=bucket.partition, **vars(written)))
    counts, examples = histories.findings()
    # Statistics of the unit of this number lie beside its first file.
    path = task.path(bucket.partition, bucket.index, attempt, len(reports))
    if histories.statistics is not None:
        store_histories(task.table_url, path, histories.statistics)
    found = UnitReport(
        path=path,
        partition=bucket.partition,
        counts=counts,
        examples=examples,
        times=histories.times,
        has_statistics=histories.statistics is not None,
    )
    return [*reports, found]


def require_all(reports: Iterable[UnitReport]) -> list[UnitReport]:
    """Returns the reports if the files of the buckets have as many rows as the units gave, and the
    buckets got as many events.

    Raises:
        InputError: They have not: a task was repeated whose query gave other rows then.
    """
    reports = list(reports)
    repeated = (
        "a task was repeated and its input gave other rows, as a query with rand() does; write the "
        "query's rows to files, and extract those"
    )
    if num_lost := sum(report.num_events_cut for report in reports):
        raise InputError(
            f"histories: expected all events that were read in the buckets, found "
            f"{abs(num_lost):,} {'fewer' if num_lost > 0 else 'more'}: {repeated}"
        )
    num_cut = sum(report.num_rows_cut for report in reports)
    num_written = sum(report.num_rows for report in reports)
    if num_cut != num_written:
        raise InputError(
            f"output.cluster_by: expected the {num_cut:,} rows that were extracted in the data "
            f"files, found {num_written:,}: {repeated}"
        )
    return reports


def _evenly(num: int, most: int) -> int:
    """The size of the fewest parts of equal size, of at most `most`; the last may be smaller."""
    return -(-num // -(-num // most))
