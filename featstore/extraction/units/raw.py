"""Raw files: listing them, cutting them into units of work, and reading them."""

import contextlib
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from featstore.base.errors import (
    ChangedInputError,
    DataFileError,
    FeatstoreError,
    InputError,
    TableFormatError,
    not_once,
)
from featstore.base.host import num_cores
from featstore.base.redaction import redact
from featstore.base.schema import FieldId
from featstore.extraction.units.raw_table import RawTableFile, RawTableRows, table_rows
from featstore.files.listings import FileEntry, check_unchanged, find_file, listing_digest
from featstore.files.retry import thread_pool
from featstore.files.storage import local_path, open_read, source_of
from featstore.formats.text_files import RawTextFile, format_of, list_raw_files, open_text, scan
from featstore.native.arrow import INT96_UNIT
from featstore.native.bounds import CLAIMS_MORE, first_beyond
from featstore.native.damage import damage_as, first_line
from featstore.native.footers import CheckedFooter, read_checked
from featstore.native.format import FooterError
from featstore.reading.kept import InPlaceFile, is_below
from featstore.reading.open_file import OpenFile
from featstore.table.layout import (
    check_partition_value,
    parse_partition,
    partition_path,
)
from featstore.table.open import OpenedTables, open_input
from featstore.table.parquet_dir import REMOVED_MEANWHILE, each_footer
from featstore.table.snapshot import DataFile

# Rows of a batch, and its values, with those in lists and maps. Many rows keep the fixed cost of
# each operator call small: 26 microseconds. 4 Mi values bound the memory: 32 MB for 8-byte columns.
MIN_BATCH_ROWS, MAX_BATCH_ROWS, BATCH_VALUES = 4_096, 65_536, 1 << 22

RawSource: TypeAlias = pq.ParquetFile | RawTextFile | RawTableFile
_UNITS = {"milliseconds": 1_000_000, "microseconds": 1_000, "nanoseconds": 1}
LogFile: TypeAlias = tuple[FileEntry, RawTableRows | None]
_NEVER, _ALWAYS = -(2**63), 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class RawFile:
    """A raw file as it was listed.

    Attributes:
        partition: The partition that all of its rows belong to.
        row_groups: The number of rows of each row group; a file of text is one.
        of_table: What its rows are to the table that it is a data file of; None for other files.
    """

    listed: FileEntry
    partition: Mapping[str, str]
    row_groups: tuple[int, ...]
    schema: pa.Schema
    of_table: RawTableRows | None = None

    @property
    def keys(self) -> Mapping[str, str | None]:
        """The partition keys of the input: those of the table, or of the file's directories."""
        if self.of_table is not None:
            return self.of_table.partition
        return parse_partition(self.listed.url)


