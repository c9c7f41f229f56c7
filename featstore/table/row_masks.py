"""Rows that a table format deletes without writing their data file again: where they are recorded,
and which they are.

Delta's deletion vectors and those of Iceberg are Roaring bitmaps of 64 bits in one encoding, which
pyroaring reads; they differ in what lies around it. Formats:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vectors
https://github.com/RoaringBitmap/RoaringFormatSpec#extension-for-64-bit-implementations
"""

import contextlib
import functools
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from featstore.base.errors import DataFileError
from featstore.base.redaction import redact
from featstore.files.storage import open_read
from featstore.native.columns import Numbers, lines, numbers, texts
from featstore.native.damage import damage_as, first_line
from featstore.native.footers import read_checked
from featstore.table.layout import is_whole

# The rows of so many files are kept in memory: a file is opened once for each of its splits.
_NUM_KEPT = 16
_DELTA_MAGIC = 1681511377
# How Parquet files hold a path; some writers do not mark it as text.
_TEXTS = (
    *(pa.types.is_string, pa.types.is_large_string),
    *(pa.types.is_binary, pa.types.is_large_binary),
)
_quoted = json.encoder.encode_basestring
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
# The digit that each byte is; 85: none.
_DIGITS = np.array([_Z85.find(byte) % 86 for byte in range(256)], np.int64)
_POWERS = 85 ** np.arange(4, -1, -1)


class MaskRecord(NamedTuple):
    """Where a table format records deleted rows of a data file.

    Attributes:
        kind: How they are written there; a key of `row_masks.READERS`.
        url: The file that holds the record; empty if the table's log does.
        first: The first byte of the record in that file.
        num_bytes: The bytes of the record; 0 for the whole file.
        text: The record itself if the log holds it, or what else its reader has to know, such as
            the name that a record of several data files has for this one.
    """

    kind: str
    url: str = ""
    first: int = 0
    num_bytes: int = 0
    text: str = ""


class RowMask(NamedTuple):
    """The rows of a data file that its table has deleted without writing the file again. They keep
    their positions, and are never delivered. `row_masks.deleted_rows` loads them.

    Attributes:
        records: The records whose rows together are deleted.
        num_deleted: The number of deleted rows; None if the table does not tell.
    """

    records: tuple[MaskRecord, ...]
    num_deleted: int | None = None

    def to_json(self, root: str = "") -> str:
        """The mask as text, which identifies the deleted rows as long as no file changes.

        Args:
            root: What the URLs of records are written without.
        """
        number = "null" if self.num_deleted is None else f"{self.num_deleted}"
        records = list[str]()
        for record in self.records:
            before, after = _around(record, root)
            records.append(f"{before}{record.first}, {record.num_bytes}{after}")
        return f"[{', '.join((number, *records))}]"

    @classmethod
    def from_json(cls, text: str, root: str = "") -> "RowMask":
        """The mask of a text that `to_json` made with the same root."""
        num_deleted, *found = json.loads(text)
        records = [MaskRecord(*fields) for fields in found]
        return cls(
            tuple(record._replace(url=_whole(record.url, root)) for record in records), num_deleted
        )


def texts_of_masks(
    root: str,
    records: Sequence[MaskRecord],
    of: Numbers,
    num_deleted: pa.Array,
    firsts: pa.Array,
    num_bytes: pa.Array,
) -> pa.Array:
    """What `RowMask.to_json` makes of masks of one record each: large_binary (num_masks,). It takes
    a tenth of the time that objects do.

    Args:
        root: As of `to_json`.
        records: Records, each of which several masks may have, with places and sizes of their own.
        of: The record of each mask, an index in `records`.
        num_deleted: `RowMask.num_deleted` of each, int64.
        firsts: `MaskRecord.first` of each, int64.
        num_bytes: `MaskRecord.num_bytes` of each, int64.
    """
    pairs = [_around(record, root) for record in records]
    before, after = (texts(pair[side] for pair in pairs).take(numbers(of)) for side in (0, 1))
    return lines("[", num_deleted, ", ", before, firsts, ", ", num_bytes, after, "]")


