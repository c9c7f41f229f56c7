"""What the Spark SQL templates share: calls, types, constants and common expressions.

A template takes a `Call`. A value is a SQL text; a missing value is NULL. A map is an array of
structs of `key` and `value`, because a raw map may hold a key twice. Scalar value hashes are
`Members`; lists of them are a text of type array<array<bigint>>. The events of a sequence are an
array of structs of `c0`, `c1` and so on.
"""

import datetime
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    """Scalar value hashes.

    Attributes:
        hashes: The expression of each member's hash.
        values: The expressions that must not be NULL, since Spark's `xxhash64` skips NULL.
    """

    hashes: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def is_null(self) -> str:
        return " OR ".join(f"{value} IS NULL" for value in dict.fromkeys(self.values))


@dataclass(frozen=True, kw_only=True)
class Call:
    """One step of a graph, as a template receives it.

    Attributes:
        inputs: The expressions of the inputs.
        types: The Arrow types of the inputs.
        params: The params of the step.
        type: The Arrow type of the result.
        owner: The slot, node or column that the step belongs to.
        variables: Unused names for variables of lambda functions.
    """

    inputs: Sequence[str | Members]
    types: Sequence[pa.DataType]
    params: Mapping[str, Any]
    type: pa.DataType
    owner: str = ""
    variables: Iterator[str] = field(default_factory=lambda: (f"e{i}" for i in itertools.count()))

    @property
    def text(self) -> str:
        """The expression of the first input."""
        return str(self.inputs[0])

    @property
    def texts(self) -> list[str]:
        """The expressions of all inputs."""
        return [str(given) for given in self.inputs]

    @property
    def of_list(self) -> bool:
        return is_list(self.types[0])

    def each(self, array: str, body: Callable[[str], str]) -> str:
        """The array with each element replaced by `body(element)`."""
        variable = next(self.variables)
        return f"transform({array}, {variable} -> {body(variable)})"

    def each_at(self, array: str, body: Callable[[str, str], str]) -> str:
        """The array with each element replaced by `body(element, position)`, counted from 0."""
        element, position = next(self.variables), next(self.variables)
        return f"transform({array}, ({element}, {position}) -> {body(element, position)})"

    def only(self, array: str, condition: Callable[[str], str]) -> str:
        """The elements of the array that satisfy the condition."""
        variable = next(self.variables)
        return f"filter({array}, {variable} -> {condition(variable)})"

    def let(self, value: str, body: Callable[[str], str]) -> str:
        """Binds a value to a variable for a `body` that uses it more than once.

        Otherwise the text would double with each level of nested operators. Spark SQL has no `let`,
        so the value is the one element of a transformed array.
        """
        return body(value) if _NAME.fullmatch(value) else f"{self.each(f'array({value})', body)}[0]"

    def finite(self, value: str) -> str:
        """The double, NULL where it is not finite."""
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
