from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

# numpy's stubs make its arrays buffers as of Python 3.12 only.
Buffer: TypeAlias = Any

# Functions of buffers release the interpreter's lock, and raise ValueError for buffers whose sizes
# do not match. Buffers that are written must be writable and contiguous; none is kept after the
# call.

def hash_texts(data: Buffer, offsets: Buffer, hashes: Buffer, seed: int, portable: bool) -> None:
    """Writes XXH64 of each text to `hashes`.

    Args:
        data: The bytes of all texts.
        offsets: int32 (num_texts + 1,); text `i` is `data[offsets[i]:offsets[i + 1]]`.
        hashes: uint64 (num_texts,), written.
        seed: The seed of XXH64.
        portable: Whether to do without the instructions that not every CPU has.
    """

def chain_texts(data: Buffer, offsets: Buffer, hashes: Buffer) -> None:
    """Replaces each of `hashes`, uint64 (num_texts,), by XXH64 of a text with it as the seed;
    `data` and `offsets` as of `hash_texts`.
    """

def hash_decimals(values: Buffer, hashes: Buffer, seed: int, known: Buffer) -> None:
    """Writes XXH64 of the shortest decimal text of each int64 in `values` (num_values,) to
    `hashes`, uint64 (num_values,). `known`, uint64 (num_known,), holds those of 0, 1, ...; it may
    be empty.
    """

def sign_rows(members: tuple[Buffer, ...], signs: Buffer, seed: int, portable: bool) -> None:
    """Writes the sign of each row to `signs`, uint64 (num_rows,): its members, uint64 (num_rows,)
    each, chained from `seed`, cut to 63 bits, and 1 in place of 0.

    `portable` computes without the instructions that not every CPU has.
    """

def count_marks(values: Buffer, width: int) -> int:
    """The number of bits, of 2^18, that the values of `width` bytes (4 or 8) set; see
    `featstore.extraction.units.encoding`.
    """

def fill_nulls(values: Buffer, bits: Buffer, first_bit: int, mark: bytes) -> None:
    """Overwrites `values[i]` with `mark` (4 or 8 bytes) if bit `first_bit + i` of the Arrow
    validity bitmap `bits` is not set.
    """

def bucket_ids(ids: Buffer, num_remainders: int, buckets: Buffer) -> None:
    """Writes `1 + ids[i] % num_remainders` to `buckets`, and 0 where the id is 0: int64
    (num_ids,) each. The remainder is never negative.
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
    """Copies lists without their null elements; a null list becomes a single mark.

    Args:
        offsets: The offsets, of `offset_width` bytes each.
        offset_width: 4 or 8.
        bits: The validity bitmap of the lists; empty if none is null.
        first_bit: The bit of the first list.
        values: The values, each as long as `mark`.
        value_bits: The validity bitmap of the values; empty if none is null.
        first_value_bit: The bit of the first value.
        mark: The mark of a missing value, 4 or 8 bytes.
        new_offsets: int64 (num_rows + 1,), written, from 0.
        new_values: The values, written.

    Returns:
        The number of values written.
    """

def copy_ranges(values: Buffer, width: int, starts: Buffer, lengths: Buffer, out: Buffer) -> None:
    """Copies ranges of values, one after the other, to `out`, which they must fill.

    Args:
        values: Of `width` bytes each.
        width: At least 1.
        starts: int64 (num_ranges,), the first value of each range.
        lengths: int64 (num_ranges,).
        out: Written.
    """

def history_ranges(
    end: Buffer,
    length: Buffer,
    back: Buffer,
    keys: Buffer,
    sizes: Buffer,
    offsets: Buffer,
    offset_width: int,
    num_events: int,
    as_of: Buffer,
    at: Buffer,
    most_us: int,
    max_len: int,
    ranges: Buffer,
) -> tuple[int, int]:
    """Writes where the newest events of each row begin and end in the lists of all holders.

    Args:
        end: Where each row's range ends in its holder's list, int32 (num_rows,).
        length: How many events it has, int32 (num_rows,).
        back: How many rows before it the holder is, int32 (num_rows,).
        keys: The signs of the rows' keys, int64 (num_rows,).
        sizes: The rows of each row group, int64 (num_row_groups,).
        offsets: Those of the lists, (num_rows + 1,).
        offset_width: The bytes of an offset, 4 or 8.
        num_events: How many events the lists have together.
        as_of: The times of the rows, int64 (num_rows,); empty: no times are compared.
        at: The times of the events, int64 (num_events,), or empty with `as_of`.
        most_us: The time of no row with events is as far from 1970.
        max_len: The most events of a row.
        ranges: int64 (num_rows, 2), written.

    Returns:
        What is wrong with the first row whose range is not one of its own key's list, by number as
        `featstore/native/histories.h` says, and which row that is; 0 where all are right.
    """

def rebase_offsets(offsets: Buffer, offset_width: int, cuts: Buffer, rebased: Buffer) -> None:
    """Writes the offsets of rows `cuts[i]` to `cuts[i + 1]` (int64), for each i from 0, one part
    after the other, to `rebased`, int64.
    """

def pack_parts(parts: tuple[Buffer, ...], layout: Buffer, out: Buffer) -> None:
    """Copies parts of columns into one buffer.

    Args:
        parts: Each is copied as it is, or is offsets of lists.
        layout: int64 (num_parts, 2): the byte of `out` at which a part begins, and the bytes of an
            offset, 4 or 8, of parts that are offsets: these become int64, from 0, and begin at a
            multiple of 8. Otherwise 0.
        out: Written.
    """

def untrack(objects: tuple[object, ...]) -> None:
    """Ends the garbage collector's tracking of objects, which must not be part of any cycle."""

