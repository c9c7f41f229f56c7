"""What a profile is: coverage, distinct values, top values with label rates, list lengths and
quantiles of each slot, as an Arrow table and as text.

Figures are exact, or estimates of stored statistics, which come with their errors (`profiling`).
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from featstore.base.schema import SlotKind, SlotSchema
from featstore.base.table_result import (
    TableResult,
    error_text,
    number_text,
    number_with_error,
    share_text,
    slot_row,
)
from featstore.base.text_table import whole
from featstore.explore.comparison import Comparison, NameFinder, ProfiledRows, compare
from featstore.explore.plots.distribution import plot_distribution, plot_distributions
from featstore.explore.plots.frame import Figure
from featstore.explore.plots.slot_bars import plot_coverage
from featstore.spec.value_names import ValueNames
from featstore.statistics.summary import SlotSummary

NUM_TOP = 10
_NUM_SHOWN = 3  # of these, in a cell of the text

# Counts that only the extraction can make, from the raw values.
EXTRACTION_COUNTS = (
    "num_nulls_dropped",
    "num_text_errors",
    "num_sign_collisions",
    "num_signs_checked",
)
_COLUMNS = (
    "slot",
    "kind",
    "shape",
    "coverage",
    "distinct",
    "values/row",
    "quantiles (1 25 50 75 99 %) or top values (share)",
)
# The columns of a profile's table that are attributes of a summary.
_COPIED = (
    "num_present",
    "coverage",
    "num_values",
    "distinct",
    "distinct_error",
    "mean",
    "min",
    "max",
    "quantiles",
    "rank_error",
    "length_mean",
    "length_max",
    "length_quantiles",
    "length_rank_error",
)
_OF_HISTORIES = [name for name in _COPIED if not name.startswith("distinct")]
_AGES = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}  # the units of ages, and their seconds
# Of a top value.
_FIGURES = (
    ("value", pa.int64()),
    ("count", pa.int64()),
    ("share", pa.float64()),
    ("share_error", pa.float64()),
)
_VALUES = (("slot", pa.string()), _FIGURES[0], ("text", pa.string()), *_FIGURES[1:])
_EXTRACTION_COLUMNS = ("default", "nulls dropped", "text errors", "collisions")


@dataclass(frozen=True, kw_only=True, repr=False)
class Profile(TableResult, ProfiledRows):
    """Per-slot statistics of some rows of a table.

    Attributes:
        num_rows: The number of rows profiled.
        label_rates: The mean of each label over all rows; None if there are no rows.
        table: An Arrow table with a row per slot and the columns below.
        source: What the profile was computed from.
        counts: Counts of the extraction over the whole input, by name. Empty unless the profile is
            from stored statistics.
        histories: Of stored statistics, what is known of each history, by name: the rows with
            events are present, lengths are of their lists, and the values are the ages of events in
            seconds.
        summaries: What is known of each slot, by name: more than `table` shows, for comparisons.
        names: What top values mean.
        find_names: Finds what other ids of the slots mean, for comparisons.

    Columns of `table`:
        slot, number, kind, shape, op: The slot's definition.
        num_present, coverage: The rows in which the slot is not missing, and their share.
        num_values, distinct: All values (of lists: all elements), and the number of different ones.
        mean, min, max, quantiles: Of float slots. `quantiles` are those of `QUANTILES`.
        length_mean, length_max, length_quantiles: Of list slots. `length_quantiles` are those of
            `LENGTH_QUANTILES`.
        top: Of id slots, a list of `{value, count, share, share_error, label_rates, text}`, equally
            frequent values in ascending order. `value` is the sign, `share` the share of the
            slot's values, `label_rates` the labels' means over the rows that hold the value, and
            `text` what it means, null if that is not known. A row counts as often as its list holds
            a value. `values` has a row for each.
        distinct_error, rank_error, length_rank_error: The errors, with a probability of 95 %: of
            `distinct` relative to it, and of the shares of the quantiles. They and `share_error`
            are 0 where a figure is exact.
        default_rate: The share of rows in which `default` or `fill` replaced a missing value.
        num_nulls_dropped: Null list elements dropped from the slot's inputs.
        num_text_errors: Texts of the slot's inputs that were not valid UTF-8, or not numbers where
            numbers were expected.
        num_sign_collisions, num_signs_checked: Signs that more than one value had, among the
            different signs compared in samples of each file. Null if the slot has no signs.

    Only stored statistics know the columns from `default_rate` on. Otherwise these are null, as of
    slots in slot groups.
    """

    table: pa.Table
    counts: Mapping[str, int] = field(default_factory=dict)
    histories: Mapping[str, SlotSummary] = field(default_factory=dict)

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots' names, in the order of the table."""
        return tuple(self.table["slot"].to_pylist())

    def __getitem__(self, slot: str) -> dict[str, Any]:
        """The statistics of one slot, by column name.

        Raises:
            SelectionError: The profile lacks the slot. The message suggests the nearest names.
        """
        return slot_row(self.table, slot)

    def compare(self, after: "Profile") -> Comparison:
        """Compares the rows of this profile with those of another one, such as a later day.

        Slots are matched by their numbers, or by name if they have none.

        Args:
            after: The other profile. Its statistics may be stored and these counted, or the other
                way round.

        Returns:
            For each slot the population stability index, the Jensen-Shannon divergence, the shares
            of new and vanished values, and the coverage on both sides.

        Raises:
            InputError: A slot holds ids on one side and floats, or indices, on the other.
        """
        return compare(self, after)

    def plot_coverage(self) -> "Figure":
        """Bars of the coverage of each slot, in the profile's order, as a matplotlib Figure.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        return plot_coverage(self.table, self.num_rows)

    def plot_distribution(self, slot: str) -> "Figure":
        """The distribution of a slot's values, as a matplotlib Figure: the top values of an id
        slot, in its own order if it has one, or the histogram of a float slot.

        Raises:
            SelectionError: The profile lacks the slot, or the slot has no values.
            MissingDependencyError: matplotlib is not installed.
        """
        return plot_distribution(self[slot], self.summaries[slot].points, self.names)

    def plot_distributions(self) -> "Figure":
        """The distributions of all slots, a row each, as a matplotlib Figure: the shares of the top
        values of id slots, and boxes of the quantiles of float slots.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        return plot_distributions(self.table, self.names)

    @property
    def values(self) -> pa.Table:
        """The top values of all id slots, at most 10 of each, as an Arrow table with a row per
        value, for pandas, polars or a CSV file: `slot`, `value`, `text`, `count`, `share`,
        `share_error` as in `top`, and `rate_LABEL`, the mean of each label over the rows that hold
        the value. Stored statistics do not know rates: a profile of them alone has no such columns.
        `LabelProfile.cells` has the rates of 100 values of each slot, with intervals.
        """
        rows = [
            {"slot": row["slot"], **top}
            | {f"rate_{name}": rate for name, rate in (top["label_rates"] or {}).items()}
            for row in self.table.select(["slot", "top"]).to_pylist()
            for top in row["top"] or ()
        ]
        known = any(name.startswith("rate_") for row in rows for name in row)
        rates = [(f"rate_{name}", pa.float64()) for name in self.label_rates if known or not rows]
        return pa.Table.from_pylist(rows, pa.schema([*_VALUES, *rates]))

    def named(self, names: ValueNames, find_names: NameFinder | None = None) -> "Profile":
        """The profile with what ids mean, also in `table`."""
        rows = self.table.to_pylist()
        for row in rows:
            for top in row["top"] or ():
                top["text"] = names.known(row["slot"], top["value"])
        table = pa.Table.from_pylist(rows, self.table.schema)
        return replace(self, table=table, names=names, find_names=find_names)

    def as_dict(self) -> dict[str, Any]:
        """The profile as JSON types: the columns of `table` for each slot, and the rest."""
        return {
            "source": self.source,
            "num_rows": self.num_rows,
            "label_rates": dict(self.label_rates),
            "counts": dict(self.counts),
            "histories": {
                name: {figure: getattr(one, figure) for figure in _OF_HISTORIES}
                for name, one in self.histories.items()
            },
            "slots": self.table.to_pylist(),
        }

    def _shown(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        rows = self.table.to_pylist()
        if self.table["default_rate"].null_count == len(rows):
            return _COLUMNS, [(*_cells(row), values_text(row, self.names)) for row in rows]
        headers = (*_COLUMNS[:-1], *_EXTRACTION_COLUMNS, *_COLUMNS[-1:])
        return headers, [
            (*_cells(row), *_extraction_cells(row), values_text(row, self.names)) for row in rows
        ]

    def _foot(self) -> Sequence[str]:
        histories = self.histories.items()
        return [
            *(f"history {name}: {history_text(one)}" for name, one in histories),
            *(f"{name}: {number:,}" for name, number in self.counts.items()),
        ]

    def _head(self) -> str:
        return self.headline


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    per_row = row["num_values"] / row["num_present"] if row["num_present"] else 0.0
    return (
        row["slot"],
        row["kind"],
        row["shape"],
        share_text(row["coverage"]),
        number_with_error(row["distinct"], row["distinct_error"]),
        f"{per_row:.3g}",
    )


def _extraction_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    collisions, checked = row["num_sign_collisions"], row["num_signs_checked"]
    of_checked = "-" if collisions is None else f"{collisions:,} of {checked:,}"
    return (
        share_text(row["default_rate"]),
        number_with_error(row["num_nulls_dropped"], None),
        number_with_error(row["num_text_errors"], None),
        of_checked,
    )


def values_text(
    row: Mapping[str, Any], names: ValueNames, most_characters: int | None = None
) -> str:
    """The quantiles of a float slot, or the most frequent ids of another with their shares, as
    `shown_top` has them.

    Args:
        row: The slot's row of `Profile.table`.
        names: What ids mean.
        most_characters: Of ids only the first ones that fit are named, each whole with its share.
    """
    if row["kind"] == SlotKind.FLOAT:
        error = row["rank_error"]
        quantiles = " ".join(map(number_text, row["quantiles"] or ()))
        return f"{quantiles} (ranks{error_text(error)})" if error else quantiles
    entries = [
        whole(
            f"{names.text(row['slot'], top['value'])} "
            f"({share_text(top['share'], top['share_error'])})"
        )
        for top in shown_top(row, names, _NUM_SHOWN)
    ]
    if most_characters is None or len("  ".join(entries)) <= most_characters:
        return "  ".join(entries)
    ends = itertools.accumulate(len(entry) + len("  ") for entry in entries)
    num_kept = sum(end + len("…") <= most_characters for end in ends)
    return "  ".join([*entries[:num_kept], "…"])


def history_text(one: SlotSummary) -> str:
    """How many rows have events of a history, how many, and how old these are."""
    found = f"{share_text(one.coverage)} of rows have events"
    if one.length_mean is None:
        return found
    ages = " ".join(map(_age_text, one.quantiles or ()))
    ranks = f" (ranks{error_text(one.rank_error)})" if one.rank_error else ""
    return (
        f"{found}, {number_text(one.length_mean)} each, at most {one.length_max:,}; their ages at "
        f"1 25 50 75 99 %: {ages}{ranks}"
    )


def _age_text(age_s: float) -> str:
    unit = next((unit for unit, size_s in _AGES.items() if age_s >= size_s), "s")
    return f"{number_text(age_s / _AGES[unit])}{unit}"


def shown_top(row: Mapping[str, Any], names: ValueNames, most: int) -> list[Mapping[str, Any]]:
    """The top values that a text shows: all of a slot with an order of its own, in that order, if
    they are all known, and else the most frequent ones.

    Args:
        row: The slot's row of `Profile.table`.
        names: What ids mean.
        most: How many to show of other slots.
    """
    top = {one["value"]: one for one in row["top"]}
    knows_all = len(top) == row["distinct"] and not row["distinct_error"]
    order = names.own_order(row["slot"], list(top)) if knows_all else None
    return [top[value] for value in (list(top)[:most] if order is None else order)]


def numeric_labels(schema: SlotSchema) -> list[str]:
    """The names of the labels that have a mean: those that are not lists or structs."""
    return [label.name for label in schema.labels if not pa.types.is_nested(label.type)]


def result_table(
    summaries: Iterable[SlotSummary],
    labels: Sequence[str],
    *,
    label_rates: Mapping[str, Sequence[Mapping[str, float | None]]] = MappingProxyType({}),
    extraction: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> pa.Table:
    """`Profile.table` of summaries.

    Args:
        summaries: What is known of each slot.
        labels: The labels' names.
        label_rates: For the top values of a slot, the means of the labels, if known.
        extraction: For a slot, the columns that only stored statistics know.
    """
    rows = [
        _row(one, label_rates.get(one.slot.name)) | dict(extraction.get(one.slot.name, {}))
        for one in summaries
    ]
    return pa.Table.from_pylist(rows, result_schema(labels))


def _row(
    one: SlotSummary, label_rates: Sequence[Mapping[str, float | None]] | None
) -> dict[str, Any]:
    slot, whole = one.slot, max(one.num_values, 1)
    top = zip(one.values.tolist(), one.counts.tolist(), one.count_errors.tolist(), strict=True)
    return {
        "slot": slot.name,
        "number": slot.number,
        "kind": str(slot.kind),
        "shape": slot.shape_text,
        "op": slot.op,
        **{name: getattr(one, name) for name in _COPIED},
        "top": [
            {
                "value": value,
                "count": round(count),
                # An estimate can exceed the number of values.
                "share": min(1.0, count / whole),
                "share_error": error / whole,
                "label_rates": None if label_rates is None else label_rates[i],
            }
            for i, (value, count, error) in enumerate(itertools.islice(top, NUM_TOP))
        ],
    }


def result_schema(labels: Sequence[str]) -> pa.Schema:
    """The Arrow schema of `Profile.table`."""
    rates = pa.struct([(name, pa.float64()) for name in labels])
    top = pa.struct([*_FIGURES, ("label_rates", rates), ("text", pa.string())])
    return pa.schema(
        [
            ("slot", pa.string()),
            ("number", pa.int64()),
            ("kind", pa.string()),
            ("shape", pa.string()),
            ("op", pa.string()),
            ("num_present", pa.int64()),
            ("coverage", pa.float64()),
            ("num_values", pa.int64()),
            ("distinct", pa.int64()),
            ("distinct_error", pa.float64()),
            *((name, pa.float64()) for name in ("mean", "min", "max")),
            ("quantiles", pa.list_(pa.float64())),
            ("rank_error", pa.float64()),
            ("length_mean", pa.float64()),
            ("length_max", pa.int64()),
            ("length_quantiles", pa.list_(pa.float64())),
            ("length_rank_error", pa.float64()),
            ("top", pa.list_(top)),
            ("default_rate", pa.float64()),
            *((name, pa.int64()) for name in EXTRACTION_COUNTS),
        ]
    )
