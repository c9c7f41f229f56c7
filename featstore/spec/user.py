"""User operators: `op: my_package.my_module:function` in a spec names a decorated function.

The function receives the same arrays as built-in operators. Its result must have one value per row
and the declared type. NaN and infinities in it become null (counted), and null elements of lists
are dropped. A row's value must not depend on the rest of its batch: Spark, a notebook and an online
service split the same rows into different batches, so parity between them depends on this.
"""

import dataclasses
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from featstore.base.errors import OperatorError, SpecError
from featstore.ops.arrays import Integers, array_of
from featstore.ops.columns import clean, read_column, readable
from featstore.ops.kinds import Param, converted, options_of
from featstore.ops.lists import element_type
from featstore.ops.maps import is_map
from featstore.ops.numbers import identity
from featstore.ops.signature import Operator
from featstore.spec.model import Node

Function = TypeVar("Function", bound=Callable[..., Any])

Compute = Callable[..., pa.Array]

_ATTRIBUTE = "featstore_operator"
_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_VALUES = (pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("us", tz="UTC"))
_PARAMS = (str, int, float, bool)


def operator(
    *,
    inputs: Sequence[pa.DataType],
    result: pa.DataType,
    params: Mapping[str, object] | None = None,
) -> Callable[[Function], Function]:
    """Declares that a function is an operator, for use in specs.

    The function is called as `function(*arrays, **params)` and returns an array, or an object with
    `__arrow_c_array__`. It must be pure and row-wise (see `check_operator`). If it has a parameter
    `counts`, it receives a Counter to record what it drops or replaces.

    Args:
        inputs: The types of the arrays: string, int64, float64, bool, timestamp[us, UTC], lists of
            these, or maps.
        result: The type of the result, one of the same except maps.
        params: For each param its default, or its type (str, int, float, bool) if a spec must give
            it.

    Returns:
        A decorator that returns the function itself.

    Raises:
        TypeError: A type or param is not one of these, a param has the name of an option of all
            nodes, or the function does not accept these inputs and params.
    """
    for arrow_type in (*inputs, result):
        if (
            not isinstance(arrow_type, pa.DataType)
            or not _is_canonical(arrow_type)
            or (is_map(arrow_type) and arrow_type is result)
        ):
            raise TypeError(
                f"expected {', '.join(map(str, _VALUES))} or lists of these, found {arrow_type!s}"
            )
    if not inputs:
        raise TypeError("expected one input or more, found none")
    read = {name: _param(name, default) for name, default in (params or {}).items()}

    def result_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
        if tuple(types) != tuple(inputs):
            raise TypeError(", ".join(map(str, inputs)))
        return result

    def declare(function: Function) -> Function:
        takes_counts = _takes_counts(function, len(inputs), read)
        declared = Operator(
            name=function.__name__,
            function=_checked(function, result, takes_counts),
            result=result_type,
            params=read,
            min_inputs=len(inputs),
            max_inputs=len(inputs),
        )
        setattr(function, _ATTRIBUTE, declared)
        return function

    return declare


def _takes_counts(
    function: Callable[..., Any], num_inputs: int, params: Mapping[str, Param]
) -> bool:
    """Whether a function has a parameter `counts`.

    Raises:
        TypeError: Its signature does not accept the inputs and params.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # of compiled code
        return False
    takes_counts = "counts" in signature.parameters
    counts = {"counts": None} if takes_counts else {}
    try:
        signature.bind(*[None] * num_inputs, **dict.fromkeys(params), **counts)
    except TypeError as error:
        names = "".join(f", {name}" for name in params)
        expected = (
            f"expected a function of {num_inputs} arrays and the params "
            f"declared{names and ' (' + names[2:] + ')'}"
        )
        raise TypeError(f"{expected}, found {function.__name__}{signature}: {error}") from error
    return takes_counts


def is_user_operator(name: str) -> bool:
    """Whether a spec's `op` names a function, as `package.module:function`."""
    return ":" in name