def gather_offsets(
    pieces: tuple[tuple[tuple[Buffer, ...], Buffer], ...],
    columns: Buffer,
    rows: Buffer,
    row_bits: int,
    ascends: bool,
    cuts: Buffer,
    found: Buffer,
) -> None:
    """Looks up the lists of columns, as `gather_columns` needs them.

    Args:
        pieces: The buffers of each piece, and int64 (num_columns_in_piece, 7), where its columns
            lie, as of `featstore.reading.gather.ColumnBuffers.numbers`. A piece's offsets may be of
            4 or 8 bytes whatever those of the others are, and begin anywhere; or of 16 and 32, the
            rows of `SharedLists.ranges`.
        columns: int64 (num_columns, 5): the number of the column in the pieces, the bytes of one of
            its values (1 to 8), how many values a row has (0: it is a list), and the numbers of the
            outputs of its values and of its offsets. All of them lists.
        rows: uint32 (num_rows,): the number of the piece, shifted left by `row_bits`, plus the row
            in the piece.
        row_bits: 0 to 31.
        ascends: Whether the rows of each piece ascend, so that nothing is fetched before its turn.
        cuts: Where parts begin and end: int64 (num_parts + 1,), from 0 to num_rows.
        found: int64 (num_columns, 2 * num_rows + num_parts), written: where each list begins in its
            piece, and the offsets of the lists, those of each part from 0.

    Raises:
        ValueError: The arguments do not match; there is no such row; or lists do not lie in their
            buffers.
    """

def gather_columns(
    pieces: tuple[tuple[tuple[Buffer, ...], Buffer], ...],
    columns: Buffer,
    rows: Buffer,
    row_bits: int,
    ascends: bool,
    cuts: Buffer,
    starts: Buffer,
    found: Buffer,
    outs: tuple[Buffer, ...],
    num_threads: int,
) -> None:
    """Copies rows `rows[cuts[i]:cuts[i + 1]]` of each column, for each i, to its output. Several
    threads share the columns, lists first, which take longest.

    Args:
        pieces: As of `gather_offsets`.
        columns: As of `gather_offsets`, and others.
        rows: As of `gather_offsets`.
        row_bits: As of `gather_offsets`.
        ascends: As of `gather_offsets`.
        cuts: As of `gather_offsets`.
        starts: int64 (num_columns + num_lists, num_parts): the byte of its output at which each
            part begins, of the values of all columns, and after them of the offsets of lists.
        found: As `gather_offsets` wrote it for the lists among the columns.
        outs: The outputs, written; those of offsets, which are int64, aligned to 8 bytes.
        num_threads: 1 to 64.

    Raises:
        ValueError: The arguments do not match; there is no such row; columns do not lie in their
            buffers; or an output has no room.
    """

