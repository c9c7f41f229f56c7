"""What `featstore table profile` is asked: a profile, slots against a label, or what changed."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from featstore.base.errors import InputError
from featstore.explore.comparison import Comparison
from featstore.explore.label_profile import LabelProfile
from featstore.explore.partition_profiles import PartitionProfiles
from featstore.explore.profile import Profile
from featstore.explore.table import Table, open_table
from featstore.statistics.stale_groups import ERROR, MISSING

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question about a table.

    Attributes:
        where: A predicate, or None.
        slots: Names and globs of slots; empty for all.
        exact: Whether rows are counted even if statistics are stored.
        label: Profile slots against this label.
        compare: Compare with this table, which came before.
        compare_version: Its version. Without `compare` it is a version of the table itself.
        days: Compare two values of the first partition key, or two ranges `FIRST..LAST` of them,
            the earlier one first.
        by_day: How each partition drifted from those before it.

    Raises:
        InputError: More than one of label, compare, days and by_day is given.
    """

    where: str | None = None
    slots: Sequence[str] = ()
    exact: bool = False
    label: str | None = None
    compare: str | None = None
    compare_version: int | None = None
    days: tuple[str, str] | None = None
    by_day: bool = False

    def __post_init__(self) -> None:
        earlier = self.compare_version if self.compare is None else self.compare
        asked = {"--label": self.label, "--compare": earlier, "--days": self.days}
        asked |= {"--by-day": self.by_day or None}
        given = [name for name, value in asked.items() if value is not None]
        if len(given) > 1:
            raise InputError(
                f"{' and '.join(given)}: expected one of them, found {len(given)}; ask one by one"
            )

    def answer(self, table: Table) -> Profile | LabelProfile | Comparison | PartitionProfiles:
        """The answer of a table."""
        if self.by_day:
            return table.profile_partitions(self.where, self.slots or None, stored=not self.exact)
        if self.label is not None:
            return table.label_profile(self.label, self.where, self.slots or None)
        before, after = self.sides(table)
        return after if before is None else before.compare(after)

    def sides(self, table: Table) -> tuple[Profile | None, Profile]:
        """The profile of what came before, if the question is what changed, and that of the rows
        that are asked for.
        """
        before = None
        if self.compare is not None or self.compare_version is not None:
            stale_groups = MISSING if table.snapshot.reads_stale else ERROR
            earlier = open_table(
                self.compare or table.url, self.compare_version, stale_groups=stale_groups
            )
            if (earlier.url, earlier.version) == (table.url, table.version):
                _LOG.warning(
                    "both sides of the comparison are the same rows: --compare-version compares "
                    "with a version, --days partitions of one table"
                )
            before = self._profile(earlier, self.where)
        elif self.days is not None:
            before = self._profile(table, self._on(table, self.days[0]))
        return before, self._profile(table, self.rows(table))

    def rows(self, table: Table) -> str | None:
        """The predicate of the rows that are asked for; with days, those of the later one."""
        return self.where if self.days is None else self._on(table, self.days[1])

    def _profile(self, table: Table, where: str | None) -> Profile:
        return table.profile(where, self.slots or None, stored=not self.exact)

    def _on(self, table: Table, day: str) -> str:
        """The predicate of a value of the first partition key, or of a range of values.

        Raises:
            InputError: The table has no partition of this value, or none in the range.
        """
        types = {field.name: field.type for field in table.schema.partition_keys}
        if not types:
            raise InputError("--days: expected a table with partitions, found one without")
        key = next(iter(types))
        is_number = pa.types.is_integer(types[key])
        known = sorted(str(partition[key]) for partition in table.partitions)
        first, last = (day, day) if day in known or ".." not in day else day.split("..", 1)
        if not any(_is_between(value, first, last, int if is_number else str) for value in known):
            there = f"{len(known)}, from {known[0]} to {known[-1]}" if known else "none yet"
            raise InputError(f"--days: no partition {key}={day}; the table has {there}")
        texts = [end if is_number else "'" + end.replace("'", "''") + "'" for end in (first, last)]
        condition = f"`{key}` >= {texts[0]} and `{key}` <= {texts[1]}"
        return condition if self.where is None else f"({self.where}) and {condition}"


def _is_between(text: str, first: str, last: str, read: Callable[[str], Any]) -> bool:
    try:
        return bool(read(first) <= read(text) <= read(last))
    except ValueError:  # no number
        return False
