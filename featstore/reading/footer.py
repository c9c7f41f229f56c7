"""An open data file: its footer, checked, and the columns in it that a selection asks for."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from featstore.errors import DataFileError, FeatstoreError, not_once
from featstore.parquet.bounds import CLAIMS_MORE, first_beyond
from featstore.parquet.damage import DAMAGE, first_line
from featstore.parquet.file_schema import Leaf
from featstore.parquet.footers import Chunk, read_checked
from featstore.reading.kept import KeptSpans
from featstore.schema import FIELD_ID, ROLE, SLOT, Role, Slot

_WIDTHS = {"INT64": 8, "DOUBLE": 8, "INT32": 4, "FLOAT": 4, "BOOLEAN": 1, "INT96": 8}


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The columns that a job reads: slots, found by number and then by name, and other columns,
    found by name.
    """

    slots: tuple[Slot, ...] = ()
    others: tuple[pa.Field, ...] = ()

    def without(self, other: "Selection") -> "Selection":
        """The columns that another selection does not have."""
        slots, others = {slot.name for slot in other.slots}, {field.name for field in other.others}
        return Selection(
            slots=tuple(slot for slot in self.slots if slot.name not in slots),
            others=tuple(field for field in self.others if field.name not in others),
        )


@dataclass(frozen=True, kw_only=True)
class FileColumns:
    """A selection in one file: for each selected name the file's column, or None where the file has
    none.

    `places`: the numbers of the leaf columns below each column of the file that is read.
    """

    slots: Mapping[str, str | None]
    others: Mapping[str, str | None]
    leaves: tuple[str, ...]
    places: Mapping[str, range] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The file's columns that are read, in the file's order."""
        return tuple(self.places)

    def column_of(self, leaf: str) -> str:
        """The column that a leaf column is below."""
        leaves = iter(self.leaves)
        return next(
            (name for name, found in self.places.items() if leaf in islice(leaves, len(found))),
            leaf,
        )

    def places_of(self, leaves: Collection[str]) -> list[tuple[int, str]]:
        """The numbers of these leaf columns, and the column that each is below."""
        numbered = ((place, name) for name, places in self.places.items() for place in places)
        wanted = set(leaves)
        return [found for found, leaf in zip(numbered, self.leaves, strict=True) if leaf in wanted]

    def leaves_besides(self, names: Collection[str]) -> list[str]:
        """The leaf columns but those below columns of these names."""
        leaves = iter(self.leaves)
        return [
            leaf
            for name, found in self.places.items()
            for leaf in islice(leaves, len(found))
            if name not in names
        ]


class Footer:
    """One Parquet file, by local path or open for reading; close() it, or use it as a context
    manager. Not thread-safe.

    `name` is what errors call the file: its path in the table rather than where it was staged.
    Pages are compared with their checksums as they are decoded, where they have one, unless
    `is_checked` says that they were since they came here.
    """

    def __init__(
        self,
        source: Path | BinaryIO,
        name: str | None = None,
        *,
        is_checked: bool = False,
        size_bytes: int | None = None,
    ) -> None:
        """`size_bytes`: the file's size where `source` holds no more than the last bytes of it."""
        self.name, self.is_checked = name or str(source), is_checked
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
        found = first_beyond(self.footer, row_group, list(names), file, self.stop)
        self.require_wanted()
        if found is not None:
            raise self.beyond_bounds(row_group, names[found])

    def beyond_bounds(self, row_group: int, column: str) -> DataFileError:
        """The error of a column chunk whose pages claim more than they may."""
        where = f"{self.name}: column {column!r}: row group {row_group}"
        return DataFileError(f"{where} cannot be read: {CLAIMS_MORE}")

    @property
    def stop(self) -> bytes | bytearray:
        """A byte: once it is not 0, what is being decoded is not wanted any more."""
        return b"\0"

    def require_wanted(self) -> None:
        """StateError once `stop` is not 0."""

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
        """Finds the selected columns. DataFileError where one has a type that cannot be what was
        selected, and where two columns have its name or its number: nothing says which of them is
        meant."""
        by_number = self._numbered({slot.number for slot in selection.slots})
        slots = {
            slot.name: self._slot_column(slot, by_number.get(slot.number))
            for slot in selection.slots
        }
        others = {field.name: self._other_column(field) for field in selection.others}
        wanted = {name for name in (*slots.values(), *others.values()) if name is not None}
        places = self._places(wanted)
        leaves = tuple(self.leaf(i).path for found in places.values() for i in found)
        return FileColumns(slots=slots, others=others, leaves=leaves, places=places)

    def _numbered(self, numbers: Collection[int | None]) -> dict[int | None, pa.Field]:
        """The slot columns of these numbers. Most of a file's columns are none of them, and to
        describe each takes long.
        """
        wanted = dict[int | None, pa.Field]()
        for column in self.schema:
            number = _slot_number(column)
            if number is None or number not in numbers or Slot.from_field(column) is None:
                continue
            if number in wanted:
                raise DataFileError(
                    f"{self.name}: expected one column of slot number {number}, found "
                    f"{wanted[number].name!r} and "
                    f"{column.name!r}; write the file anew without one of them"
                )
            wanted[number] = column
        return wanted

    def _slot_column(self, slot: Slot, numbered: pa.Field | None) -> str | None:
        field = self._field(slot.name if numbered is None else numbered.name)
        if field is None or pa.types.is_null(field.type):
            return None
        found = Slot.from_field(field)
        if (
            found is not None
            and None not in (found.number, slot.number)
            and found.number != slot.number
        ):
            return None
        if found is None or found.kind is not slot.kind or not _fits(found, slot):
            raise DataFileError(
                f"{self.name}: column {field.name!r}: expected {slot.arrow_type()}, found "
                f"{field.type}"
            )
        return str(field.name)

    def _other_column(self, expected: pa.Field) -> str | None:
        field = self._field(expected.name)
        if field is None or pa.types.is_null(field.type) or _is_slot(field):
            return None
        if field.type != expected.type and not (
            _is_number(field.type) and _is_number(expected.type)
        ):
            raise DataFileError(
                f"{self.name}: column {field.name!r}: expected {expected.type}, found {field.type}"
            )
        return str(field.name)

    def _field(self, name: str) -> pa.Field | None:
        """The column of this name, None where there is none."""
        found = self.footer.file_schema.by_name.get(name, ())
        if len(found) > 1:
            raise DataFileError(f"{self.name}: {not_once(name, len(found))}")
        return self.schema.field(found[0]) if found else None

    def _places(self, wanted: Collection[str]) -> dict[str, range]:
        """The numbers of the leaf columns below the wanted ones, in the file's order."""
        by_name, roots = self.footer.file_schema.by_name, self.footer.file_schema.roots
        chosen = sorted(by_name[name][0] for name in wanted)
        return {roots[place].name: roots[place].leaves for place in chosen}

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        if self._local is not None:
            self._local.close()

    def __enter__(self) -> "Footer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextmanager
