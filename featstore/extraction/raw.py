"""Raw Parquet as units of work: which rows of which files become one data file, and how they are
read.
"""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from featstore.errors import DataFileError, FeatstoreError, InputError, not_once
from featstore.files.listings import FileEntry, check_unchanged, find_file, list_files
from featstore.files.storage import local_path, open_read
from featstore.parquet.bounds import CLAIMS_MORE, first_beyond
from featstore.parquet.damage import DAMAGE, first_line
from featstore.parquet.footers import CheckedFooter, read_checked
from featstore.parquet.walk import FooterError
from featstore.redaction import redact, shown
from featstore.table.layout import (
    NULL_PARTITION,
    check_partition_name,
    parse_partition,
    partition_path,
)
from featstore.table.parquet_dir import delta_table_around, read_footers

BATCH_ROWS, BATCH_VALUES = 16_384, 1 << 21


@dataclass(frozen=True, kw_only=True)
class RawFile:
    """One raw file as it was listed: the rows of its row groups, and the partition that its rows
    belong to.
    """

    listed: FileEntry
    partition: Mapping[str, str]
    row_groups: tuple[int, ...]
    schema: pa.Schema

    @property
    def url(self) -> str:
        return self.listed.url

    @property
    def name(self) -> str:
        return self.listed.name

    @property
    def size_bytes(self) -> int:
        return self.listed.size_bytes


@dataclass(frozen=True, kw_only=True)
class RawRange:
    """Row groups of a raw file, `last_row_group` included; `first_row` counts from its start.

    `listed` is the file as the run's listing shows it, under whose digest its rows are committed.
    """

    listed: FileEntry
    first_row_group: int
    last_row_group: int
    first_row: int
    num_rows: int

    @property
    def url(self) -> str:
        return self.listed.url


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The raw rows that become one data file, in order."""

    index: int
    partition: Mapping[str, str]
    ranges: tuple[RawRange, ...]

    @property
    def num_rows(self) -> int:
        return sum(raw.num_rows for raw in self.ranges)


def find_raw_files(
    url: str, constant: Mapping[str, str], from_path: Sequence[str]
) -> list[RawFile]:
    """The raw files at `url` with their footers read, sorted by name within each partition.

    `constant` holds for every file; the keys `from_path` are taken from `key=value/` directories.
    InputError where there is no file, one is no Parquet, or has no such directory, where the files
    are a Delta table's, and for a file without rows that is no longer what was listed: nothing is
    read of it later, which would show that.
    """
    if (table := delta_table_around(url)) is not None:
        raise InputError(
            f"raw input {redact(url)} lies in the Delta table {redact(table)}, some of whose files "
            f"may be replaced ones: "
            f"extract the rows of a Spark query on it instead (--sql, or dataframe=...)"
        )
    entries = list_files(url)
    if not entries:
        raise InputError(
            f"no raw files at {redact(url)}: expected a Parquet file, a directory or a glob of "
            f".parquet files"
        )
    partitions = [dict(constant) | _from_path(entry.url, from_path) for entry in entries]
    try:
        footers = read_footers([entry.url for entry in entries])
    except DataFileError as error:
        raise InputError(f"raw input: {error}") from None
    for entry, footer in zip(entries, footers, strict=True):
        if not footer.num_rows:
            check_unchanged(entry, find_file(entry.url))
    files = list(map(_raw_file, entries, footers, partitions))
    return sorted(files, key=lambda file: partition_path(file.partition))


def plan_units(files: Sequence[RawFile], rows_per_file: int) -> tuple[Unit, ...]:
    """Cuts the files into units of about `rows_per_file` rows, at row groups, in order.

    A unit holds rows of one partition, of one or several files; it is larger only where a single
    row group is. Every row group that has rows is in exactly one unit.
    """
    units: list[Unit] = []
    waiting: list[RawRange] = []
    partition: Mapping[str, str] = {}

    def flush() -> None:
        if waiting:
            units.append(
                Unit(index=len(units), partition=partition, ranges=tuple(_coalesce(waiting)))
            )
            waiting.clear()

    for file in files:
        if file.partition != partition:
            flush()
            partition = file.partition
        for raw in _row_groups(file):
            if sum(other.num_rows for other in waiting) + raw.num_rows > rows_per_file:
                flush()
            waiting.append(raw)
    flush()
    return tuple(units)


def input_digest(files: Iterable[FileEntry]) -> str:
    """Names the raw input: sha256 over the sorted lines `name, size, version`, tab-separated, of
    its files.
    """
    lines = sorted(f"{file.name}\t{file.size_bytes}\t{file.version}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_batches(
    file: pq.ParquetFile, raw: RawRange, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The range's rows in batches, only the `columns` named. InputError for rows that cannot be
    decoded.
    """
    row_groups = list(range(raw.first_row_group, raw.last_row_group + 1))
    with _as_input_errors(raw):
        yield from file.iter_batches(
            batch_size=batch_rows(len(columns)),
            row_groups=row_groups,
            columns=list(columns),
            use_threads=False,
        )


