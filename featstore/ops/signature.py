"""The declaration of an operator (inputs, params, result type) as frozen data.

Operators that have few, known values, such as the hours of a day, the intervals of buckets and the
entries of a vocabulary, also declare what people call these, without seeing a row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from featstore.ops.kinds import Param

MAX_TEXT = 100  # characters of a value's text that are kept and shown


@dataclass(frozen=True, kw_only=True)
class NamedValues:
    """The values 0 ... `num_values` - 1 of an operator, and what people call them.

    Attributes:
        num_values: How many there are.
        name: Returns the name of a value, an integer below `num_values`.
        ordered: Whether the values have an order of their own, as hours have.
    """

    num_values: int
    name: Callable[[int], str]
    ordered: bool = True


def in_order(*names: str) -> NamedValues:
    """The values with these names, in this order."""
    return NamedValues(num_values=len(names), name=names.__getitem__)


BOOLEANS = in_order("false", "true")


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator.

    Attributes:
        name: The `op` of a spec.
        function: `function(*arrays, counts=Counter, **params) -> array`, pure except for what it
            adds to `counts`. All arrays have one element per row of the batch.
        result: Returns the type of the result for the types of the inputs and the params. It raises
            TypeError with the types that it expects, or ValueError with what is wrong with the
            params.
        params: The params that a spec gives.
        min_inputs: The fewest inputs.
        max_inputs: The most inputs; None for no limit.
        hashes: Whether the function receives value hashes (see `ids`) instead of the inputs.
        num_values: Returns how many different values, counted from 0, the operator can return.
            None where that is not known; then no slot can store indices.
        frozen: The params that come from the lock of a spec: fitted by a first pass, or recorded
            from a file.
        fit_only: The names of params that describe how to fit. The function does not receive them.
        fills: Whether a node may have a `fill`.
        names: Returns the names of the values that the operator can return, given its params; None
            where only rows can tell them.
        elements: For an operator whose result has an element for each element of its list input:
            returns which slice of them it takes, given its params, as Python writes it (`[:5]`),
            or an empty text for all. None for other operators.
    """

    name: str
    function: Callable[..., pa.Array]
    result: Callable[[Sequence[pa.DataType], Mapping[str, object]], pa.DataType]
    params: Mapping[str, Param] = field(default_factory=dict)
    min_inputs: int = 1
    max_inputs: int | None = 1
    hashes: bool = False
    num_values: Callable[[Mapping[str, object]], int] | None = None
    frozen: Mapping[str, Param] = field(default_factory=dict)
    fit_only: tuple[str, ...] = ()
    fills: bool = True
    names: Callable[[Mapping[str, Any]], NamedValues] | None = None
    elements: Callable[[Mapping[str, Any]], str] | None = None

    @property
    def reads_vocabulary(self) -> bool:
        """Whether the frozen param holds the values of a file."""
        return "vocabulary" in self.frozen


def result_for(
    accepts: Callable[[pa.DataType], bool], expected: str, result: pa.DataType | None = None
) -> Callable[[Sequence[pa.DataType], Mapping[str, object]], pa.DataType]:
    """An `Operator.result` for inputs of one kind.

    Args:
        accepts: Whether an input may have a type.
        expected: The accepted types, in words for error messages.
        result: The type of the result; by default that of the first input.
    """

    def result_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
        if not all(map(accepts, types)):
            raise TypeError(expected)
        return types[0] if result is None else result

    return result_type


JOINT = " & "  # between the members of a cross


def readable(text: str) -> str:
    """A text as people can read it: on one line, of at most `MAX_TEXT` characters, with escapes for
    what cannot be printed, and quotes around nothing.
    """
    shown = text if text.isprintable() else repr(text)[1:-1]
    return (shown if len(shown) <= MAX_TEXT else f"{shown[: MAX_TEXT - 1]}…") or '""'


def readable_texts(texts: pa.Array) -> pa.Array:
    """`readable` of many texts."""
    return pa.array(map(readable, texts.to_pylist()), pa.string())


def joined_texts(members: Sequence[pa.Array]) -> pa.Array:
    """The texts of crosses: those of their members, `readable` again."""
    return readable_texts(pc.binary_join_element_wise(*members, JOINT))
