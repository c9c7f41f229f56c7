"""What is imported, and to where."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from featstore.base.errors import InputError, nearest, require_integer
from featstore.base.redaction import redact
from featstore.files.storage import lies_within, local_path, scheme
from featstore.formats.csv_rows import CsvFormat
from featstore.formats.examples import TfrecordFormat
from featstore.formats.json_lines import JsonFormat
from featstore.formats.libsvm import LibsvmFormat
from featstore.formats.parsed import RowFormat, type_of

FORMATS: Mapping[str, Any] = {
    "csv": CsvFormat,
    "json": JsonFormat,
    "libsvm": LibsvmFormat,
    "tfrecord": TfrecordFormat,
}

SAMPLE_ROWS = 2_000


@dataclass(frozen=True, kw_only=True)
class ImportJob:
    """Files of one format, and the directory of Parquet files that they become.

    Attributes:
        input_url: A file, a directory (all of its files, at any depth) or a glob, on any storage.
        output_url: A directory on the local disk, or on one that is mounted there.
        columns: Types of columns; the others are inferred.
        max_malformed: How many rows may be left out because they cannot be read.
        sample_rows: How many rows of a file columns are inferred from.

    Raises:
        InputError: The output is no local path, or lies within the input.
        ConfigError: `max_malformed` or `sample_rows` is no integer, or too small.
    """

    format: RowFormat
    input_url: str = field(repr=False)
    output_url: str = field(repr=False)
    columns: Mapping[str, pa.DataType] = field(default_factory=dict)
    max_malformed: int = 0
    sample_rows: int = SAMPLE_ROWS

    def __post_init__(self) -> None:
        require_integer("max_malformed", self.max_malformed, minimum=0)
        require_integer("sample_rows", self.sample_rows)
        if local_path(self.output_url) is None:
            raise InputError(
                f"{redact(self.output_url)}: the output is published by renaming a directory, "
                f"which {scheme(self.output_url)}:// cannot do in one step; expected a path on a "
                f"disk: import there, then copy the finished directory"
            )
        if lies_within(self.output_url, self.input_url):
            raise InputError(
                f"the output {redact(self.output_url)} lies within the input "
                f"{redact(self.input_url)}; use separate directories"
            )

    def identity(self, input_digest: str, schema: pa.Schema) -> Mapping[str, object]:
        """What decides over the output's bytes, as JSON. `max_malformed` does not: it decides only
        whether there is an output.
        """
        return {
            "import": 2,
            "format": asdict(self.format),  # type: ignore[call-overload]
            "input_digest": input_digest,
            "schema": schema.to_string(),
        }


def import_job(
    format_name: str,
    input_url: str | Path,
    output_url: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    max_malformed: int = 0,
    sample_rows: int = SAMPLE_ROWS,
    **options: Any,
) -> ImportJob:
    """The job of these arguments, which are those of `featstore.api.import_raw`.

    Raises:
        InputError: The format, an option of it or a type is unknown.
        MissingDependencyError: The format needs an extra.
    """
    if format_name not in FORMATS:
        raise InputError(
            f"format: expected one of {', '.join(FORMATS)}, found {format_name!r}"
            f"{nearest(format_name, FORMATS)}"
        )
    known = [field.name for field in fields(FORMATS[format_name]) if field.name != "name"]
    for name in options:
        if name not in known:
            raise InputError(
                f"{format_name}: expected options of {', '.join(known) or 'none'}, found {name!r}"
                f"{nearest(name, known)}"
            )
    given = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    return ImportJob(
        format=FORMATS[format_name](**given),
        input_url=str(input_url),
        output_url=str(output_url),
        columns={name: type_of(kind, name) for name, kind in (columns or {}).items()},
        max_malformed=max_malformed,
        sample_rows=sample_rows,
    )
