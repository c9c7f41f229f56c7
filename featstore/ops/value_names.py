"""Names of the values of operators that have few, known ones.

Such as the hours of a day, the intervals of buckets and the entries of a vocabulary, which can be
named without seeing a row.
"""

from collections.abc import Callable
from dataclasses import dataclass

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


def shortened(text: str) -> str:
    """The text, cut with an ellipsis if it has more than `MAX_TEXT` characters."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def readable(text: str) -> str:
    """A text as people can read it: on one line, with escapes for what cannot be printed, and
    quotes around nothing.
    """
    shown = text if text.isprintable() else repr(text)[1:-1]
    return shortened(shown) if shown else '""'
