"""Whether an operator treats each row alone: the same value however rows are cut into batches, and
in any order.

All else rests on it: Spark, a notebook and an online service cut the same rows differently.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from featstore.errors import OperatorError
from featstore.ops.arrays import Integers, array_of
from featstore.ops.columns import clean, read_column
from featstore.ops.signature import Operator
from featstore.ops.user import declared_operator

Function = Callable[..., pa.Array]

_MAX_SINGLE_ROWS = 16
_FAILURES = (pa.ArrowException, ArithmeticError, LookupError, MemoryError, TypeError, ValueError)


def check_operator(function: Callable[..., Any], *arrays: pa.Array, **params: object) -> pa.Array:
    """Runs a function with the decorator `operator` on a batch, as the extractor does, and returns
    its result.

    OperatorError where it fails, where the result is not as declared, or where a row's value
    changes when the batch is run again, in reverse, or in smaller batches: give rows that differ,
    with missing values. TypeError for other inputs or params.
    """
    operator = declared_operator(function)
    known = _read_params(operator, params)
    for array in arrays:
        if not isinstance(array, pa.Array):
            raise TypeError(f"{operator.name}: expected Arrow arrays, found {type(array).__name__}")
    if len(arrays) != operator.min_inputs:
        raise TypeError(
            f"{operator.name}: expected {operator.min_inputs} arrays, found {len(arrays)}"
        )
    types = [array.type for array in arrays]
    try:
        operator.result(types, known)
    except TypeError as error:
        raise TypeError(
            f"{operator.name}: expected {error}, found {', '.join(map(str, types))}"
        ) from error
    inputs = [
        clean(read_column(array, declared=array.type, counts=Counter()), counts=Counter())
        for array in arrays
    ]
    return check_rows(operator.name, operator.function, inputs, known)


def check_rows(
    name: str, function: Function, arrays: list[pa.Array], params: Mapping[str, object]
) -> pa.Array:
    """The function's result on the arrays; OperatorError, which begins with `name`, for the first
    row that is not alone.
    """
    whole = _run(name, "", function, arrays, params)
    for where, rows in _arrangements(len(whole)):
        expected = whole.take(array_of(rows))
        found = _run(name, f" {where}", function, [_taken(array, rows) for array in arrays], params)
        if not found.equals(expected):
            difference = _difference(found, expected, rows, len(whole))
            raise OperatorError(
                f"{name}: {difference} {where}: expected the same, as each row must be treated "
                f"alone"
            )
    return whole


def _read_params(operator: Operator, given: Mapping[str, object]) -> dict[str, object]:
    known: dict[str, object] = {
        name: param.default for name, param in operator.params.items() if not param.required
    }
    for name, value in given.items():
        if name not in operator.params:
            raise TypeError(
                f"{operator.name}: expected params {', '.join(operator.params) or '(none)'}, found "
                f"{name!r}"
            )
        try:
            known[name] = operator.params[name].read(value)
        except (TypeError, ValueError) as error:
            expected = operator.params[name].expected
            raise TypeError(
                f"{operator.name}: expected {expected} for {name!r}, found {value!r}"
            ) from error
    missing = sorted(operator.params.keys() - known.keys())
    if missing:
        raise TypeError(f"{operator.name}: expected the param {missing[0]!r}, found none")
    return known


def _arrangements(num_rows: int) -> Iterator[tuple[str, Integers]]:
    """Other batches of the same rows, each with words for it."""
    rows = np.arange(num_rows)
    yield "when run again", rows
    yield "in reverse order", rows[::-1]
    for part in np.split(rows, [num_rows // 3, num_rows - num_rows // 4]):
        yield f"in a batch of {len(part)} rows", part
    for row in rows[:_MAX_SINGLE_ROWS]:
        yield "in a batch of its own", rows[row : row + 1]
    yield "in a batch without rows", rows[:0]


def _taken(array: pa.Array, rows: Integers) -> pa.Array:
    """Neighbours as a slice, as they come from a larger batch."""
    if len(rows) == 0 or rows[-1] - rows[0] + 1 == len(rows):
        return array.slice(rows[0] if len(rows) else 0, len(rows))
    return array.take(array_of(np.ascontiguousarray(rows)))


def _run(
    name: str, where: str, function: Function, arrays: list[pa.Array], params: Mapping[str, object]
) -> pa.Array:
    try:
        return function(*arrays, **params, counts=Counter())
    except _FAILURES as error:
        raise OperatorError(f"{name}{where}: {error}") from error


def _difference(found: pa.Array, expected: pa.Array, rows: Integers, num_rows: int) -> str:
    pairs = zip(rows.tolist(), found.to_pylist(), expected.to_pylist(), strict=True)
    row, here, there = next((row, here, there) for row, here, there in pairs if here != there)
    return f"row {row} is {there!r} in a batch of {num_rows} rows, and {here!r}"
