"""What names a column of a batch; without torch."""

from collections.abc import Mapping
from functools import cached_property

Key = tuple[str, str]
SLOT, LABEL, WEIGHT = "slot", "label", "weight"


class Keys(tuple[Key, ...]):
    """Columns by role and name, slots first. Batches that have one object in common look their
    names up only once.
    """

    @cached_property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """The names of each role."""
        return {
            role: tuple(name for of, name in self if of == role) for role in (SLOT, LABEL, WEIGHT)
        }
