"""The declaration of an operator (inputs, params, result type) as frozen data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from featstore.ops.kinds import Param
from featstore.ops.value_names import NamedValues


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
