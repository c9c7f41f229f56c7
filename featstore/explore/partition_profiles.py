"""Profiles of each partition of a table beside each other: coverage by day, and drift from day to
day.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from featstore.base.errors import InputError
from featstore.base.table_result import TableResult, number_text, share_text
from featstore.explore.comparison import AT_LEAST, AT_LEAST_FOOT
from featstore.explore.plots.frame import MOST_ROWS, Figure, number_drawn
from featstore.explore.plots.heat_map import PSI, SHARES, ColourScale, plot_heat_map
from featstore.explore.profile import Profile
from featstore.statistics.sketches import Floats

SCHEMA = pa.schema(
    [
        ("partition", pa.string()),
        ("slot", pa.string()),
        ("number", pa.int64()),
        ("kind", pa.string()),
        ("num_rows", pa.int64()),
        ("coverage", pa.float64()),
        ("distinct", pa.int64()),
        ("distinct_error", pa.float64()),
        ("mean", pa.float64()),
        ("psi", pa.float64()),
        ("psi_error", pa.float64()),
        ("psi_method", pa.string()),
        ("jensen_shannon", pa.float64()),
    ]
)
_COPIED = ("slot", "number", "kind", "coverage", "distinct", "distinct_error", "mean")
_CHANGES = ("psi", "psi_error", "psi_method", "jensen_shannon")
_HEADERS = ("slot", "kind", "coverage", "largest psi", "in")


@dataclass(frozen=True, kw_only=True, repr=False)
class PartitionProfiles(TableResult):
    """The slots of each partition of a table. Made by `Table.profile_partitions`.

    Attributes:
        partitions: The names of the partitions, such as `dt=2026-11-01`, the first one first.
        source: What the profiles were computed from.
        table: An Arrow table with a row for each slot of each partition, and the columns below.

    Columns of `table`:
        partition, num_rows: The partition, and its rows.
        slot, number, kind, coverage, distinct, distinct_error, mean: As in a `Profile`.
        psi, psi_error, psi_method, jensen_shannon: As in a `Comparison`, from the partition before
            to this one. Null in the first partition.
    """

    partitions: Sequence[str]
    source: str
    table: pa.Table

    def as_dict(self) -> dict[str, Any]:
        """The profiles as JSON types."""
        return {"source": self.source, "slots": self.table.to_pylist()}

    def plot_coverage(self) -> "Figure":
        """A heat map of the coverage of each slot in each partition, as a matplotlib Figure.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        return self._heat_map("coverage", SHARES, self._slots(), "Coverage")

    def plot_drift(self) -> "Figure":
        """A heat map of the PSI of each slot from partition to partition, as a matplotlib Figure.
        Slots that changed most come first, by what chance cannot have made alone. A cell is pale
        where chance may have made all of its drift (`psi_error`). `≥` before a slot's name: its
        figures are over its most frequent values, and others may have drifted more.

        Raises:
            InputError: There is only one partition, so that nothing can have changed.
            MissingDependencyError: matplotlib is not installed.
        """
        if len(self.partitions) < 2:
            raise InputError(
                f"drift: expected two partitions or more, found {len(self.partitions)}; choose "
                "others with where, or compare with another table by Profile.compare"
            )
        largest, certain = self._largest_psi(), self._largest_psi(beyond_chance=True)
        slots = sorted(self._slots(), key=lambda slot: (-certain[slot][0], -largest[slot][0]))
        return self._heat_map("psi", PSI, slots, "Drift")

    def _heat_map(
        self, column: str, scale: ColourScale, slots: Sequence[str], title: str
    ) -> "Figure":
        shown = slots[:MOST_ROWS]
        least = self._at_least() if column == "psi" else set()
        rows = {slot: i for i, slot in enumerate(shown)}
        columns = {partition: i for i, partition in enumerate(self.partitions)}
        values: Floats = np.full((len(rows), len(columns)), np.nan)
        by_chance = np.zeros(values.shape, np.bool_)
        for row in self.table.select(["slot", "partition", column, "psi_error"]).to_pylist():
            if row[column] is not None and row["slot"] in rows:
                cell = rows[row["slot"]], columns[row["partition"]]
                values[cell] = row[column]
                by_chance[cell] = column == "psi" and 0.0 < row["psi"] <= row["psi_error"]
        of_slots = number_drawn(slots, "slots")
        title = f"{title} of {of_slots} in {len(self.partitions):,} partitions"
        title += "\npale: chance may have made all of it" if by_chance.any() else ""
        title += f"\n{AT_LEAST}" if least.intersection(shown) else ""
        names = [f"≥ {slot}" if slot in least else slot for slot in shown]
        return plot_heat_map(names, self.partitions, values, scale, title, by_chance)

    def _slots(self) -> list[str]:
        return list(dict.fromkeys(self.table["slot"].to_pylist()))

    def _at_least(self) -> set[str]:
        """The slots that may have drifted more in some partition."""
        rows = self.table.select(["slot", "psi_method"]).to_pylist()
        return {row["slot"] for row in rows if row["psi_method"] == "at least"}

    def _largest_psi(self, *, beyond_chance: bool = False) -> dict[str, tuple[float, str]]:
        """The largest PSI of each slot, and its partition.

        Args:
            beyond_chance: Whether only those count that chance cannot have made alone.
        """
        found = dict.fromkeys(self._slots(), (0.0, "-"))
        for row in self.table.select(["slot", "partition", "psi", "psi_error"]).to_pylist():
            psi = row["psi"]
            if psi is not None and psi > max(
                found[row["slot"]][0], beyond_chance * row["psi_error"]
            ):
                found[row["slot"]] = (psi, row["partition"])
        return found

    def _head(self) -> str:
        return f"{len(self.partitions):,} partitions ({self.source})"

    def _foot(self) -> Sequence[str]:
        return [AT_LEAST_FOOT] if self._at_least() else []

    def _shown(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Slots that changed most come first."""
        largest, least = self._largest_psi(), self._at_least()
        coverage: dict[str, list[float]] = {slot: [] for slot in largest}
        kinds = {}
        for row in self.table.select(["slot", "kind", "coverage"]).to_pylist():
            coverage[row["slot"]].append(row["coverage"])
            kinds[row["slot"]] = row["kind"]
        return _HEADERS, [
            (
                slot,
                kinds[slot],
                f"{share_text(min(coverage[slot]))} to {share_text(max(coverage[slot]))}",
                f"{'≥ ' if slot in least else ''}{number_text(psi)}",
                partition,
            )
            for slot, (psi, partition) in sorted(largest.items(), key=lambda item: -item[1][0])
        ]


def partition_profiles(profiles: Iterable[tuple[str, Profile]]) -> PartitionProfiles:
    """Profiles of partitions beside each other. Holds two of them at a time.

    Args:
        profiles: The name and the profile of each partition, in their order.
    """
    before: Profile | None = None
    partitions, sources, rows = list[str](), dict[str, None](), list[dict[str, Any]]()
    for name, profile in profiles:
        partitions.append(name)
        sources[profile.source] = None
        changed = [] if before is None else before.compare(profile).table.to_pylist()
        changes = {row["slot"]: {name: row[name] for name in _CHANGES} for row in changed}
        rows += [
            {
                "partition": name,
                "num_rows": profile.num_rows,
                **{column: row[column] for column in _COPIED},
                **changes.get(row["slot"], {}),
            }
            for row in profile.table.select(_COPIED).to_pylist()
        ]
        before = profile
    return PartitionProfiles(
        partitions=tuple(partitions),
        source="; ".join(sources),
        table=pa.Table.from_pylist(rows, SCHEMA),
    )
