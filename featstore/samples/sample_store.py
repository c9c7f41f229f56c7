"""`SampleStore`: samples that are not columns, in one SQLite file, by index and by id."""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat, zip_longest
from pathlib import Path
from typing import Any, overload

import numpy as np

from featstore.base.closing import Closing
from featstore.base.errors import SampleError
from featstore.samples.indices import Array, is_single, position_of, positions_of
from featstore.samples.sample_fields import Sample, SampleFields, stored_id
from featstore.samples.sample_file import SampleFile, StoreView
from featstore.samples.sample_imports import (
    LINE,
    ImportedFiles,
    json_lines,
    parquet_rows,
    text_lines,
)
from featstore.samples.sample_statements import READ_SAMPLES, Note, Row, SampleReader, SampleWriter

_NONE_LEFT = object()


class SampleStore(Closing):
    """Samples of named fields (texts, JSON, bytes, numbers) in one SQLite file, as a map-style
    dataset of torch: `DataLoader(store, batch_size=64, shuffle=True, num_workers=8)`.

        with featstore.SampleStore.create("samples.sqlite", {"text": "text"}) as store:
            store.append([{"text": "a"}, {"text": "b"}], ids=["a1", "b1"])
        store = featstore.SampleStore("samples.sqlite")
        store[0], store[-1], store[10:20], store[[3, 1, 2]], store.by_id(["a1"]), len(store)

    Any number of processes read while one writes. Each opens its own connection at first use, also
    after a fork; a pickled store is opened again from its path. A batch is one statement. Threads
    may share a store: they take turns.

    An open store sees the samples that were there when it was opened, and those appended by others
    after `refresh()`. Indices are always 0 to `len(store) - 1`: a delete moves the last samples
    into the gaps. So after another process has deleted, reading raises until `refresh()`, instead
    of returning other samples than before. `close()` closes the file.

    Args:
        path: The file. `create` makes one.
        transform: Called with each sample that is read, a dict of its fields; its result is
            delivered instead. Spawned workers need to pickle it.
        immutable: Opens a file that nobody changes, without locks or extra files: on a read-only
            disk, or on a network file system.
        wait_s: How long to wait for another writer.

    Raises:
        SampleStoreError: There is no such store, it is damaged or of another format, may not be
            opened, or is on a network file system.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        transform: Callable[[Sample], Any] | None = None,
        immutable: bool = False,
        wait_s: float = 30.0,
    ) -> None:
        where = Path(path).expanduser().absolute()
        self._file = SampleFile(path=where, immutable=immutable, wait_s=wait_s)
        self._transform = transform
        self._connect()
        self._view = self._reader.view()

    @classmethod
    def create(cls, path: str | Path, fields: Mapping[str, str], **options: Any) -> "SampleStore":
        """Makes a store without samples, and opens it.

        Args:
            path: The file, which must not exist.
            fields: The kind of each field by its name: `text`, `bytes`, `json` (what Python's
                `json` can write), `integer` (64 bits) or `real`. A value may also be None.
            options: As of the constructor.

        Raises:
            ConfigError: There are no fields, or a kind is unknown.
            SampleStoreError: There is a file already, or none can be made there.
            DiskFullError: The disk is full.
        """
        where = Path(path).expanduser().absolute()
        SampleFile(path=where).create(SampleFields(kinds=dict(fields)))
        return cls(path, **options)

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def fields(self) -> dict[str, str]:
        """The kind of each field by its name."""
        return dict(self._reader.fields.kinds)

    @property
    def ids(self) -> "SampleIds":
        """The ids of all samples by index, read on access."""
        return SampleIds(self._reader, self._view)

    def __len__(self) -> int:
        return self._view.num_samples

    def __getitem__(self, index: Any) -> Any:
        """A sample, or a list of samples.

        Args:
            index: An integer, a slice, or a list or an array of integers. Negative ones count from
                the end.

        Raises:
            SampleIndexError: An index is out of range.
            SampleStoreError: The file is damaged, or samples were deleted meanwhile.
        """
        if is_single(index):
            view = self._view
            found = self._reader.sample_at(position_of(index, view.num_samples), view)
            return self._delivered([found])[0]
        return self.__getitems__(index)

    def __getitems__(self, indices: Any) -> list[Any]:
        """The samples of a batch, with one statement: what a DataLoader calls.

        Args:
            indices: As of `__getitem__`; of a single integer it is a list of one sample.
        """
        positions = positions_of(indices, len(self))
        # In order of position neighbours are on one page, and the tree is descended from left to
        # right.
        order = np.argsort(positions, kind="stable")
        found = self._reader.samples_at(positions[order].tolist(), self._view)
        samples: list[Any] = [None] * len(found)
        for place, sample in zip(order.tolist(), found, strict=True):
            samples[place] = sample
        return self._delivered(samples)

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, len(self), READ_SAMPLES):
            yield from self.__getitems__(slice(first, first + READ_SAMPLES))

    def by_id(self, ids: Iterable[str | int]) -> list[Any]:
        """The samples of ids, with one statement.

        Args:
            ids: Ids, each as often as its sample is wanted.

        Raises:
            UnknownSampleError: There is no sample of an id.
            SampleStoreError: The file is damaged, or samples were deleted meanwhile.
        """
        return self._delivered(self._reader.samples_of([stored_id(one) for one in ids], self._view))

    def has_id(self, one: object) -> bool:
        """Whether a sample has this id.

        Raises:
            SampleStoreError: Samples were deleted meanwhile, or the file is damaged.
        """
        return one in self.ids

    def refresh(self) -> None:
        """Sees what other processes have appended and deleted since the store was opened, or the
        file that is in its place now.
        """
        with self._reader.use():
            pass  # A store that was closed is not opened again.
        # Who reads in another thread goes on with the connection that it has.
        self._connect()
        self._view = self._reader.view()

    def append(
        self, samples: Iterable[Mapping[str, Any]], ids: Iterable[str | int | None] | None = None
    ) -> int:
        """Adds samples at the end, in transactions of 10,000 samples or 16 MB.

        Args:
            samples: Mappings of fields to values.
            ids: An id for each of them, or None.

        Returns:
            How many were added.

        Raises:
            SampleError: A field is unknown, a value is not of its kind, an id is taken, or there
                are not as many ids as samples. The message says how many of the samples before it
                are stored.
            SampleStoreError: Another process writes for longer than `wait_s`, or the file is
                damaged, or another one with other fields is in its place.
            DiskFullError: The disk is full. What was committed is kept.
        """
        fields = self._reader.fields
        given = zip(repeat(None), samples) if ids is None else _paired(ids, samples)
        rows = ((stored_id(one), fields.stored(sample)) for one, sample in given)
        return self._append(rows, lambda connection, num_before, num_rows: None)

    def import_json_lines(
        self,
        source: str | Path,
        *,
        columns: Mapping[str, str] | None = None,
        id_from: str | None = None,
        optional: Collection[str] = (),
        progress: bool = True,
    ) -> int:
        """Adds the objects of JSON lines as samples. An interrupted import continues where it
        stopped, and an imported file is not imported again.

        Args:
            source: A file, a directory of `*.jsonl`, or a glob, local or remote. Names that end
                with `.gz` are decompressed.
            columns: Where each field comes from: a key, keys joined with `.` in nested objects, or
                `*` for the whole object. By default the key of the field's name. A key that a line
                lacks gives None.
            id_from: Where ids come from, in the same way.
            optional: Those of these keys that all of the first 1,000 samples may lack. Others are
                an error then, since they may be misspelt.
            progress: Whether to show progress on standard error, if that is a terminal.

        Returns:
            How many samples this call has added.

        Raises:
            SampleError: A line is no object, its values cannot be stored, or none of the first
                samples has a key. That is checked once, where the import of the first file begins.
            SampleStoreError: As of `append`, or the file changed since its import began, or
                another process imports it at the same time.
            DiskFullError: The disk is full. What was committed is kept.
        """
        files = ImportedFiles(
            store=self._file, source=str(source), suffix=".jsonl", fields=self._reader.fields,
            columns=columns, id_from=id_from, optional=frozenset(optional), progress=progress,
        )  # fmt: skip
        return self._import(files, json_lines)

    def import_lines(
        self, source: str | Path, *, field: str = "text", progress: bool = True
    ) -> int:
        """Adds each line of files of text as a sample, without ids, as `import_json_lines` does.
        Empty lines are samples, too, so that the n-th line of a file is its n-th sample.

        Args:
            source: A file, a directory of `*.txt`, or a glob, local or remote.
            field: The field of a line: in UTF-8, or of the kind `bytes`. Others are None.
            progress: As of `import_json_lines`.

        Raises:
            SampleError: There is no such field, or a line is not UTF-8.
            SampleStoreError: As of `import_json_lines`.
            DiskFullError: The disk is full. What was committed is kept.
        """
        fields = self._reader.fields
        if fields.kinds.get(field) not in ("text", "bytes"):
            known = ", ".join(f"{name} ({kind})" for name, kind in fields.kinds.items())
            raise SampleError(
                f"field: expected one of the kind text or bytes for lines, found {field!r}; the "
                f"fields are {known}"
            )
        files = ImportedFiles(
            store=self._file, source=str(source), suffix=".txt", fields=fields,
            columns={field: LINE}, id_from=None, optional=fields.kinds.keys() - {field},
            progress=progress,
        )  # fmt: skip
        return self._import(
            files, functools.partial(text_lines, as_bytes=fields.kinds[field] == "bytes")
        )

    def import_parquet(
        self,
        source: str | Path,
        *,
        columns: Mapping[str, str] | None = None,
        id_from: str | None = None,
        optional: Collection[str] = (),
        progress: bool = True,
    ) -> int:
        """Adds the rows of Parquet files as samples, as `import_json_lines` does; `.` joins the
        names of fields of structs.

        Args:
            source: A file, a directory of `*.parquet`, or a glob, local or remote.
            columns: As of `import_json_lines`.
            id_from: As of `import_json_lines`.
            optional: As of `import_json_lines`; their columns may be missing in files.
            progress: As of `import_json_lines`.

        Raises:
            SampleError: A column is missing, or a value cannot be stored.
            SampleStoreError: As of `import_json_lines`.
            DiskFullError: The disk is full. What was committed is kept.
        """
        files = ImportedFiles(
            store=self._file, source=str(source), suffix=".parquet", fields=self._reader.fields,
            columns=columns, id_from=id_from, optional=frozenset(optional), progress=progress,
        )  # fmt: skip
        return self._import(files, parquet_rows)

    def delete(self, indices: Any) -> None:
        """Deletes samples, in one transaction. The last samples move into the gaps, so indices stay
        dense, and the space of the deleted ones is used by later samples.

        Args:
            indices: A slice, or a list or an array of integers.

        Raises:
            SampleIndexError: An index is out of range.
            SampleStoreError: Samples were deleted by others meanwhile, or as of `append`.
        """
        gone = np.unique(positions_of(indices, len(self)))
        if not gone.size:
            return  # A new version would disturb other readers.
        self._view = self._writer.delete(gone, self._view)

    def check(self) -> None:
        """Reads the whole file, and compares every sample with its checksum.

        Raises:
            SampleStoreError: The file is damaged, or samples were deleted meanwhile.
        """
        self._reader.check(self._view)

    def close(self) -> None:
        """Closes the file in this process."""
        self._reader.close()
        self._writer.close()

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("_reader", "_writer")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._connect()

    def __repr__(self) -> str:
        return f"SampleStore({str(self.path)!r}, {len(self):,} samples of {', '.join(self.fields)})"

    def _connect(self) -> None:
        self._reader = SampleReader(self._file)
        self._writer = SampleWriter(self._file, self._reader.fields)

    def _delivered(self, samples: list[Sample]) -> list[Any]:
        return samples if self._transform is None else [self._transform(one) for one in samples]

    def _append(self, rows: Iterable[Row], note: Note) -> int:
        num_added = 0
        for num_so_far, view in self._writer.append(rows, note):
            num_added = num_so_far
            if view.version == self._view.version:  # Otherwise reading tells of it.
                self._view = view
        return num_added

    def _import(self, files: ImportedFiles, reader: Callable[..., Iterator[Any]]) -> int:
        num_added = 0
        for file in files.listed(self._reader.noted):
            num_added_of_file = self._append(file.rows(reader), file.note)
            with self._writer.transaction() as connection:
                file.complete(connection, num_added_of_file)
            num_added += num_added_of_file
        return num_added


def _paired(
    ids: Iterable[str | int | None], samples: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[Any, Any]]:
    for one, sample in zip_longest(ids, samples, fillvalue=_NONE_LEFT):
        if one is _NONE_LEFT or sample is _NONE_LEFT:
            fewer = "ids" if one is _NONE_LEFT else "samples"
            raise SampleError(f"expected as many ids as samples, found fewer {fewer}")
        yield one, sample


class SampleIds(Sequence[str | None]):
    """The ids of a store's samples by index, read on access; None where a sample has none."""

    def __init__(self, reader: SampleReader, view: StoreView) -> None:
        self._reader, self._view = reader, view

    def __len__(self) -> int:
        return self._view.num_samples

    @overload
    def __getitem__(self, index: int) -> str | None: ...

    @overload
    def __getitem__(self, index: slice | Sequence[int] | Array) -> list[str | None]: ...

    def __getitem__(self, index: Any) -> Any:
        if is_single(index):
            return self._reader.ids_at([position_of(index, len(self))], self._view)[0]
        return self._reader.ids_at(positions_of(index, len(self)).tolist(), self._view)

    def __iter__(self) -> Iterator[str | None]:
        for first in range(0, len(self), READ_SAMPLES):
            yield from self[first : first + READ_SAMPLES]

    def __contains__(self, one: object) -> bool:
        return self._reader.has_id(stored_id(one), self._view)