@dataclass(frozen=True, kw_only=True)
class RawRange:
    """Consecutive row groups of a raw file.

    Attributes:
        listed: The file as listed. The commit's input digest is made from it, so the rows read must
            be of this version of the file.
        last_row_group: The last row group, included.
        first_row: Number of the range's first row within the file.
        text_schema: The columns of a file of text; None for Parquet, whose footer has them.
        of_table: As of `RawFile`.
    """

    listed: FileEntry
    first_row_group: int
    last_row_group: int
    first_row: int
    num_rows: int
    text_schema: pa.Schema | None = None
    of_table: RawTableRows | None = None

    @property
    def url(self) -> str:
        return self.listed.url


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The raw rows of one task, in order: one data file, or several if the rows are wide."""

    index: int
    partition: Mapping[str, str]
    ranges: tuple[RawRange, ...]

    @property
    def num_rows(self) -> int:
        return sum(raw.num_rows for raw in self.ranges)


def find_raw_files(
    url: str,
    constant: Mapping[str, str],
    from_path: Sequence[str],
    declared: Mapping[str, pa.DataType] | None = None,
    opened: OpenedTables | None = None,
) -> list[RawFile]:
    """Lists the raw files at `url` and reads their footers, or counts the rows of those of text.

    Args:
        url: A file of Parquet, CSV or JSON lines, a directory, a glob, or a table as of
            `open_input`.
        constant: Partition keys that hold for every file.
        from_path: Partition keys to take from `key=value/` directories, or from the table's
            partitions.
        declared: The types of columns, which text does not tell; None to refuse text.
        opened: As of `open_input`.

    Returns:
        The files, sorted by name within each partition.

    Raises:
        InputError: There is no file, a file cannot be read or lacks a directory of `from_path`, the
            files belong to a Delta table, or a file without rows has changed since it was listed.
            Such a file is not read later, so this is the only check of it.
    """
    listed = list_input(url, opened=opened)
    if not listed:
        raise InputError(
            f"no raw files at {redact(url)}: expected a Parquet file, a directory or a glob of "
            f".parquet files, or of CSV (.csv, .tsv) or JSON lines (.jsonl, .ndjson, .json), or a "
            f"table with rows (iceberg://CATALOG/NAMESPACE.TABLE, delta+URL)"
        )
    files = [
        replace(file, partition=dict(constant) | _from_path(file, from_path))
        for file in opened_files(listed, declared)
    ]
    for file in files:
        if not sum(file.row_groups) and file.of_table is None:
            check_unchanged(file.listed, find_file(file.listed.url))
    return sorted(files, key=lambda file: partition_path(file.partition))


def opened_files(
    listed: Sequence[tuple[FileEntry, RawTableRows | None]],
    declared: Mapping[str, pa.DataType] | None = None,
) -> list[RawFile]:
    """Listed files, as of `list_input`, with their footers, and without partitions; `declared` and
    errors as of `find_raw_files`.
    """
    return [
        RawFile(
            listed=entry,
            partition={},
            row_groups=row_groups,
            schema=schema if of_table is None else of_table.schema,
            of_table=of_table,
        )
        for (entry, of_table), (row_groups, schema) in zip(
            listed, _contents(listed, declared), strict=True
        )
    ]


def first_times(files: Sequence[LogFile], columns: Sequence[str]) -> list[int]:
    """For each file of a log, as of `list_input`, a time that the last of these columns' times is
    not before in any row, by the statistics in its footer: int64 microseconds, the least where
    these do not tell.
    """
    plain = [
        entry.url
        for entry, rows in files
        if format_of(entry.url) is None
        and (rows is None or all(FieldId.of(field) is None for field in rows.schema))
    ]
    found = each_footer(plain, lambda of: max(_first_time(of, name) for name in columns))
    times = dict(zip(plain, found, strict=True))
    return [times.get(entry.url, _NEVER) for entry, _ in files]


def _first_time(footer: CheckedFooter, column: str) -> int:
    places = footer.file_schema.by_name.get(column, ())
    if len(places) != 1:
        return _NEVER
    metadata = footer.arrow_metadata(places, with_statistics=True)
    chunks = [metadata.row_group(i).column(0).statistics for i in range(metadata.num_row_groups)]
    logical = json.loads(metadata.schema.column(0).logical_type.to_json())
    nanoseconds = _UNITS.get(logical.get("timeUnit"))
    if nanoseconds is None or logical["Type"] != "Timestamp":
        return _NEVER
    if not all(chunk is not None and chunk.has_min_max for chunk in chunks):
        return _NEVER
    return min((chunk.min_raw * nanoseconds // 1_000 for chunk in chunks), default=_ALWAYS)


def list_input(
    url: str, *, looks_above: bool = True, opened: OpenedTables | None = None
) -> list[tuple[FileEntry, RawTableRows | None]]:
    """Lists the raw files at a URL, of which each file of a table comes with what its rows are;
    `looks_above` as of `list_files`, `opened` as of `open_input`. InputError if they belong to a
    table that is not read.
    """
    if (table := open_input(url, opened)) is not None:
        return [(_entry_of(rows.file), rows) for rows in table_rows(table)]
    try:
        return [(entry, None) for entry in list_raw_files(url, looks_above=looks_above)]
    except TableFormatError as error:
        instead = (
            "name the table in place of its files (iceberg://CATALOG/NAMESPACE.TABLE, or "
            "iceberg+URL of a metadata file)"
            if error.table_format == "Iceberg"
            else f"name the table in place of its files (delta+{error.directory})"
            if error.table_format == "Delta"
            else "extract the rows of a Spark query on it instead (--sql, or dataframe=...)"
        )
        raise InputError(
            f"raw input {redact(url)} lies in the {error.table_format} table {error.directory}, "
            f"some of whose files may be replaced ones: {instead}"
        ) from None


def _entry_of(file: DataFile) -> FileEntry:
    """A data file of a table as it is listed: another one once more of its rows are deleted."""
    mask = "" if file.mask is None else file.mask.to_json()
    return FileEntry(
        url=file.url, name=file.path, size_bytes=file.size_bytes, version=f"{file.version}{mask}"
    )


def input_digest(
    listed: Iterable[tuple[FileEntry, RawTableRows | None]], columns: Iterable[str]
) -> str:
    """A digest that is equal for equal raw rows.

    It is `files_part` of it, and of a table that finds columns by more than their present names
    also `-` and the SHA-256 (hex) of how it finds them: of the JSON of the sorted columns, each its
    name and the text of its `FieldId`.

    Args:
        listed: The raw files, as of `list_input`.
        columns: The raw columns that are read. The table may lack some.
    """
    entries = list(listed)
    digest = listing_digest(entry for entry, _ in entries)
    schema = next((rows.schema for _, rows in entries if rows is not None), pa.schema([]))
    ids = ((name, FieldId.of(schema.field(name))) for name in {*columns} & {*schema.names})
    if not (found := sorted((name, str(by_id)) for name, by_id in ids if by_id is not None)):
        return digest
    return f"{digest}-{hashlib.sha256(json.dumps(found).encode()).hexdigest()}"


def files_part(digest: str) -> str:
    """Of an `input_digest` what tells files and their rows, whatever columns are read: the
    `listing_digest`.
    """
    return rows_part(digest).partition("-")[0]


def rows_part(digest: str) -> str:
    """Of an `input_digest` what tells raw rows, without the logs of histories."""
    return digest.partition("+")[0]


def check_partition_given(files: Sequence[RawFile]) -> None:
    """Checks, for a run without any partition, that no file lies in `key=value` directories.

    Such a run would put the rows of all partitions into one table without partitions, and a rerun
    for one of them would replace the whole table.

    Raises:
        InputError: A file lies in such a directory. Names the options for what may be meant.
    """
    for file in files:
        keys = file.keys
        if keys:
            from_path = " ".join(f"--partition-from-path {key}" for key in keys)
            raise InputError(
                f"raw input {redact(file.listed.url)} lies in directories of partitions "
                f"({partition_path(keys)}): expected a partition, found none; give {from_path} "
                f"(partition_from_path={list(keys)}) to take it from the directories, --partition "
                f"KEY=VALUE (partition={{...}}) if all of the input belongs to one, or "
                f"--no-partition (no_partition=True) for a table without partitions"
            )


def plan_units(files: Sequence[RawFile], rows_per_file: int) -> tuple[Unit, ...]:
    """Cuts files into units of about `rows_per_file` rows, at row groups and in order. Pure.

    A unit holds rows of one partition, from one or several files. It is larger than `rows_per_file`
    only if a single row group is. Every row group with rows is in exactly one unit.
    """
    cut: list[tuple[Mapping[str, str], list[RawRange]]] = []
    for file in files:
        for raw in _row_groups(file):
            num_rows = raw.num_rows + sum(
                other.num_rows for _, ranges in cut[-1:] for other in ranges
            )
            if not cut or cut[-1][0] != file.partition or num_rows > rows_per_file:
                cut.append((file.partition, []))
            _append(cut[-1][1], raw)
    return tuple(
        Unit(index=index, partition=partition, ranges=tuple(ranges))
        for index, (partition, ranges) in enumerate(cut)
    )


def read_batches(
    file: RawSource, raw: RawRange, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a range in batches, with only the given columns.

    Raises:
        InputError: Rows cannot be decoded.
    """
    with as_input_errors(_shown(raw)):
        if isinstance(file, RawTextFile):
            yield from file.read(columns)
            return
        row_groups = range(raw.first_row_group, raw.last_row_group + 1)
        if isinstance(file, RawTableFile):
            yield from file.read(columns, row_groups)
            return
        yield from file.iter_batches(
            batch_size=batch_rows(_values_per_row(file, raw.first_row_group, columns)),
            row_groups=list(row_groups),
            columns=list(columns),
            # Units already run on all cores.
            use_threads=False,
        )


