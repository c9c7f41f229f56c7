"""A directory, glob or file of Parquet, of any writer, as a snapshot without a version."""

import contextlib
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

import pyarrow as pa

from featstore.base.errors import (
    ChangedTableError,
    DataFileError,
    TableFormatError,
    TableNotFoundError,
    not_once,
)
from featstore.base.redaction import redact
from featstore.base.schema import OF_TWO_KINDS, Role, Slot, SlotSchema
from featstore.files.listings import FileEntry, list_files
from featstore.files.retry import thread_pool
from featstore.files.storage import local_path, open_read, scheme
from featstore.native.column_types import is_of_kind
from featstore.native.damage import damage_as, first_line
from featstore.native.footers import CheckedFooter, read_checked
from featstore.table.layout import is_delta_scheme, parse_partition
from featstore.table.metadata import KEY, FileMetadata, has_field_ids
from featstore.table.snapshot import DataFile, FileList, Snapshot

# A footer takes one or two round trips to the store and little CPU time, so with fewer threads a
# remote table opens more slowly. More of them need more connections.
_NUM_FOOTER_THREADS = 16
# Footers that are read ahead of the caller: enough to keep the threads busy while it takes one.
_NUM_AHEAD = 4 * _NUM_FOOTER_THREADS
# Schemas of neighbouring files that are recognised by identity, as many as `parquet.file_schema`
# caches.
_NUM_RECENT_SCHEMAS = 8
REMOVED_MEANWHILE = "it was removed after it was listed; run it again, or restore the file"
T = TypeVar("T")


def open_parquet_dir(url: str) -> Snapshot:
    """Opens the Parquet files at `url` as a snapshot.

    Rows and columns are those of the footers, partitions those of `key=value` directories. The
    schema is the union of the files' columns, in order of path. A column that files have with types
    of different kinds has that of the first of them: it cannot be read from the others.

    Raises:
        TableNotFoundError: There is not a Parquet file, or the files belong to a Delta table.
        DataFileError: A file is not Parquet or has two columns of one name.
        InputError: The directories of a file name a partition key twice.
    """
    entries = list_data_files(url)
    partitions = [parse_partition(entry.name) for entry in entries]
    keys = tuple(dict.fromkeys(key for partition in partitions for key in partition))
    columns, spec_hashes = _Union(keys), set[str | None]()
    facts = each_footer([entry.url for entry in entries], _facts)

    def data_files() -> Iterator[DataFile]:
        for entry, found, partition in zip(entries, facts, partitions, strict=True):
            num_rows, file_schema, metadata = found
            columns.add(entry, file_schema)
            of_file = FileMetadata.from_json(metadata, entry.url) if metadata else None
            spec_hashes.add(of_file.spec_hash if of_file else None)
            yield DataFile(
                path=entry.name,
                url=entry.url,
                size_bytes=entry.size_bytes,
                num_rows=num_rows,
                partition=partition,
                version=entry.version,
            )

    files = FileList.of(data_files())
    return Snapshot(
        url=url,
        version=None,
        schema=columns.schema,
        data_files=files,
        spec_hash=spec_hashes.pop() if len(spec_hashes) == 1 else None,
    )


def list_data_files(url: str) -> list[FileEntry]:
    """The Parquet files at `url`, sorted by name.

    Raises:
        TableNotFoundError: There is none, or they belong to a Delta table.
    """
    try:
        entries = list_files(url)
    except TableFormatError as error:
        if error.table_format != "Delta":
            raise TableNotFoundError(f"{redact(url)}: {error}") from None
        raise _of_delta(url, error.directory) from None
    if not entries:
        raise TableNotFoundError(
            f"no table at {redact(url)}: expected a Delta table, or a directory or glob with "
            f".parquet files"
        )
    return entries


def _of_delta(url: str, directory: str) -> TableNotFoundError:
    """The error for files of a Delta table: only its log tells which of them were replaced."""
    if is_delta_scheme(url):
        return TableNotFoundError(
            f"{redact(url)} lies in the Delta table {directory}, some of whose files may be "
            f"replaced ones: open {directory}, and choose rows with where=..."
        )
    return TableNotFoundError(
        f"{directory} is a Delta table, and those cannot be read by {scheme(url)}://; "
        f"expected a local path, s3://, gs://, az:// or abfs://"
    )


