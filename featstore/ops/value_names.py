"""Names of the values of operators that have few, known ones.

Such as the hours of a day, the intervals of buckets and the entries of a vocabulary, which can be
named without seeing a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

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
