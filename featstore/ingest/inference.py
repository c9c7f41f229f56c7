"""The columns of an import: inferred from the first rows of files, and corrected by the user."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from featstore.base.errors import InputError, all_nearest
from featstore.base.redaction import redact
from featstore.files.listings import FileEntry
from featstore.formats.byte_source import errors_of, open_bytes
from featstore.formats.parsed import given
from featstore.ingest.import_job import ImportJob

SAMPLE_FILES = 8


def infer_schema(job: ImportJob, files: Sequence[FileEntry]) -> pa.Schema:
    """The schema of all of the files, in which types that are not given are marked as inferred.

    Args:
        files: The input, at least one file. At most `SAMPLE_FILES`, spread over it, are looked at.

    Raises:
        InputError: There is no row, a file cannot be read, or a type is given for a column that the
            rows do not have or whose format cannot hold it.
    """
    sampled = spread(files, SAMPLE_FILES)
    rows = [row for file in sampled for row in _sample(job, file)]
    if not rows:
        bad = next((bad for file in sampled for bad in _bad_rows(job, file)), "")
        raise InputError(
            f"{redact(job.input_url)}: expected rows of {job.format.name} to infer columns from, "
            f"found none in {len(sampled)} of {len(files):,} files{bad}; is it another format?"
        )
    schema = with_types(job.format.infer(rows), job.columns)
    job.format.check(schema)
    return schema


def with_types(schema: pa.Schema, columns: Mapping[str, pa.DataType]) -> pa.Schema:
    """The schema with these types. Pure.

    Raises:
        InputError: A column is not in the schema.
    """
    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise InputError(
            f"expected types of columns that the files have, found one for "
            f"{all_nearest(unknown, schema.names)}; they have {', '.join(schema.names)}"
        )
    return pa.schema([given(of, columns[of.name]) if of.name in columns else of for of in schema])


def spread(files: Sequence[FileEntry], most: int) -> list[FileEntry]:
    """At most so many of the files, from the first to the last. Pure."""
    if len(files) <= most:
        return list(files)
    return [files[i * (len(files) - 1) // (most - 1)] for i in range(most)]


def _sample(job: ImportJob, file: FileEntry) -> list[object]:
    of = job.format
    with errors_of(file.url), open_bytes(file.url, file.size_bytes, of.is_plain) as source:
        return of.sample(source, job.sample_rows)


def _bad_rows(job: ImportJob, file: FileEntry) -> Iterator[str]:
    """The first rows that cannot be read, each with its file, for an error."""
    of = job.format
    with errors_of(file.url), open_bytes(file.url, file.size_bytes, of.is_plain) as source:
        for parsed in of.read(source, pa.schema([])):
            yield from (f", such as {redact(file.url)}, {bad}" for bad in parsed.examples)
