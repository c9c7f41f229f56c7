"""Samples out of JSON lines, lines of text and Parquet files, with progress, and resumed after an
interruption.
"""

import errno
import gzip
import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import closing
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow.parquet as pq
from tqdm import tqdm

from featstore.base.errors import DataFileError, SampleError, SampleStoreError, all_nearest
from featstore.base.processes import cached_property
from featstore.base.redaction import redact, shown, without_user
from featstore.files.listings import FileEntry, find_file, list_files
from featstore.files.storage import absolute, open_read
from featstore.native.arrow import INT96_UNIT
from featstore.native.damage import damage_as
from featstore.native.footers import read_checked
from featstore.reading.kept import InPlaceFile
from featstore.samples.sample_fields import SampleFields, Stored, checksum, stored_id
from featstore.samples.sample_file import SampleFile

_WHOLE = "*"
_NUM_ROWS = 1_000  # of a Parquet batch: samples may be large
_ABSENT = object()
LINE = "\n"
"""Where a line of text is, which no field is named."""


@dataclass(frozen=True, kw_only=True)
class ImportedFiles:
    """What an import reads, and where the fields come from: see `SampleStore.import_json_lines`."""

    store: SampleFile
    source: str
    suffix: str
    fields: SampleFields
    columns: Mapping[str, str] | None
    id_from: str | None
    optional: Set[str]
    progress: bool

    @cached_property
    def places(self) -> dict[str, str]:
        """Where each field comes from.

        Raises:
            SampleError: A field of `columns` is unknown.
        """
        given = dict(self.columns or {})
        if unknown := given.keys() - self.fields.kinds.keys():
            raise SampleError(
                f"columns: unknown field {all_nearest(unknown, self.fields.kinds)}; the fields are "
                f"{', '.join(self.fields.kinds)}"
            )
        return {name: given.get(name, name) for name in self.fields.kinds}

    @cached_property
    def awaited(self) -> frozenset[str]:
        """The keys that samples should have.

        Raises:
            SampleError: One of `optional` is not read at all.
        """
        read = {*self.places.values(), *([] if self.id_from is None else [self.id_from])}
        if unread := self.optional - read:
            raise SampleError(
                f"optional: no field comes from {all_nearest(sorted(unread), read)}; expected some "
                f"of {', '.join(sorted(read))}"
            )
        return frozenset(read - self.optional)

    def listed(self, noted_of: Callable[[str], str | None]) -> "Iterator[ImportedFile]":
        """The files that are not imported yet, in order of their names.

        Args:
            noted_of: What the store has noted of a source: its progress, as JSON.

        Raises:
            SampleError: There are no files.
            SampleStoreError: A file changed since its import began.
        """
        entries = list_files(absolute(self.source), self.suffix)
        if not entries:
            raise SampleError(f"{redact(self.source)}: expected files to import, found none")
        for entry in entries:
            text = noted_of(without_user(entry.url))
            if text is None:
                yield ImportedFile(
                    files=self, entry=entry, num_before=0, is_first=entry is entries[0]
                )
                continue
            noted = json.loads(text)
            if [noted["size_bytes"], noted["version"]] != [entry.size_bytes, entry.version]:
                raise SampleStoreError(
                    f"{redact(entry.url)} changed since its import began: expected "
                    f"{noted['size_bytes']} bytes of version {noted['version']!r}, found "
                    f"{entry.size_bytes} of {entry.version!r}; import the new content under "
                    f"another name, or into a new store"
                )
            if not noted["is_complete"]:
                yield ImportedFile(files=self, entry=entry, num_before=noted["num_samples"])