def _around(record: MaskRecord, root: str) -> tuple[str, str]:
    """The text of a record before its place and size, and after them."""
    # Only texts are left to an encoder: to make one for each list takes four times as long.
    before = f"[{_quoted(record.kind)}, {_quoted(_below(record.url, root))}, "
    return before, f", {_quoted(record.text)}]"


def num_deleted_in(text: bytes) -> int | None:
    """`RowMask.num_deleted` of a text that `to_json` made. A table may have one for each file."""
    number = text[1:].partition(b",")[0].rstrip(b"]")
    return None if number == b"null" else int(number)


def _whole(url: str, root: str) -> str:
    if is_whole(url):
        return url
    return f"{root}{url}" if url else ""


def _below(url: str, root: str) -> str:
    rest = url.removeprefix(root)
    return url if is_whole(rest) else rest


@functools.lru_cache(maxsize=_NUM_KEPT)
def deleted_rows(mask: RowMask, path: str, num_rows: int) -> Numbers:
    """Loads the positions of the deleted rows of a data file.

    Args:
        mask: The file's mask.
        path: The file, for errors.
        num_rows: The rows of the file, deleted ones included.

    Returns:
        int64 (num_deleted,), ascending, each once. Read-only, since callers share it.

    Raises:
        DataFileError: A record is gone, damaged, or not of this file.
        StoreError: The store failed.
    """
    found = [READERS[record.kind](record, path, num_rows) for record in mask.records]
    rows: Numbers = np.unique(np.concatenate([np.zeros(0, np.int64), *found]))
    if len(rows) and not 0 <= rows[0] <= rows[-1] < num_rows:
        raise DataFileError(
            f"{path}: deleted rows: expected rows of the file, 0 to {num_rows - 1}, found "
            f"{rows[0]} to {rows[-1]} in {_places(mask)}: the record is of another file"
        )
    if mask.num_deleted is not None and len(rows) != mask.num_deleted:
        raise DataFileError(
            f"{path}: deleted rows: expected {mask.num_deleted}, as the table says, found "
            f"{len(rows)} in {_places(mask)}: restore it from a copy"
        )
    rows.setflags(write=False)
    return rows


def _delta_vector(record: MaskRecord, path: str, num_rows: int) -> Numbers:
    """The rows of a Delta deletion vector, in a file or in the log."""
    if min(record.first, record.num_bytes) < 0:
        raise damaged(record, path, "a vector at a place, with a size")
    if record.url:
        # The size, the vector and its checksum.
        data = read_record(record._replace(num_bytes=record.num_bytes + 8), path)
        size, vector, checksum = data[:4], data[4:-4], data[-4:]
        is_complete = len(vector) == int.from_bytes(size, "big") == record.num_bytes
        if not is_complete or zlib.crc32(vector) != int.from_bytes(checksum, "big"):
            raise damaged(record, path, "a vector of its size that matches its checksum")
    else:
        try:
            vector = decode_base85(record.text)[: record.num_bytes]
        except ValueError:
            raise damaged(record, path, "base85 text") from None
    if int.from_bytes(vector[:4], "little") != _DELTA_MAGIC:
        raise damaged(record, path, f"the magic number {_DELTA_MAGIC}")
    return roaring_rows(vector[4:], record, path, num_rows)


def _iceberg_positions(record: MaskRecord, path: str, num_rows: int) -> Numbers:
    """The rows of one data file in a file of Iceberg's position deletes, which may be of several:
    `record.text` is the name that it has there. Row groups whose bounds exclude it are not read.
    """

    def unreadable(error: Exception) -> DataFileError:
        return damaged(record, path, f"a Parquet file ({first_line(error)})")

    rows: list[Numbers] = [np.zeros(0, np.int64)]
    with _opened(record, path) as source, damage_as(unreadable, path):
        footer = read_checked(source)
        if not _has_positions(footer.schema):
            raise damaged(record, path, "the columns file_path (string) and pos (long)")
        file = pq.ParquetFile(
            source,
            metadata=footer.arrow_metadata(with_statistics=True),
            pre_buffer=False,
            read_dictionary=["file_path"],  # a quarter of the time
        )
        for batch in file.iter_batches(
            row_groups=_row_groups_of(file.metadata, record.text),
            columns=["file_path", "pos"],
            use_threads=False,
        ):
            if any(column.null_count for column in batch.columns):
                raise damaged(record, path, "a path and a position in every row")
            paths, positions = batch.column("file_path"), batch.column("pos")
            name = pa.scalar(record.text).cast(paths.dictionary.type)
            is_own = pc.equal(paths.indices, pc.index(paths.dictionary, name))  # -1 for none
            rows.append(np.from_dlpack(positions.filter(is_own).cast(pa.int64())))
    return np.concatenate(rows)


