"""The columns of a report's slot table, and the facts of one slot.

A cell is a text for people and, in a column that is sorted by numbers, the number behind it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from featstore.base.table_result import (
    auc_text,
    error_text,
    least_text,
    number_text,
    number_with_error,
    share_text,
    two_digits,
)
from featstore.explore.comparison import changed_text, coverage_change_text, distinct_change_text
from featstore.explore.partition_profiles import DRIFT
from featstore.explore.plots.frame import coverage_text, short_text
from featstore.explore.profile import values_text
from featstore.spec.value_names import ValueNames
from featstore.statistics.drift import DEPENDENT

_NAME_CHARACTERS = 100
_VALUES_CHARACTERS = 160


@dataclass(frozen=True, kw_only=True)
class SlotFigures:
    """All that is known of one slot.

    Attributes:
        profile: Its row of `Profile.table`.
        costs: Its row of `ReadingCosts.table`.
        change: Its row of `Comparison.table`; empty if nothing is compared.
        label: Its row of `LabelProfile.table`; empty if there is no label.
        day: Its row of `PartitionProfiles.table` where it drifted most; empty if it did nowhere.
        names: What ids mean.
    """

    profile: Mapping[str, Any]
    costs: Mapping[str, Any]
    change: Mapping[str, Any]
    label: Mapping[str, Any]
    names: ValueNames
    day: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SlotColumn:
    """A column of the slot table.

    Attributes:
        title: Its title.
        help: What it holds.
        cell: The text of a slot, and the number by which it is sorted; None if by its text.
        is_number: Whether it is sorted by numbers, at first from the largest.
        is_wide: Whether a narrow window leaves it out.
    """

    title: str
    help: str
    cell: Callable[[SlotFigures], tuple[str, float | None]]
    is_number: bool = True
    is_wide: bool = False

    def as_dict(self) -> dict[str, Any]:
        """What the page needs of it."""
        return {
            "title": self.title,
            "help": self.help,
            "number": self.is_number,
            "wide": self.is_wide,
        }


def slot_columns(*, compared: bool, labelled: bool, by_partition: bool = False) -> list[SlotColumn]:
    """The columns of a report.

    Args:
        compared: Whether slots are compared with those of before.
        labelled: Whether slots are profiled against a label.
        by_partition: Whether there are several partitions.
    """
    wanted = ((_PSI, compared), (_AUC, labelled), (_DAY, by_partition))
    return [*_FIRST, *(column for column, is_wanted in wanted if is_wanted), *_LAST]


def facts(slot: SlotFigures) -> list[tuple[str, str]]:
    """What is known of a slot besides its charts: names and texts."""
    row, label = slot.profile, slot.label
    found = [
        ("slot number", "-" if row["number"] is None else str(row["number"])),
        ("kind", f"{row['kind']}, {row['shape']}"),
        ("operator", "-" if row["op"] is None else short_text(row["op"], _VALUES_CHARACTERS)),
        ("rows not missing", f"{row['num_present']:,} ({coverage_text(row['coverage'])})"),
        ("values", f"{row['num_values']:,}"),
        ("different values", _distinct(row)),
        *_numbers(row),
        *_extraction(row),
        ("stored bytes", f"{slot.costs['stored_bytes']:,}"),
    ]
    if label:
        found += [
            ("AUC of the slot alone (± 95 %)", _auc(slot)[0]),
            ("mutual information, bits", two_digits(label["mutual_information"])),
            ("information value", two_digits(label["information_value"])),
        ]
    found += _changes(slot.change) if slot.change else []
    return found + ([("drifted most", _day(slot)[0])] if slot.day else [])


def _distinct(row: Mapping[str, Any]) -> str:
    return number_with_error(row["distinct"], row["distinct_error"])


def _numbers(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Of a float slot its values, and of a list slot its lengths."""
    found = []
    if row["mean"] is not None:
        found += [
            ("mean", number_text(row["mean"])),
            ("least and largest", f"{number_text(row['min'])}, {number_text(row['max'])}"),
            ("1, 25, 50, 75, 99 %", _quantiles(row["quantiles"], row["rank_error"])),
        ]
    if row["length_mean"] is not None:
        mean, quantiles = number_text(row["length_mean"]), row["length_quantiles"]
        found += [
            ("length, mean and largest", f"{mean}, {row['length_max']:,}"),
            ("length, 50 and 90 %", _quantiles(quantiles, row["length_rank_error"])),
        ]
    return found


def _quantiles(quantiles: Sequence[float] | None, error: float) -> str:
    ranks = f" (ranks{error_text(error)})" if error else ""
    return ", ".join(map(number_text, quantiles or ())) + ranks


