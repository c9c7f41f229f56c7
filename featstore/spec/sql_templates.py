"""Spark SQL templates: for each function that a graph's steps call, the expression that gives the same values.

A template takes the step and its inputs. A value is a SQL text, a missing one being NULL; scalar value hashes are `Members`,
lists of value hashes a text of type array<array<bigint>>. Spark 4's functions are used.
"""

import datetime
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from featstore.ops import columns, ids, lists, numbers, slots, timestamps
from featstore.spec.model import TIMESTAMP

_MASK = 2**63 - 1
_MAX_DOUBLE = "1.7976931348623157E308D"
_MAX_FLOAT = "3.4028234663852886E38D"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, kw_only=True)
class Members:
    """Scalar value hashes: an expression for each member's hash, and the values that must not be NULL."""

    hashes: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def is_null(self) -> str:
        return " OR ".join(f"{value} IS NULL" for value in dict.fromkeys(self.values))


@dataclass(frozen=True, kw_only=True)
class Call:
    """One step as a template sees it: inputs with their types, params, and fresh names for lambda variables."""

    inputs: Sequence[str | Members]
    types: Sequence[pa.DataType]
    params: Mapping[str, object]
    type: pa.DataType
    variables: Iterator[str] = field(default_factory=lambda: (f"e{i}" for i in itertools.count()))

    @property
    def text(self) -> str:
        """The first input, which is a text."""
        return str(self.inputs[0])

    @property
    def of_list(self) -> bool:
        return lists.is_list(self.types[0])

    def each(self, array: str, body: Callable[[str], str]) -> str:
        """The array with `body` of each element in its place."""
        variable = next(self.variables)
        return f"transform({array}, {variable} -> {body(variable)})"

    def only(self, array: str, condition: Callable[[str], str]) -> str:
        """The elements of the array that fulfil the condition."""
        variable = next(self.variables)
        return f"filter({array}, {variable} -> {condition(variable)})"


def _read(call: Call) -> str:
    value = call.type.value_type if call.of_list else call.type
    if value == pa.string():
        return call.each(call.text, lambda e: f"make_valid_utf8({e})") if call.of_list else f"make_valid_utf8({call.text})"
    return f"CAST({call.text} AS {_TYPE_NAMES[value]})" if value == pa.float64() and not call.of_list else call.text


def _clean(call: Call) -> str:
    if not call.of_list:
        return _clean_double(call.text) if call.type == pa.float64() else call.text
    floats = call.type.value_type == pa.float64()
    array = call.each(call.text, lambda e: _clean_double(f"CAST({e} AS DOUBLE)")) if floats else call.text
    return call.only(array, lambda e: f"{e} IS NOT NULL")


def _clean_double(text: str) -> str:
    return f"(nanvl({text}, NULL) + 0.0D)"


def _empty_as_null(call: Call) -> str:
    return call.only(call.text, lambda e: f"{e} <> ''") if call.of_list else f"nullif({call.text}, '')"


def _fill_null(call: Call) -> str:
    value = call.params["value"]
    assert isinstance(value, pa.Scalar)
    return f"coalesce({call.text}, {literal(value.as_py(), value.type)})"


def _hash_values(call: Call) -> str | Members:
    if isinstance(call.inputs[0], Members) or ids.is_hashed(call.types[0]):
        return call.inputs[0]
    if call.of_list:
        return call.each(call.text, lambda e: f"array(xxhash64({_text_of(e, call.types[0].value_type)}))")
    return Members(hashes=(f"xxhash64({_text_of(call.text, call.types[0])})",), values=(call.text,))


def _text_of(value: str, arrow_type: pa.DataType) -> str:
    if arrow_type == pa.string():
        return value
    if arrow_type == pa.bool_():
        return f"CAST(CAST({value} AS INT) AS STRING)"
    return f"CAST({f'unix_micros({value})' if arrow_type == TIMESTAMP else value} AS STRING)"


def _hash(call: Call) -> str | Members:
    return _cut(call, call.text) if call.of_list else call.inputs[0]


def _cut(call: Call, array: str) -> str:
    max_len = call.params["max_len"]
    if max_len is None:
        return array
    return (
        f"slice({array}, 1, {max_len})"
        if call.params["truncate"] == "head"
        else (f"reverse(slice(reverse({array}), 1, {max_len}))")
    )


def _cross(call: Call) -> str | Members:
    members = [member for member in call.inputs if isinstance(member, Members)]
    values = tuple(value for member in call.inputs for value in (member.values if isinstance(member, Members) else (member,)))
    if len(members) == len(call.inputs):
        return Members(hashes=tuple(h for member in members for h in member.hashes), values=values)
    crossed = _combinations(call, list(call.inputs), [])
    limit = call.params["max_cross"]
    crossed = crossed if limit is None else f"slice({crossed}, 1, {limit})"
    return f"CASE WHEN NOT ({Members(hashes=(), values=values).is_null}) THEN {crossed} END"


