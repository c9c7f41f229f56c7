"""Profiles of each partition of a table beside each other: coverage by day, and drift from day to
day.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from featstore.base.errors import InputError
from featstore.base.table_result import TableResult, number_text, rows_by_slot, share_text
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
        return self._heat_map("coverage", SHARES, list(rows_by_slot(self.table)), "Coverage")

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
        rows = rows_by_slot(self.table)
        certain = {slot: _largest_psi(of, beyond_chance=True)[0] for slot, of in rows.items()}
        largest = {slot: _largest_psi(of)[0] for slot, of in rows.items()}
        slots = sorted(rows, key=lambda slot: (-certain[slot], -largest[slot]))
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

    def _at_least(self) -> set[str]:
        """The slots that may have drifted more in some partition."""
        rows = self.table.select(["slot", "psi_method"]).to_pylist()
        return {row["slot"] for row in rows if row["psi_method"] == "at least"}

    def _head(self) -> str:
        return f"{len(self.partitions):,} partitions ({self.source})"

    def _foot(self) -> Sequence[str]:
        return [AT_LEAST_FOOT] if self._at_least() else []

    def _shown(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Slots that changed most come first."""
        least, found = self._at_least(), []
        for slot, rows in rows_by_slot(self.table).items():
            psi, partition = _largest_psi(rows)
            coverage = [row["coverage"] for row in rows]
            cells = (
                slot,
                rows[0]["kind"],
                f"{share_text(min(coverage))} to {share_text(max(coverage))}",
                f"{'≥ ' if slot in least else ''}{number_text(psi)}",
                partition,
            )
            found.append((psi, cells))
        return _HEADERS, [cells for _, cells in sorted(found, key=lambda item: -item[0])]


def _largest_psi(
    rows: Sequence[Mapping[str, Any]], *, beyond_chance: bool = False
) -> tuple[float, str]:
    """The largest PSI of a slot, and its partition, the first one of several.

    Args:
        rows: The slot's rows.
        beyond_chance: Whether only those count that chance cannot have made alone.
    """
    found = [
        (row["psi"], row["partition"])
        for row in rows
        if row["psi"] and row["psi"] > beyond_chance * row["psi_error"]
    ]
    return max(found, key=lambda item: item[0], default=(0.0, "-"))


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
