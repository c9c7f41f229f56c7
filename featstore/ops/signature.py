"""What an operator takes and gives, as frozen data."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

MAX_COUNT = 2**31 - 1
OPTIONS = (
    "slot",
    "name",
    "op",
    "of",
    "store",
    "default",
    "fill",
    "empty_as_null",
    "encode",
    "share_slot",
)
"""What any node of a spec may say beside its operator's params."""


@dataclass(frozen=True, kw_only=True)
class Param:
    """One parameter of an operator.

    `read` returns the value in its canonical form, or raises ValueError or TypeError; `expected`
    says in words what it takes.
    """

    expected: str
    read: Callable[[object], object]
    required: bool = False
    default: object = None


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator: `function(*arrays, counts=Counter, **params) -> array`, pure but for what it
    adds to `counts`.

    All arrays have as many elements as the batch has rows. `result` gives the result's type from
    the inputs' types and the params; it raises TypeError with the types it expects, and ValueError
    with what is wrong among the params. An operator with `hashes` gets value hashes (see `ids`) in
    place of its inputs. `num_values` says how many values, from 0 on, an operator can give, where
    that is known: only then can a slot store indices.

    `frozen` are params that no spec gives, but its lock: fitted by a first pass, or recorded of a
    file. `fit_only` names the spec's params that say how, which the function does not get. Without
    `fills` a node may have no `fill`.
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

    @property
    def reads_vocabulary(self) -> bool:
        """Whether what is frozen is a file's values."""
        return "vocabulary" in self.frozen


def positive_int(value: object) -> int:
    """An integer of at least 1, and of 32 bits: no list is longer, and Spark SQL takes no more."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_COUNT:
        raise ValueError(value)
    return value


def integer(value: object) -> int:
    """An integer of 32 bits: no text or list is longer, and Spark SQL takes no more."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not -MAX_COUNT <= value <= MAX_COUNT
    ):
        raise ValueError(value)
    return value


def text(value: object) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(value)
    return value


def number(value: object) -> float:
    """A finite number, as float."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) <= sys.float_info.max
    ):
        raise ValueError(value)
    return float(value)


def positive_number(value: object) -> float:
    """A finite number above 0, as float."""
    found = number(value)
    if found <= 0:
        raise ValueError(value)
    return found


def one_of(*names: str) -> Callable[[object], str]:
    """A reader that takes one of these names."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError(value)
        return value

    return read
