"""Operators that choose between values row by row: fill, where, compare."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from featstore.ops.kinds import scalar_of
from featstore.ops.lists import element_type, is_list
from featstore.ops.maps import is_map
from featstore.ops.numbers import is_number

RELATIONS: Mapping[str, Callable[..., pa.Array]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_ORDERED = ("<", "<=", ">", ">=")


def fill_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    _check_alike(types)
    if len(types) == 1 and params["value"] is None:
        raise ValueError("needs `value`, or several inputs")
    _check_constant("value", params["value"], types[0])
    return types[0]


def fill(*arrays: pa.Array, value: object, counts: Counter[str]) -> pa.Array:
    """The first input that is not missing, else `value`. An empty list or text is not missing."""
    return pc.coalesce(*arrays, *_constant(value, arrays[0].type))


def where_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    condition, *rest = types
    if condition != pa.bool_():
        raise TypeError("boolean, then the values")
    num_constants = (params["then"] is not None) + (params["otherwise"] is not None)
    if len(rest) + num_constants > 2 or not rest:
        raise ValueError(
            "needs a condition, and values for `then` and `otherwise`: at least one of these in "
            "`of`, once each"
        )
    _check_alike(rest)
    _check_constant("then", params["then"], rest[0])
    _check_constant("otherwise", params["otherwise"], rest[0])
    return rest[0]


def where(
    condition: pa.BooleanArray,
    *values: pa.Array,
    then: object,
    otherwise: object,
    counts: Counter[str],
) -> pa.Array:
    """The second input where the condition is true, the third where it is false.

    Either may be a constant instead (`then`, `otherwise`). The result is missing where the
    condition is missing, and where it is false and there is no value for that.
    """
    arrow_type = values[0].type
    inputs = iter(values)
    sides = [
        next(inputs, pa.scalar(None, arrow_type))
        if constant is None
        else scalar_of(constant, arrow_type)
        for constant in (then, otherwise)
    ]
    return pc.if_else(condition, *sides)


def compare_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    if any(
        is_list(arrow_type) or is_map(arrow_type) or pa.types.is_struct(arrow_type)
        for arrow_type in types
    ):
        raise TypeError("values other than lists, maps or value hashes")
    if (len(types) == 2) == (params["value"] is not None):
        raise ValueError("needs either a second input or `value`")
    if len(set(types)) > 1 and not all(is_number(arrow_type) for arrow_type in types):
        raise TypeError("two values of one type, or two numbers")
    if params["relation"] in _ORDERED and pa.types.is_boolean(types[0]):
        raise ValueError("of booleans allows only the relations == and !=")
    value = params["value"]
    if value is not None and not (is_number(types[0]) and isinstance(value, float)):
        _check_constant("value", value, types[0])
    return pa.bool_()


def compare(*arrays: pa.Array, relation: str, value: object, counts: Counter[str]) -> pa.Array:
    """Whether `x relation y` holds, a boolean; missing where x or y is missing.

    Numbers of different types are compared as float64, texts by code points.
    """
    left, right = arrays[0], arrays[-1]
    if value is not None:
        as_float = is_number(left.type) and isinstance(value, float)
        right = scalar_of(value, pa.float64() if as_float else left.type)
    if left.type != right.type:
        left, right = (side.cast(pa.float64(), safe=False) for side in (left, right))
    return RELATIONS[relation](left, right)


def _constant(value: object, arrow_type: pa.DataType) -> list[pa.Scalar]:
    return [] if value is None else [scalar_of(value, arrow_type)]


def _check_constant(name: str, value: object, arrow_type: pa.DataType) -> None:
    try:
        _constant(value, arrow_type)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(
            f"expected `{name}` in the type of the input ({arrow_type}), found {value!r}"
        ) from error


def _check_alike(types: Sequence[pa.DataType]) -> None:
    values = set(map(element_type, types))
    if len(set(types)) > 1 or any(is_map(value) or pa.types.is_struct(value) for value in values):
        raise TypeError("values of one type (no maps, no value hashes)")
