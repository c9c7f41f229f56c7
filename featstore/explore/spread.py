"""What to read for a look at rows from all over a table or a log: evenly spaced files. Pure."""

from collections.abc import Callable, Sequence
from typing import TypeVar

MOST_SAMPLED = 16  # files, or row groups, of which a sample reads some rows, if they have enough
_Item = TypeVar("_Item")


def spread(items: Sequence[_Item], most: int) -> list[_Item]:
    """At most `most` of the items, spread evenly over all of them."""
    num = min(most, len(items))
    return [items[i * len(items) // num] for i in range(num)]


def spread_with_rows(
    items: Sequence[_Item], rows_of: Callable[[_Item], int], num_rows: int
) -> list[_Item]:
    """Evenly spaced items: 16 of them, more if these have fewer than so many rows, at most all.

    Args:
        items: Files, or row groups.
        rows_of: The rows of one.
        num_rows: How many rows are wanted.
    """
    most = MOST_SAMPLED
    while True:
        chosen = spread(items, most)
        if len(chosen) == len(items) or sum(map(rows_of, chosen)) >= num_rows:
            return chosen
        most *= 2
