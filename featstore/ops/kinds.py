"""What a param of an operator, or another option of a spec, may be: how it is read, and its JSON
Schema.
"""

import datetime
import functools
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, get_type_hints

import pyarrow as pa

from featstore.base.errors import SpecError, nearest
from featstore.base.json_schema import Schema, any_of, descriptions, object_schema
from featstore.base.json_schema import or_null as schema_or_null
from featstore.base.redaction import shown

MAX_COUNT = 2**31 - 1  # Arrow's lists and Spark SQL require 32 bits.


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Values of one kind.

    Attributes:
        expected: What they are, in words for error messages.
        read: Returns a value of a document in canonical form, given its path there; SpecError if it
            is of another kind.
        schema: Returns what a document may hold, as far as a JSON Schema can tell.
    """

    expected: str
    read: Callable[[Any, str], Any]
    schema: Callable[[], Schema] = dict


@dataclass(frozen=True, kw_only=True)
class Param:
    """One param of an operator, or one option of another entry of a spec.

    Attributes:
        kind: What it may be.
        required: Whether a spec must give it.
        default: The value where a spec does not give it.
        part: What an option is a part of, see `spec.model`.
    """

    kind: Kind
    required: bool = False
    default: object = None
    part: str = "content"


def wrong(
    where: str, expected: str, found: object, known: Iterable[str] = (), *, note: str = ""
) -> SpecError:
    """Builds the error of a check.

    Args:
        where: The path in the document.
        expected: What was expected, in words.
        found: What was found.
        known: The valid names, of which the nearest is suggested.
        note: A remark on what was found.
    """
    hint = nearest(found, known) if isinstance(found, str) else ""
    if isinstance(found, datetime.date) and not isinstance(found, datetime.datetime):
        hint = f"; write a timestamp: {found} 00:00:00"  # YAML reads it so
    return SpecError(
        f"{where}: expected {expected}, found {shown(found)}{note and ', ' + note}{hint}"
    )


def converted(
    expected: str,
    convert: Callable[[Any], Any],
    schema: Schema | None = None,
    known: tuple[str, ...] = (),
) -> Kind:
    """Values that a function makes canonical; it raises ValueError or TypeError for others.

    Args:
        known: The valid names, of which errors suggest the nearest.
    """

    def read(value: Any, where: str) -> Any:
        try:
            return convert(value)
        except (TypeError, ValueError):
            # Without the cause, whose text may hold a URL with its secrets.
            raise wrong(where, expected, value, known) from None

    return Kind(expected=expected, read=read, schema=lambda: dict(schema or {}))


def accepted(
    expected: str, accepts: Callable[[Any], bool], schema: Schema, known: tuple[str, ...] = ()
) -> Kind:
    """Values that are taken as they are."""

    def read(value: Any, where: str) -> Any:
        if not accepts(value):
            raise wrong(where, expected, value, known)
        return value

    return Kind(expected=expected, read=read, schema=lambda: dict(schema))


def text(expected: str = "text") -> Kind:
    """Texts that are not empty."""
    return accepted(
        expected,
        lambda value: isinstance(value, str) and value != "",
        {"type": "string", "minLength": 1},
    )


def integer(low: int, high: int = MAX_COUNT, expected: str | None = None) -> Kind:
    """Integers from `low` to `high`."""
    return accepted(
        expected or f"an integer, {low} to {high}",
        lambda value: type(value) is int and low <= value <= high,
        {"type": "integer", "minimum": low, "maximum": high},
    )


def finite_number(value: object) -> float:
    """A finite number as float; ValueError if it is none."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) <= sys.float_info.max
    ):
        raise ValueError(value)
    return float(value)


def positive_number(value: object) -> float:
    """A finite number above 0 as float; ValueError if it is none."""
    found = finite_number(value)
    if found <= 0:
        raise ValueError(value)
    return found


def literal(value: object) -> object:
    """A constant of any type, before the type that it must have is known.

    Raises:
        ValueError: It is a mapping, null, or a number that is not finite.
    """
    if isinstance(value, list | tuple):
        return tuple(literal(item) for item in value)
    if not isinstance(value, str | int | float | datetime.datetime):
        raise ValueError(value)
    return finite_number(value) if isinstance(value, float) else value


def scalar_of(value: object, arrow_type: pa.DataType) -> pa.Scalar:
    """A constant as an Arrow scalar of a canonical type. Naive timestamps are UTC.

    Raises:
        OverflowError: The value is out of range.
        TypeError: The value is of another type.
        ValueError: The value is not a finite number.
    """
    return pa.scalar(_plain(value, arrow_type), arrow_type)


def _plain(value: object, arrow_type: pa.DataType) -> object:
    if pa.types.is_list(arrow_type):
        if not isinstance(value, list | tuple):
            raise TypeError(value)
        return [_plain(item, arrow_type.value_type) for item in value]
    if arrow_type == pa.float64():
        return finite_number(value) + 0.0
    if pa.types.is_timestamp(arrow_type) and isinstance(value, datetime.datetime):
        return value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
    expected = {pa.string(): str, pa.int64(): int, pa.bool_(): bool}.get(arrow_type)
    if (
        expected is None
        or not isinstance(value, expected)
        or (expected is int and isinstance(value, bool))
    ):
        raise TypeError(value)
    return value