def damage_as(where: str) -> Iterator[None]:
    """What pyarrow raises on damaged bytes inside, as DataFileError that begins with `where`."""
    try:
        yield
    except FeatstoreError:
        raise
    except DAMAGE as error:
        raise DataFileError(f"{where}: cannot be read: {first_line(error)}") from error


def _fits(found: Slot, expected: Slot) -> bool:
    """Whether values of the found shape can be delivered in the expected one."""
    if not found.shape or not expected.shape:
        return found.shape == expected.shape
    return expected.is_list or found.is_list or found.width == expected.width


def _slot_number(field: pa.Field) -> int | None:
    metadata = field.metadata or {}
    number = metadata.get(SLOT, metadata.get(FIELD_ID) if ROLE in metadata else None)
    return None if number is None else int(number)


def _is_slot(field: pa.Field) -> bool:
    """Whether the file says so: a slot that has since been renamed is not the label or kept column
    that took its name.
    """
    return (field.metadata or {}).get(ROLE) == Role.SLOT.encode()


def _is_number(type_: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(is_kind(type_) for is_kind in kinds)


def _decoded_bytes(leaf: Leaf, chunk: Chunk, num_rows: int) -> int:
    """Values, offsets of lists and texts, and validity bits."""
    width = _WIDTHS.get(leaf.physical_type)
    values = (
        chunk.num_values * width if width is not None else chunk.raw_bytes + 4 * chunk.num_values
    )
    offsets = 4 * num_rows if "." in leaf.path else 0
    return int(values + offsets + chunk.num_values // 4)
