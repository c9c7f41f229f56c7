"""A directory, glob or file of Parquet, written by anyone, as a snapshot without a version."""

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from featstore.errors import DataFileError, FeatstoreError, TableNotFoundError, not_once
from featstore.files.listings import FileEntry, directories, is_directory, list_files
from featstore.files.storage import join, local_path, open_read, scheme
from featstore.parquet.damage import DAMAGE, first_line
from featstore.parquet.footers import CheckedFooter, read_checked
from featstore.redaction import redact
from featstore.schema import Role, SlotSchema
from featstore.table.layout import LOG_DIR, is_delta_scheme, parse_partition
from featstore.table.metadata import KEY, FileMetadata
from featstore.table.snapshot import DataFile, Snapshot

_NUM_FOOTER_THREADS = 16


def open_parquet_dir(url: str) -> Snapshot:
    """The files at `url` as a snapshot: rows and columns from the footers, partitions from
    `key=value` directories.

    The schema is the union of the files' columns in path order. TableNotFoundError where no Parquet
    file is found, or the files are a Delta table's; DataFileError for a file that is no Parquet, or
    has two columns of one name, or a column that two files hold with different types.
    """
    entries = list_data_files(url)
    footers = read_footers([entry.url for entry in entries])
    partitions = [parse_partition(entry.name) for entry in entries]
    keys = tuple(dict.fromkeys(key for partition in partitions for key in partition))
    return Snapshot(
        url=url,
        version=None,
        schema=_union(entries, footers, keys),
        data_files=tuple(map(_data_file, entries, footers, partitions)),
        spec_hash=_common_spec_hash(entries, footers),
    )


def list_data_files(url: str) -> list[FileEntry]:
    """The Parquet files at `url`, sorted by name. TableNotFoundError where there is none, or they
    are a Delta table's.
    """
    _check_no_log(url)
    entries = list_files(url)
    if not entries:
        raise TableNotFoundError(
            f"no table at {redact(url)}: expected a Delta table, or a directory or glob with "
            f".parquet files"
        )
    return entries


def _check_no_log(url: str) -> None:
    """The files of a Delta table include replaced ones, which only its log tells apart."""
    directory = delta_table_around(url)
    if directory is None:
        return
    if is_delta_scheme(directory):
        raise TableNotFoundError(
            f"{redact(url)} lies in the Delta table {redact(directory)}, some of whose files may "
            f"be replaced ones: open "
            f"{redact(directory)}, and choose rows with where=..."
        )
    raise TableNotFoundError(
        f"{redact(directory)} is a Delta table, and those cannot be read by {scheme(url)}://; "
        f"expected a local path, "
        f"s3://, gs://, az:// or abfs://"
    )


def delta_table_around(url: str) -> str | None:
    """The Delta table that is at `url`, or that its files lie in; None where there is none."""
    return next(
        (directory for directory in directories(url) if is_directory(join(directory, LOG_DIR))),
        None,
    )


def read_footers(urls: Sequence[str]) -> list[CheckedFooter]:
    """The footers of many files, read in parallel, in the order given. DataFileError names a file
    that is no Parquet.
    """
    if not urls:
        return []
    with ThreadPoolExecutor(min(_NUM_FOOTER_THREADS, len(urls))) as threads:
        return list(threads.map(read_footer, urls))


def read_footer(url: str) -> CheckedFooter:
    """One file's footer. DataFileError if it is no Parquet, or damaged."""
    path = local_path(url)
    try:
        with path.open("rb", buffering=0) if path is not None else open_read(url) as file:
            return read_checked(file)
    except FeatstoreError:
        raise
    except DAMAGE as error:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # of the file system; Arrow's own have no number
            raise
        raise DataFileError(f"{redact(url)} is no Parquet file ({first_line(error)})") from None


def _data_file(
    entry: FileEntry, footer: CheckedFooter, partition: dict[str, str | None]
) -> DataFile:
    return DataFile(
        path=entry.name,
        url=entry.url,
        size_bytes=entry.size_bytes,
        num_rows=footer.num_rows,
        partition=partition,
        version=entry.version,
    )


def _union(
    entries: Iterable[FileEntry], footers: Iterable[CheckedFooter], keys: tuple[str, ...]
) -> SlotSchema:
    columns: dict[str, tuple[pa.Field, str]] = {}
    for entry, footer in zip(entries, footers, strict=True):
        for column in columns_of(entry, footer):
            if column.name in keys:
                continue
            known, first = columns.setdefault(column.name, (column, entry.name))
            if not _same_meaning(known, column):
                raise DataFileError(
                    f"column {column.name!r} is {known.type} in {first}, and {column.type} in "
                    f"{entry.name}; "
                    f"open the files of one kind with a glob"
                )
    partition_keys = [
        pa.field(key, pa.string(), metadata={b"featstore.role": Role.PARTITION.encode()})
        for key in keys
    ]
    return SlotSchema.from_arrow(
        pa.schema([*(c for c, _ in columns.values()), *partition_keys]), keys
    )


def columns_of(entry: FileEntry, footer: CheckedFooter) -> pa.Schema:
    """A file's columns. DataFileError where two have one name: readers would take one of them, or
    none.
    """
    schema = footer.schema
    if len(set(schema.names)) < len(schema.names):
        name, num_found = Counter(schema.names).most_common(1)[0]
        raise DataFileError(f"{entry.name}: {not_once(name, num_found)}")
    return schema


def _same_meaning(one: pa.Field, other: pa.Field) -> bool:
    """Equal types, or types that are one kind and shape of slot: a file may hold int32 where
    another has int64.
    """
    if one.type == other.type:
        return True
    slots = [SlotSchema.from_arrow(pa.schema([column])).slots for column in (one, other)]
    return all(slots) and (slots[0][0].kind, slots[0][0].shape) == (
        slots[1][0].kind,
        slots[1][0].shape,
    )


def _common_spec_hash(entries: Iterable[FileEntry], footers: Iterable[CheckedFooter]) -> str | None:
    texts = [footer.key_values.get(KEY.encode()) for footer in footers]
    if not all(texts):
        return None
    hashes = {
        FileMetadata.from_json(t, e.url).spec_hash
        for t, e in zip(texts, entries, strict=True)
        if t is not None
    }
    return hashes.pop() if len(hashes) == 1 else None
