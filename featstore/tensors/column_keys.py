"""Keys of a batch's columns. Imports no torch."""

from collections.abc import Mapping
from functools import cached_property

Key = tuple[str, str]
SLOT, LABEL, WEIGHT = "slot", "label", "weight"


class Keys(tuple[Key, ...]):
    """The roles and names of columns, slots first. Batches share one object, so that names are
    looked up only once.
    """

    @cached_property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """The names of each role."""
        return {
            role: tuple(name for of, name in self if of == role) for role in (SLOT, LABEL, WEIGHT)
        }