def batch_rows(values_per_row: float) -> int:
    """Returns the number of rows of a batch: a power of two, fewer for wide rows and long lists.

    A batch of numbers then takes at most tens of megabytes, unless the fewest rows take more.
    """
    num_rows = int(BATCH_VALUES / max(values_per_row, 1))
    return min(MAX_BATCH_ROWS, max(MIN_BATCH_ROWS, 1 << num_rows.bit_length() - 1))


def _values_per_row(file: pq.ParquetFile, row_group: int, columns: Sequence[str]) -> float:
    """The mean number of values of a row in these columns, each element of a list being one."""
    schema, chunks, read = file.schema, file.metadata.row_group(row_group), frozenset(columns)
    num_values = sum(
        chunks.column(leaf).num_values
        for leaf in range(chunks.num_columns)
        if is_below(schema.column(leaf).path, read)
    )
    return float(num_values / max(chunks.num_rows, 1))


@contextlib.contextmanager
def open_range(raw: RawRange) -> Iterator[RawSource]:
    """Opens the file of a range for reading; it is closed at the end of the block.

    The data file of a table never changes, but it and records of its deleted rows may be removed.

    Raises:
        InputError: The file cannot be opened, or has changed since it was listed. The change is
            also checked at the end of the block, because rows may then come from two versions of
            the file. It replaces any featstore error raised in the block, because the change is the
            cause of that error.
    """
    with contextlib.ExitStack() as stack:
        try:
            with as_input_errors(_shown(raw)):
                file = _opened(raw, stack)
            yield file
        except FeatstoreError:
            _check_there(raw)
            _check_unchanged(raw)
            raise
    _check_unchanged(raw)


