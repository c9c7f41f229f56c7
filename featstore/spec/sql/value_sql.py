"""Spark SQL of operators on single values: ids, numbers, timestamps, and choices between values,
with those that have frozen params; `quantile_bucketize` uses that of bucketize.
"""

import pyarrow as pa

from featstore.base.errors import SpecError
from featstore.ops import choices, ids, numbers, timestamps, vocabularies
from featstore.ops.kinds import scalar_of
from featstore.ops.lists import is_list
from featstore.spec.model import TIMESTAMP
from featstore.spec.sql.call import MAX_DOUBLE, Call, Members, Template, as_double, double, literal
from featstore.spec.sql.column_sql import cut


def _hash_values(call: Call) -> str | Members:
    if call.of_list:
        return call.each(
            call.text, lambda e: f"array(xxhash64({_text_of(e, call.types[0].value_type)}))"
        )
    return Members(hashes=(f"xxhash64({_text_of(call.text, call.types[0])})",), values=(call.text,))


def _text_of(value: str, arrow_type: pa.DataType) -> str:
    if arrow_type == pa.string():
        return value
    if arrow_type == pa.bool_():
        return f"CAST(CAST({value} AS INT) AS STRING)"
    return f"CAST({f'unix_micros({value})' if arrow_type == TIMESTAMP else value} AS STRING)"


def _cross(call: Call) -> str | Members:
    members = [member for member in call.inputs if isinstance(member, Members)]
    values = tuple(
        value
        for member in call.inputs
        for value in (member.values if isinstance(member, Members) else (member,))
    )
    if len(members) == len(call.inputs):
        return Members(hashes=tuple(h for member in members for h in member.hashes), values=values)
    crossed = cut(_combinations(call, list(call.inputs), []), call.params["max_cross"], "head")
    return f"CASE WHEN NOT ({Members(hashes=(), values=values).is_null}) THEN {crossed} END"


def _combinations(call: Call, waiting: list[str | Members], chosen: list[str]) -> str:
    """The members' hashes of each combination, an array of arrays, the first member outermost."""
    first, rest = waiting[0], waiting[1:]
    if isinstance(first, Members):
        chosen = [*chosen, f"array({', '.join(first.hashes)})"]
        return _combinations(call, rest, chosen) if rest else f"array(concat({', '.join(chosen)}))"
    if not rest:
        return call.each(first, lambda e: f"concat({', '.join([*chosen, e])})")
    return f"flatten({call.each(first, lambda e: _combinations(call, rest, [*chosen, e]))})"


def _identity(call: Call) -> str:
    if not call.of_list:
        return call.finite(_double(call))
    array = as_double(
        cut(call.text, call.params["max_len"], call.params["truncate"]), call.types[0]
    )
    return call.only(array, lambda e: f"abs({e}) <= {MAX_DOUBLE}")


def _double(call: Call, position: int = 0) -> str:
    return as_double(call.texts[position], call.types[position])


def _clip(call: Call) -> str:
    bounds = [(side, call.params[name]) for side, name in (("<", "min"), (">", "max"))]

    def cases(value: str) -> str:
        beyond = [
            f"WHEN {value} {side} {double(bound)} THEN {double(bound)}"
            for side, bound in bounds
            if bound is not None
        ]
        return f"CASE {' '.join(beyond)} WHEN abs({value}) <= {MAX_DOUBLE} THEN {value} END"

    return call.let(_double(call), cases)


def _bucketize(call: Call) -> str:
    boundaries = call.params["boundaries"]
    is_long = call.types[0] == pa.int64()  # Spark would compare it with a double in float64
    longs = literal(numbers.whole_boundaries(boundaries), pa.list_(pa.int64()))
    doubles = map(double, numbers.float_boundaries(boundaries))
    array = longs if is_long else f"array({', '.join(doubles)})"

    def count(value: str) -> str:
        return (
            f"CASE WHEN {value} IS NOT NULL THEN "
            f"size({call.only(array, lambda e: f'{e} <= {value}')}) END"
        )

    return call.let(call.text if is_long else _double(call), count)


def _day_of_week(call: Call) -> str:
    return f"weekday({_in_zone(call)})"


def _in_zone(call: Call) -> str:
    return f"convert_timezone({literal(call.params['tz'], pa.string())}, {call.text})"


