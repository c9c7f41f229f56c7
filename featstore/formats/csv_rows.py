"""Rows of CSV files, by pyarrow's reader.

Every column is read as text and then converted here, so that a value which does not fit its type
costs its row, not the file. An empty field is null, and a quoted empty one is the empty text.
"""

import codecs
import csv
import io
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import pyarrow as pa

from featstore.base.closing import Closing
from featstore.base.errors import InputError, all_nearest, not_once
from featstore.base.libraries import LazyModule
from featstore.formats.byte_source import BLOCK_BYTES
from featstore.formats.parsed import (
    MAX_EXAMPLES,
    BadRow,
    ParsedRows,
    RowFormat,
    inferred,
    name_of,
    no_rows,
)
from featstore.formats.text_values import SCALARS, infer_text_type, parse_column
from featstore.native.damage import first_line
from featstore.ops.lists import array_of_bits

pa_csv: Any = LazyModule("pyarrow.csv")

# A row that is added at the end of a file, with a field too many. pyarrow (26) takes the rest of a
# file that ends within quotes for a value, and then does not see this row.
_END = "\x03\x04"
_REPLACED, _REPLACED_BYTES = "\ufffd", "\ufffd".encode()


@dataclass(frozen=True, kw_only=True)
class CsvFormat(RowFormat):
    """CSV: a row is what lies between two newlines that are not in quotes.

    Attributes:
        delimiter: The character between fields.
        names: The names of the columns of files without a header; none if the first row has them.
        nulls: Texts that mean null, if they are not quoted. The empty one always does.
        encoding: A name of Python's, such as `latin-1`.
    """

    name: str = "csv"
    delimiter: str = ","
    names: tuple[str, ...] = ()
    nulls: tuple[str, ...] = ()
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n':
            raise InputError(f"delimiter: expected one ASCII character, found {self.delimiter!r}")
        try:
            io.TextIOWrapper(io.BytesIO(), self.encoding)  # refuses codecs such as `hex`, too
        except LookupError:
            raise InputError(
                f"encoding: expected a name such as utf-8 or latin-1, found {self.encoding!r}"
            ) from None

    def check(self, schema: pa.Schema) -> None:
        for field in schema:
            if field.type not in SCALARS:
                raise InputError(
                    f"column {field.name!r}: a CSV field cannot be {name_of(field.type)}; "
                    f"read it as string, and take it apart with an operator such as `split`"
                )

    def sample(self, source: IO[bytes], most: int) -> list[Mapping[str, str | None]]:
        """As the protocol says; a file with a header alone gives a row of nulls for its names."""
        with _CsvReader(self, source) as reader:
            batch = next(reader.batches(), None)
            if batch is None or not batch.num_rows:
                return [dict.fromkeys(reader.names)] if reader.names else []
            return [
                {name: value and value.decode() for name, value in row.items()}
                for row in batch.slice(0, most).to_pylist()
            ]

    def infer(self, rows: Sequence[Mapping[str, str | None]]) -> pa.Schema:
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: pa.array([row.get(name) for row in rows], pa.string()) for name in names}
        return pa.schema(
            [
                inferred(name, infer_text_type(texts), has_value=texts.null_count < len(texts))
                for name, texts in columns.items()
            ]
        )

    def columns(self, head: bytes) -> list[str]:
        """The names of a file's columns.

        Args:
            head: Its first bytes, in UTF-8, which hold the whole first row.

        Raises:
            InputError: There is no header, or two columns have one name.
        """
        if self.names:
            return list(self.names)
        text = io.StringIO(head.decode("utf-8-sig"), newline="")
        try:
            found = next(csv.reader(text, delimiter=self.delimiter), None)
        except csv.Error as error:
            raise InputError(f"row 1: expected the names of columns ({error})") from None
        if not found:
            raise InputError("row 1: expected the names of columns, found none")
        for name in found:
            if found.count(name) > 1:
                raise InputError(f"row 1: {not_once(name, found.count(name))}")
        return found

    def read(self, source: IO[bytes], schema: pa.Schema) -> Iterator[ParsedRows]:
        with _CsvReader(self, source) as reader:
            if reader.is_empty:
                return
            missing = [name for name in schema.names if name not in reader.names]
            if missing:
                raise InputError(
                    f"expected the columns {all_nearest(missing, reader.names)}; found "
                    f"{', '.join(reader.names)}"
                )
            others = [name for name in reader.names if name not in schema.names]
            for batch in reader.batches([*schema.names, *others]):
                yield reader.parsed(batch, schema)
            yield reader.rest(schema)


class _DecodedSource:
    """A file as UTF-8, whose beginning can be looked at. Thread-safe.

    Bytes that are not of the encoding become U+FFFD, and are counted: a row of such bytes with too
    many fields is otherwise lost in pyarrow (26), which decodes it before it asks what to do.

    Arrow reads ahead in a thread of its own, so the file may be closed only when `close` has
    returned. The lock is held for the time of a read.

    Attributes:
        end: What follows after the last byte.
    """

    def __init__(self, source: IO[bytes], encoding: str) -> None:
        self._lock = threading.Lock()
        self._source = source
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self.num_replaced = 0
        # Kept for the next block: Arrow drops a newline that begins one after a carriage return.
        self._return = ""
        self.end = ""
        self.head = self._rest = self._block()
        self.closed = False

    def read(self, num_bytes: int = -1) -> bytes:
        with self._lock:
            if self.closed:
                return b""
            rest = self._rest or self._block()
            end = len(rest) if num_bytes < 0 else num_bytes
            if 1 < end < len(rest) and rest[end - 1 : end] == b"\r":
                end -= 1
            self._rest = rest[end:]
            return rest[:end]

    def close(self) -> None:
        with self._lock:
            self.closed = True

    def _block(self) -> bytes:
        """The next bytes as UTF-8; none at the end.

        A short block has a newline or all that is left, as Arrow refuses a row over three blocks.
        """
        text = ""
        while not text or (len(text) < BLOCK_BYTES and "\n" not in text):
            pending, _ = self._decoder.getstate()
            block = self._source.read(BLOCK_BYTES)
            new = self._decoder.decode(block, final=not block)
            # U+FFFD that the file itself has does not count.
            self.num_replaced += max(
                new.count(_REPLACED) - (pending + block).count(_REPLACED_BYTES), 0
            )
            text += self._return + new
            self._return = "\r" if block and text.endswith("\r") else ""
            text = text.removesuffix(self._return)
            if not block:
                text, self.end = text + self.end, ""
                break
        return text.encode("utf-8", "replace")