def _opened(raw: RawRange, stack: contextlib.ExitStack) -> RawSource:
    """The file of a range, which the stack closes."""
    if raw.of_table is not None:
        file = stack.enter_context(OpenFile(source_of(raw.url), redact(raw.url)))
        return RawTableFile(file, raw.of_table, batch_rows)
    if raw.text_schema is not None:
        return stack.enter_context(open_text(raw.listed, raw.text_schema))
    row_groups = range(raw.first_row_group, raw.last_row_group + 1)
    return stack.enter_context(open_raw(raw.url, raw.listed.size_bytes, row_groups))


def _check_there(raw: RawRange) -> None:
    """InputError if what a table had of a data file is gone: the file, or its deleted rows."""
    if (rows := raw.of_table) is None:
        return
    for url in rows.urls:
        if find_file(url) is None:
            what = "a data file" if url == raw.url else f"its deleted rows in {redact(url)}"
            lost = rows.lost_for_good()
            kind = InputError if lost else ChangedInputError
            advice = lost or REMOVED_MEANWHILE
            raise kind(f"{_shown(raw)}: expected {what}, found none: {advice}") from None


def _check_unchanged(raw: RawRange) -> None:
    if raw.of_table is None:
        check_unchanged(raw.listed, find_file(raw.url))


@contextlib.contextmanager
def open_raw(
    url: str, listed_bytes: int | None = None, row_groups: Iterable[int] = ()
) -> Iterator[pq.ParquetFile]:
    """Opens a Parquet file for reading; it is closed at the end of the block.

    Column chunks of remote files are fetched in large reads. Page checksums are verified where they
    exist.

    Args:
        listed_bytes: Size of the file, if known.
        row_groups: Row groups to check first, in a local file: Arrow would spend hours on the sizes
            that some damaged pages claim. The pages of a remote file would have to be downloaded
            twice.
    """
    path = local_path(url)
    with pa.OSFile(str(path)) if path is not None else open_read(url, listed_bytes) as source:
        footer = read_checked(source)
        if path is not None:
            # Not `source`: `OSFile.fileno` of pyarrow 20 fails.
            with path.open("rb", buffering=0) as file:
                _require_within(file.fileno(), footer, row_groups)
        opened = (
            partial(pq.ParquetFile, pre_buffer=False)
            if path is not None
            else partial(InPlaceFile, footer)
        )
        with opened(
            source,
            metadata=footer.arrow_metadata(),
            page_checksum_verification=True,
            coerce_int96_timestamp_unit=INT96_UNIT,
        ) as parquet_file:
            yield parquet_file


def _require_within(file: int, footer: CheckedFooter, row_groups: Iterable[int]) -> None:
    # Fewer than were listed if the file has changed; `check_unchanged` reports that later.
    num_row_groups = len(footer.row_group_rows)
    for index in (index for index in row_groups if index < num_row_groups):
        damaged_leaf = first_beyond(footer, index, range(len(footer.leaves)), file)
        if damaged_leaf is not None:
            raise FooterError(
                f"column {footer.leaves[damaged_leaf].path!r}: row group {index}: {CLAIMS_MORE}"
            )


def check_constant(batch: pa.RecordBatch, partition: Mapping[str, str], where: str) -> None:
    """Checks that a raw column named like a partition key holds the partition's value in every row.

    Raises:
        InputError: A row holds another value, or the column cannot be compared.
    """
    for key, expected in partition.items():
        if key not in batch.schema.names:
            continue
        if (num_found := batch.schema.names.count(key)) > 1:
            raise InputError(f"{where}: {not_once(key, num_found)}")
        try:
            column = batch.column(key)
            texts = column.cast(pa.string())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            found = batch.column(key).type
            raise InputError(
                f"{where}: the raw column {key!r} ({found}) cannot be the partition's {expected!r}"
            ) from None
        same = pc.fill_null(_equal(column, texts, expected), False)
        if not pc.all(same).as_py():
            found = texts.filter(pc.invert(same))[0].as_py()
            raise InputError(
                f"{where}: the raw column {key!r} holds {found!r}, the partition says "
                f"{expected!r}; correct the partition, or filter the input"
            )