def load_operator(name: str) -> Operator:
    """The operator named `package.module:function`. Its module is imported, so a spec runs code.

    Raises:
        ValueError: The name has another form, the module cannot be imported, or it has no such
            operator. The text says what was expected.
    """
    if not _NAME.fullmatch(name):
        raise ValueError("package.module:function")
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute, None)
    except KeyboardInterrupt:
        raise
    # A user's module may raise anything, SystemExit included: report it with the path in the spec.
    except BaseException as error:
        text = " ".join(str(error).split())
        why = text if isinstance(error, ImportError) else f"{type(error).__name__}: {text}"
        raise ValueError(f"a module that can be imported ({why})") from error
    try:
        return dataclasses.replace(declared_operator(function), name=name)
    except TypeError as error:
        raise ValueError(f"a function of {module} with the decorator featstore.operator") from error


def declared_operator(function: object) -> Operator:
    """The operator that the decorator `operator` attached to a function.

    Raises:
        TypeError: The function has no such decorator.
    """
    declared = getattr(function, _ATTRIBUTE, None)
    if not isinstance(declared, Operator):
        raise TypeError(
            f"expected a function with the decorator featstore.operator, found {function!r}"
        )
    return declared


def _checked(
    function: Callable[..., Any], declared: pa.DataType, takes_counts: bool
) -> Callable[..., pa.Array]:
    """Wraps a function to check its result and normalize it as `clean` does an input."""

    def call(*arrays: pa.Array, counts: Counter[str], **params: object) -> pa.Array:
        given = function(*arrays, **params, **({"counts": counts} if takes_counts else {}))
        array = _array(given)
        if array is None or len(array) != len(arrays[0]) or not readable(array.type, declared):
            found = type(given).__name__ if array is None else f"{len(array)} of {array.type}"
            raise ValueError(
                f"expected an array of {len(arrays[0])} values of {declared}, found {found}"
            )
        cleaned = clean(read_column(array, declared=declared, counts=counts), counts=counts)
        if not pa.types.is_floating(element_type(declared)):
            return cleaned
        return identity(cleaned, max_len=None, truncate="head", counts=counts)

    return call


def _array(given: object) -> pa.Array | None:
    if isinstance(given, pa.ChunkedArray):
        return pa.concat_arrays(given.chunks) if given.num_chunks else pa.array([], given.type)
    return (
        pa.array(given)
        if isinstance(given, pa.Array) or hasattr(given, "__arrow_c_array__")
        else None
    )


def _param(name: str, default: object) -> Param:
    if name in (*options_of(Node), "counts"):
        raise TypeError(
            f"param {name!r}: expected a name other than counts and the options of all nodes, "
            f"found {name!r}"
        )
    kind = default if isinstance(default, type) else type(default)
    if kind not in _PARAMS:
        raise TypeError(
            f"param {name!r}: expected a default or a type (str, int, float, bool), found "
            f"{default!r}"
        )

    def read(value: object) -> object:
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if type(value) is not kind:
            raise TypeError(value)
        return value

    required = default is kind
    return Param(
        kind=converted(f"a value of type {kind.__name__}", read),
        required=required,
        default=None if required else default,
    )


def _is_canonical(arrow_type: pa.DataType) -> bool:
    if is_map(arrow_type):
        return arrow_type.key_type == pa.string() and (
            is_map(arrow_type.item_type) or arrow_type.item_type in _VALUES[:3]
        )
    return element_type(arrow_type) in _VALUES


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
    name: str,
    function: Callable[..., pa.Array],
    arrays: list[pa.Array],
    params: Mapping[str, object],
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
    name: str,
    where: str,
    function: Callable[..., pa.Array],
    arrays: list[pa.Array],
    params: Mapping[str, object],
) -> pa.Array:
    try:
        return function(*arrays, **params, counts=Counter())
    except _FAILURES as error:
        raise OperatorError(f"{name}{where}: {error}") from error


def _difference(found: pa.Array, expected: pa.Array, rows: Integers, num_rows: int) -> str:
    pairs = zip(rows.tolist(), found.to_pylist(), expected.to_pylist(), strict=True)
    row, value, in_whole = next(pair for pair in pairs if pair[1] != pair[2])
    return f"row {row} is {in_whole!r} in a batch of {num_rows} rows, and {value!r}"