def batch_rows(num_columns: int) -> int:
    """Rows of a batch: 16,384, and of wide rows fewer, down to 4,096, so that a batch takes tens of
    megabytes and no more.
    """
    return min(
        BATCH_ROWS,
        max(BATCH_ROWS // 4, 1 << (BATCH_VALUES // max(num_columns, 1)).bit_length() - 1),
    )


@contextlib.contextmanager
def open_range(raw: RawRange) -> Iterator[pq.ParquetFile]:
    """The file of a range, open for reading. InputError where that cannot be.

    InputError also where the file is not, or no longer, what was listed: at the end of the block,
    as rows may be of two files then, and in place of any error of ours that the block ends with, as
    that is what made it.
    """
    with contextlib.ExitStack() as stack:
        try:
            with _as_input_errors(raw):
                row_groups = range(raw.first_row_group, raw.last_row_group + 1)
                file = stack.enter_context(open_raw(raw.url, raw.listed.size_bytes, row_groups))
            yield file
        except FeatstoreError:
            check_unchanged(raw.listed, find_file(raw.url))
            raise
    check_unchanged(raw.listed, find_file(raw.url))


@contextlib.contextmanager
def open_raw(
    url: str, listed_bytes: int | None = None, row_groups: Iterable[int] = ()
) -> Iterator[pq.ParquetFile]:
    """A Parquet file, open for reading. Remote column chunks are fetched in large reads; pages that
    do not match their checksums, where they have one, are not read.

    The pages of these row groups of a local file are looked through at once: Arrow would spend
    hours on what some damaged ones claim. Those of a remote file would have to be fetched twice.
    """
    path = local_path(url)
    with pa.OSFile(str(path)) if path is not None else open_read(url, listed_bytes) as source:
        footer = read_checked(source)
        if path is not None:
            _require_within(source.fileno(), footer, row_groups)
        with pq.ParquetFile(
            source,
            metadata=footer.arrow_metadata(),
            pre_buffer=path is None,
            page_checksum_verification=True,
        ) as file:
            yield file


def _require_within(file: int, footer: CheckedFooter, row_groups: Iterable[int]) -> None:
    num_row_groups = len(
        footer.row_group_rows
    )  # fewer than were listed, where the file has changed
    for index in (index for index in row_groups if index < num_row_groups):
        found = first_beyond(footer, index, range(len(footer.leaves)), file)
        if found is not None:
            raise FooterError(
                f"column {footer.leaves[found].path!r}: row group {index}: {CLAIMS_MORE}"
            )


def check_partition_value(key: str, value: object, where: str) -> None:
    """A partition's value must be a text that Delta gives back as it is; else InputError.

    Delta stores an empty value as null, and rows of a null partition would be added to rather than
    replaced.
    """
    if not isinstance(value, str):
        raise InputError(
            f"{where}: key {key!r}: expected the value as text, found {shown(value)}; write "
            f"'{shown(value)}'"
        )
    if not key or value in ("", NULL_PARTITION):
        raise InputError(
            f"{where}: expected a key and a value, found {key!r} and {value!r}: a partition "
            f"without a value cannot be "
            f"replaced; give its rows a value of their own, such as 'unknown'"
        )
    check_partition_name(key, value, where)


def check_constant(batch: pa.RecordBatch, partition: Mapping[str, str], where: str) -> None:
    """A raw column named like a partition key must hold the partition's value in every row; else
    InputError.
    """
    for key, expected in partition.items():
        if key not in batch.schema.names:
            continue
        if (num_found := batch.schema.names.count(key)) > 1:
            raise InputError(f"{where}: {not_once(key, num_found)}")
        try:
            texts = batch.column(key).cast(pa.string())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            found = batch.column(key).type
            raise InputError(
                f"{where}: the raw column {key!r} ({found}) cannot be the partition's {expected!r}"
            ) from None
        same = pc.fill_null(pc.equal(texts, expected), False)
        if not pc.all(same).as_py():
            found = texts.filter(pc.invert(same))[0].as_py()
            raise InputError(
                f"{where}: the raw column {key!r} holds {found!r}, the partition says "
                f"{expected!r}; "
                f"correct the partition, or filter the input"
            )


def _from_path(url: str, keys: Sequence[str]) -> dict[str, str]:
    found = {key: value or "" for key, value in parse_partition(url).items()} if keys else {}
    for key in keys:
        if key not in found:
            raise InputError(
                f"{redact(url)}: expected a directory {key}=... in the path, to take the partition "
                f"from"
            )
        check_partition_value(key, found[key], redact(url))
    return {key: found[key] for key in keys}


def _raw_file(entry: FileEntry, footer: CheckedFooter, partition: Mapping[str, str]) -> RawFile:
    return RawFile(
        listed=entry,
        partition=partition,
        row_groups=footer.row_group_rows,
        schema=footer.schema,
    )


def _row_groups(file: RawFile) -> Iterator[RawRange]:
    first_row = 0
    for index, num_rows in enumerate(file.row_groups):
        if num_rows:
            yield RawRange(
                listed=file.listed,
                first_row_group=index,
                last_row_group=index,
                first_row=first_row,
                num_rows=num_rows,
            )
        first_row += num_rows


def _coalesce(ranges: Sequence[RawRange]) -> Iterator[RawRange]:
    current = ranges[0]
    for following in ranges[1:]:
        if following.url == current.url and following.first_row_group == current.last_row_group + 1:
            last, num_rows = following.last_row_group, current.num_rows + following.num_rows
            current = replace(current, last_row_group=last, num_rows=num_rows)
        else:
            yield current
            current = following
    yield current


@contextlib.contextmanager
def _as_input_errors(raw: RawRange) -> Iterator[None]:
    """Errors of the reader, which name neither file nor rows, as InputError."""
    with as_input_errors(
        f"{redact(raw.url)}, rows {raw.first_row} to {raw.first_row + raw.num_rows - 1}"
    ):
        yield


@contextlib.contextmanager
def as_input_errors(where: str) -> Iterator[None]:
    """What is raised inside on reading a file as InputError that begins with `where`."""
    try:
        yield
    except InputError:
        raise
    except DAMAGE as error:
        raise InputError(f"{where}: cannot be read ({first_line(error)})") from error