def one_of(*names: str, expected: str | None = None) -> Kind:
    """One of these names."""
    listed = f"{', '.join(names[:-1])} or {names[-1]}"
    return accepted(
        expected or listed, lambda value: value in names, {"enum": list(names)}, known=names
    )


TEXT = text()
COUNT = integer(1)
BOOLEAN = accepted("true or false", lambda value: isinstance(value, bool), {"type": "boolean"})
NUMBER = converted("a finite number", finite_number, {"type": "number"})
ANYTHING = Kind(expected="a constant", read=lambda value, where: value)


def or_null(kind: Kind) -> Kind:
    """Values of a kind, or null, which counts as not given."""
    return Kind(
        expected=kind.expected,
        read=lambda value, where: None if value is None else kind.read(value, where),
        schema=lambda: schema_or_null(kind.schema()),
    )


def or_empty(kind: Kind, empty: object) -> Kind:
    """Lists or mappings of a kind; null, and whatever is false, counts as an empty one."""
    return Kind(
        expected=kind.expected,
        read=lambda value, where: kind.read(value or empty, where),
        schema=lambda: schema_or_null(kind.schema()),
    )


def list_of(item: Kind) -> Kind:
    """Lists, read as tuples."""
    return Kind(
        expected="a list",
        read=lambda value, where: tuple(
            item.read(each, f"{where}[{i}]") for i, each in enumerate(read_list(value, where))
        ),
        schema=lambda: {"type": "array", "items": item.schema()},
    )


def by_name(item: Kind, name: Kind = TEXT) -> Kind:
    """Mappings of names."""
    return Kind(
        expected="a mapping",
        read=lambda value, where: {
            name.read(key, where): item.read(each, f"{where}.{key}")
            for key, each in read_mapping(value, where).items()
        },
        schema=lambda: {"type": "object", "additionalProperties": item.schema()},
    )


def entry_of(described: type) -> Kind:
    """Mappings of the options of a dataclass, read as those that are given."""
    options = options_of(described)
    return Kind(
        expected="a mapping",
        read=lambda value, where: read_options(options, known_keys(value, options, where), where),
        schema=lambda: options_schema(described, options),
    )


def _names(value: object, where: str) -> tuple[str, ...]:
    if isinstance(value, str) and value:
        return (value,)
    if not isinstance(value, list | tuple) or not value:
        raise wrong(where, NAMES.expected, value)
    return tuple(TEXT.read(name, f"{where}[{i}]") for i, name in enumerate(value))


NAMES = Kind(
    expected="a name or a list of names",
    read=_names,
    schema=lambda: any_of([TEXT.schema(), list_of(TEXT).schema() | {"minItems": 1}]),
)


@functools.cache
def options_of(described: type) -> Mapping[str, Param]:
    """The options that a dataclass describes: its fields with a `Kind` in their `Annotated` type,
    after which may stand what the option is a part of.
    """
    hints = get_type_hints(described, include_extras=True)
    found = {}
    for field in fields(described):
        kind, *part = getattr(hints[field.name], "__metadata__", (None,))
        if isinstance(kind, Kind):
            required = field.default is MISSING and field.default_factory is MISSING
            param = Param(kind=kind, required=required, default=None if required else field.default)
            found[field.name] = replace(param, part=part[0]) if part else param
    return found


def read_options(
    options: Mapping[str, Param], entry: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """The options that an entry of the document gives, or must give, in canonical form."""
    return {
        name: option.kind.read(entry.get(name), f"{where}.{name}" if where else name)
        for name, option in options.items()
        if option.required or name in entry
    }


def options_schema(documented: type, options: Mapping[str, Param]) -> Schema:
    """The schema of a mapping of options, described by a class's docstring."""
    texts = descriptions(documented, "Attributes")
    return object_schema(
        {
            name: option.kind.schema() | ({"description": texts[name]} if name in texts else {})
            for name, option in options.items()
        },
        [name for name, option in options.items() if option.required],
    )


def known_keys(value: object, known: Collection[str], where: str) -> Mapping[str, Any]:
    """A mapping of the document; SpecError if it has other keys than these."""
    entry = read_mapping(value, where or "document")
    for key in entry:
        if key not in known:
            at = f"{where}.{key}" if where else key
            raise wrong(at, f"one of {', '.join(known)}", key, known)
    return entry


def read_mapping(value: object, where: str) -> Mapping[str, Any]:
    """A mapping of the document by text."""
    if not isinstance(value, Mapping):
        raise wrong(where, "a mapping", value)
    for key in value:
        if not isinstance(key, str):
            raise wrong(where, "text as key (quote it)", key)
    return value


def read_list(value: object, where: str) -> list[Any]:
    """A list of the document."""
    if not isinstance(value, list | tuple):
        raise wrong(where, "a list", value)
    return list(value)
