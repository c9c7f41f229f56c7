"""Two profiles compared: what changed between days, versions or tables."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from featstore.base.errors import SelectionError
from featstore.base.schema import Slot, SlotKind
from featstore.base.table_result import (
    TableResult,
    before_after_text,
    least_text,
    number_text,
    number_with_error,
    share_text,
    slot_row,
    two_digits,
)
from featstore.base.text_table import whole
from featstore.explore.plots.distribution import plot_two_sides
from featstore.explore.plots.frame import Figure
from featstore.explore.plots.slot_bars import plot_psi
from featstore.spec.value_names import ValueNames, short_sign
from featstore.statistics.drift import (
    DEPENDENT,
    ValueShares,
    new_and_vanished,
    slot_change,
    value_shares,
)
from featstore.statistics.summary import SlotSummary

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
NUM_NAMED = 10  # the most frequent values of each side, new ones and vanished ones, with texts
AT_LEAST = "≥: over the most frequent values, and all others as one; these may have drifted more"
_MARKS = {
    "at least": f"{AT_LEAST}, which a count of the rows tells (--exact)",
    "estimated bins": "≈: estimated from samples of the rows, whose error is part of what chance "
    "may do; --exact counts the rows",
}
_NUM_SHOWN = 3  # of new and vanished values, in a cell of the text
_VALUES = pa.list_(
    pa.struct([("value", pa.int64()), ("text", pa.string()), ("share", pa.float64())])
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
        ("distinct_error_before", pa.float64()),
        ("distinct_error_after", pa.float64()),
        *((name, pa.float64()) for name in _NUMBERS[:2]),
        ("psi_method", pa.string()),
        *((name, pa.float64()) for name in _NUMBERS[2:]),
        ("top_new", _VALUES),
        ("top_vanished", _VALUES),
    ]
)
_HEADERS = (
    "slot",
    "kind",
    "psi",
    "by chance at most",
    "js (bits)",
    "coverage",
    "distinct",
    "new values",
    "vanished values",
)


# What ids mean, by slot name, as far as it is known.
NameFinder = Callable[[Mapping[str, Collection[int]]], ValueNames]


@dataclass(frozen=True, kw_only=True, repr=False)
class ProfiledRows:
    """Some rows and what is known of their slots: one side of a comparison.

    Attributes:
        num_rows: The number of rows.
        label_rates: The mean of each label over all rows; None if there are no rows.
        source: What the figures were computed from.
        summaries: What is known of each slot, by name.
        names: What top values mean.
        find_names: Finds what other ids of the slots mean.
    """

    num_rows: int
    label_rates: Mapping[str, float | None]
    source: str
    summaries: Mapping[str, SlotSummary] = field(default_factory=dict, compare=False)
    names: ValueNames = field(default_factory=ValueNames, compare=False)
    find_names: NameFinder | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.headline

    @property
    def headline(self) -> str:
        """The rows, the labels and the source, in a line."""
        return f"{self.figures} ({self.source})"

    @property
    def figures(self) -> str:
        """The rows and the labels."""
        rates = (f"{name} {number_text(rate, 3)}" for name, rate in self.label_rates.items())
        return ", ".join([f"{self.num_rows:,} rows", *rates])

    def names_of(self, wanted: Mapping[str, Collection[int]]) -> ValueNames:
        """What ids mean, as far as it is known.

        Args:
            wanted: Ids by the name of their slot.
        """
        left = {
            slot: set(ids) - self.names.by_slot.get(slot, {}).keys() for slot, ids in wanted.items()
        }
        left = {slot: ids for slot, ids in left.items() if ids}
        return self.names.over(self.find_names(left)) if self.find_names and left else self.names


@dataclass(frozen=True, kw_only=True)
class SlotPair:
    """What is known of a slot on both sides; None on one that lacks it."""

    before: SlotSummary | None
    after: SlotSummary | None

    @property
    def slot(self) -> Slot:
        """The slot after, or that of before if there is none."""
        [slot, *_] = [side.slot for side in (self.after, self.before) if side is not None]
        return slot

    def new_and_vanished(self) -> tuple[list[ValueShares] | None, list[ValueShares] | None]:
        """The most frequent new ids, and those that vanished; None where nobody knows."""
        if self.before is None or self.after is None or self.slot.kind is not SlotKind.ID:
            return None, None
        return new_and_vanished(self.before, self.after, NUM_NAMED)


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(TableResult):
    """What changed from one set of rows to another. Made by `Profile.compare`.

    Attributes:
        before: The first set of rows.
        after: The second.
        pairs: What is known of each slot on both sides, by the name it has in `table`.
        names: What the most frequent ids of both sides mean, and those of `top_new` and
            `top_vanished`.
        table: An Arrow table with a row per slot and the columns below, in the order of the second
            profile, with slots that are only in the first at the end.

    Columns of `table`:
        slot, number, kind: The slot.
        coverage_before, coverage_after, distinct_before, distinct_after: As in the profiles. Null
            on the side that lacks the slot.
        distinct_error_before, distinct_error_after: The errors of `distinct_before` and
            `distinct_after`, 95 %, relative to them; 0 where they are exact.
        psi: The population stability index over the ids, or ten bins of floats with equally many
            values before; and missing rows. As in the checks of a spec.
        psi_error: How much of it chance made at most: three standard errors, and what chance adds
            on average. A value that vanished makes both large.
        psi_method: Over which cells both this and `jensen_shannon` are: `exact`, all ids; `at
            least`, the listed ids, and all others as one: these may have drifted more; `bins`; or
            `estimated bins`, whose shares are estimates: `psi_error` includes what these are off.
        jensen_shannon: The Jensen-Shannon divergence in bits, over the same cells.
        new_values, vanished_values: Of id slots, the share of the different values after that were
            not there before, and of those before that are not there after.
        values_error: The error of these two, 95 %; 0 if all values of both sides are known.
            Otherwise they are estimated from the values with the smallest hashes.
        new_share, vanished_share: The shares of all values that are new, or vanished; known if
            `values_error` is 0.
        top_new, top_vanished: The most frequent new ids, and those that vanished, at most 10, as a
            list of `{value, text, share}`: the share of all values on the side that has the id.
            `text` is null if it is not known. Null if it is not known which ids these are, since
            the side without them does not list all of its ids.
    """

    before: ProfiledRows
    after: ProfiledRows
    table: pa.Table
    pairs: Mapping[str, SlotPair] = field(default_factory=dict, compare=False)
    names: ValueNames = field(default_factory=ValueNames, compare=False)

    def __getitem__(self, slot: str) -> dict[str, Any]:
        """A slot's row of `table`, by column name.

        Raises:
            SelectionError: The comparison lacks the slot. The message suggests the nearest names.
        """
        return slot_row(self.table, slot, "comparison")

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON types."""
        sides = {
            name: {
                "num_rows": side.num_rows,
                "label_rates": dict(side.label_rates),
                "source": side.source,
            }
            for name, side in (("before", self.before), ("after", self.after))
        }
        return sides | {"slots": self.table.to_pylist()}

    def plot_drift(self) -> "Figure":
        """Bars of the PSI of each slot, the largest first, as a matplotlib Figure.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        return plot_psi(self.table)

    def plot_distribution(self, slot: str) -> "Figure":
        """The distributions of a slot's values before and after in one picture, as a matplotlib
        Figure: the most frequent ids of both sides, or the histograms of a float slot.

        Raises:
            SelectionError: The comparison lacks the slot, one side lacks it, or neither has values.
            MissingDependencyError: matplotlib is not installed.
        """
        pair = self.pairs[self[slot]["slot"]]
        if pair.before is None or pair.after is None:
            lacking = "before" if pair.before is None else "after"
            raise SelectionError(
                f"slot {slot!r}: expected it on both sides, found none {lacking}; "
                "plot_distribution of one side's profile shows it"
            )
        return plot_two_sides(slot, pair.before, pair.after, self.names, NUM_NAMED)

    def _head(self) -> str:
        before, after = self.before, self.after
        if before.source == after.source:
            return f"before: {before.figures}\nafter:  {after.figures}\n({after.source})"
        return f"before: {before.headline}\nafter:  {after.headline}"

    def _foot(self) -> Sequence[str]:
        marks = mark_lines(self.table["psi_method"].to_pylist())
        return [f"by chance at most: of independent rows; {DEPENDENT}", *marks]

    def _shown(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Slots that changed most come first."""
        rows = sorted(self.table.to_pylist(), key=lambda row: -(row["psi"] or 0.0))
        return _HEADERS, [
            (
                row["slot"],
                row["kind"],
                least_text(row["psi"], row["psi_method"], two_digits),
                two_digits(row["psi_error"]),
                least_text(row["jensen_shannon"], row["psi_method"], two_digits),
                coverage_change_text(row),
                distinct_change_text(row),
                changed_text(row, "new"),
                changed_text(row, "vanished"),
            )
            for row in rows
        ]


