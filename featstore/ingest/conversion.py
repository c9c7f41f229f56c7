"""One file to one Parquet file."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO

import pyarrow as pa

from featstore.base.errors import InputError
from featstore.base.redaction import redact
from featstore.files.listings import FileEntry, check_unchanged, find_file
from featstore.formats.byte_source import errors_of, open_bytes
from featstore.formats.parsed import MAX_EXAMPLES, unmarked
from featstore.ingest.import_job import ImportJob
from featstore.ingest.table_output import RowFile

OnRows = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class ConvertedFile:
    """What became of a file.

    Attributes:
        num_malformed: Rows that were left out.
        examples: The first of them, with the file.
        unknown: For each column that the schema lacks, in how many rows it has a value.
        num_replaced: How often bytes that are not of the file's encoding became U+FFFD.
    """

    num_rows: int = 0
    size_bytes: int = 0
    num_malformed: int = 0
    examples: tuple[str, ...] = ()
    unknown: Mapping[str, int] = field(default_factory=dict)
    num_replaced: int = 0

    def plus(self, more: "ConvertedFile") -> "ConvertedFile":
        """What became of both, with the first examples."""
        return ConvertedFile(
            num_rows=self.num_rows + more.num_rows,
            size_bytes=self.size_bytes + more.size_bytes,
            num_malformed=self.num_malformed + more.num_malformed,
            examples=(*self.examples, *more.examples)[:MAX_EXAMPLES],
            unknown=dict(Counter(self.unknown) + Counter(more.unknown)),
            num_replaced=self.num_replaced + more.num_replaced,
        )


def convert(
    job: ImportJob,
    schema: pa.Schema,
    source: FileEntry,
    target: str,
    on_rows: OnRows = lambda num_rows: None,
) -> ConvertedFile:
    """Converts a file of an import. Its Parquet file appears whole or not at all.

    Args:
        schema: The columns to read, as `infer_schema` returns them.
        target: The path of the Parquet file.
        on_rows: Called with the number of rows after each block.

    Raises:
        InputError: More rows than allowed are malformed, the file is damaged, or it changed while
            it was read.
    """
    url, done = source.url, ConvertedFile()

    def batches(opened: IO[bytes]) -> Iterator[pa.RecordBatch]:
        nonlocal done
        with errors_of(url):
            for parsed in job.format.read(opened, schema):
                done = done.plus(
                    ConvertedFile(
                        num_rows=parsed.batch.num_rows,
                        num_malformed=parsed.num_bad,
                        examples=tuple(f"{redact(url)}, {bad}" for bad in parsed.examples),
                        unknown=parsed.unknown,
                        num_replaced=parsed.num_replaced,
                    )
                )
                on_rows(parsed.batch.num_rows)
                if done.num_malformed > job.max_malformed:
                    break
                yield parsed.batch
        if done.num_malformed > job.max_malformed:
            raise too_many(done.num_malformed, job.max_malformed, done.examples)

    with contextlib.ExitStack() as stack:
        file = RowFile(target, unmarked(schema), stack)
        try:
            with open_bytes(url, source.size_bytes, job.format.is_plain) as opened:
                for rows in batches(opened):
                    file.add(rows)
        except InputError:
            check_unchanged(source, find_file(url))
            raise
        check_unchanged(source, find_file(url))
        size_bytes = file.finish()
    return replace(done, size_bytes=size_bytes)


def too_many(num_malformed: int, allowed: int, examples: Sequence[str]) -> InputError:
    """The error for more malformed rows than allowed."""
    return InputError(
        f"expected at most {allowed:,} malformed rows, found {num_malformed:,} up to here, such as "
        f"{'; '.join(examples)}. Correct them, give a column another type (--column NAME=TYPE; of "
        f"a string column with `text: true` a spec reads the numbers), or allow more to leave them "
        f"out (--max-malformed, max_malformed=...)"
    )