def _kind(slot: SlotFigures) -> tuple[str, None]:
    shape = "" if slot.profile["shape"] == "scalar" else f" {slot.profile['shape']}"
    return f"{slot.profile['kind']}{shape}", None


def _extraction(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Counts that only stored statistics know."""
    if row["default_rate"] is None:
        return []
    found = [
        ("rows with a default", share_text(row["default_rate"])),
        ("null list elements dropped", f"{row['num_nulls_dropped']:,}"),
        ("texts with errors", f"{row['num_text_errors']:,}"),
    ]
    if row["num_sign_collisions"] is not None:
        of_checked = f"{row['num_sign_collisions']:,} of {row['num_signs_checked']:,}"
        found.append(("signs of several values", of_checked))
    return found


def _changes(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    method = row["psi_method"]
    psi = least_text(row["psi"], method, two_digits)
    of = "; of its most frequent values, others may have drifted more" * (method == "at least")
    return [
        (
            "drift (PSI)",
            f"{psi}, of which chance made at most {two_digits(row['psi_error'])}{of}; {DEPENDENT}",
        ),
        ("Jensen-Shannon, bits", least_text(row["jensen_shannon"], method, two_digits)),
        ("coverage, before → after", coverage_change_text(row)),
        ("different values, before → after", distinct_change_text(row)),
        *(
            (f"{what} values", changed_text(row, what))
            for what in ("new", "vanished")
            if row[f"{what}_values"] is not None
        ),
    ]


def _drift(row: Mapping[str, Any]) -> tuple[str, float | None]:
    psi = row.get("psi")
    return least_text(psi, row.get("psi_method"), two_digits), rounded(psi)


def _auc(slot: SlotFigures) -> tuple[str, float | None]:
    auc = slot.label.get("auc")
    return auc_text(auc, slot.label.get("auc_standard_error")), rounded(auc)


def _day(slot: SlotFigures) -> tuple[str, float | None]:
    if not slot.day:
        return "-", None
    text = least_text(slot.day["drift"], slot.day["psi_method"], two_digits)
    partition = slot.day["partition"]
    # Of a single key the value is enough.
    name = partition if ", " in partition else partition.partition("=")[2] or partition
    return f"{text} in {short_text(name)}", rounded(slot.day["drift"])


def _number(value: float | None) -> tuple[str, float | None]:
    return number_text(value), rounded(value)


def _values(slot: SlotFigures) -> tuple[str, float | None]:
    most = _VALUES_CHARACTERS
    return short_text(values_text(slot.profile, slot.names, most), most), None


def rounded(value: float | None) -> float | None:
    """A number for JSON; None, also for what JSON does not have."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.4g}") if math.isfinite(value) else None


_FIRST: Sequence[SlotColumn] = (
    SlotColumn(
        title="slot",
        help="the slot's name",
        cell=lambda slot: (short_text(slot.profile["slot"], _NAME_CHARACTERS), None),
        is_number=False,
    ),
    SlotColumn(
        title="kind",
        help="ids or floats, and the shape of a row's value if it is no single one",
        cell=_kind,
        is_number=False,
        is_wide=True,
    ),
    SlotColumn(
        title="coverage",
        help="the share of rows that are not missing; an empty list is not missing",
        cell=lambda slot: (coverage_text(slot.profile["coverage"]), slot.profile["coverage"]),
    ),
    SlotColumn(
        title="distinct",
        help="the number of different values; its error of 95 % after ±",
        cell=lambda slot: (_distinct(slot.profile), slot.profile["distinct"]),
        is_wide=True,
    ),
    SlotColumn(
        title="bytes/row",
        help="compressed bytes in the files",
        cell=lambda slot: _number(slot.costs["stored_bytes_per_row"]),
        is_wide=True,
    ),
)
_PSI = SlotColumn(
    title="drift",
    help="the population stability index from before to after; above 0.25 is much; ≥: of the most "
    "frequent values, others may have drifted more; ≈: estimated from samples of rows (a report "
    "with --exact counts all of them)",
    cell=lambda slot: _drift(slot.change),
)
_AUC = SlotColumn(
    title="AUC",
    help="how well the slot alone ranks rows by the label, ± 95 %; 0.5: nothing",
    cell=_auc,
)
_DAY = SlotColumn(
    title="drifted most",
    help=f"the partition, such as a day, with the largest drift: {DRIFT}; {DEPENDENT}",
    cell=_day,
    is_wide=True,
)
_LAST: Sequence[SlotColumn] = (
    SlotColumn(
        title="values",
        help="the most frequent values with their shares, or quantiles at 1, 25, 50, 75 and 99 %",
        cell=_values,
        is_number=False,
        is_wide=True,
    ),
)
