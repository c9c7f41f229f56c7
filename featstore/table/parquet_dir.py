"""A directory, glob or file of Parquet, of any writer, as a snapshot without a version."""

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

# A footer takes one or two round trips to the store and little CPU time, so with fewer threads a
# remote table opens more slowly. More of them need more connections.
_NUM_FOOTER_THREADS = 16


def open_parquet_dir(url: str) -> Snapshot:
    """Opens the Parquet files at `url` as a snapshot.

    Rows and columns are those of the footers, partitions those of `key=value` directories. The
    schema is the union of the files' columns, in order of path.

    Raises:
        TableNotFoundError: There is not a Parquet file, or the files belong to a Delta table.
        DataFileError: A file is not Parquet or has two columns of one name, or two files have
            different types for a column.
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
    """The Parquet files at `url`, sorted by name.

    Raises:
        TableNotFoundError: There is none, or they belong to a Delta table.
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
    """Refuses the files of a Delta table: only its log tells which of them were replaced."""
    directory = delta_table_around(url)
    if directory is None:
        return
    if is_delta_scheme(directory):
        raise TableNotFoundError(
            f"{redact(url)} lies in the Delta table {redact(directory)}, some of whose files may "
            f"be replaced ones: open {redact(directory)}, and choose rows with where=..."
        )
    raise TableNotFoundError(
        f"{redact(directory)} is a Delta table, and those cannot be read by {scheme(url)}://; "
        f"expected a local path, s3://, gs://, az:// or abfs://"
    )


def delta_table_around(url: str) -> str | None:
    """The Delta table at `url` or in a directory above it; None if there is none."""
    return next(
        (directory for directory in directories(url) if is_directory(join(directory, LOG_DIR))),
        None,
    )


def read_footers(urls: Sequence[str]) -> list[CheckedFooter]:
    """Reads the footers of many files in parallel, and returns them in the given order.

    Raises:
        DataFileError: A file is not Parquet, or damaged.
    """
    if not urls:
        return []
    with ThreadPoolExecutor(min(_NUM_FOOTER_THREADS, len(urls))) as threads:
        return list(threads.map(read_footer, urls))


def read_footer(url: str) -> CheckedFooter:
    """Reads one file's footer. DataFileError if the file is not Parquet, or damaged."""
    path = local_path(url)
    try:
        # Unbuffered: a footer is read with one or two reads of known size.
        with path.open("rb", buffering=0) if path is not None else open_read(url) as file:
            return read_checked(file)
    except FeatstoreError:
        raise
    except DAMAGE as error:
        # An OSError of the file system has a number; one that Arrow raises for damage has none.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataFileError(f"{redact(url)} is not a Parquet file ({first_line(error)})") from None


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
                    f"{entry.name}; open the files of one kind with a glob"
                )
    partition_keys = [
        pa.field(key, pa.string(), metadata={b"featstore.role": Role.PARTITION.encode()})
        for key in keys
    ]
    return SlotSchema.from_arrow(
        pa.schema([*(c for c, _ in columns.values()), *partition_keys]), keys
    )


def columns_of(entry: FileEntry, footer: CheckedFooter) -> pa.Schema:
    """The columns of a file.

    Raises:
        DataFileError: Two columns have one name, of which readers would take either, or none.
    """
    schema = footer.schema
    if len(set(schema.names)) < len(schema.names):
        name, num_found = Counter(schema.names).most_common(1)[0]
        raise DataFileError(f"{entry.name}: {not_once(name, num_found)}")
    return schema


def _same_meaning(one: pa.Field, other: pa.Field) -> bool:
    """Whether the types are equal, or of one slot kind and shape: one file may hold int32 where
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