class _CsvReader(Closing):
    """Reads one file. Not thread-safe, except that Arrow may call `_note_bad` in another thread.

    Attributes:
        is_empty: Whether the file has no bytes, so not even a header.
        names: The columns.
    """

    def __init__(self, of: CsvFormat, source: IO[bytes]) -> None:
        self._of = of
        self._source = _DecodedSource(source, of.encoding)
        self.is_empty = not self._source.head
        self.names = [] if self.is_empty else of.columns(self._source.head)
        self._end = _END + of.delimiter * len(self.names)
        self._source.end = f"\n{self._end}\n"
        self._has_end = False
        # Rows with too many or too few fields that no batch has told of yet, in order.
        self._bad: deque[tuple[int, str]] = deque()
        self._next_row = 1 if of.names else 2

    def close(self) -> None:
        self._source.close()

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows, every column as bytes."""
        if self.is_empty:
            return
        try:
            yield from pa_csv.open_csv(
                # Its copies are Arrow's own memory, which its thread may free at any time. A buffer
                # of one byte leaves the blocks as they come.
                pa.BufferedInputStream(pa.PythonFile(self._source, mode="r"), buffer_size=1),
                pa_csv.ReadOptions(
                    use_threads=False,
                    block_size=BLOCK_BYTES,
                    column_names=list(self._of.names) or None,
                ),
                pa_csv.ParseOptions(
                    delimiter=self._of.delimiter,
                    newlines_in_values=True,
                    invalid_row_handler=self._note_bad,
                ),
                pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(self.names, pa.binary()),
                    include_columns=self.names if columns is None else list(columns),
                    null_values=["", *self._of.nulls],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            raise InputError(
                f"after row {self._next_row - 1}: expected CSV, found what cannot be read as such "
                f"({first_line(error)})"
            ) from error

    def parsed(self, batch: pa.RecordBatch, schema: pa.Schema) -> ParsedRows:
        """A batch of `batches` with the schema's types, and the bad rows before its end.

        What was read beyond the last batch is left to `rest`.

        Args:
            batch: The schema's columns, in its order, then others.
            schema: The schema.
        """
        columns: list[pa.Array] = []
        wrong: dict[int, str] = {}
        for field, raw in zip(schema, batch.columns[: len(schema)], strict=True):
            values, of_column = parse_column(field, raw.view(pa.string()))
            columns.append(values)
            wrong = of_column | wrong
        bad = self._number(batch.num_rows, wrong)
        found, others = (
            pa.record_batch(columns, schema),
            batch.select(range(len(schema), batch.num_columns)),
        )
        if wrong:
            keep = np.ones(batch.num_rows, np.bool_)
            keep[list(wrong)] = False
            found, others = (part.filter(array_of_bits(keep)) for part in (found, others))
        unknown = {
            name: others.num_rows - column.null_count
            for name, column in zip(others.schema.names, others.columns, strict=True)
        }
        return ParsedRows(
            batch=found,
            num_bad=len(bad),
            examples=_examples(bad),
            unknown={name: n for name, n in unknown.items() if n},
        )

    def rest(self, schema: pa.Schema) -> ParsedRows:
        """The bad rows after the last batch, and what else is known only at the end.

        Raises:
            InputError: The file ends within quotes.
        """
        if not self._has_end:
            raise InputError(
                f"row {self._next_row - 1}: expected quotes that are closed, found the end of the "
                f"file: it is cut off, or a quote is missing. Get the file anew, or correct it"
            )
        return ParsedRows(
            batch=no_rows(schema),
            num_bad=len(self._bad),
            examples=_examples(list(self._bad)),
            num_replaced=self._source.num_replaced,
        )

    def _number(self, num_rows: int, wrong: Mapping[int, str]) -> list[tuple[int, str]]:
        """Numbers of bad rows with reasons, of a batch's rows and of those that Arrow left out
        between them.

        Args:
            num_rows: The batch's rows.
            wrong: Reasons by position in the batch.
        """
        bad, number, done = [], self._next_row, 0
        for position in [*sorted(wrong), num_rows]:  # the last is the row after the batch
            number += position - done
            done = position
            while self._bad and self._bad[0][0] <= number:
                bad.append(self._bad.popleft())
                number += 1
            if position < num_rows:
                bad.append((number, wrong[position]))
        self._next_row = number
        return bad

    def _note_bad(self, row: Any) -> str:
        if row.text.strip("\r\n") == self._end:  # with what is left of the row before
            self._has_end = True
            return "skip"
        found = f"expected {row.expected_columns} fields, found {row.actual_columns}"
        self._bad.append((row.number, found))
        return "skip"


def _examples(bad: Sequence[tuple[int, str]]) -> tuple[BadRow, ...]:
    return tuple(BadRow(place=f"row {row}", reason=text) for row, text in bad[:MAX_EXAMPLES])
