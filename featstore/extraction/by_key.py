"""Matches raw rows with the rows of base data files by the value of a kept column."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.errors import InputError, not_once
from featstore.base.host import num_cores
from featstore.extraction.units.blocks import Blocks
from featstore.extraction.units.buckets import key_signs
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.findings import Malformed, first_examples
from featstore.extraction.units.history_rows import HistoryRows, cut_events, event_schema
from featstore.extraction.units.part import GroupTask, Target
from featstore.extraction.units.raw import Unit, as_input_errors, open_raw
from featstore.extraction.units.unit import Progress, UnitReport, extract_unit
from featstore.extraction.units.unit_values import ValueGathering, store_values
from featstore.extraction.units.writer import open_data_file
from featstore.files.retry import thread_pool
from featstore.files.storage import join
from featstore.histories.needed import RowTimes
from featstore.histories.stored import stored_histories
from featstore.histories.visibility import keys_of_rows
from featstore.ops.arrays import Integers, array_of, values_of
from featstore.spec.model import EventHistory
from featstore.statistics.column_statistics import add_counts
from featstore.table.snapshot import DataFile, by_partition


@dataclass(frozen=True, kw_only=True)
class KeyedPartition:
    """One partition of a run.

    Attributes:
        key: The kept column that identifies rows.
        files: The base files by their index in the run.
        units: The raw rows to match.
    """

    key: str
    files: Mapping[int, DataFile]
    units: tuple[Unit, ...]


KeyRunner = Callable[[GroupTask, Sequence[KeyedPartition], Progress], list[UnitReport]]
"""Runs `write_by_key` for each partition, and returns all reports."""


def keyed_partitions(
    key: str, files: Sequence[DataFile], units: Sequence[Unit]
) -> list[KeyedPartition]:
    """Groups the run's base files and units by partition, in the order of the units."""
    return [
        KeyedPartition(
            key=key,
            files={i: file for i, file in enumerate(files) if file.partition == own[0].partition},
            units=tuple(own),
        )
        for own in by_partition(units).values()
    ]


def run_by_key(
    task: GroupTask, partitions: Sequence[KeyedPartition], progress: Progress
) -> list[UnitReport]:
    """Runs partitions one after the other, each with threads of this process."""
    reports: list[UnitReport] = []
    for partition in partitions:
        reports += write_by_key(task, partition)
        progress(
            len(reports),
            sum(len(other.files) for other in partitions),
            sum(report.num_rows for report in reports),
        )
    return reports


def write_by_key(task: GroupTask, partition: KeyedPartition, attempt: int = 0) -> list[UnitReport]:
    """Writes one file beside each base file of the partition.

    The keys and the new columns of the whole partition are held in memory, and of histories what
    the rows of a row group see. Raw rows that the base lacks are left out.

    Args:
        task: Its `targets` are by the index of the base file in the run.
        attempt: Number of this attempt; part of the file names.

    Raises:
        InputError: A key is null or occurs twice on either side, or a row of the base has no raw
            row.
    """
    raw, signs, extractors, gatherings = _raw_rows(task, partition.units)
    key = partition.key
    files, key_type = list(partition.files.values()), raw.schema.field(key).type
    keys = [_base_keys(file, key, key_type) for file in files]
    raw_places = _match_rows(pa.chunked_array(keys, key_type), raw.column(key), key, files)
    for name in sorted({history.as_of for history in task.spec.histories} - task.part.names):
        _require_times(name, raw, raw_places, key, files)
    # The loop below takes only these columns; the key column is not written.
    schema = task.stored(Extractor(task.spec).schema)
    first, columns = 0, raw.select([n for n in schema.column_names if n in raw.column_names])
    reports: list[UnitReport] = []
    with ExitStack() as opened:
        histories = _Histories(task, raw, signs, raw_places, opened)
        for (place, file), of_file in zip(partition.files.items(), keys, strict=True):
            places = raw_places[first : first + len(of_file)]
            (target,) = task.targets[place]
            bound = {place: (replace(target, rows_digest=rows_digest(of_file)),)}
            of_groups = _row_groups(columns, places, target, histories)
            reports.append(_write_file(replace(task, targets=bound), file, of_groups, attempt))
            first += len(of_file)
    size_bytes = sum(report.size_bytes for report in reports)
    found = [extractor.findings for extractor in extractors]
    counts, examples = histories.findings()
    # The findings of the whole partition are in the report of its last file.
    reports[-1] = replace(
        reports[-1],
        counts=add_counts([*(findings.counts for findings in found), counts]),
        num_rows_skipped=sum(findings.num_rows_skipped for findings in found),
        examples=first_examples(
            [*(example for findings in found for example in findings.examples), *examples]
        ),
        times=histories.times,
        has_values=store_values(gatherings, task.table_url, reports[-1].path, size_bytes),
    )
    return [*reports, *histories.of_logs]


