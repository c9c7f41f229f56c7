"""Checks that an operator is row-wise: a row's value does not depend on the rest of its batch.

Spark, a notebook and an online service split the same rows into different batches, so parity
between them depends on this.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from featstore.base.errors import OperatorError, SpecError
from featstore.ops.arrays import Integers, array_of
from featstore.ops.columns import clean, read_column
from featstore.ops.signature import Operator
from featstore.spec.user import declared_operator

Function = Callable[..., pa.Array]

_MAX_SINGLE_ROWS = 16  # How many rows are also computed one by one, which is slow.
_FAILURES = (pa.ArrowException, ArithmeticError, LookupError, MemoryError, TypeError, ValueError)


def check_operator(function: Callable[..., Any], *arrays: pa.Array, **params: object) -> pa.Array:
    """Runs an operator of a user on a batch, as the extractor does, and checks that it is row-wise.

    Args:
        function: A function with the decorator `operator`.
        *arrays: Its inputs. Use rows that differ, some of them missing.
        **params: Its params, as a spec would give them.

    Returns:
        The result for the batch.

    Raises:
        OperatorError: The function failed, its result is not as declared, or a row's value changed
            when the batch was run again, in reverse order or in smaller batches.
        TypeError: The inputs or params are not as declared, or the function has no decorator.
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
    """Runs a function on arrays and compares the result with that for other batches of the rows.

    Args:
        name: What error messages begin with.
        function: Called with the arrays, the params and `counts`.
        arrays: The inputs, all of one length.
        params: The params in canonical form.

    Returns:
        The result for the whole batch.

    Raises:
        OperatorError: The function failed, or a row's value depends on the batch.
    """
    whole = _run(name, "", function, arrays, params)
    for where, rows in _arrangements(len(whole)):
        expected = whole.take(array_of(rows))
        found = _run(name, f" {where}", function, [_taken(array, rows) for array in arrays], params)
        if not found.equals(expected):
            difference = _difference(found, expected, rows, len(whole))
            raise OperatorError(
                f"{name}: {difference} {where}: expected the same result, since each row has to "
                f"be computed on its own"
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
        kind = operator.params[name].kind
        try:
            known[name] = kind.read(value, name)
        except SpecError as error:
            raise TypeError(
                f"{operator.name}: expected {kind.expected} for {name!r}, found {value!r}"
            ) from error
    missing = sorted(operator.params.keys() - known.keys())
    if missing:
        raise TypeError(f"{operator.name}: expected the param {missing[0]!r}, found none")
    return known


def _arrangements(num_rows: int) -> Iterator[tuple[str, Integers]]:
    """Other batches of the same rows, each with a phrase for error messages."""
    rows = np.arange(num_rows)
    yield "when run again", rows
    yield "in reverse order", rows[::-1]
    for part in np.split(rows, [num_rows // 3, num_rows - num_rows // 4]):
        yield f"in a batch of {len(part)} rows", part
    for row in rows[:_MAX_SINGLE_ROWS]:
        yield "in a batch of its own", rows[row : row + 1]
    yield "in a batch without rows", rows[:0]


def _taken(array: pa.Array, rows: Integers) -> pa.Array:
    """The given rows. Adjacent rows are a slice, which tests that offsets are respected."""
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
    row, value, in_whole = next(pair for pair in pairs if pair[1] != pair[2])
    return f"row {row} is {in_whole!r} in a batch of {num_rows} rows, and {value!r}"