def permute(entropy: Buffer, order: Buffer) -> None:
    """Writes an order of rows: that in which a stable sort puts as many words of numpy's Philox,
    whose key is that of `numpy.random.SeedSequence`.

    Args:
        entropy: uint32 (num_words,), the words of the integers that the sequence is made of.
        order: int64 (num_rows,), written.

    Raises:
        MemoryError: There is no memory to sort so many.
    """

def draw_rows(
    entropy: Buffer, streams: Buffer, draws: Buffer, shares: Buffer, num_shares: int
) -> tuple[int, int, int]:
    """Draws rows of open splits in rounds, see `featstore.loader.plan.shuffle`, until there is no
    room, the window of a split has no rows left, or one more share would be needed than there is
    room for.

    Args:
        entropy: uint32 (num_words,), the words of the seed and the epoch.
        streams: int64 (num_splits, 5), in the order of the splits: the position of a split in the
            plan, its rows in all, the next row of its stream, the rows that are left of its window,
            and the window's share of the mixture, -1 for none. The last three are written.
        draws: uint16 (num_rows,), written: the share to which each row belongs.
        shares: int64 (num_shares, 2), written: of each new share the row of `streams`, and of all
            their number of rows.
        num_shares: How many there are already, at most 65,536.

    Returns:
        The number of rows drawn, the number of shares, and the row of `streams` whose window has no
        rows left; -1 if each has.
    """

def place_rows(
    draws: Buffer,
    shares: tuple[tuple[Buffer, int, int, Buffer, int], ...],
    waiting: Buffer,
    row_bits: int,
    places: Buffer,
    sources: Buffer,
    passes: Buffer,
) -> int:
    """Writes where the rows of a mixture lie that are delivered, in pieces: first all rows of the
    pieces that wait, then those that are drawn.

    Args:
        draws: uint16 (num_drawn,), the share of each row.
        shares: `(rows, row_bits, first_piece, passes, source)`. `rows` is uint32, for each row of
            the share its piece of the window, shifted left by `row_bits`, plus the row in it;
            `first_piece` is the number of the window's first piece; `passes`, a byte for each row,
            says which are delivered, none stands for all.
        waiting: int64 (num_waiting,), the rows of each piece that waits.
        row_bits: 0 to 31, of the result.
        places: uint32, with room for all rows, written: the piece of each, shifted left by
            `row_bits`, plus the row in it.
        sources: int32 (num_drawn,), written: the source of each row's share.
        passes: A byte for each row that is drawn, written: whether it is delivered.

    Returns:
        The number of places written.
    """

def number_sources(
    sources: Buffer,
    passes: Buffer,
    ends: Buffer,
    num_sources: int,
    found: Buffer,
    num_found: Buffer,
    places: Buffer,
) -> int:
    """Numbers the sources of the rows of each part anew, in the order in which they come.

    Args:
        sources: int32 (num_rows,), the source of each row, -1 for none. The new numbers are
            written.
        passes: A byte for each row: whether it is delivered. Empty: all are.
        ends: int64 (num_parts,), the end of each part; the last one is the number of rows.
        num_sources: How many there are.
        found: int32 (num_found, 3), written: each source of each part, its rows there, and how many
            of them are delivered.
        num_found: int64 (num_parts,), written: how many sources each part has.
        places: int64 (num_delivered,), written unless all are: of each of `found` which of its rows
            in the part are delivered, ascending.

    Returns:
        How many all parts have.
    """

def mark_values(
    values: Buffer, width: int, bits: Buffer, bound: int, small: Buffer
) -> tuple[int, int]:
    """Adds a slot's values to a `featstore.statistics.sketches.Distinct`.

    Args:
        values: int64 signs or float32.
        width: 8 or 4.
        bits: The bitmap, a byte for each bit, written.
        bound: Hashes below it are written to `small`.
        small: int64, with room for one more than all values.

    Returns:
        The number of missing values, and the number of hashes written.
    """