def _combinations(call: Call, waiting: list[str | Members], chosen: list[str]) -> str:
    """An array of arrays: the members' hashes of each combination, the first member outermost."""
    first, rest = waiting[0], waiting[1:]
    if isinstance(first, Members):
        chosen = [*chosen, f"array({', '.join(first.hashes)})"]
        return _combinations(call, rest, chosen) if rest else f"array(concat({', '.join(chosen)}))"
    if not rest:
        return call.each(first, lambda e: f"concat({', '.join([*chosen, e])})")
    return f"flatten({call.each(first, lambda e: _combinations(call, rest, [*chosen, e]))})"


def _identity(call: Call) -> str:
    if not call.of_list:
        return _finite(_double(call))
    array = call.each(_cut(call, call.text), lambda e: f"CAST({e} AS DOUBLE)")
    return call.only(array, lambda e: f"abs({e}) <= {_MAX_DOUBLE}")


def _double(call: Call) -> str:
    return call.text if call.types[0] == pa.float64() else f"CAST({call.text} AS DOUBLE)"


def _finite(value: str) -> str:
    return f"CASE WHEN abs({value}) <= {_MAX_DOUBLE} THEN {value} END"


def _log1p(call: Call) -> str:
    return _finite(f"log1p({_double(call)})")


def _clip(call: Call) -> str:
    value = _double(call)
    bounds = [(side, call.params[name]) for side, name in (("<", "min"), (">", "max"))]
    cases = [f"WHEN {value} {side} {_number(bound)} THEN {_number(bound)}" for side, bound in bounds if bound is not None]
    return f"CASE {' '.join(cases)} WHEN abs({value}) <= {_MAX_DOUBLE} THEN {value} END"


def _bucketize(call: Call) -> str:
    value, boundaries = _double(call), call.params["boundaries"]
    assert isinstance(boundaries, tuple)
    below = call.only(f"array({', '.join(map(_number, boundaries))})", lambda e: f"{e} <= {value}")
    return f"CASE WHEN {value} IS NOT NULL THEN size({below}) END"


def _hour(call: Call) -> str:
    return f"hour({_in_zone(call)})"


def _day_of_week(call: Call) -> str:
    return f"weekday({_in_zone(call)})"


def _in_zone(call: Call) -> str:
    return f"convert_timezone({literal(call.params['tz'], pa.string())}, {call.text})"


def _sign_column(call: Call) -> str:
    slot, value = call.params["slot"], call.inputs[0]
    if isinstance(value, Members):
        return f"CASE WHEN {value.is_null} THEN 0 ELSE {_sign(slot, value.hashes)} END"
    num_members = call.types[0].value_type.num_fields
    signs = call.each(value, lambda e: _sign(slot, [f"{e}[{i}]" for i in range(num_members)]))
    return f"coalesce({signs}, array(0L))"


def _sign(slot: object, hashes: Sequence[str]) -> str:
    return f"greatest(xxhash64({slot}, {', '.join(hashes)}) & {_MASK}, 1)"


def _index_column(call: Call) -> str:
    return f"coalesce(CAST({call.text} AS BIGINT) + 1, 0)"


def _float_column(call: Call) -> str:
    if not call.of_list:
        value = f"CAST({call.text} AS FLOAT)"
        return f"coalesce(CASE WHEN abs({value}) <= {_MAX_FLOAT} THEN {value} + 0F END, float('NaN'))"
    floats = call.each(call.text, lambda e: f"CAST({e} AS FLOAT) + 0F")
    return f"coalesce({call.only(floats, lambda e: f'abs({e}) <= {_MAX_FLOAT}')}, array(float('NaN')))"


_TYPE_NAMES = {
    pa.string(): "STRING",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    TIMESTAMP: "TIMESTAMP",
}


def literal(value: object, arrow_type: pa.DataType) -> str:
    """A constant of a canonical type."""
    if isinstance(value, list):
        items = ", ".join(literal(item, arrow_type.value_type) for item in value)
        return f"CAST(array({items}) AS ARRAY<{_TYPE_NAMES[arrow_type.value_type]}>)"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, datetime.datetime):
        return f"timestamp_micros({(value - _EPOCH) // datetime.timedelta(microseconds=1)})"
    return _number(value) if isinstance(value, float) else str(value).lower()


def _number(value: object) -> str:
    return f"{value!r}D"


TEMPLATES: dict[Callable[..., pa.Array], Callable[[Call], str | Members]] = {
    columns.read_column: _read,
    columns.clean: _clean,
    columns.empty_as_null: _empty_as_null,
    lists.fill_null: _fill_null,
    ids.hash_values: _hash_values,
    ids.hash_operator: _hash,
    ids.cross: _cross,
    numbers.identity: _identity,
    numbers.log1p: _log1p,
    numbers.clip: _clip,
    numbers.bucketize: _bucketize,
    timestamps.hour: _hour,
    timestamps.day_of_week: _day_of_week,
    slots.sign_column: _sign_column,
    slots.index_column: _index_column,
    slots.float_column: _float_column,
}
