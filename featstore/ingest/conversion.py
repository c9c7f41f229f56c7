"""One file to one Parquet file."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from featstore.base.errors import InputError
from featstore.base.redaction import redact
from featstore.files.listings import FileEntry, check_unchanged, find_file
from featstore.files.storage import open_write
from featstore.formats.byte_source import errors_of, open_bytes
from featstore.formats.parsed import MAX_EXAMPLES, ParsedRows, RowFormat, unmarked

# A row group ends with the rows that reach one of these, so that memory holds one and a block.
ROW_GROUP_ROWS, ROW_GROUP_BYTES = 1 << 17, 64 << 20
OnRows = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """One file to convert. Picklable.

    Attributes:
        target: The path of the Parquet file.
        max_malformed: How many bad rows stop it.
    """

    format: RowFormat
    schema: pa.Schema
    source: FileEntry
    target: str
    max_malformed: int


@dataclass(frozen=True, kw_only=True)
class ConvertedFile:
    """What became of a file.

    Attributes:
        num_malformed: Rows that were left out.
        examples: The first of them, with the file.
        unknown: For each column that the schema lacks, in how many rows it has a value.
        num_replaced: How often bytes that are not of the file's encoding became U+FFFD.
    """

    num_rows: int
    size_bytes: int
    num_malformed: int
    examples: tuple[str, ...]
    unknown: dict[str, int]
    num_replaced: int


def convert(of: Conversion, on_rows: OnRows = lambda num_rows: None) -> ConvertedFile:
    """Converts a file. Its Parquet file appears whole or not at all.

    Args:
        on_rows: Called with the number of rows after each block.

    Raises:
        InputError: More rows than allowed are malformed, the file is damaged, or it changed while
            it was read.
    """
    reading, schema = _Reading(of, on_rows), unmarked(of.schema)
    with open_write(of.target) as sink:
        try:
            with (
                open_bytes(of.source.url, of.source.size_bytes, of.format.is_plain) as source,
                pq.ParquetWriter(
                    sink, schema, compression="snappy", write_page_checksum=True
                ) as writer,
            ):
                for rows in row_groups(reading.batches(source), schema):
                    writer.write_table(rows, row_group_size=len(rows))
        except InputError:
            check_unchanged(of.source, find_file(of.source.url))
            raise
        check_unchanged(of.source, find_file(of.source.url))
        size_bytes = sink.tell()
    return reading.report(size_bytes)


class _Reading:
    """Reads a file and counts what it leaves out. Not thread-safe."""

    def __init__(self, of: Conversion, on_rows: OnRows) -> None:
        self._of, self._on_rows = of, on_rows
        self._num_rows = self._num_bad = self._num_replaced = 0
        self._examples: list[str] = []
        self._unknown: Counter[str] = Counter()

    def batches(self, source: object) -> Iterator[pa.RecordBatch]:
        of = self._of
        with errors_of(of.source.url):
            for parsed in of.format.read(source, of.schema):  # type: ignore[arg-type]
                self._note(parsed)
                if self._num_bad > of.max_malformed:
                    break
                yield parsed.batch
        if self._num_bad > of.max_malformed:
            raise too_many(self._num_bad, of.max_malformed, self._examples)

    def _note(self, parsed: ParsedRows) -> None:
        self._num_rows += parsed.batch.num_rows
        self._num_bad += parsed.num_bad
        self._num_replaced += parsed.num_replaced
        self._unknown.update(parsed.unknown)
        wanted = MAX_EXAMPLES - len(self._examples)
        name = redact(self._of.source.url)
        self._examples += [f"{name}, {bad}" for bad in parsed.examples[:wanted]]
        self._on_rows(parsed.batch.num_rows)

    def report(self, size_bytes: int) -> ConvertedFile:
        return ConvertedFile(
            num_rows=self._num_rows,
            size_bytes=size_bytes,
            num_malformed=self._num_bad,
            examples=tuple(self._examples),
            unknown=dict(self._unknown),
            num_replaced=self._num_replaced,
        )


def row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Joins batches to tables of one row group each. Pure."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        num_rows = sum(other.num_rows for other in held)
        if num_rows >= ROW_GROUP_ROWS or sum(other.nbytes for other in held) >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held, schema)
            held.clear()
    if any(batch.num_rows for batch in held):
        yield pa.Table.from_batches(held, schema)


def too_many(num_malformed: int, allowed: int, examples: Sequence[str]) -> InputError:
    """The error for more malformed rows than allowed."""
    return InputError(
        f"expected at most {allowed:,} malformed rows, found {num_malformed:,} up to here, such as "
        f"{'; '.join(examples)}. Correct them, give a column another type (--column NAME=TYPE), or "
        f"allow more to leave them out (--max-malformed, max_malformed=...)"
    )