@dataclass(frozen=True, kw_only=True)
class ImportedFile:
    """A file whose import begins or goes on after `num_before` samples.

    The keys of its first samples are checked if it `is_first`. Later files, and the rest of one
    whose import was interrupted, may lack keys that the first samples had.
    """

    files: ImportedFiles
    entry: FileEntry
    num_before: int
    is_first: bool = False

    def rows(
        self, reader: Callable[..., Iterator[dict[str, Any]]]
    ) -> Iterator[tuple[str | None, tuple[Stored, ...]]]:
        """The id and the stored values of each further sample."""
        fields, id_from, places = self.files.fields, self.files.id_from, self.files.places
        names = sorted(self.files.awaited | self.files.optional)
        awaited = set(self.files.awaited if self.is_first else ())
        row: dict[str, Any] = {}
        is_hidden = None if self.files.progress else True  # None: unless it is a terminal
        with tqdm(desc=f"import {self.entry.name}", unit="sample", disable=is_hidden) as bar:
            found = reader(self.entry, self.num_before, names, self.files.optional)
            for number, row in enumerate(found, 1):
                if awaited:
                    awaited -= {
                        name for name in awaited if _picked(row, name, _ABSENT) is not _ABSENT
                    }
                if number == _NUM_ROWS:
                    self._require_found(awaited, row)
                    awaited = set()
                yield (
                    None if id_from is None else stored_id(_picked(row, id_from)),
                    fields.stored({name: _picked(row, place) for name, place in places.items()}),
                )
                bar.update()
        if row:
            self._require_found(awaited, row)

    def note(self, connection: sqlite3.Connection, num_added: int, num_rows: int) -> None:
        """Notes in a transaction that adds `num_rows` samples how far the import is with it, when
        it has added `num_added` before.

        Raises:
            SampleStoreError: Another import of the file has added samples meanwhile.
        """
        self._note(connection, num_added, num_rows, is_complete=False)

    def complete(self, connection: sqlite3.Connection, num_added: int) -> None:
        """Notes that the file is imported.

        Raises:
            SampleStoreError: It changed meanwhile, or as of `note`.
        """
        now = find_file(self.entry.url)
        if now is None or not self.entry.is_same(now):
            raise SampleStoreError(
                f"{redact(self.entry.url)} changed while it was imported: expected {self.entry}, "
                f"found {now or 'no such file'}; begin with a new store once it is complete"
            )
        self._note(connection, num_added, 0, is_complete=True)

    def _note(
        self, connection: sqlite3.Connection, num_added: int, num_rows: int, *, is_complete: bool
    ) -> None:
        """Notes the progress, if what is noted is what this import has noted last."""
        source, expected = without_user(self.entry.url), self.num_before + num_added
        text = self.files.store.noted(connection, source)
        found = 0 if text is None else json.loads(text)["num_samples"]
        if found != expected:
            raise SampleStoreError(
                f"{redact(self.entry.url)} is imported by another process, too: expected "
                f"{expected} of its samples in the store, found {found}; what this import added "
                f"before is stored: wait for the other one, then import again, which goes on "
                f"where both stopped",
                errno.EBUSY,
            )
        progress = {
            "size_bytes": self.entry.size_bytes,
            "version": self.entry.version,
            "num_samples": expected + num_rows,
            "is_complete": is_complete,
        }
        values = (source, json.dumps(progress))
        connection.execute(
            "INSERT OR REPLACE INTO imports VALUES (?, ?, ?)", (*values, checksum(values))
        )

    def _require_found(self, absent: set[str], row: dict[str, Any]) -> None:
        if absent:
            raise SampleError(
                f"{redact(self.entry.url)}: no sample has {all_nearest(sorted(absent), row)}; one "
                f"of them has {shown(sorted(row))}; name keys that the first {_NUM_ROWS:,} may "
                f"lack in `optional`"
            )


