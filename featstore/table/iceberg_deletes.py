"""Which rows of an Iceberg table's data files are deleted: the records in the manifests of a
snapshot, by the data files to which they apply.
https://iceberg.apache.org/spec/#scan-planning
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from featstore.base.errors import DataFileError
from featstore.base.libraries import LazyModule
from featstore.base.redaction import redact
from featstore.files.storage import absolute
from featstore.table.row_masks import MaskRecord, RowMask

_avro: Any = LazyModule("pyiceberg.avro.file")
_manifests: Any = LazyModule("pyiceberg.manifest")

_WITH_VECTORS = 3  # the format version whose manifests say where deletion vectors lie
# Fields of a delete file that pyiceberg has no names for, by their places in that version.
_REFERENCED, _OFFSET, _SIZE = 17, 18, 19
_PATHS = 2147483546  # the field id of the paths in a file of position deletes
_AROUND_VECTOR = 8  # bytes: the size before it, and its checksum


class _Delete(NamedTuple):
    """A record of deleted rows.

    Attributes:
        sequence: The table's sequence number at which rows were deleted: of files not newer.
        file: Where it lies.
        first: The first byte of a deletion vector there.
        num_bytes: Its bytes.
        num_rows: The rows that it holds.
        bounds: The least and the largest path of a data file in it; empty if unknown.
    """

    sequence: int
    url: str
    first: int
    num_bytes: int
    num_rows: int
    bounds: tuple[bytes, ...]


@dataclass(frozen=True)
class Deletes:
    """The deleted rows of a snapshot.

    Attributes:
        vectors: Deletion vectors by the path of their data file.
        by_path: Files of position deletes of one data file, by its path.
        by_partition: Those of several, by the partition of these: the id of the spec, and values.
    """

    vectors: dict[str, _Delete] = field(default_factory=dict)
    by_path: dict[str, list[_Delete]] = field(default_factory=dict)
    by_partition: dict[tuple[int, Any], list[_Delete]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.vectors or self.by_path or self.by_partition)

    def add(self, url: str, io: Any, manifest: Any) -> None:
        """Adds what a manifest of deletes records.

        Args:
            url: The table, for errors.
            io: pyiceberg's access to the manifest.
            manifest: The manifest.

        Raises:
            DataFileError: There are deletes that featstore does not read.
        """
        for entry in _read(io, manifest):
            file = entry.data_file
            delete = _delete(url, entry, manifest)
            if delete.num_bytes:
                self.vectors[file[_REFERENCED]] = delete
            elif (path := _single_path(url, file, delete)) is not None:
                self.by_path.setdefault(path, []).append(delete)
            else:
                key = manifest.partition_spec_id, file.partition
                self.by_partition.setdefault(key, []).append(delete)

    def mask_of(self, entry: Any) -> RowMask | None:
        """The mask of the data file of an entry; None if no row of it can be deleted."""
        file, sequence = entry.data_file, entry.sequence_number or 0
        vector = self.vectors.get(file.file_path)
        if vector is not None and sequence <= vector.sequence:
            # It holds the rows of all older records, too. Its encoding is that of Delta.
            found = MaskRecord("delta-vector", vector.url, vector.first, vector.num_bytes)
            return RowMask((found,), vector.num_rows)
        path = file.file_path.encode()
        of_partition = self.by_partition.get((file.spec_id, file.partition), ())
        records = [
            MaskRecord("iceberg-positions", each.url, text=file.file_path)
            for each in (*self.by_path.get(file.file_path, ()), *of_partition)
            if sequence <= each.sequence
            and (not each.bounds or each.bounds[0] <= path <= each.bounds[1])
        ]
        return RowMask(tuple(sorted(records))) if records else None


def _read(io: Any, manifest: Any) -> Iterable[Any]:
    """The live entries of a manifest, with the fields of deletion vectors, which
    `ManifestFile.fetch_manifest_entry` leaves out.
    """
    statuses = _manifests.ManifestEntryStatus
    with _avro.AvroFile[_manifests.ManifestEntry](
        io.new_input(manifest.manifest_path),
        _manifests.MANIFEST_ENTRY_SCHEMAS[_WITH_VECTORS],
        read_types={-1: _manifests.ManifestEntry, 2: _manifests.DataFile},
        read_enums={0: statuses, 101: _manifests.FileFormat, 134: _manifests.DataFileContent},
    ) as entries:
        return [entry for entry in entries if entry.status != statuses.DELETED]


def _delete(url: str, entry: Any, manifest: Any) -> _Delete:
    file, formats = entry.data_file, _manifests.FileFormat
    is_vector = file.file_format == formats.PUFFIN
    if file.content == _manifests.DataFileContent.EQUALITY_DELETES:
        found = "equality deletes"
    elif file.key_metadata is not None:
        found = "encrypted files of deletes"
    elif is_vector and None in (file[_REFERENCED], file[_OFFSET], file[_SIZE]):
        found = "deletion vectors at unknown places"
    elif not is_vector and file.file_format != formats.PARQUET:
        found = f"position deletes in {file.file_format.value.title()} files"
    elif is_vector and (file[_OFFSET] < 0 or file[_SIZE] <= _AROUND_VECTOR):
        raise _damaged(
            url,
            file,
            f"the place of a deletion vector of more than {_AROUND_VECTOR} bytes",
            f"{file[_SIZE]} bytes from byte {file[_OFFSET]} on",
        )
    else:
        lower, upper = (bounds or {} for bounds in (file.lower_bounds, file.upper_bounds))
        has_bounds = _PATHS in lower and _PATHS in upper
        sequence = entry.sequence_number
        return _Delete(
            sequence=manifest.sequence_number if sequence is None else sequence,
            url=absolute(file.file_path),
            first=file[_OFFSET] if is_vector else 0,
            num_bytes=file[_SIZE] - _AROUND_VECTOR if is_vector else 0,
            num_rows=file.record_count,
            bounds=(lower[_PATHS], upper[_PATHS]) if has_bounds else (),
        )
    raise unreadable(url, found, file.file_path)


def _damaged(url: str, file: Any, expected: str, found: str) -> DataFileError:
    return DataFileError(
        f"{redact(url)}: expected {expected} in a manifest of deletes, found {found} for "
        f"{redact(file.file_path)}: the manifest is damaged; open an older version of the table"
    )


def _single_path(url: str, file: Any, delete: _Delete) -> str | None:
    """The path of the only data file of which a file of position deletes has rows; None if there
    may be others.

    Raises:
        DataFileError: The bounds are no path.
    """
    if file[_REFERENCED] is not None:
        return str(file[_REFERENCED])
    if delete.bounds and delete.bounds[0] == delete.bounds[1]:
        try:
            return bytes(delete.bounds[0]).decode()
        except UnicodeDecodeError:
            raise _damaged(url, file, "the path of a data file", f"{delete.bounds[0]!r}") from None
    return None


def unreadable(url: str, found: str, path: str) -> DataFileError:
    """The error for a table with files that featstore does not read, of which one is named."""
    return DataFileError(
        f"{redact(url)} is an Iceberg table with {found}, which featstore does not read: expected "
        f"a table without, found {redact(path)}; rewrite its data files with another engine, such "
        f"as by Spark's procedure rewrite_data_files"
    )
