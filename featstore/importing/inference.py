"""The columns of an import: inferred from the first rows of files, and corrected by the user."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from featstore.errors import InputError, all_nearest
from featstore.files.listings import FileEntry
from featstore.formats.byte_source import errors_of, open_bytes
from featstore.importing.job import ImportJob
from featstore.redaction import redact

SAMPLE_FILES = 8


def infer_schema(job: ImportJob, files: Sequence[FileEntry]) -> pa.Schema:
    """The schema of all of the files.

    Args:
        files: The input, at least one file. At most `SAMPLE_FILES`, spread over it, are looked at.

    Raises:
        InputError: There is no row, a file cannot be read, or a type is given for a column that the
            rows do not have or whose format cannot hold it.
    """
    rows = [row for file in spread(files, SAMPLE_FILES) for row in _sample(job, file)]
    if not rows:
        raise InputError(
            f"{redact(job.input_url)}: expected rows of {job.format.name} to infer columns from, "
            f"found none in {min(len(files), SAMPLE_FILES)} of {len(files):,} files; is it another "
            f"format?"
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
    return pa.schema([(field.name, columns.get(field.name, field.type)) for field in schema])


def spread(files: Sequence[FileEntry], most: int) -> list[FileEntry]:
    """At most so many of the files, from the first to the last. Pure."""
    if len(files) <= most:
        return list(files)
    return [files[i * (len(files) - 1) // (most - 1)] for i in range(most)]


def _sample(job: ImportJob, file: FileEntry) -> list[object]:
    of = job.format
    with errors_of(file.url), open_bytes(file.url, file.size_bytes, of.is_plain) as source:
        return of.sample(source, job.sample_rows)
