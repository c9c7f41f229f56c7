"""What is imported, and to where; what was found and done."""

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
from featstore.formats.pairs import PairsFormat
from featstore.formats.parsed import RowFormat, input_type, is_undecided, name_of, type_of
from featstore.ingest.table_output import table_url
from featstore.table.layout import check_partition_value

FORMATS: Mapping[str, Any] = {
    "csv": CsvFormat,
    "json": JsonFormat,
    "libsvm": LibsvmFormat,
    "pairs": PairsFormat,
    "tfrecord": TfrecordFormat,
}

SAMPLE_ROWS = 2_000
# Words that are values in YAML.
_WORDS = ("true", "false", "null", "yes", "no", "on", "off")


@dataclass(frozen=True, kw_only=True)
class ImportJob:
    """Files of one format, and the directory of Parquet files that they become.

    Attributes:
        input_url: A file, a directory (all of its files, at any depth) or a glob, on any storage.
        output_url: A directory on the local disk, or on one that is mounted there; or `delta+URL`
            of a Delta table, on any storage.
        partition: The values of partition keys that hold for all rows. A directory gets
            `key=value/` for each.
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
    partition: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_integer("max_malformed", self.max_malformed, minimum=0)
        require_integer("sample_rows", self.sample_rows)
        for key, value in self.partition.items():
            check_partition_value(key, value, "partition")
        delta_url = table_url(self.output_url)
        if delta_url is None and local_path(self.output_url) is None:
            raise InputError(
                f"{redact(self.output_url)}: the output is published by renaming a directory, "
                f"which {scheme(self.output_url)}:// cannot do in one step; expected a path on a "
                f"disk, or delta+URL of a Delta table, which is published by a commit"
            )
        if lies_within(delta_url or self.output_url, self.input_url):
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
            **({"partition": dict(self.partition)} if self.partition else {}),
        }


def import_job(
    format_name: str,
    input_url: str | Path,
    output_url: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    max_malformed: int = 0,
    sample_rows: int = SAMPLE_ROWS,
    partition: Mapping[str, str] | None = None,
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
        partition=dict(partition or {}),
    )


@dataclass(frozen=True, kw_only=True)
class ImportSchema:
    """The columns of an import, by name, with the names of their types.

    Attributes:
        columns: All of them.
        inputs: Those that a spec can read, with the types that it declares.
        undecided: Those without a value in the sampled rows, whose type is not given.
    """

    columns: Mapping[str, str]
    inputs: Mapping[str, str]
    undecided: tuple[str, ...] = ()

    @classmethod
    def of(cls, schema: pa.Schema) -> "ImportSchema":
        """Those of an Arrow schema."""
        inputs = {c.name: name for c in schema if (name := input_type(c.type)) is not None}
        return cls(
            columns={c.name: name_of(c.type) for c in schema},
            inputs=inputs,
            undecided=tuple(c.name for c in schema if is_undecided(c)),
        )

    def as_dict(self) -> dict[str, Any]:
        return {"columns": dict(self.columns), "inputs": dict(self.inputs)}

    def __str__(self) -> str:
        """The columns as the `inputs` of a spec, and those that a spec cannot read as they are."""
        lines = ["inputs:", *(f"  {_quoted(name)}: {kind}" for name, kind in self.inputs.items())]
        others = [
            f"{name} ({kind})" for name, kind in self.columns.items() if name not in self.inputs
        ]
        lines += [f"# not for a spec: {', '.join(others)}"] if others else []
        return "\n".join([*lines, *([f"# {self.note()}"] if self.undecided else [])])

    def note(self) -> str:
        """What is said of undecided columns."""
        return (
            f"no sampled row has a value of {', '.join(self.undecided)} (--column, --sample-rows)"
        )


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """The result of an import.

    Attributes:
        imported: False if the output already held the result of an equal import.
        num_malformed: Rows that were left out because they cannot be read.
        examples: The first of them; none if an equal import had committed them to a table.
        unknown: For each column that the schema lacks, in how many rows it has a value that was
            left out.
        num_replaced: How often bytes that are not of a file's encoding became U+FFFD.
        seconds: Wall-clock time.
    """

    output_url: str = field(repr=False)
    schema: ImportSchema
    imported: bool
    num_files: int
    num_rows: int
    input_bytes: int
    size_bytes: int
    num_malformed: int
    examples: tuple[str, ...]
    unknown: Mapping[str, int]
    num_replaced: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "output": redact(self.output_url),
            "imported": self.imported,
            "num_files": self.num_files,
            "num_rows": self.num_rows,
            "input_bytes": self.input_bytes,
            "size_bytes": self.size_bytes,
            "num_malformed": self.num_malformed,
            "examples": list(self.examples),
            "unknown": dict(self.unknown),
            "num_replaced": self.num_replaced,
            "seconds": self.seconds,
            **self.schema.as_dict(),
        }

    def __str__(self) -> str:
        done = "imported" if self.imported else "nothing to do: an equal import was done before:"
        lines = [
            f"{done} {self.num_rows:,} rows of {self.num_files:,} files, {self.input_bytes:,} "
            f"bytes, to {redact(self.output_url)}, {self.size_bytes:,} bytes, {self.seconds:.1f} s"
        ]
        if self.num_malformed:
            such_as = ", such as" if self.examples else ""
            lines.append(f"{self.num_malformed:,} malformed rows are left out{such_as}")
            lines += [f"  {example}" for example in self.examples]
        if self.unknown:
            values = ", ".join(f"{name} in {rows:,} rows" for name, rows in self.unknown.items())
            lines.append(f"columns that no sampled row has are left out: {values} (--sample-rows)")
        if self.schema.undecided:
            lines.append(self.schema.note())
        if self.num_replaced:
            lines.append(
                f"bytes that are not of the files' encoding became U+FFFD {self.num_replaced:,} "
                f"times (--encoding)"
            )
        return "\n".join(lines)


def _quoted(name: str) -> str:
    """A key of YAML."""
    is_plain = name.isidentifier() and name.lower() not in _WORDS
    return name if is_plain else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
