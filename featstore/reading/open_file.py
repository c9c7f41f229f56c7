"""A data file that is open for reading: its footer, checked, and the bytes of its columns."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from featstore.closing import Closing
from featstore.errors import DataFileError, FeatstoreError, StateError
from featstore.parquet.bounds import CLAIMS_MORE, first_beyond
from featstore.parquet.damage import DAMAGE, first_line
from featstore.parquet.file_schema import Leaf
from featstore.parquet.footers import Chunk, read_checked
from featstore.reading.file_columns import ColumnCache, FileColumns, Selection
from featstore.reading.kept import KeptSpans

_WIDTHS = {"INT64": 8, "DOUBLE": 8, "INT32": 4, "FLOAT": 4, "BOOLEAN": 1, "INT96": 8}


class OpenFile(Closing):
    """One Parquet file, by local path or open for reading. Whoever opened it closes it, or uses it
    as a context manager. Not thread-safe, but for `cancelled`.
    """

    def __init__(
        self,
        source: Path | BinaryIO,
        name: str | None = None,
        *,
        is_checked: bool = False,
        size_bytes: int | None = None,
        cancelled: bytes | bytearray = b"\0",
        column_cache: ColumnCache | None = None,
    ) -> None:
        """Reads and checks the footer.

        Args:
            source: A local path, or a seekable file that is open for reading.
            name: What errors call the file: its path in the table rather than where it was staged.
            is_checked: Pages were compared with their checksums since they came here. Otherwise
                they are compared as they are decoded, where they have a checksum.
            size_bytes: The file's size where `source` holds no more than its last bytes.
            cancelled: One byte. Once another thread sets it to something else than 0, columns that
                are being read are given up with StateError.
            column_cache: Shared by the files that one thread opens one after the other.

        Raises:
            DataFileError: There is no such file, or its footer is damaged.
        """
        self.name, self.is_checked = name or str(source), is_checked
        self.cancelled, self._column_cache = cancelled, column_cache or ColumnCache()
        self._local: pa.OSFile | None = None
        self._files: dict[tuple[str, ...] | None, pq.ParquetFile] = {}
        try:
            self._local = pa.OSFile(str(source)) if isinstance(source, Path) else None
            self._kept = KeptSpans(source) if not isinstance(source, Path) else None
            opened: Any = self._kept or self._local
            self._source: BinaryIO = opened
            self.footer = read_checked(self._source, size_bytes)
            self.schema: pa.Schema = self.footer.schema
        except FileNotFoundError:
            raise DataFileError(
                f"{self.name}: expected a data file, found none; was it vacuumed?"
            ) from None
        except DAMAGE as error:
            self.close()
            what = f"expected a Parquet file, found something else: {first_line(error)}"
            raise DataFileError(f"{self.name}: {what}") from error
        self.row_group_rows = self.footer.row_group_rows

    @property
    def num_rows(self) -> int:
        return sum(self.row_group_rows)

    @property
    def key_values(self) -> dict[bytes, bytes]:
        """What the writer said of the file."""
        return self.footer.key_values

    def leaf(self, place: int) -> Leaf:
        """The leaf column at a place of the file."""
        return self.footer.leaves[place]

    def chunk(self, row_group: int, place: int) -> Chunk:
        """The column chunk of a leaf column in a row group."""
        return self.footer.chunk(row_group, place)

    @cached_property
    def file(self) -> pq.ParquetFile:
        """The file with all of its columns, as Arrow reads it; closed with the footer."""
        return self.arrow_file(None)

    def arrow_file(self, columns: FileColumns | None) -> pq.ParquetFile:
        """The file with the columns of a selection alone, None for all, as Arrow reads it; closed
        with the footer. Its leaf columns are numbered anew."""
        key = None if columns is None else columns.names
        if key not in self._files:
            self._files[key] = self._opened(columns)
        return self._files[key]

    def reopened(self, columns: FileColumns, buffer_bytes: int) -> pq.ParquetFile:
        """As `arrow_file`, read by so many bytes at a time instead of a column chunk."""
        return self._opened(columns, buffer_size=buffer_bytes)

    def _opened(self, columns: FileColumns | None, **options: int) -> pq.ParquetFile:
        with damage_as(self.name):
            return pq.ParquetFile(
                self._source,
                metadata=self.metadata_of(None if columns is None else columns.names),
                page_checksum_verification=not self.is_checked,
                **options,
            )

    def metadata_of(
        self, names: Collection[str] | None, *, with_statistics: bool = False
    ) -> pq.FileMetaData:
        """The footer as Arrow has it, with the columns of these names alone, None for all."""
        by_name = self.footer.file_schema.by_name
        places = None if names is None else [place for name in names for place in by_name[name]]
        with damage_as(self.name):
            return self.footer.arrow_metadata(places, with_statistics=with_statistics)

    @property
    def is_local(self) -> bool:
        """Whether the file is on this machine, and has a descriptor."""
        return self._local is not None

    @property
    def descriptor(self) -> int:
        """The number by which the operating system knows the open file."""
        assert self._local is not None
        return int(self._local.fileno())

    @contextmanager
    def kept(self, row_group: int, places: Iterable[int]) -> Iterator[None]:
        """Fetches these column chunks of a file that is read in place, and keeps them in memory
        until the end of the block; of a local file nothing."""
        if self._kept is None:
            yield
            return
        self._kept.keep(self.chunk(row_group, place).span for place in places)
        try:
            yield
        finally:
            self._kept.keep(())

    def read_at(self, num_bytes: int, first: int) -> bytes:
        """So many bytes of the file, fewer where it ends before."""
        self._source.seek(first)
        return self._source.read(num_bytes)

    def require_within(self, row_group: int, places: Iterable[tuple[int, str]]) -> None:
        """Looks through the pages of leaf columns, of which errors name the columns, before Arrow
        reads them: DataFileError where they claim more than the footer's numbers allow."""
        names = dict(places)
        file = self.descriptor if self.is_local else self.read_at
        found = first_beyond(self.footer, row_group, list(names), file, self.cancelled)
        self.require_not_cancelled()
        if found is not None:
            raise self.beyond_bounds(row_group, names[found])

    def beyond_bounds(self, row_group: int, column: str) -> DataFileError:
        """The error of a column chunk whose pages claim more than they may."""
        where = f"{self.name}: column {column!r}: row group {row_group}"
        return DataFileError(f"{where} cannot be read: {CLAIMS_MORE}")

    def require_not_cancelled(self) -> None:
        """StateError once `cancelled` is not 0."""
        if self.cancelled[0]:
            raise StateError(f"{self.name}: reading was cancelled before its end; iterate anew")

    def decoded_bytes(self, row_group: int, columns: FileColumns) -> int:
        """The memory that these columns of a row group take when decoded."""
        num_rows = self.row_group_rows[row_group]
        return sum(
            _decoded_bytes(self.leaf(place), self.chunk(row_group, place), num_rows)
            for places in columns.places.values()
            for place in places
        )

    def room_bytes(self, row_groups: Sequence[int], columns: FileColumns) -> int:
        """The memory that the longest of these column chunks takes while it is decoded, besides the
        decoded column: as it is stored and as it is decompressed."""
        places = [place for found in columns.places.values() for place in found]
        return self.footer.room_bytes(row_groups, places)

    def resolve(self, selection: Selection) -> FileColumns:
        """Where the selected columns are in this file.

        Raises:
            DataFileError: A column has a type that cannot be what was selected, or two columns have
                its name or its number, so that nothing says which of them is meant.
        """
        return self._column_cache.of(self.footer.file_schema, selection, self.name)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        if self._local is not None:
            self._local.close()


@contextmanager
def damage_as(where: str) -> Iterator[None]:
    """What pyarrow raises on damaged bytes inside, as DataFileError that begins with `where`."""
    try:
        yield
    except FeatstoreError:
        raise
    except DAMAGE as error:
        raise DataFileError(f"{where}: cannot be read: {first_line(error)}") from error


def _decoded_bytes(leaf: Leaf, chunk: Chunk, num_rows: int) -> int:
    """Values, offsets of lists and texts, and validity bits."""
    width = _WIDTHS.get(leaf.physical_type)
    values = (
        chunk.num_values * width if width is not None else chunk.raw_bytes + 4 * chunk.num_values
    )
    offsets = 4 * num_rows if "." in leaf.path else 0
    return int(values + offsets + chunk.num_values // 4)
