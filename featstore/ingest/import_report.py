"""What an import found and did."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from featstore.base.redaction import redact
from featstore.formats.parsed import is_undecided, name_of
from featstore.spec.model import type_name

# Words that are values in YAML.
_WORDS = ("true", "false", "null", "yes", "no", "on", "off")


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
        inputs = {c.name: name for c in schema if (name := _input_type(c.type)) is not None}
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
        examples: The first of them.
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
            lines.append(f"{self.num_malformed:,} malformed rows are left out, such as")
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


def _input_type(kind: pa.DataType) -> str | None:
    """The type that a spec declares for a column of this one; None if it reads no such column."""
    same = {pa.float32(): pa.float64(), pa.list_(pa.float32()): pa.list_(pa.float64())}
    try:
        return type_name(same.get(kind, kind))
    except KeyError:
        return None


def _quoted(name: str) -> str:
    """A key of YAML."""
    is_plain = name.isidentifier() and name.lower() not in _WORDS
    return name if is_plain else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
