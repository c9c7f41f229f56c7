from collections.abc import Callable

from typing_extensions import Buffer

def hash_texts(data: Buffer, offsets: Buffer, hashes: Buffer, seed: int) -> None:
    """XXH64 of `data[offsets[i]:offsets[i + 1]]` into `hashes`: offsets int32 `(num_texts + 1,)`,
    hashes uint64.
    """

def hash_decimals(values: Buffer, hashes: Buffer, seed: int) -> None:
    """XXH64 of the shortest decimal text of each int64 into `hashes`, uint64 `(num_values,)`."""

def sign_rows(members: tuple[Buffer, ...], signs: Buffer, seed: int) -> None:
    """Each row's members (uint64 `(num_rows,)`) chained from `seed`, 63 bits, 0 as 1, into `signs`,
    uint64.
    """

def count_marks(values: Buffer, width: int) -> int:
    """How many of 2^18 bits the values of `width` bytes, 4 or 8, mark; see
    `featstore.table.encoding`.
    """

def fill_nulls(values: Buffer, bits: Buffer, first_bit: int, mark: bytes) -> None:
    """Writes `mark` (4 or 8 bytes) over `values[i]` where bit `first_bit + i` of Arrow's bitmap is
    not set.
    """

def lists_without_nulls(
    offsets: Buffer,
    offset_width: int,
    bits: Buffer,
    first_bit: int,
    values: Buffer,
    value_bits: Buffer,
    first_value_bit: int,
    mark: bytes,
    new_offsets: Buffer,
    new_values: Buffer,
) -> int:
    """Lists whose null elements are dropped and of which a null one is one mark: offsets int64 from
    0, and the values' number.

    Bitmaps as in `fill_nulls`; of no bytes where nothing is null.
    """

def rebase_offsets(offsets: Buffer, offset_width: int, cuts: Buffer, rebased: Buffer) -> None:
    """The offsets of rows `cuts[i]` to `cuts[i + 1]` (int64), for each i from 0, one after the
    other into `rebased`, int64.
    """

def gather(
    values: Buffer,
    width: int,
    offsets: Buffer,
    offset_width: int,
    rows: Buffer,
    cuts: Buffer,
    starts: Buffer,
    ends: Buffer,
    out: Buffer,
) -> None:
    """Rows `rows[cuts[i]:cuts[i + 1]]` (int32) to the bytes `starts[i]` to `ends[i]` of `out`.

    A row is `width` bytes of the values, or, with `offsets`, a list of such values. `cuts`,
    `starts`, `ends`: int64.
    """

def gather_offsets(
    offsets: Buffer, offset_width: int, num_values: int, rows: Buffer, cuts: Buffer, out: Buffer
) -> None:
    """The offsets, int64, that the lists `gather` writes have in their parts, each part's from 0,
    one more than its rows.
    """

def mark_values(
    values: Buffer, width: int, bits: Buffer, bound: int, small: Buffer
) -> tuple[int, int]:
    """Marks a slot's values (int64 signs, or float32) in `bits`, a byte each, and writes the hashes
    below `bound` to `small`, int64, with room for more than all; how many values are missing, and
    how many hashes were written."""

def crc32(data: Buffer, before: int, portable: bool) -> int:
    """The CRC-32 of bytes that follow those whose CRC-32 is `before`, as zlib's; `portable`: by
    tables, as on any CPU.
    """

def first_damaged(file: int, spans: Buffer, room: Buffer) -> int:
    """The first of the column chunks of an open Parquet file, each an int64 first byte and the byte
    after its last, that is not made of whole pages or has a page whose bytes do not have the
    checksum in its header; -1 where there is none. Pages without a checksum are passed over.
    `room`: memory that a page's header must fit in."""

def walk_footer(
    data: Buffer, widths: Buffer, structs: Buffer, fields: Buffer
) -> tuple[int | bytes, ...]:
    """The structs of a Parquet footer as rows of numbers, int64, by the plan of
    `featstore.parquet.format`: what is wrong, as `featstore.parquet.walk` numbers it, the byte at
    which the wrong field begins, both 0 where nothing is, and the rows of each table. `widths`: the
    numbers of a row of each table. MemoryError where there is no memory for the rows."""

def first_beyond(file: int, chunks: Buffer, stop: Buffer, room: Buffer) -> int:
    """The first of the column chunks (as of `decode_columns`, of any codec) of an open file whose
    page headers claim more levels than it has values, or more bytes than its pages may; -1 where
    there is none, or once `stop` is not 0. `room`: memory that a page's header must fit in."""

def decode_columns(
    file: int,
    chunks: Buffer,
    rows: Buffer,
    columns: tuple[tuple[bytes, int, int, int, Buffer, Buffer], ...],
    room: Buffer,
    num_threads: int,
    stop: Buffer,
    checks: bool,
    decompress: Callable[[bytes, int], bytes],
) -> tuple[int, ...]:
    """Reads and decodes the column chunks of some row groups of an open Parquet file, in so many
    threads, 1 to 64: how many values each column has then, or -1 where a chunk cannot be read, is
    damaged, or is encoded in a way that is not known here, or -2 - i where the pages of its chunk
    in the i-th row group claim more levels, or more bytes, than they may.

    `chunks`: int64 (columns, row groups, 5), a chunk's first byte, its bytes, its codec as Parquet
    numbers it (0 none, 1 snappy, 6 Zstandard, whose pages `decompress(page, size)` decompresses),
    its values by the footer, and the bytes that each of its pages may claim. `rows`: int64, of each
    row group. A column is `(mark, max_repetition, max_definition, null_below, offsets, values)`: a
    definition level of `max_definition` is a value as long as the mark (4 or 8 bytes), one below
    `null_below` becomes the mark, others are nothing. `offsets`: int32, one more than all rows, of
    lists, which have `max_repetition` 1, else of no bytes. `values`: room for as many as there are
    levels. `room`: memory of the threads, each of which keeps a chunk there as it is stored, its
    dictionary and one page, and 64 bytes more. `checks`: a page that does not have the checksum in
    its header is damaged. Ends early once the first byte of `stop` is not 0. ValueError for
    arguments that do not fit.
    """
