"""Profiles of each partition of a table beside each other: coverage by day, and drift from day to
day.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from featstore.base.errors import InputError
from featstore.base.table_result import (
    TableResult,
    before_after_text,
    grouped,
    least_text,
    rows_by_slot,
    share_text,
    two_digits,
)
from featstore.base.text_table import whole
from featstore.explore.comparison import AT_LEAST, mark_lines
from featstore.explore.plots.frame import MOST_ROWS, Figure, number_drawn
from featstore.explore.plots.heat_map import PSI, SHARES, ColourScale, plot_heat_map
from featstore.explore.profile import Profile
from featstore.statistics.drift import DEPENDENT, shares_differ, slot_change
from featstore.statistics.sketches import Floats
from featstore.statistics.summary import SlotSummary

SCHEMA = pa.schema(
    [
        ("partition", pa.string()),
        ("slot", pa.string()),
        ("number", pa.int64()),
        ("kind", pa.string()),
        ("num_rows", pa.int64()),
        ("coverage", pa.float64()),
        ("coverage_before", pa.float64()),
        ("distinct", pa.int64()),
        ("distinct_error", pa.float64()),
        ("mean", pa.float64()),
        ("psi", pa.float64()),
        ("psi_error", pa.float64()),
        ("psi_method", pa.string()),
        ("jensen_shannon", pa.float64()),
        ("drift", pa.float64()),
    ]
)
MOST_DRIFTED = pa.schema(
    [SCHEMA.field(name) for name in ("partition", "num_rows", "slot", "drift", "psi", "psi_error")]
)
_COPIED = ("slot", "number", "kind", "coverage", "distinct", "distinct_error", "mean")
_CHANGES = ("coverage_before", "psi", "psi_error", "psi_method", "jensen_shannon")
DRIFT = "the least PSI since one of the two partitions before, less what chance may do"
_HEADERS = ("partition", "rows", "drift", "slots that drifted, most first", "coverage that moved")


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
        coverage_before, psi, psi_error, psi_method, jensen_shannon: As in a `Comparison`, from the
            partition before to this one. Null in the first partition.
        drift: What `psi` has beyond `psi_error`, at least 0: how far the slot drifted whatever
            chance did. That since the partition before the last one, where it is less: so a
            partition that alone is different drifts, and not the next one, which is as before.
            Null in the first partition.
    """

    partitions: Sequence[str]
    source: str
    table: pa.Table

    @property
    def most_drifted(self) -> pa.Table:
        """An Arrow table with a row per partition, in their order: `partition`, `num_rows`, and the
        `slot` that drifted most with its `drift`, `psi` and `psi_error`, null where none did.
        """
        rows = [
            {"partition": name, "num_rows": found[0]["num_rows"]} | (_drifted(found) or [{}])[0]
            for name, found in grouped(self.table, "partition").items()
        ]
        return pa.Table.from_pylist(rows, MOST_DRIFTED)

    def as_dict(self) -> dict[str, Any]:
        """The profiles as JSON types: the rows of `table` as `slots`, and those of `most_drifted`
        as `partitions`, each with its own `slots`.
        """
        slots = grouped(self.table, "partition")
        rows = self.most_drifted.to_pylist()
        partitions = [row | {"slots": slots[row["partition"]]} for row in rows]
        return {"source": self.source, "partitions": partitions, "slots": self.table.to_pylist()}

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
        certain = {slot: _largest_psi(of, beyond_chance=True) for slot, of in rows.items()}
        largest = {slot: _largest_psi(of) for slot, of in rows.items()}
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
        title += f"\npale: chance may have made all of it\n{DEPENDENT}" if by_chance.any() else ""
        title += f"\n{AT_LEAST}" if least.intersection(shown) else ""
        names = [f"≥ {slot}" if slot in least else slot for slot in shown]
        return plot_heat_map(names, self.partitions, values, scale, title, by_chance)

    def _at_least(self) -> set[str]:
        """The slots that may have drifted more in some partition."""
        rows = self.table.select(["slot", "psi_method"]).to_pylist()
        return {row["slot"] for row in rows if row["psi_method"] == "at least"}

    def _head(self) -> str:
        return f"{len(self.partitions):,} partitions ({self.source})"

    def largest_drifts(self) -> dict[str, dict[str, Any]]:
        """The row of `table` in which each slot drifted most, by slot, if it did anywhere."""
        found = {slot: _drifted(rows) for slot, rows in rows_by_slot(self.table).items()}
        return {slot: rows[0] for slot, rows in found.items() if rows}

    def _foot(self) -> Sequence[str]:
        return [f"drift: {DRIFT}; {DEPENDENT}", *mark_lines(self.table["psi_method"].to_pylist())]

    def _shown(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Partitions that drifted most come first."""
        by_partition = grouped(self.table, "partition")
        num_rows = {name: rows[0]["num_rows"] for name, rows in by_partition.items()}
        before = dict(itertools.pairwise(reversed(num_rows)))
        found = [(name, rows, _drifted(rows)) for name, rows in by_partition.items()]
        found.sort(key=lambda item: -item[2][0]["drift"] if item[2] else 0.0)
        return _HEADERS, [
            (
                name,
                f"{rows[0]['num_rows']:,}",
                _largest_text(rows, drifted),
                _drifted_text(drifted),
                _moved_text(rows, num_rows.get(before.get(name, ""), 0)),
            )
            for name, rows, drifted in found
        ]


def _drifted(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of slots that drifted more than chance may do, the largest drift first."""
    return sorted((row for row in rows if row["drift"]), key=lambda row: -row["drift"])


def _largest_text(rows: Sequence[Mapping[str, Any]], drifted: Sequence[Mapping[str, Any]]) -> str:
    """The largest drift of a partition's rows; a dash where there is nothing before it."""
    methods = {row["psi_method"] for row in rows}
    nothing = "-" if methods == {None} else "≥ 0" if "at least" in methods else "0"
    return _drift_text(drifted[0]) if drifted else nothing


def _drifted_text(drifted: Sequence[Mapping[str, Any]]) -> str:
    """The slots, and the drift of all but the first, which has a cell of its own."""
    texts = [whole(f"{row['slot']} {_drift_text(row)}") for row in drifted[1:]]
    return ", ".join([*(row["slot"] for row in drifted[:1]), *texts])


def _moved_text(rows: Sequence[Mapping[str, Any]], num_before: int) -> str:
    """The slots whose coverage differs from that of the partition before by more than random rows
    do.
    """
    return ", ".join(
        whole(f"{row['slot']} {before_after_text(*map(share_text, sides))}")
        for row in rows
        if (sides := (row["coverage_before"], row["coverage"]))[0] is not None
        and shares_differ(*sides, num_before, row["num_rows"])
    )


def _drift_text(row: Mapping[str, Any]) -> str:
    return least_text(row["drift"], row["psi_method"], two_digits)


def _largest_psi(rows: Sequence[Mapping[str, Any]], *, beyond_chance: bool = False) -> float:
    """The largest PSI of a slot.

    Args:
        rows: The slot's rows.
        beyond_chance: Whether only those count that chance cannot have made alone.
    """
    found = (
        row["psi"] for row in rows if row["psi"] and row["psi"] > beyond_chance * row["psi_error"]
    )
    return max(found, default=0.0)


def _beyond_chance(row: Mapping[str, Any]) -> float | None:
    return None if row.get("psi") is None else max(row["psi"] - row["psi_error"], 0.0)


def _change(
    row: Mapping[str, Any], older: Mapping[str, SlotSummary], now: Mapping[str, SlotSummary]
) -> dict[str, Any]:
    """The columns of a row of `Comparison.table`, and the drift, which the summaries of the
    partition before the last one may lessen.
    """
    drift, slot = _beyond_chance(row), row["slot"]
    if drift and slot in older and slot in now:
        since_older = _beyond_chance(slot_change(older[slot], now[slot]))
        drift = drift if since_older is None else min(drift, since_older)
    return {name: row[name] for name in _CHANGES} | {"drift": drift}


def partition_profiles(profiles: Iterable[tuple[str, Profile]]) -> PartitionProfiles:
    """Profiles of partitions beside each other. Holds three of them at a time.

    Args:
        profiles: The name and the profile of each partition, in their order.
    """
    older: Mapping[str, SlotSummary] = {}
    before: Profile | None = None
    partitions, sources, rows = list[str](), dict[str, None](), list[dict[str, Any]]()
    for name, profile in profiles:
        partitions.append(name)
        sources[profile.source] = None
        changed = [] if before is None else before.compare(profile).table.to_pylist()
        changes = {row["slot"]: _change(row, older, profile.summaries) for row in changed}
        rows += [
            {
                "partition": name,
                "num_rows": profile.num_rows,
                **{column: row[column] for column in _COPIED},
                **changes.get(row["slot"], {}),
            }
            for row in profile.table.select(_COPIED).to_pylist()
        ]
        older, before = {} if before is None else before.summaries, profile
    return PartitionProfiles(
        partitions=tuple(partitions),
        source="; ".join(sources),
        table=pa.Table.from_pylist(rows, SCHEMA),
    )