def rows_digest(keys: pa.Array) -> str:
    """Returns the SHA-256 (hex) of the keys in order.

    Hashed are the UTF-8 length of each key as text (int32, little-endian), then all texts.
    """
    texts = keys.cast(pa.large_string())
    texts = (
        pa.concat_arrays([texts])
        # A slice keeps its parent's data buffer, which holds texts of other rows; rebuild it.
        if texts.offset == 0
        else pa.array(texts.to_pylist(), pa.large_string())
    )
    lengths = np.asarray(pc.binary_length(texts)).astype("<i4")
    digest = hashlib.sha256(lengths.tobytes())
    data = texts.buffers()[2]
    digest.update(b"" if data is None else memoryview(data)[: int(lengths.sum(dtype=np.int64))])
    return digest.hexdigest()


_Signs = Mapping[str, Integers]
"""By key of a history, its sign in each raw row: int64 (num_rows,)."""


def _raw_rows(
    task: GroupTask, units: Sequence[Unit]
) -> tuple[pa.Table, _Signs, list[Extractor], list[ValueGathering]]:
    """The group's columns and the key, for all raw rows of a partition; the signs of histories'
    keys; and what extracted them.
    """
    spec = task.spec
    names = {history.key for history in spec.histories}

    def extract(
        unit: Unit,
    ) -> tuple[list[pa.RecordBatch], list[_Signs], Extractor, ValueGathering]:
        extractor, signs = Extractor(spec), list[_Signs]()
        extractor.watch(
            lambda raw: signs.append(
                {name: key_signs(raw.column(name), spec.inputs[name]) for name in names}
            )
        )
        gathering = ValueGathering(extractor, task.stored(extractor.schema).names)
        return list(gathering.watch(extract_unit(unit, extractor))), signs, extractor, gathering

    with thread_pool(num_cores(), "featstore-extract") as threads:
        of_units, signs, extractors, gatherings = zip(*threads.map(extract, units), strict=True)
    schema = Extractor(spec).schema.to_arrow()
    rows = pa.Table.from_batches([batch for of_unit in of_units for batch in of_unit], schema)
    joined = {
        name: np.concatenate([found[name] for of_unit in signs for found in of_unit])
        for name in names
    }
    return rows, joined, list(extractors), list(gatherings)


class _Histories:
    """The histories of a partition's rows, whose events wait in temporary files.

    Args:
        task: The task, with the units of logs.
        raw: The raw rows.
        signs: Those of the raw rows.
        places: The raw rows that the base has, int64 (num_rows,).
        opened: Closes the files.

    Attributes:
        of_logs: What the units of logs reported.
    """

    def __init__(
        self, task: GroupTask, raw: pa.Table, signs: _Signs, places: Integers, opened: ExitStack
    ) -> None:
        self._raw, self._signs = raw, signs
        self._rows, self.of_logs = list[tuple[str, HistoryRows]](), list[UnitReport]()
        for history in task.spec.histories:
            as_of = raw.column(history.as_of).combine_chunks()
            keys = keys_of_rows(array_of(signs[history.key]), as_of)[places]
            times = RowTimes.of(keys, values_of(as_of)[places])
            blocks = opened.enter_context(Blocks(event_schema(history)))
            self.of_logs += _cut_log(history, task.events[history.name], times, blocks)
            own = replace(task.spec, histories=(history,))
            self._rows.append((history.key, HistoryRows(own, {history.name: blocks})))

    @property
    def times(self) -> dict[str, tuple[int, int]]:
        """As of `UnitReport`."""
        return {name: span for _, rows in self._rows for name, span in rows.times.items()}

    def columns(self, places: Integers) -> dict[str, pa.Array]:
        """The columns of a row group of these raw rows, by name."""
        found = dict[str, pa.Array]()
        for key, rows in self._rows:
            [name] = [stored.as_of for stored in rows.stored]
            times = self._raw.select([name]).take(array_of(places))
            found |= rows.of_row_group(times.append_column("key", [self._signs[key][places]]))
        return found

    def findings(self) -> tuple[dict[str, int], list[Malformed]]:
        """What was counted while the events that rows see were extracted, and examples."""
        counts, examples = zip(({}, ()), *(rows.findings() for _, rows in self._rows), strict=True)
        return add_counts(counts), [one for some in examples for one in some]


def _cut_log(
    history: EventHistory, units: Sequence[Unit], times: RowTimes, blocks: Blocks
) -> list[UnitReport]:
    """Gives the events that rows of these times may see to blocks."""

    def cut(unit: Unit) -> UnitReport:
        events = cut_events(history, unit, times)
        for block in events:
            blocks.add(block)
        return events.report()

    with thread_pool(num_cores(), "featstore-extract") as threads:
        return list(threads.map(cut, units))


def _row_groups(
    columns: pa.Table, places: Integers, target: Target, histories: _Histories
) -> Iterator[pa.Table]:
    """The row groups of a file of raw rows at these places, cut like the target."""
    first = 0
    for num_rows in target.row_groups:
        own = places[first : first + num_rows]
        rows = columns.take(array_of(own))
        of_rows = dict(zip(rows.column_names, rows.columns, strict=True))
        yield pa.table(of_rows | histories.columns(own))
        first += num_rows