def _time_since(call: Call) -> str:
    now, past = call.texts
    if not is_list(call.type):
        return _elapsed(call, now, past)
    elapsed = call.only(
        call.each(past, lambda e: _elapsed(call, now, e)), lambda e: f"{e} IS NOT NULL"
    )
    return f"CASE WHEN {now} IS NOT NULL THEN {elapsed} END"


def _elapsed(call: Call, now: str, past: str) -> str:
    """NULL where int64 cannot hold the difference."""
    unit = timestamps.UNITS[str(call.params["unit"])]
    return f"(try_subtract(unix_micros({now}), unix_micros({past})) / {double(float(unit))})"


def _where(call: Call) -> str:
    condition, *values = call.texts
    given = iter(values)
    chosen = [
        (truth, text)
        for truth, param in (("true", "then"), ("false", "otherwise"))
        for text in (
            _constant(call, param, call.type)
            or [text for text in (next(given, None),) if text is not None]
        )
    ]
    return f"CASE {condition} {' '.join(f'WHEN {truth} THEN {text}' for truth, text in chosen)} END"


def _constant(call: Call, param: str, arrow_type: pa.DataType) -> list[str]:
    """The param as a constant of the type; empty where it is not given."""
    value = call.params[param]
    return [] if value is None else [literal(scalar_of(value, arrow_type).as_py(), arrow_type)]


def _compare(call: Call) -> str:
    value, relation = call.params["value"], call.params["relation"]
    if value is None:
        left, right = (
            call.texts if call.types[0] == call.types[1] else (_double(call), _double(call, 1))
        )
    elif isinstance(value, float) and numbers.is_number(call.types[0]):
        left, right = _double(call), double(value)
    else:
        left, [right] = call.text, _constant(call, "value", call.types[0])
    return f"({left} {relation} {right})"


_MAX_VALUES = 1_000  # Each is a literal in the SQL text, and is compared one by one.


def _min_max(call: Call) -> str:
    low, high = double(call.params["min"]), double(call.params["max"])

    def scaled(value: str) -> str:
        return (
            f"CASE WHEN {value} IS NOT NULL THEN (least(greatest({value}, {low}), {high}) - {low}) "
            f"/ ({high} - {low}) END"
        )

    return call.let(f"CAST({call.text} AS DOUBLE)", scaled)


def _vocabulary(call: Call) -> str:
    vocabulary = call.params["vocabulary"]
    if len(vocabulary) > _MAX_VALUES:
        raise SpecError(
            f"{call.owner}: expected a vocabulary of at most {_MAX_VALUES:,} values for Spark SQL, "
            f"found {len(vocabulary):,}; use the extractor for this slot"
        )
    values = ", ".join(literal(value, pa.string()) for value in vocabulary.values.to_pylist())
    missing = call.params["unknown"] == "missing"

    def index(value: str) -> str:
        position = f"array_position(array({values}), CAST({value} AS STRING))"
        return f"nullif({position}, 0) - 1" if missing else position

    if not call.of_list:
        return f"({index(call.text)})"
    return call.only(call.each(call.text, index), lambda e: f"{e} IS NOT NULL")


VALUE_TEMPLATES: dict[object, Template] = {
    ids.hash_values: _hash_values,
    ids.hash_operator: lambda call: (
        cut(call.text, call.params["max_len"], call.params["truncate"])
        if call.of_list
        else call.inputs[0]
    ),
    ids.cross: _cross,
    numbers.identity: _identity,
    numbers.log1p: lambda call: call.finite(f"log1p({_double(call)})"),
    numbers.power: lambda call: call.finite(
        f"power({_double(call)}, {double(call.params['exponent'])})"
    ),
    numbers.ratio: lambda call: call.finite(
        f"({_double(call)} / nullif({_double(call, 1)}, 0.0D))"
    ),
    numbers.clip: _clip,
    numbers.bucketize: _bucketize,
    timestamps.hour: lambda call: f"hour({_in_zone(call)})",
    timestamps.day_of_week: _day_of_week,
    timestamps.is_weekend: lambda call: f"({_day_of_week(call)} >= 5)",
    timestamps.time_since: _time_since,
    choices.fill: lambda call: (
        f"coalesce({', '.join([*call.texts, *_constant(call, 'value', call.type)])})"
    ),
    choices.where: _where,
    choices.compare: _compare,
    numbers.standardize: lambda call: call.finite(
        f"((CAST({call.text} AS DOUBLE) - {double(call.params['mean'])}) / "
        f"{double(call.params['stddev'])})"
    ),
    numbers.min_max: _min_max,
    vocabularies.find_in_vocabulary: _vocabulary,
}
