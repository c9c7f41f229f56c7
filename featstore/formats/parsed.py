"""What a reader makes of a part of a file: its rows, and which of them it could not read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol, TypeVar

import pyarrow as pa

MAX_EXAMPLES = 3
_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True, kw_only=True)
class BadRow:
    """A row that cannot be read.

    Attributes:
        place: Where it is in its file, such as `line 17`.
        reason: What is wrong with it.
    """

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class ParsedRows:
    """Consecutive rows of a file.

    Attributes:
        batch: Those that could be read.
        num_bad: How many could not.
        examples: The first of these, at most `MAX_EXAMPLES`.
        unknown: For each column that the schema does not have, in how many rows it has a value.
        num_replaced: How often bytes that are not of the file's encoding became U+FFFD.
    """

    batch: pa.RecordBatch
    num_bad: int = 0
    examples: tuple[BadRow, ...] = ()
    unknown: Mapping[str, int] = field(default_factory=dict)
    num_replaced: int = 0


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows."""
    return pa.record_batch([pa.nulls(0, kind) for kind in schema.types], schema)


class RowFormat(Protocol):
    """A format of files.

    Both readers raise InputError, without the file's name, if no further row of the file can be
    found, such as after its bytes end within a row. OSError and ArrowInvalid come from what the
    bytes are packed with.
    """

    @property
    def name(self) -> str: ...

    def is_plain(self, head: bytes) -> bool:
        """Whether a file that begins so is not compressed."""

    def sample(self, source: IO[bytes], most: int) -> list[Any]:
        """At most so many of the file's first rows, in a form for `infer`, without bad ones."""

    def infer(self, rows: Sequence[Any]) -> pa.Schema:
        """The columns of these rows, which may be of several files. There is at least one row."""

    def check(self, schema: pa.Schema) -> None:
        """Raises InputError if the format cannot hold a column of the schema."""

    def read(self, source: IO[bytes], schema: pa.Schema) -> Iterator[ParsedRows]:
        """All rows of the file, with the schema's columns."""


def halves(
    first: int, end: int, parse: Callable[[int, int], _Parsed | None]
) -> Iterator[tuple[int, _Parsed | None]]:
    """Parses items `[first, end)` together, or, where that fails, each half of them.

    So an item that cannot be parsed costs a few calls more, and no other reading is needed.

    Args:
        parse: What becomes of the items of such a range; None if it fails.

    Yields:
        The first item of each range that was parsed, with what became of it, in order; None for a
        single item that failed.
    """
    if first >= end:
        return
    parsed = parse(first, end)
    if parsed is not None or end - first == 1:
        yield first, parsed
        return
    middle = (first + end) // 2
    yield from halves(first, middle, parse)
    yield from halves(middle, end, parse)