def compare(before: ProfiledRows, after: ProfiledRows) -> Comparison:
    """Compares two profiles, see `Profile.compare`."""
    old = {slot_key(summary.slot): summary for summary in before.summaries.values()}
    new = {slot_key(summary.slot): summary for summary in after.summaries.values()}
    keys = [*new, *(key for key in old if key not in new)]
    pairs = [SlotPair(before=old.get(key), after=new.get(key)) for key in keys]
    names = _names(before, after, pairs)
    return Comparison(
        before=_figures_of(before),
        after=_figures_of(after),
        table=pa.Table.from_pylist([_row(pair, names) for pair in pairs], SCHEMA),
        # Of two slots with one name the first one counts: the other one is only before.
        pairs={pair.slot.name: pair for pair in reversed(pairs)},
        names=names,
    )


def _figures_of(rows: ProfiledRows) -> ProfiledRows:
    """The rows without the summaries of their slots, which `table` holds. Not the profile itself,
    which as text is a table.
    """
    return ProfiledRows(num_rows=rows.num_rows, label_rates=rows.label_rates, source=rows.source)


def _names(before: ProfiledRows, after: ProfiledRows, pairs: Sequence[SlotPair]) -> ValueNames:
    """What the ids that a comparison shows mean, as far as either side knows, by the slots' names
    after.
    """
    wanted = {pair.slot.name: _ids(pair) for pair in pairs if pair.before and pair.after}
    known = after.names_of(wanted)
    old_names = {
        pair.before.slot.name: pair.slot.name for pair in pairs if pair.before and pair.after
    }
    left = {
        old: wanted[name] - known.by_slot.get(name, {}).keys() for old, name in old_names.items()
    }
    older = before.names_of({old: ids for old, ids in left.items() if ids})
    return known.over(
        ValueNames(by_slot={new: older.by_slot.get(old, {}) for old, new in old_names.items()})
    )