def each_footer(
    urls: Iterable[str],
    take: Callable[[CheckedFooter], T],
    lost: Callable[[str], str] = lambda _: "",
) -> Iterator[T]:
    """Reads the footers of many files in parallel.

    A footer of thousands of columns takes megabytes, so only what is taken of each is kept, and
    only some are read ahead.

    Args:
        urls: The files.
        take: Called with each footer, in the thread that read it.
        lost: What to do about a file that is gone for good, by its URL; empty if another listing
            may name others. Called for one file only.

    Yields:
        What `take` returned, in the order of the files.

    Raises:
        DataFileError: A file is not Parquet, damaged, or gone for good.
        ChangedTableError: A file is gone.
    """

    def taken(url: str) -> T:
        return take(read_footer(url))

    ahead = deque[tuple[str, Future[T]]]()

    def first() -> T:
        url, waiting = ahead.popleft()
        try:
            return waiting.result()
        except ChangedTableError as error:
            if advice := lost(url):
                raise DataFileError(_none_at(url, advice)) from error.__cause__
            raise

    with thread_pool(_NUM_FOOTER_THREADS) as threads:
        try:
            for url in urls:
                ahead.append((url, threads.submit(taken, url)))
                if len(ahead) > _NUM_AHEAD:
                    yield first()
            while ahead:
                yield first()
        finally:
            for _, waiting in ahead:
                waiting.cancel()


def without_ids(files: Sequence[DataFile]) -> list[DataFile]:
    """The files whose columns have no permanent ids: older ones, and those of other writers.

    Raises:
        DataFileError: As of `each_footer`.
    """
    return [file for file, text in texts_of(files) if not has_field_ids(text, file.path)]


def texts_of(files: Sequence[DataFile]) -> Iterator[tuple[DataFile, bytes | None]]:
    """Yields each file with featstore's text in its footer, None where there is none; errors as of
    `each_footer`.
    """
    texts = each_footer(
        (file.url for file in files), lambda footer: footer.key_values.get(KEY.encode())
    )
    return zip(files, texts, strict=True)


def read_footer(url: str) -> CheckedFooter:
    """Reads one file's footer.

    Raises:
        DataFileError: It is not Parquet, or damaged.
        ChangedTableError: It is gone.
        StoreError: The system or the store failed.
    """
    path, where = local_path(url), redact(url)

    def no_parquet(error: Exception) -> Exception:
        if isinstance(error, FileNotFoundError):
            return ChangedTableError(_none_at(url, REMOVED_MEANWHILE))
        return DataFileError(f"{where} is not a Parquet file ({first_line(error)})")

    # Unbuffered: a footer is read with one or two reads of known size.
    with (
        damage_as(no_parquet, where),
        path.open("rb", buffering=0) if path is not None else open_read(url) as file,
    ):
        return read_checked(file)


def _none_at(url: str, advice: str) -> str:
    return f"{redact(url)}: expected a Parquet file, found none: {advice}"


def _facts(footer: CheckedFooter) -> tuple[int, pa.Schema, bytes | None]:
    """What is kept of a footer: the rows, the columns, which are one object for all files with the
    same ones, and the text that featstore stores in its files.
    """
    return footer.num_rows, footer.schema, footer.key_values.get(KEY.encode())


class _Union:
    """The columns of all files that are added, and the partition keys."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = keys
        self._columns: dict[str, pa.Field] = {}
        self._recent: deque[pa.Schema] = deque(maxlen=_NUM_RECENT_SCHEMAS)

    def add(self, entry: FileEntry, schema: pa.Schema) -> None:
        """Adds the columns of a file. DataFileError if two of them have one name."""
        # The schemas of equal files are one object, so each is compared once for a table.
        if any(schema is known for known in self._recent):
            return
        for column in columns_of(entry, schema):
            known = self._columns.setdefault(column.name, column)
            if known.type != column.type:
                self._columns[column.name] = _united(known, column)
        self._recent.append(schema)

    @property
    def schema(self) -> SlotSchema:
        partition_keys = [
            pa.field(key, pa.string(), metadata={b"featstore.role": Role.PARTITION.encode()})
            for key in self._keys
        ]
        columns = [column for name, column in self._columns.items() if name not in self._keys]
        return SlotSchema.from_arrow(pa.schema([*columns, *partition_keys]), self._keys)


def columns_of(entry: FileEntry, schema: pa.Schema) -> pa.Schema:
    """The columns of a file with this schema.

    Raises:
        DataFileError: Two columns have one name, of which readers would take either, or none.
    """
    if len(set(schema.names)) < len(schema.names):
        name, num_found = Counter(schema.names).most_common(1)[0]
        raise DataFileError(f"{entry.name}: {not_once(name, num_found)}")
    return schema


def _united(known: pa.Field, other: pa.Field) -> pa.Field:
    """The column with a type for the values of both files. If both are slots, which have types of
    their own, `known`, as doubles if either is; `known` itself if there is no such type: then it
    cannot be read from the other file.
    """
    slots = [Slot.from_field(column) for column in (known, other)]
    if None not in slots:
        is_widened = pa.types.is_floating(known.type) and other.type == pa.float64()
        return known.with_type(other.type) if is_widened else known
    pairs = itertools.permutations((known.type, other.type))
    schemas = [pa.schema([column.with_nullable(True)]) for column in (known, other)]
    if any(itertools.starmap(is_of_kind, pairs)):
        with contextlib.suppress(pa.ArrowTypeError):  # Times with and without a zone, and dates.
            return pa.unify_schemas(schemas, promote_options="permissive").field(0)
    return known.with_metadata({**(known.metadata or {}), OF_TWO_KINDS: b"true"})