def _equal(column: pa.Array, texts: pa.Array, expected: str) -> pa.Array:
    """Where a column has a value, of which `expected` may be another text: 05 of the integer 5."""
    is_text = pc.equal(texts, expected)
    try:
        return pc.or_(is_text, pc.equal(column, pa.scalar(expected).cast(column.type)))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return is_text


def _from_path(file: RawFile, keys: Sequence[str]) -> dict[str, str]:
    url = file.listed.url
    values = {key: value or "" for key, value in file.keys.items()} if keys else {}
    for key in keys:
        if key not in values:
            raise InputError(
                f"{redact(url)}: expected a directory {key}=... in the path, to take the partition "
                f"from"
                if file.of_table is None
                else f"{redact(url)}: expected the table to be partitioned by the values of {key!r}"
                f", found {', '.join(values) or 'no such partition'}"
            )
        check_partition_value(key, values[key], redact(url))
    return {key: values[key] for key in keys}


def _contents(
    listed: Sequence[tuple[FileEntry, RawTableRows | None]],
    declared: Mapping[str, pa.DataType] | None,
) -> list[tuple[tuple[int, ...], pa.Schema]]:
    """Rows by row group, and columns, of each file."""
    entries = [entry for entry, _ in listed]
    texts = [entry for entry in entries if format_of(entry.url) is not None]
    if texts and declared is None:
        raise InputError(
            f"raw input {redact(texts[0].url)} is text, which is read without Spark only: import "
            f"it to Parquet first (featstore import --help), or give the rows of a query on it "
            f"(--sql, dataframe=...), such as spark.read.csv(...) with its types"
        )
    try:
        parquet = each_footer(
            [entry.url for entry in entries if format_of(entry.url) is None],
            lambda footer: (footer.row_group_rows, footer.schema),
            partial(_lost, listed),
        )
        with thread_pool(num_cores(), "featstore-scan") as threads:
            scanned = threads.map(partial(scan, declared=declared or {}), texts)
            one_group = (((num_rows,), schema) for num_rows, schema in scanned)
            return [
                next(parquet if format_of(entry.url) is None else one_group) for entry in entries
            ]
    except DataFileError as error:
        kind = ChangedInputError if error.may_pass else InputError
        raise kind(f"raw input: {error}") from None


def _lost(listed: Iterable[tuple[FileEntry, RawTableRows | None]], url: str) -> str:
    """What to do about a raw file that is gone for good; empty for others."""
    rows = next(rows for entry, rows in listed if entry.url == url)
    return "" if rows is None else rows.lost_for_good()


def _row_groups(file: RawFile) -> Iterator[RawRange]:
    is_text = format_of(file.listed.url) is not None
    firsts = itertools.accumulate(file.row_groups, initial=0)
    for index, (first_row, num_rows) in enumerate(zip(firsts, file.row_groups, strict=False)):
        if num_rows:
            yield RawRange(
                listed=file.listed,
                first_row_group=index,
                last_row_group=index,
                first_row=first_row,
                num_rows=num_rows,
                text_schema=file.schema if is_text else None,
                of_table=file.of_table,
            )


def _append(ranges: list[RawRange], raw: RawRange) -> None:
    """Adds a range, or makes the last one longer if it ends where this one begins."""
    last = ranges[-1] if ranges else None
    if last and last.url == raw.url and last.last_row_group + 1 == raw.first_row_group:
        num_rows = last.num_rows + raw.num_rows
        ranges[-1] = replace(last, last_row_group=raw.last_row_group, num_rows=num_rows)
    else:
        ranges.append(raw)


def _shown(raw: RawRange) -> str:
    """The file and rows of a range. Errors of readers name neither."""
    return f"{redact(raw.url)}, rows {raw.first_row} to {raw.first_row + raw.num_rows - 1}"


def as_input_errors(where: str) -> contextlib.AbstractContextManager[None]:
    """Converts errors of reading a file to an InputError that begins with `where`, or, where not
    its bytes are wrong, as `damage_as` does.
    """
    return damage_as(
        lambda error: InputError(f"{where}: cannot be read ({first_line(error)})"), where
    )