def count_ids(
    values: Buffer, weights: Buffer, table: Buffer, num_known: int, firsts: Buffer
) -> tuple[int, int, int]:
    """Counts a slot's ids, as `featstore.statistics.id_counts.IdCounts` does.

    Reading stops before an id that would fill more than half of the table.

    Args:
        values: int64 ids; 0 is missing and not counted.
        weights: int64, how often each id counts; empty for once each.
        table: int64 (num_places, 2), for a power of two of ids, each at its low bits or after, with
            its count; 0 where free. Written.
        num_known: The number of places that are not free.
        firsts: int64, with room for one more than all values. The positions of ids that were not
            known before are written.

    Returns:
        The number of places that are not free now, the number of values read, and the number of
        positions written.

    Raises:
        ValueError: The table is full.
    """

def crc32(data: Buffer, before: int, portable: bool) -> int:
    """The CRC-32, as zlib's, of bytes that follow others whose CRC-32 is `before`.

    Args:
        data: The bytes.
        before: The CRC-32 of the preceding bytes; 0 for none.
        portable: Compute with tables, as on a CPU without the instructions for it.
    """

def crc32_of_values(values: Sequence[int | float | str | bytes | None]) -> int:
    """The CRC-32 of values, each with its type, and texts (in UTF-8) and bytes with their length:
    `7;`, `0.5;`, `None;`, `t4:text`, `b2:..`.
    """

def first_damaged(file: int, spans: Buffer, room: Buffer) -> int:
    """Finds the first damaged column chunk of an open Parquet file.

    A chunk is damaged if it does not consist of complete pages, or if a page does not match the
    checksum in its header. Pages without a checksum are skipped.

    Args:
        file: The descriptor of the file.
        spans: int64 (num_chunks, 2), the first byte and the end of each chunk.
        room: Working memory, in which a page's header must fit.

    Returns:
        The index of the chunk, or -1 if there is none.

    Raises:
        OSError: The file cannot be read, which says nothing about its bytes.
    """

def walk_footer(
    data: Buffer, widths: Buffer, structs: Buffer, fields: Buffer
) -> tuple[int, int, *tuple[bytes, ...]]:
    """Turns the structs of a Parquet footer into rows of int64, as `featstore.native.format`
    describes.

    Args:
        data: The footer.
        widths: The slots of a row of each table, int64.
        structs: The structs, as in `featstore.native.format.PLAN`.
        fields: Their fields.

    Returns:
        The error, as `featstore.native.walk` numbers them, and the byte at which the invalid field
        begins (both 0 if there is none), then the rows of each table.

    Raises:
        MemoryError: There is no memory for the rows.
    """

def check_chunks(
    groups: Buffer,
    chunks: Buffer,
    group_width: int,
    chunk_width: int,
    layout: Buffer,
    ranges: Buffer,
    low: Buffer,
    high: Buffer,
    levels: Buffer,
    num_rows: int,
    end: int,
    taken: Buffer,
) -> tuple[int, int, int]:
    """Checks the row groups and column chunks of a footer, as `featstore.native.checks` says.

    Args:
        groups: The row groups as `walk_footer` found them.
        chunks: The column chunks.
        group_width: The slots of a row group.
        chunk_width: The slots of a chunk.
        layout: The slots in which row groups and chunks have their numbers, int64.
        ranges: int64 (num_ranges, 2), a slot of a chunk, and whether it may be absent.
        low: int64 (num_leaves, num_ranges), the least value of each.
        high: The greatest value of each.
        levels: int64 (3, num_leaves), as of `FileSchema`.
        num_rows: The rows of the file.
        end: The byte of the file at which the footer begins.
        taken: Memory for the numbers of the chunks, int64 (num_row_groups, num_leaves, 7): the
            fields of `featstore.native.footers.Chunks`.

    Returns:
        The first check that is not passed, 0 if there is none, and of which row group and leaf
        column: 1 the rows of a row group, 2 those of all of them, 3 the number of column chunks,
        then each range, and then the further checks of a chunk.
    """

