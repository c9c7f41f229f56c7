"""Two profiles compared: what changed between days, versions or tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from featstore.explore.plots.ranked_slots import plot_psi
from featstore.explore.table_result import TableResult, number_text, share_text
from featstore.schema import Slot
from featstore.table.statistics.slot_change import SlotDifference, slot_change
from featstore.table.statistics.summary import SlotSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NUMBERS = (
    "psi",
    "psi_error",
    "jensen_shannon",
    "new_values",
    "vanished_values",
    "values_error",
    "new_share",
    "vanished_share",
)
SCHEMA = pa.schema(
    [
        ("slot", pa.string()),
        ("number", pa.int64()),
        ("kind", pa.string()),
        ("coverage_before", pa.float64()),
        ("coverage_after", pa.float64()),
        ("distinct_before", pa.int64()),
        ("distinct_after", pa.int64()),
        *((name, pa.float64()) for name in _NUMBERS),
    ]
)
_HEADERS = (
    "slot",
    "kind",
    "psi",
    "of it chance",
    "js",
    "coverage",
    "distinct",
    "new values",
    "vanished values",
)


class Profiled(Protocol):
    """What `compare` needs of a `Profile`."""

    @property
    def num_rows(self) -> int: ...
    @property
    def label_rates(self) -> Mapping[str, float | None]: ...
    @property
    def source(self) -> str: ...
    @property
    def summaries(self) -> Mapping[str, SlotSummary]: ...


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a comparison.

    Attributes:
        num_rows: Its rows.
        label_rates: The mean of each label.
        source: What its profile was computed from.
    """

    num_rows: int
    label_rates: Mapping[str, float | None]
    source: str

    def __str__(self) -> str:
        rates = (f"{name} {number_text(rate)}" for name, rate in self.label_rates.items())
        return f"{', '.join([f'{self.num_rows:,} rows', *rates])} ({self.source})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(TableResult):
    """What changed from one set of rows to another. Made by `Profile.compare`.

    Attributes:
        before: The first set of rows.
        after: The second.
        table: An Arrow table with a row per slot and the columns below, in the order of the second
            profile, with slots that are only in the first at the end.

    Columns of `table`:
        slot, number, kind: The slot.
        coverage_before, coverage_after, distinct_before, distinct_after: As in the profiles. Null
            on the side that lacks the slot.
        psi: The population stability index over the listed ids and all others, or ten bins of
            floats with equally many values before; and missing rows. As in the checks of a spec.
        psi_error: How much of it chance may have made.
        jensen_shannon: The Jensen-Shannon divergence in bits, over at most 20 ids of each side.
        new_values, vanished_values: Of id slots, the share of the different values after that were
            not there before, and of those before that are not there after.
        values_error: The error of these two, 95 %; 0 if all values of both sides are known.
            Otherwise they are estimated from the values with the smallest hashes.
        new_share, vanished_share: The shares of all values that are new, or vanished; known if
            `values_error` is 0.
    """

    before: Side
    after: Side
    table: pa.Table

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON types."""
        return {
            "before": asdict(self.before),
            "after": asdict(self.after),
            "slots": self.table.to_pylist(),
        }

    def plot_drift(self) -> "Figure":
        """Bars of the PSI of each slot, the largest first, as a matplotlib Figure.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        return plot_psi(self.table)

    def _head(self) -> str:
        return f"before: {self.before}\nafter:  {self.after}"

    def _shown(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Slots that changed most come first."""
        rows = sorted(self.table.to_pylist(), key=lambda row: -(row["psi"] or 0.0))
        return _HEADERS, [_cells(row) for row in rows]


def compare(before: Profiled, after: Profiled) -> Comparison:
    """Compares two profiles, see `Profile.compare`."""
    old = {slot_key(summary.slot): summary for summary in before.summaries.values()}
    new = {slot_key(summary.slot): summary for summary in after.summaries.values()}
    keys = [*new, *(key for key in old if key not in new)]
    rows = [_row(old.get(key), new.get(key)) for key in keys]
    return Comparison(
        before=_side(before), after=_side(after), table=pa.Table.from_pylist(rows, SCHEMA)
    )


def _side(profile: Profiled) -> Side:
    return Side(
        num_rows=profile.num_rows, label_rates=dict(profile.label_rates), source=profile.source
    )


def slot_key(slot: Slot) -> tuple[int | None, str]:
    """What tells whether slots of two tables are the same: the number, or without one the name."""
    return slot.number, slot.name if slot.number is None else ""


def _row(before: SlotSummary | None, after: SlotSummary | None) -> dict[str, Any]:
    """The row of a slot, which at least one side has."""
    found = SlotDifference() if before is None or after is None else slot_change(before, after)
    sides = {"before": before, "after": after}
    [slot, *_] = [side.slot for side in (after, before) if side is not None]
    return {
        "slot": slot.name,
        "number": slot.number,
        "kind": str(slot.kind),
        **{f"coverage_{name}": side and side.coverage for name, side in sides.items()},
        **{f"distinct_{name}": side and side.distinct for name, side in sides.items()},
        **asdict(found),
    }


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    coverage = (row["coverage_before"], row["coverage_after"])
    distinct = (row["distinct_before"], row["distinct_after"])
    return (
        row["slot"],
        row["kind"],
        number_text(row["psi"]),
        number_text(row["psi_error"]),
        number_text(row["jensen_shannon"]),
        " → ".join(map(share_text, coverage)),
        " → ".join("-" if number is None else f"{number:,}" for number in distinct),
        share_text(row["new_values"], row["values_error"]),
        share_text(row["vanished_values"], row["values_error"]),
    )
