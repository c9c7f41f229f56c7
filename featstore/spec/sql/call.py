"""What the Spark SQL templates share: a step as a template sees it, and texts of types, constants
and common expressions.

A template takes a step and its inputs. A value is a SQL text, a missing one being NULL; a map is an
array of structs of `key` and `value`, as a map may hold a key twice; scalar value hashes are
`Members`, lists of them a text of type array<array<bigint>>; events of a sequence are an array of
structs of `c0`, `c1` and so on.
"""

import datetime
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from featstore.ops.lists import is_list
from featstore.spec.model import TIMESTAMP

MAX_DOUBLE = "1.7976931348623157E308D"
MAX_FLOAT = "3.4028234663852886E38D"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_LOWEST = -(2**63)  # which a parser takes for a decimal
_NAME = re.compile(r"`[^`]*`|\w+(\.\w+)*")
_TYPE_NAMES = {
    pa.string(): "STRING",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    TIMESTAMP: "TIMESTAMP",
}


@dataclass(frozen=True, kw_only=True)
class Members:
    """Scalar value hashes: an expression for each member's hash, and the values that must not be
    NULL.
    """

    hashes: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def is_null(self) -> str:
        return " OR ".join(f"{value} IS NULL" for value in dict.fromkeys(self.values))


@dataclass(frozen=True, kw_only=True)
class Call:
    """One step as a template sees it: inputs with their types, params, the node it is of, and fresh
    names for variables.
    """

    inputs: Sequence[str | Members]
    types: Sequence[pa.DataType]
    params: Mapping[str, object]
    type: pa.DataType
    owner: str = ""
    variables: Iterator[str] = field(default_factory=lambda: (f"e{i}" for i in itertools.count()))

    @property
    def text(self) -> str:
        """The first input, which is a text."""
        return str(self.inputs[0])

    @property
    def texts(self) -> list[str]:
        """All inputs, which are texts."""
        return [str(given) for given in self.inputs]

    @property
    def of_list(self) -> bool:
        return is_list(self.types[0])

    def each(self, array: str, body: Callable[[str], str]) -> str:
        """The array with `body` of each element in its place."""
        variable = next(self.variables)
        return f"transform({array}, {variable} -> {body(variable)})"

    def each_at(self, array: str, body: Callable[[str, str], str]) -> str:
        """The array with `body` of each element and its position, from 0, in its place."""
        element, position = next(self.variables), next(self.variables)
        return f"transform({array}, ({element}, {position}) -> {body(element, position)})"

    def only(self, array: str, condition: Callable[[str], str]) -> str:
        """The elements of the array that fulfil the condition."""
        variable = next(self.variables)
        return f"filter({array}, {variable} -> {condition(variable)})"

    def let(self, value: str, body: Callable[[str], str]) -> str:
        """`body` of a value that it names more than once: nested operators would else double the
        text at each level.
        """
        return body(value) if _NAME.fullmatch(value) else f"{self.each(f'array({value})', body)}[0]"

    def finite(self, value: str) -> str:
        """The double, NULL where it is no finite number."""
        return self.let(value, lambda v: f"CASE WHEN abs({v}) <= {MAX_DOUBLE} THEN {v} END")


Template = Callable[[Call], "str | Members"]


def type_text(arrow_type: pa.DataType) -> str:
    """The SQL name of a canonical type that is no map."""
    return (
        f"ARRAY<{_TYPE_NAMES[arrow_type.value_type]}>"
        if is_list(arrow_type)
        else _TYPE_NAMES[arrow_type]
    )


def as_double(text: str, arrow_type: pa.DataType) -> str:
    """Numbers, or a list of them, as double."""
    wanted = pa.list_(pa.float64()) if is_list(arrow_type) else pa.float64()
    return text if arrow_type == wanted else f"CAST({text} AS {type_text(wanted)})"


def literal(value: object, arrow_type: pa.DataType) -> str:
    """A constant of a canonical type."""
    if isinstance(value, list):
        items = ", ".join(literal(item, arrow_type.value_type) for item in value)
        return f"CAST(array({items}) AS {type_text(arrow_type)})"
    if isinstance(value, str):
        escaped = (
            value.replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\u0024{")
        )  # no variable of Spark's
        return f"'{escaped}'"
    if isinstance(value, datetime.datetime):
        return f"timestamp_micros({(value - _EPOCH) // datetime.timedelta(microseconds=1)})"
    return double(value) if isinstance(value, float) else integer(value)


def double(value: object) -> str:
    """A float as a constant."""
    return f"{value!r}D"


def integer(value: object) -> str:
    """An integer or boolean as a constant."""
    return f"CAST('{value}' AS BIGINT)" if value == _LOWEST else str(value).lower()