def page_header(data: Buffer) -> tuple[int, int, int, int, int | None] | None:
    """Reads the page header with which some bytes of a column chunk begin.

    Returns:
        The length of the header; the stored and the decompressed size of the page that follows; how
        many levels it claims, 0 if it is no data page; and the CRC-32 of its stored bytes, None if
        the header has none. None if no valid header ends within the bytes.
    """

def first_beyond(file: int, chunks: Buffer, stop: Buffer, room: Buffer) -> int:
    """Finds the first column chunk of an open file whose page headers claim more levels than the
    chunk has values, or more bytes than its pages may.

    Args:
        file: The descriptor of the file.
        chunks: The chunks as of `decode_columns`, with any codec.
        stop: The search ends once its first byte is not 0.
        room: Working memory, in which a page's header must fit.

    Returns:
        The index of the chunk. -1 if there is none, or if the search was stopped.
    """

def plan_columns(
    footer: Buffer,
    num_leaves: int,
    row_groups: Buffer,
    rows: Buffer,
    columns: Buffer,
    chunks: Buffer,
    together: bool,
    ordered: bool,
) -> tuple[int, int]:
    """Plans the decoding of columns of some row groups. Keeps the interpreter's lock.

    Args:
        footer: The numbers of a footer, as of `featstore.native.footers.Chunks`: int64
            (num_row_groups_in_file, num_leaves, 7).
        num_leaves: How many leaf columns the file has.
        row_groups: int64 (num_row_groups,), those that are read.
        rows: int64 (num_row_groups,), the rows of each.
        columns: int64 (num_columns, 11), as of `featstore.native.bounds.COLUMN`. All but the first
            six numbers of each are written; where a column cannot be decoded, `found` is -1.
        chunks: int64 (num_columns, num_row_groups, 5), written: a chunk's first byte, its number of
            bytes, its codec as Parquet numbers it (0 none, 1 snappy, 6 Zstandard), its number of
            values by the footer, and the bytes that each of its pages may claim.
        together: Whether all columns lie in one buffer, or each has its own.
        ordered: Whether rows are written in another order than that of the file.

    Returns:
        The working memory of each thread that decodes, and the memory of all columns together.

    Raises:
        ValueError: The arguments do not match, or are not what a checked footer has.
    """

def decode_columns(
    file: int,
    chunks: Buffer,
    rows: Buffer,
    order: Buffer,
    kept: Buffer,
    columns: Buffer,
    buffers: tuple[Buffer, ...],
    room: Buffer,
    num_threads: int,
    stop: Buffer,
    checks: bool,
    decompress: Callable[[bytes, int], bytes],
    portable: bool,
) -> None:
    """Reads and decodes column chunks of an open Parquet file.

    Args:
        file: The descriptor of the file.
        chunks: As `plan_columns` wrote them.
        rows: int64 (num_row_groups,), the rows of each row group.
        order: uint32 (num_ordered,): which row of all of them each row written is; no more than
            there are, and those of lists once each. Empty: in the order of the file.
        kept: int64 (num_runs, 2), without an `order`: the first row and the end of each run of rows
            that are written, ascending. Others are left out as soon as they are decoded. Empty: all
            rows.
        columns: As `plan_columns` wrote them; of some `found` is below 0, which are left out. A
            definition level of `definition` is a value of `width` bytes (4 or 8), one below
            `null_below` becomes the mark, and others are nothing. Offsets are int32
            (num_rows + 1,), of lists, whose `repetition` is 1; there is room for `found` values.
            Then `found` is written: the number of values; -1 if a chunk cannot be read, is damaged,
            or has an unknown encoding; -2 - i if pages of its chunk in row group i claim more
            levels, or more bytes, than they may.
        buffers: The memory of the columns, written.
        room: Working memory of the threads. Each keeps there a stored chunk, its dictionary and one
            page; with an `order` also the decoded column, its offsets and its values in whole 64
            bytes, and 64 bytes more.
        num_threads: 1 to 64.
        stop: Decoding ends early once its first byte is not 0.
        checks: Treat a page as damaged if it does not match the checksum in its header.
        decompress: `decompress(page, size)` decompresses a page with Zstandard. It is called with
            the interpreter's lock.
        portable: Whether to use only instructions that any CPU has. The result is the same.

    Raises:
        ValueError: The arguments do not match.
    """
