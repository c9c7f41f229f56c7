"""User operators: `op: my_package.my_module:function` in a spec names a decorated function.

The function receives the same arrays as built-in operators. Its result must have one value per row
and the declared type. NaN and infinities in it become null (counted), and null elements of lists
are dropped.
"""

import dataclasses
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from featstore.ops.columns import clean, read_column, readable
from featstore.ops.kinds import Param, converted, options_of
from featstore.ops.lists import element_type
from featstore.ops.maps import is_map
from featstore.ops.numbers import identity
from featstore.ops.signature import Operator
from featstore.spec.model import Node

Function = TypeVar("Function", bound=Callable[..., Any])

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

    def declare(function: Function) -> Function:
        takes_counts = _takes_counts(function, len(inputs), read)
        declared = Operator(
            name=function.__name__,
            function=_checked(function, result, takes_counts),
            result=_result_type(tuple(inputs), result),
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
        raise ValueError(f"a module that can be imported ({_error_text(error)})") from error
    try:
        return dataclasses.replace(declared_operator(function), name=name)
    except TypeError as error:
        raise ValueError(f"a function of {module} with the decorator featstore.operator") from error


def _error_text(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ImportError) else f"{type(error).__name__}: {text}"


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


def _result_type(
    inputs: tuple[pa.DataType, ...], result: pa.DataType
) -> Callable[[Sequence[pa.DataType], Mapping[str, object]], pa.DataType]:
    def result_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
        if tuple(types) != inputs:
            raise TypeError(", ".join(map(str, inputs)))
        return result

    return result_type


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