def _base_keys(file: DataFile, key: str, key_type: pa.DataType) -> pa.Array:
    with as_input_errors(file.path), open_raw(file.url) as source:
        num_found = source.schema_arrow.names.count(key)
        if not num_found:
            raise InputError(
                f"{file.path} has no column {key!r}; expected the kept column that names its rows"
            )
        if num_found > 1:
            raise InputError(f"{file.path}: {not_once(key, num_found)}")
        return source.read([key], use_threads=False).column(key).cast(key_type).combine_chunks()


def _match_rows(
    base: pa.ChunkedArray, raw: pa.ChunkedArray, key: str, files: Sequence[DataFile]
) -> np.ndarray:
    """For each row of the base the index of the raw row with its key, int (num_rows,).

    All keys are dictionary-encoded together, raw ones first. If the raw keys are unique, the code
    of each is its row index, so the code of a base key is the index of its raw row.
    """
    for what, keys in (("the table", base), ("the raw rows", raw)):
        if keys.null_count:
            raise InputError(
                f"key {key!r} is null in {keys.null_count:,} rows of {what}; choose a "
                f"column that is set in every row"
            )
    encoded = pa.chunked_array([*raw.chunks, *base.chunks], raw.type).dictionary_encode()
    # The code of a key is the number of distinct keys before its first occurrence.
    codes = np.concatenate(
        [np.zeros(0, np.int32), *(np.asarray(chunk.indices) for chunk in encoded.chunks)]
    )
    _require_once(len(raw) - int(codes[: len(raw)].max(initial=-1)) - 1, key, "the raw rows")
    places = codes[len(raw) :]
    # A code beyond the raw rows belongs to a key that first occurs in the base.
    lost = np.flatnonzero(places >= len(raw))
    if len(lost):
        raise InputError(
            f"{len(lost):,} of {len(base):,} rows of the table ({files[0].path}, ...) are not "
            f"among the raw rows, such "
            f"as {key} {base[int(lost[0])].as_py()!r}; give raw rows for all rows of the partition"
        )
    _require_once(len(places) - int(np.count_nonzero(np.bincount(places))), key, "the table")
    return places


def _require_times(
    name: str, raw: pa.Table, places: Integers, key: str, files: Sequence[DataFile]
) -> None:
    """InputError if the times of the raw rows, up to which they see events, are not those of the
    table's rows, with which their events are read: a row would have events of its future.
    """
    type_ = raw.schema.field(name).type
    times = pa.chunked_array([_base_times(file, name, type_) for file in files], type_)
    found = raw.column(name).take(array_of(places))
    are_null = pc.and_(pc.is_null(times), pc.is_null(found))
    differ = np.flatnonzero(pc.invert(pc.fill_null(pc.equal(times, found), are_null)))
    if len(differ):
        row = int(differ[0])
        raise InputError(
            f"{name!r} of {len(differ):,} of {len(times):,} rows of the table ({files[0].path}, "
            f"...) is another in the raw rows, such as where {key} is "
            f"{raw.column(key)[int(places[row])].as_py()!r}: expected {times[row]}, found "
            f"{found[row]}; a row sees events up to the table's time: give the raw rows that made "
            "the table, or extract the partition again"
        )


def _base_times(file: DataFile, name: str, type_: pa.DataType) -> pa.Array:
    """A column of a base file, or of the last of its slot groups' files that has it."""
    for part in reversed(file.parts):
        with as_input_errors(part.path), open_raw(part.url) as source:
            if name in source.schema_arrow.names:
                return source.read([name], use_threads=False).column(name).cast(type_)
    raise InputError(f"{file.path}: expected a column {name!r}, found none; write the file again")


def _require_once(num_twice: int, key: str, where: str) -> None:
    if num_twice:
        raise InputError(
            f"key {key!r} is not unique: it repeats {num_twice:,} times in {where}; choose a "
            f"column that is different in every row"
        )


def _write_file(
    task: GroupTask, file: DataFile, row_groups: Iterable[pa.Table], attempt: int
) -> UnitReport:
    """Writes row groups beside a base file, the task's only target."""
    schema, (place,) = task.stored(Extractor(task.spec).schema), task.targets
    partition = {key: value for key, value in file.partition.items() if value is not None}
    path = task.path(partition, place, attempt)
    url = join(task.table_url, path)
    metadata, cut = task.file_metadata(place), task.rows_per_row_group(place)
    compression, histories = task.spec.output.compression, stored_histories(task.spec)
    with open_data_file(url, schema, metadata, cut, compression, histories) as writer:
        for rows in row_groups:
            writer.write_row_group(rows.select(writer.columns.names).cast(writer.columns))
        done = writer.close()
    return UnitReport(path=path, partition=partition, **vars(done))
