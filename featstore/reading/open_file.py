"""An open data file: its checked footer, and access to the bytes of its columns."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.base.closing import Closing, cleaned_up_on_failure
from featstore.base.errors import DataFileError, StateError
from featstore.base.processes import cached_property
from featstore.files.looks import exists
from featstore.native.arrow import INT96_UNIT
from featstore.native.bounds import CLAIMS_MORE, first_beyond
from featstore.native.damage import damage_as, first_line
from featstore.native.footers import read_checked, read_on
from featstore.reading.buffers import Array
from featstore.reading.file_columns import ColumnCache, FileColumns, FileLeaf, Selection
from featstore.reading.kept import KeptSpans

# A chunk that declares more bytes than this for each that it stores may be right, of one value over
# and over, but is more likely damaged. Chosen, not measured.
_MOST_INFLATION = 1_000


class OpenFile(Closing):
    """One Parquet file that is open for reading. A context manager; whoever opened it closes it.
    Not thread-safe, except for `cancelled`.

    Attributes:
        name: The file's name in errors.
        footer: Its footer.
        schema: Its Arrow schema.
        row_group_rows: Rows of each row group.
        is_checked: Whether pages were compared with their checksums already.
        cancelled: One byte; see `__init__`.
    """

    def __init__(
        self,
        source: Path | BinaryIO | Callable[[], BinaryIO],
        name: str | None = None,
        *,
        is_checked: bool = False,
        size_bytes: int | None = None,
        cancelled: bytes | bytearray = b"\0",
        column_cache: ColumnCache | None = None,
    ) -> None:
        """Reads and checks the footer.

        Args:
            source: A local path, a seekable file that is open for reading, or a function that opens
                one, which is closed with this object.
            name: The file's name in errors: its path in the table, not that of a staged copy.
            is_checked: Whether pages were compared with their checksums when the file was staged.
                If not, pages with a checksum are compared when they are decoded.
            size_bytes: The file's size, if `source` holds only its last bytes.
            cancelled: One byte. When another thread sets it to a value other than 0, reading ends
                with a StateError.
            column_cache: Shared by files that are opened one after the other.

        Raises:
            DataFileError: There is no such file, or its footer is damaged.
            StoreError: The system or the store failed.
        """
        self.name, self.is_checked = name or str(source), is_checked
        # In errors of the system, which are those of the disk that holds the bytes.
        self.where = self.name
        if isinstance(source, Path) and not str(source).endswith(self.name):
            self.where = f"{self.name} (staged as {source})"
        self.cancelled, self._column_cache = cancelled, column_cache or ColumnCache()
        self._kernel_file: BinaryIO | None = None
        self._opened_files = ExitStack()
        self._kept: KeptSpans | None = None
        self._files: dict[tuple[str, ...] | None, pq.ParquetFile] = {}
        with cleaned_up_on_failure(self.close), damage_as(self._not_opened, self.where):
            self._source: BinaryIO = self._open(source)
            self.footer = read_checked(self._source, size_bytes)
        self.schema: pa.Schema = self.footer.schema
        self.row_group_rows = self.footer.row_group_rows

    def _open(self, source: Path | BinaryIO | Callable[[], BinaryIO]) -> Any:
        if isinstance(source, Path):
            self._path = source
            self._kernel_file = self._opened_files.enter_context(source.open("rb", buffering=0))
            return self._kernel_file
        if callable(source):
            source = source()
            self._opened_files.callback(source.close)
        self._kept = KeptSpans(source)
        return self._kept

    def _not_opened(self, error: Exception) -> DataFileError:
        if isinstance(error, FileNotFoundError):
            return DataFileError(f"{self.name}: expected a data file, found none; was it vacuumed?")
        return DataFileError(
            f"{self.name}: expected a Parquet file, found something else: {first_line(error)}"
        )

    def reading(self) -> AbstractContextManager[None]:
        """Names the file in what is raised in the block; as of `damage_as`."""
        return damage_as(
            lambda error: DataFileError(f"{self.name}: cannot be read: {first_line(error)}"),
            self.where,
        )

    @property
    def num_rows(self) -> int:
        return sum(self.row_group_rows)

    def arrow_file(self, columns: FileColumns | None) -> pq.ParquetFile:
        """The file opened by Arrow with only some of its columns, whose leaf columns are numbered
        anew. Closed with this object.

        Args:
            columns: The columns; None is all.
        """
        key = None if columns is None else tuple(columns.places)
        if key not in self._files:
            self._files[key] = self._opened_files.enter_context(self.reopened(columns))
        return self._files[key]

    def reopened(self, columns: FileColumns | None, buffer_bytes: int = 0) -> pq.ParquetFile:
        """Like `arrow_file`, opened each time. Reads `buffer_bytes` at a time if given, and else
        whole column chunks.
        """
        with self.reading():
            return pq.ParquetFile(
                self._arrow_source,
                metadata=self.metadata_of(None if columns is None else tuple(columns.places)),
                pre_buffer=self.is_local,  # in threads, which may not hold Python's memory
                page_checksum_verification=not self.is_checked,
                coerce_int96_timestamp_unit=INT96_UNIT,
                buffer_size=buffer_bytes,
            )

    @cached_property
    def _arrow_source(self) -> Any:
        """What Arrow reads. A local file is opened once more, since `OSFile.fileno` of pyarrow 20
        fails: by its descriptor, as somebody may have removed it from its directory.
        """
        if not self.is_local:
            return self._source
        again = Path(f"/proc/self/fd/{self.descriptor}")
        path = again if exists(again) else self._path
        return self._opened_files.enter_context(pa.OSFile(str(path)))

    def metadata_of(
        self, names: Collection[str] | None, *, with_statistics: bool = False
    ) -> pq.FileMetaData:
        """The footer as Arrow's object, with only the columns of these names; None is all."""
        by_name = self.footer.file_schema.by_name
        places = None if names is None else [place for name in names for place in by_name[name]]
        with self.reading():
            return self.footer.arrow_metadata(places, with_statistics=with_statistics)

    @property
    def is_local(self) -> bool:
        """Whether the file is local and has a descriptor."""
        return self._kernel_file is not None

    @property
    def descriptor(self) -> int:
        """The descriptor of the open local file."""
        assert self._kernel_file is not None
        return self._kernel_file.fileno()

    @contextmanager
    def kept(self, row_group: int, places: Iterable[int]) -> Iterator[None]:
        """Within the block, keeps these column chunks of a remote file in memory, so that they are
        fetched only once. Does nothing for a local file.
        """
        if self._kept is None:
            yield
            return
        with self.reading():
            self._kept.keep(self.footer.span(row_group, place) for place in places)
        try:
            yield
        finally:
            self._kept.keep(())

    def read_at(self, num_bytes: int, first: int) -> bytes:
        """`num_bytes` of the file from byte `first` on, or fewer if it ends before."""
        self._source.seek(first)
        return read_on(self._source, num_bytes)

    def require_within(self, row_group: int, leaves: Iterable[FileLeaf]) -> None:
        """Checks the page headers of column chunks before Arrow reads the pages.

        Args:
            row_group: The row group.
            leaves: The leaf columns to read.

        Raises:
            DataFileError: Pages claim more values or bytes than the footer allows.
            StateError: Reading was cancelled.
        """
        names = {leaf.place: leaf.column for leaf in leaves}
        file = self.descriptor if self.is_local else self.read_at
        with self.reading():
            found = first_beyond(self.footer, row_group, list(names), file, self.cancelled)
        self.require_not_cancelled()
        if found is not None:
            raise self.beyond_bounds(row_group, names[found])

    def beyond_bounds(self, row_group: int, column: str) -> DataFileError:
        """The error for a column chunk whose pages claim more than the footer allows."""
        where = f"{self.name}: column {column!r}: row group {row_group}"
        return DataFileError(f"{where} cannot be read: {CLAIMS_MORE}")

    def require_not_cancelled(self) -> None:
        """StateError once `cancelled` is not 0."""
        if self.cancelled[0]:
            raise StateError(f"{self.name}: reading was cancelled before its end; iterate anew")

    def decoded_bytes(self, columns: FileColumns) -> Array:
        """The memory that these columns take once they are decoded: values, offsets of lists and
        text, and validity bits. float64 (num_row_groups, num_leaves): exact below 2^53, and without
        overflow for the numbers of a damaged footer.
        """
        chunks = self.footer.chunks_of(range(len(self.row_group_rows)), columns.leaf_places)
        sizes = self.footer.file_schema.sizes[:, columns.leaf_places]
        num_values, rows = chunks.num_values.astype(float), np.array(self.row_group_rows, float)
        found: Array = num_values * sizes[0] + chunks.raw_bytes * sizes[1] + num_values // 4
        found += rows[:, None] * sizes[2]
        return found

    def inflated(self, columns: FileColumns, most_bytes: int) -> str | None:
        """Names the first column chunk that declares more than `most_bytes`, decoded or
        decompressed, and far more than it stores; None if there is none.
        """
        row_groups, places = range(len(self.row_group_rows)), columns.leaf_places
        chunks = self.footer.chunks_of(row_groups, places)
        declared = np.maximum(chunks.raw_bytes, self.decoded_bytes(columns))
        found = np.argwhere(
            (declared > most_bytes) & (declared > _MOST_INFLATION * chunks.stored_bytes)
        ).tolist()
        if not found:
            return None
        row_group, leaf = found[0]
        path = self.footer.leaves[places[leaf]].path
        return f"{self.name}: column {path!r}: row group {row_group}"

    def resolve(self, selection: Selection) -> FileColumns:
        """The columns of this file that a selection reads; see `find_columns`."""
        return self._column_cache.of(self.footer.file_schema, selection, self.name)

    def close(self) -> None:
        self._opened_files.close()
