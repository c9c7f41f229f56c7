"""Samples out of JSON lines and Parquet files, with progress, and resumed after an interruption."""

import gzip
import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from featstore.errors import DataFileError, SampleError, SampleStoreError, all_nearest
from featstore.files.listings import FileEntry, find_file, list_files
from featstore.files.storage import absolute, open_read
from featstore.parquet.footers import read_checked
from featstore.parquet.walk import FooterError
from featstore.redaction import redact, shown, without_user
from featstore.sampling.sample_fields import SampleFields, Stored, stored_id

_WHOLE = "*"
_NUM_ROWS = 1_000  # of a Parquet batch: samples may be large
_ABSENT = object()


@dataclass(frozen=True, kw_only=True)
class ImportedFiles:
    """What an import reads, and where the fields come from: see `SampleStore.import_json_lines`."""

    source: str
    suffix: str
    fields: SampleFields
    columns: Mapping[str, str] | None
    id_from: str | None
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

    def listed(self, known: Mapping[str, str]) -> "Iterator[ImportedFile]":
        """The files that are not imported yet, in order of their names.

        Args:
            known: What the store has noted: the progress of each file, as JSON.

        Raises:
            SampleError: There are no files.
            SampleStoreError: A file changed since its import began.
        """
        entries = list_files(absolute(self.source), self.suffix)
        if not entries:
            raise SampleError(f"{redact(self.source)}: expected files to import, found none")
        for entry in entries:
            text = known.get(without_user(entry.url))
            noted = None if text is None else json.loads(text)
            if noted is None:
                yield ImportedFile(files=self, entry=entry, num_before=0)
                continue
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
    """A file whose import begins or goes on after `num_before` samples."""

    files: ImportedFiles
    entry: FileEntry
    num_before: int

    def rows(
        self, reader: Callable[..., Iterator[dict[str, Any]]]
    ) -> Iterator[tuple[str | None, tuple[Stored, ...]]]:
        """The id and the stored values of each further sample."""
        fields, id_from, places = self.files.fields, self.files.id_from, self.files.places
        awaited = {*places.values(), *([] if id_from is None else [id_from])}
        names = sorted(awaited)
        row: dict[str, Any] = {}
        is_shown = None if self.files.progress else True
        with tqdm(desc=f"import {self.entry.name}", unit="sample", disable=is_shown) as bar:
            for number, row in enumerate(reader(self.entry, self.num_before, names)):
                if awaited:
                    awaited -= {name for name in awaited if _picked(row, name) is not _ABSENT}
                if number == _NUM_ROWS:
                    self._require_found(awaited, row)
                yield (
                    None if id_from is None else stored_id(_value(row, id_from)),
                    fields.stored({name: _value(row, place) for name, place in places.items()}),
                )
                bar.update()
        if row:
            self._require_found(awaited, row)

    def note(self, connection: sqlite3.Connection, num_added: int) -> None:
        """Notes in a transaction how far the import is with its samples."""
        self._note(connection, self.num_before + num_added, is_complete=False)

    def complete(self, connection: sqlite3.Connection) -> None:
        """Notes that the file is imported.

        Raises:
            SampleStoreError: It changed meanwhile.
        """
        now = find_file(self.entry.url)
        if now is None or not self.entry.is_same(now):
            raise SampleStoreError(
                f"{redact(self.entry.url)} changed while it was imported: expected {self.entry}, "
                f"found {now or 'no such file'}; begin with a new store once it is complete"
            )
        text = connection.execute(
            "SELECT progress FROM imports WHERE source = ?", (without_user(self.entry.url),)
        ).fetchone()
        num_samples = self.num_before if text is None else json.loads(text[0])["num_samples"]
        self._note(connection, num_samples, is_complete=True)

    def _note(self, connection: sqlite3.Connection, num_samples: int, *, is_complete: bool) -> None:
        progress = {
            "size_bytes": self.entry.size_bytes,
            "version": self.entry.version,
            "num_samples": num_samples,
            "is_complete": is_complete,
        }
        connection.execute(
            "INSERT INTO imports VALUES (?, ?) "
            "ON CONFLICT (source) DO UPDATE SET progress = excluded.progress",
            (without_user(self.entry.url), json.dumps(progress)),
        )

    def _require_found(self, absent: set[str], row: dict[str, Any]) -> None:
        if absent:
            raise SampleError(
                f"{redact(self.entry.url)}: no sample has {all_nearest(sorted(absent), row)}; one "
                f"of them has {shown(sorted(row))}"
            )


def json_lines(entry: FileEntry, num_skipped: int, names: list[str]) -> Iterator[dict[str, Any]]:
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


def parquet_rows(entry: FileEntry, num_skipped: int, names: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file after the first `num_skipped`, with the columns of `names`.

    Raises:
        SampleError: A column is missing.
        DataFileError: It is no Parquet file, or damaged.
    """
    with open_read(entry.url, entry.size_bytes) as source:
        try:
            footer = read_checked(source)
        except FooterError as error:
            raise DataFileError(f"{redact(entry.url)} is no Parquet file: {error}") from error
        with closing(
            pq.ParquetFile(
                source, metadata=footer.arrow_metadata(), page_checksum_verification=True
            )
        ) as file:
            columns = _columns(file.schema_arrow.names, names, redact(entry.url))
            try:
                yield from _rows(file, footer.row_group_rows, num_skipped, columns)
            except (pa.ArrowException, OSError) as error:
                raise DataFileError(f"{redact(entry.url)} cannot be read: {error}") from error


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


def _columns(known: list[str], names: list[str], where: str) -> list[str] | None:
    """The columns to read for names, which may be of fields in structs; None: all.

    Raises:
        SampleError: There is no such column.
    """
    columns = {name if name in known else name.partition(".")[0] for name in names} - {_WHOLE}
    if absent := columns - set(known):
        raise SampleError(
            f"{where}: no column {all_nearest(sorted(absent), known)}; there are {shown(known)}"
        )
    return None if _WHOLE in names else sorted(columns)


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


def _picked(row: dict[str, Any], name: str) -> Any:
    """What a row has at a name, or at names joined with `.` in nested objects."""
    if name == _WHOLE or name in row:
        return row if name == _WHOLE else row[name]
    found: Any = row
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            return _ABSENT
        found = found[part]
    return found


def _value(row: dict[str, Any], name: str) -> Any:
    found = _picked(row, name)
    return None if found is _ABSENT else found