def _has_positions(schema: pa.Schema) -> bool:
    """Whether a file of position deletes has their columns, once each."""
    found = [schema.get_field_index(name) for name in ("file_path", "pos")]
    if -1 in found:
        return False
    path, position = (schema.field(place).type for place in found)
    if pa.types.is_dictionary(path):
        path = path.value_type
    return any(is_kind(path) for is_kind in _TEXTS) and pa.types.is_integer(position)


def _row_groups_of(metadata: pq.FileMetaData, name: str) -> list[int]:
    """The row groups of a file of position deletes, which is sorted by data files, whose bounds do
    not exclude a data file.
    """
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    place = paths.index("file_path")
    bounds = [
        metadata.row_group(index).column(place).statistics
        for index in range(metadata.num_row_groups)
    ]
    return [
        index
        for index, of in enumerate(bounds)
        if of is None or not of.has_min_max or of.min_raw <= name.encode() <= of.max_raw
    ]


def decode_base85(text: str) -> bytes:
    """The bytes of a text in the alphabet of ZeroMQ, of five characters for each four bytes.

    Raises:
        ValueError: It is none.
    """
    digits = _DIGITS[np.frombuffer(text.encode("ascii"), np.uint8)]
    if len(digits) % 5 or (digits == 85).any():
        raise ValueError("a text that is no base85")
    words = digits.reshape(-1, 5) @ _POWERS
    if (words >> 32).any():
        raise ValueError("five characters of base85 that are more than four bytes")
    return words.astype(">u4").tobytes()


def read_record(record: MaskRecord, path: str) -> bytes:
    """The bytes of a record in a file, fewer if the file ends before.

    Raises:
        DataFileError: The file is gone.
        StoreError: The store failed.
    """
    with _opened(record, path) as file:
        # Not more than is there, whatever the record says: memory is taken before it is read.
        left = file.seek(0, os.SEEK_END) - record.first
        if left <= 0:
            return b""
        file.seek(record.first)
        return file.read(min(record.num_bytes, left))


@contextlib.contextmanager
def _opened(record: MaskRecord, path: str) -> Iterator[BinaryIO]:
    try:
        with open_read(record.url) as file:
            yield file
    except FileNotFoundError:
        raise DataFileError(
            f"{path}: deleted rows: expected them in {redact(record.url)}, found no such file: "
            f"restore it, or open a version of the table whose files are there"
        ) from None


def roaring_rows(data: bytes, record: MaskRecord, path: str, num_rows: int) -> Numbers:
    """The rows of a Roaring bitmap of 64 bits in its portable encoding: int64, ascending, at most
    as many as the data file has, whatever the bitmap declares.
    """
    from pyroaring import BitMap64  # Few tables have row masks, and each command would load it.

    try:
        found = BitMap64.deserialize(data)
    except (IndexError, ValueError):
        raise damaged(record, path, "a Roaring bitmap") from None
    if len(found) > num_rows:
        raise damaged(record, path, f"a Roaring bitmap of at most {num_rows} rows")
    return np.array(found.to_array(), np.uint64).astype(np.int64)


def damaged(record: MaskRecord, path: str, expected: str) -> DataFileError:
    """The error for a record that is not what it should be."""
    return DataFileError(
        f"{path}: deleted rows: expected {expected}, found other bytes in {_place(record)}: "
        f"restore it from a copy"
    )


def _places(mask: RowMask) -> str:
    return ", ".join(map(_place, mask.records))


def _place(record: MaskRecord) -> str:
    return f"{redact(record.url)} at byte {record.first}" if record.url else "the table's log"


# How the records of each kind are read: called with the record, and the path and the number of rows
# of the data file; the rows are int64, in any order.
READERS: Mapping[str, Callable[[MaskRecord, str, int], Numbers]] = {
    "delta-vector": _delta_vector,
    "iceberg-positions": _iceberg_positions,
}