def _ids(pair: SlotPair) -> set[int]:
    """The ids that a comparison shows: frequent ones of both sides, new ones and vanished ones."""
    if pair.before is None or pair.after is None or pair.slot.kind is not SlotKind.ID:
        return set()
    lists = [value_shares(pair.before, pair.after, NUM_NAMED), *pair.new_and_vanished()]
    return {one.value for values in lists for one in values or ()}


def slot_key(slot: Slot) -> tuple[int | None, str]:
    """What tells whether slots of two tables are the same: the number, or without one the name."""
    return slot.number, slot.name if slot.number is None else ""


def _row(pair: SlotPair, names: ValueNames) -> dict[str, Any]:
    """The row of a slot, which at least one side has."""
    before, after, slot = pair.before, pair.after, pair.slot
    found = {} if before is None or after is None else slot_change(before, after)
    sides = {"before": before, "after": after}
    new, vanished = pair.new_and_vanished()
    return {
        "slot": slot.name,
        "number": slot.number,
        "kind": str(slot.kind),
        **{f"coverage_{name}": side and side.coverage for name, side in sides.items()},
        **{f"distinct_{name}": side and side.distinct for name, side in sides.items()},
        **{f"distinct_error_{name}": side and side.distinct_error for name, side in sides.items()},
        **found,
        "top_new": new and _named(slot.name, names, new, "after"),
        "top_vanished": vanished and _named(slot.name, names, vanished, "before"),
    }


def _named(
    slot: str, names: ValueNames, values: Sequence[ValueShares], side: str
) -> list[dict[str, Any]]:
    return [
        {"value": one.value, "text": names.known(slot, one.value), "share": getattr(one, side)}
        for one in values
    ]


def mark_lines(methods: Collection[str | None]) -> list[str]:
    """What the marks before drifts of these methods mean."""
    return [text for method, text in _MARKS.items() if method in methods]


def distinct_change_text(row: Mapping[str, Any]) -> str:
    """The numbers of different values before and after, with their errors.

    Args:
        row: A row of `Comparison.table`.
    """
    return before_after_text(
        *(
            number_with_error(row[f"distinct_{side}"], row[f"distinct_error_{side}"])
            for side in ("before", "after")
        )
    )


def coverage_change_text(row: Mapping[str, Any]) -> str:
    """The coverage before and after.

    Args:
        row: A row of `Comparison.table`.
    """
    return before_after_text(share_text(row["coverage_before"]), share_text(row["coverage_after"]))


def changed_text(row: Mapping[str, Any], which: str) -> str:
    """The share of the different ids that are new, or vanished, and the most frequent ones of them
    with their shares of all values.

    Args:
        row: A row of `Comparison.table`.
        which: `new` or `vanished`.
    """
    share = share_text(row[f"{which}_values"], row["values_error"])
    values = row[f"top_{which}"] or ()
    texts = [
        whole(
            f"{short_sign(one['value']) if one['text'] is None else one['text']} "
            f"({share_text(one['share'])})"
        )
        for one in values[:_NUM_SHOWN]
    ]
    more = ["…"] if len(values) > _NUM_SHOWN else []
    return f"{share}: {'  '.join([*texts, *more])}" if texts else share