def json_lines(
    entry: FileEntry, num_skipped: int, names: list[str], optional: Set[str]
) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines after the first `num_skipped`; empty lines do not count.

    Raises:
        SampleError: A line is no JSON object, or the file is compressed and damaged.
    """
    number = 0
    with open_read(entry.url, entry.size_bytes) as raw:
        for line_number, line in enumerate(_lines(entry, raw), 1):
            if not line.strip():
                continue
            number += 1
            if number > num_skipped:
                yield _object(line, f"{redact(entry.url)} line {line_number}")


def text_lines(
    entry: FileEntry,
    num_skipped: int,
    names: list[str],
    optional: Set[str],
    *,
    as_bytes: bool,
) -> Iterator[dict[str, Any]]:
    """The lines of a file of text after the first `num_skipped`, without their ends.

    Raises:
        SampleError: A line is not UTF-8 and not wanted as bytes, or the file is compressed and
            damaged.
    """
    with open_read(entry.url, entry.size_bytes) as raw:
        for number, line in enumerate(_lines(entry, raw), 1):
            if number > num_skipped:
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                where = f"{redact(entry.url)} line {number}"
                yield {LINE: line if as_bytes else _decoded(line, where)}


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise SampleError(
            f"{where}: expected UTF-8, found other bytes ({error.reason}); a field of the kind "
            f"bytes takes them"
        ) from error


def parquet_rows(
    entry: FileEntry, num_skipped: int, names: list[str], optional: Set[str]
) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file after the first `num_skipped`, with the columns of `names`, of
    which those in `optional` may be missing.

    Raises:
        SampleError: A column is missing.
        DataFileError: It is no Parquet file, or damaged.
    """
    where = redact(entry.url)
    with open_read(entry.url, entry.size_bytes) as source:
        with damage_as(lambda error: DataFileError(f"{where} is no Parquet file: {error}"), where):
            footer = read_checked(source)
        with (
            damage_as(lambda error: DataFileError(f"{where} cannot be read: {error}"), where),
            closing(
                InPlaceFile(
                    footer,
                    source,
                    metadata=footer.arrow_metadata(),
                    page_checksum_verification=True,
                    coerce_int96_timestamp_unit=INT96_UNIT,
                )
            ) as file,
        ):
            columns = _columns(file.schema_arrow.names, names, optional, where)
            yield from _rows(file, footer.row_group_rows, num_skipped, columns)


def _rows(
    file: pq.ParquetFile, row_group_rows: Iterable[int], num_skipped: int, columns: list[str] | None
) -> Iterator[dict[str, Any]]:
    for index, num_rows in enumerate(row_group_rows):
        if num_skipped >= num_rows:
            num_skipped -= num_rows
            continue
        for batch in file.iter_batches(_NUM_ROWS, row_groups=[index], columns=columns):
            yield from batch.slice(min(num_skipped, len(batch))).to_pylist()
            num_skipped = max(0, num_skipped - len(batch))


def _columns(
    known: list[str], names: list[str], optional: Set[str], where: str
) -> list[str] | None:
    """The columns to read for names, which may be of fields in structs; None: all.

    Raises:
        SampleError: There is no such column.
    """
    column_of = {name: name if name in known else name.partition(".")[0] for name in names}
    column_of.pop(_WHOLE, None)
    columns = set(column_of.values())
    if absent := {column_of[name] for name in column_of.keys() - optional} - set(known):
        raise SampleError(
            f"{where}: no column {all_nearest(sorted(absent), known)}; there are {shown(known)}"
        )
    return None if _WHOLE in names else sorted(columns & set(known))


def _lines(entry: FileEntry, raw: BinaryIO) -> Iterator[bytes]:
    if not entry.name.endswith(".gz"):
        yield from raw
        return
    try:
        with gzip.open(raw) as unpacked:
            yield from unpacked
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SampleError(
            f"{redact(entry.url)}: expected a whole gzip file, found a damaged one ({error})"
        ) from error


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SampleError(f"{where}: expected a JSON object ({error})") from error
    if not isinstance(found, dict):
        raise SampleError(f"{where}: expected a JSON object, found {shown(found)}")
    return found


def _picked(row: dict[str, Any], name: str, otherwise: object = None) -> Any:
    """What a row has at a name, or at names joined with `.` in nested objects."""
    if name == _WHOLE or name in row:
        return row if name == _WHOLE else row[name]
    found: Any = row
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            return otherwise
        found = found[part]
    return found
