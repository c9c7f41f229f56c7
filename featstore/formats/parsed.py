"""What readers of formats share: what they make of a part of a file, and the types of columns.

A reader tells the rows of a part, and which of them it could not read. A column whose type was
inferred from sampled rows is marked in its field's metadata: a value that inference would not have
given this type, such as `007` among numbers, is malformed in later rows, too. A type that was given
has no mark, and takes what can be read as it. Types have the names of a spec, and `float`, `binary`
and others that raw Parquet may hold besides.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol, TypeVar

import pyarrow as pa

from featstore.base.errors import InputError, nearest
from featstore.spec.model import TYPE_NAMES, read_type, type_name, type_names

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
        """Whether a file that begins so is not compressed, although it seems to be."""
        return False

    def sample(self, source: IO[bytes], most: int) -> list[Any]:
        """At most `most` of the file's first rows, in a form for `infer`, without bad ones."""

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


_HAS_VALUE, _FEATURE = b"featstore.has_value", b"featstore.feature"


def inferred(
    name: str, kind: pa.DataType, *, has_value: bool = True, feature: str | None = None
) -> pa.Field:
    """A column of an inferred type.

    Args:
        has_value: Whether a sampled row has a value. Without one the type says nothing.
        feature: The name in the file if it is another.
    """
    marks = {_HAS_VALUE: b"1" if has_value else b"0"}
    return pa.field(name, kind, metadata=marks | ({_FEATURE: feature.encode()} if feature else {}))


def given(field: pa.Field, kind: pa.DataType) -> pa.Field:
    """An inferred column with a type that the user gave."""
    marks = dict(field.metadata or {})
    marks.pop(_HAS_VALUE, None)
    return field.with_type(kind).with_metadata(marks or None)


def is_inferred(field: pa.Field) -> bool:
    """Whether nobody gave the column's type."""
    return _HAS_VALUE in (field.metadata or {})


def is_undecided(field: pa.Field) -> bool:
    """Whether nobody gave the column's type, and no sampled row had a value to infer it from."""
    return bool((field.metadata or {}).get(_HAS_VALUE) == b"0")


def feature_of(field: pa.Field) -> str:
    """The column's name in the file."""
    return (field.metadata or {}).get(_FEATURE, field.name.encode()).decode()  # type: ignore[no-any-return]


def unmarked(schema: pa.Schema) -> pa.Schema:
    """The schema to write."""
    return pa.schema([(field.name, field.type) for field in schema])


# What a spec reads as double and string, and a file stores as it was.
_OWN = {"float": pa.float32(), "binary": pa.binary()}
_NAMES = {kind: name for name, kind in _OWN.items()}


def name_of(kind: pa.DataType) -> str:
    """The name of a type, such as `list<long>`; Arrow's own name for one without."""
    if pa.types.is_list(kind):
        return f"list<{name_of(kind.value_type)}>"
    if kind in _NAMES:
        return _NAMES[kind]
    try:
        return type_name(kind)
    except KeyError:
        return str(kind)


def input_type(kind: pa.DataType) -> str | None:
    """The type that a spec declares for a column of this one; None if it reads no such column."""
    same = {pa.float32(): pa.float64(), pa.list_(pa.float32()): pa.list_(pa.float64())}
    try:
        return type_name(same.get(kind, kind))
    except KeyError:
        return None


def type_of(name: str, column: str) -> pa.DataType:
    """The type of this name, for a column.

    Raises:
        InputError: There is no such type.
    """
    text = name.strip().lower()
    if text.startswith("list<") and text.endswith(">"):
        return pa.list_(type_of(text.removeprefix("list<").removesuffix(">"), column))
    found = _OWN.get(text) or read_type(text)
    if found is None:
        known = ", ".join((*_OWN, *TYPE_NAMES))
        raise InputError(
            f"column {column!r}: expected a type of {known}, found {name!r}"
            f"{nearest(name, (*_OWN, *type_names()))}"
        )
    return found
