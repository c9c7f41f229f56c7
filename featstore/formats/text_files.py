"""Raw rows in CSV and JSON lines, read as the types that a spec declares.

Such a file is one range of rows: where a row begins is known only to who reads all before it. It is
read once when it is listed, to count its rows and to find, before anything is written, rows that
cannot be read.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

import pyarrow as pa

from featstore.base.errors import InputError
from featstore.files.listings import FileEntry, list_files
from featstore.formats.byte_source import errors_of, open_bytes
from featstore.formats.csv_rows import CsvFormat
from featstore.formats.json_lines import JsonFormat
from featstore.formats.parsed import RowFormat

_JSON = JsonFormat()
_FORMATS: Mapping[str, RowFormat] = {
    ".csv": CsvFormat(),
    ".tsv": CsvFormat(delimiter="\t"),
    ".json": _JSON,
    ".jsonl": _JSON,
    ".ndjson": _JSON,
}
_PACKED = ("", ".gz", ".zst")
SUFFIXES = tuple(f"{suffix}{packed}" for suffix in _FORMATS for packed in _PACKED)
_SAMPLE_ROWS = 1_000


def format_of(name: str) -> RowFormat | None:
    """The format of a file of this name; None for all but CSV and JSON lines."""
    for packed in _PACKED[1:]:
        name = name.removesuffix(packed)
    return next((of for suffix, of in _FORMATS.items() if name.endswith(suffix)), None)


def list_raw_files(url: str, *, looks_above: bool = True) -> list[FileEntry]:
    """Lists the raw files of a path, a directory or a glob; `looks_above` as of `list_files`.

    In a directory these are Parquet files, or, if it has none, CSV and JSON lines.
    """
    found = list_files(url, looks_above=looks_above)
    return found or list_files(url, SUFFIXES, looks_above=False)


class RawTextFile:
    """A file of CSV or JSON lines that is open. Not thread-safe.

    Attributes:
        schema_arrow: Its columns.
    """

    def __init__(self, url: str, source: IO[bytes], schema: pa.Schema) -> None:
        self._url, self._source, self.schema_arrow = url, source, schema

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields all rows, with these columns. To be called once.

        Raises:
            InputError: A row is malformed; names the file and the row.
        """
        of = _known_format(self._url)
        schema = pa.schema([self.schema_arrow.field(name) for name in columns])
        with errors_of(self._url):
            of.check(schema)
            for parsed in of.read(self._source, schema):
                if parsed.num_bad or parsed.num_replaced:
                    bad = parsed.examples[0] if parsed.num_bad else "found bytes that are not UTF-8"
                    others = "" if of is _JSON else " and takes other encodings"
                    # pyarrow's words where strings are expected, as `text: true` does.
                    as_text = (
                        "; JSON lines have strings where an input is text"
                        if "changed from string to" in str(bad)
                        else "; `text: true` at an input of the spec reads numbers as text, and "
                        "does with others as on_error says"
                    )
                    raise InputError(
                        f"{bad}; correct it, or import the file, which may leave such rows out"
                        f"{others}: featstore import --help{as_text}"
                    )
                if parsed.batch.num_rows:
                    yield parsed.batch


@contextlib.contextmanager
def open_text(file: FileEntry, schema: pa.Schema) -> Iterator[RawTextFile]:
    """Opens a file whose columns are known."""
    with open_bytes(file.url, file.size_bytes) as source:
        yield RawTextFile(file.url, source, schema)


def scan(file: FileEntry, declared: Mapping[str, pa.DataType]) -> tuple[int, pa.Schema]:
    """The number of rows of a file, and its columns.

    A column has its declared type, and another one the type that the first rows suggest. JSON lines
    have a declared column if one of the first rows has its key, or any row a value.

    Raises:
        InputError: The file cannot be read as declared.
    """
    of = _known_format(file.url)
    with errors_of(file.url), open_bytes(file.url, file.size_bytes) as source:
        sample = of.sample(source, _SAMPLE_ROWS)
    found = of.infer(sample) if sample else pa.schema([])
    names = [name for name in declared if of is _JSON or name in found.names]
    # One column at least, since all rows are looked at.
    read = [(name, declared[name]) for name in names] or [(n, pa.string()) for n in found.names[:1]]
    num_rows, has_value = 0, dict.fromkeys(names, False)
    with open_text(file, pa.schema(read)) as text:
        for batch in text.read([name for name, _ in read]):
            num_rows += batch.num_rows
            for name in names:
                has_value[name] |= batch[name].null_count < batch.num_rows
    if not num_rows and not sample:
        return 0, pa.schema(list(declared.items()))  # so that none is missing
    late = [(name, declared[name]) for name in names if has_value[name] and name not in found.names]
    columns = [(field.name, declared.get(field.name, field.type)) for field in found]
    return num_rows, pa.schema([*columns, *late])


def _known_format(url: str) -> RowFormat:
    of = format_of(url)
    assert of is not None
    return of
