"""Slots against a label: the label's rate by value, bin and partition, and how much a slot alone
says of it.

Everything is counted from the rows, in one pass and bounded memory (`value_counter`). Rows whose
label is unknown are left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.errors import InputError
from featstore.base.schema import Slot, SlotKind
from featstore.base.table_result import (
    TableResult,
    auc_text,
    nullable_integers,
    number_text,
    rows_by_slot,
    share_text,
    slot_row,
    two_digits,
)
from featstore.base.text_table import short_names, text_table, whole
from featstore.explore.plots.frame import Figure
from featstore.explore.plots.slot_bars import (
    cell_text,
    cells_in_order,
    plot_auc,
    plot_partition_rates,
    plot_rates,
)
from featstore.explore.profiling import SOURCE, known_values, label_numbers
from featstore.explore.value_counter import BUDGET_BYTES, CountingSpace, ValueCounter
from featstore.ops.arrays import values_of
from featstore.spec.value_names import ValueNames
from featstore.statistics.label_curves import HalfCurves, ListRows
from featstore.statistics.measures import information_value, mutual_information, wilson
from featstore.statistics.sketches import Floats, mix
from featstore.statistics.value_counts import ValueCounts, merge_counts, most_frequent

NUM_VALUES = 100  # the most frequent ids that are cells of their own
NUM_BINS = 20  # the bins of a float slot, with about equally many values

_RATE = [(name, pa.float64()) for name in ("rate", "rate_low", "rate_high")]
SCHEMA = pa.schema(
    [
        ("slot", pa.string()),
        ("number", pa.int64()),
        ("kind", pa.string()),
        ("coverage", pa.float64()),
        ("num_cells", pa.int64()),
        *(
            (name, pa.float64())
            for name in ("auc", "auc_standard_error", "mutual_information", "information_value")
        ),
    ]
)
CELLS = pa.schema(
    [
        ("slot", pa.string()),
        ("cell", pa.string()),
        ("value", pa.int64()),
        ("text", pa.string()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("num_values", pa.int64()),
        ("num_positive", pa.int64()),
        *_RATE,
    ]
)
PARTITIONS = pa.schema(
    [
        ("partition", pa.string()),
        ("num_rows", pa.int64()),
        ("num_known", pa.int64()),
        ("num_positive", pa.int64()),
        *_RATE,
    ]
)
AUC_HEADER = "auc (± 95 %)"
_NEARLY_ALL = 0.95  # the AUC of a slot that says nearly all of the label
_MOST_TEXTS = 3  # slots of which the text has the rates by value
_MOST_CELLS = 20  # values of a slot in the text, beside all others
_RATE_HEADERS = ("value", "rate", "interval of 95 %", "values")
_HEADERS = (
    "slot",
    "kind",
    AUC_HEADER,
    "mutual information",
    "information value",
    "coverage",
    "cells",
)


@dataclass(frozen=True, kw_only=True, repr=False)
class LabelProfile(TableResult):
    """Slots against a label of 0 and 1. Made by `Table.label_profile`.

    Rates come with their Wilson intervals of 95 %. A row counts as often as its list holds values.

    Attributes:
        label: The label.
        num_rows: All rows.
        num_known: The rows whose label is known: the others are left out.
        num_positive: The rows whose label is 1.
        table: An Arrow table with a row per slot and the columns below.
        cells: An Arrow table with a row per cell of each slot: `slot`, `cell`, and `value`
            with its `text` (null if it is not known), or `low` and `high`; `num_values`,
            `num_positive`, `rate`, `rate_low`, `rate_high`. `cell` is `value` (of the 100 most
            frequent ids), `bin` (of floats from `low` to `high`, 20 with about equally many
            values), `other`, `missing`, or `empty`: of lists without a value.
        partitions: An Arrow table with a row per partition: `partition`, `num_rows`, `num_known`,
            `num_positive`, `rate`, `rate_low`, `rate_high`. Empty for a table without partitions.
        names: What ids mean.

    Columns of `table`:
        slot, number, kind, coverage: The slot.
        num_cells: Its cells.
        auc: The area under the ROC curve of the slot alone. A row's score is the rate of its value
            or bin in the other half of the rows, drawn to the rate of all rows where it is rare (D.
            Micci-Barreca, "A preprocessing scheme for high-cardinality categorical attributes",
            SIGKDD Explorations 3, 2001). So a slot that says nothing has 0.5, however many values
            it has. All ids count, not only the most frequent ones.
        auc_standard_error: Its standard error, for independent rows, whose values may depend on
            each other: of each half by the formula of DeLong (`measures.auc_standard_error`), and
            of their mean by how much they depend on each other
            (`measures.mean_of_halves_variance`). Null if both have fewer than two rows of a label.
        mutual_information: Of cell and label, in bits.
        information_value: Of the cells.
    """

    label: str
    num_rows: int
    num_known: int
    num_positive: int
    table: pa.Table
    cells: pa.Table
    partitions: pa.Table
    names: ValueNames = field(default_factory=ValueNames, compare=False)

    @property
    def rate(self) -> float | None:
        """The mean of the label; None if it is known in no row."""
        return self.num_positive / self.num_known if self.num_known else None

    @property
    def remark(self) -> str:
        """Which slots say nearly all of the label, each alone, as a label that leaks does; empty if
        none does.
        """
        names, aucs = self.table["slot"].to_pylist(), self.table["auc"].to_pylist()
        return leak_remark(self.label, dict(zip(names, aucs, strict=True)))

    def __getitem__(self, slot: str) -> dict[str, Any]:
        """A slot's row of `table`, and its `cells` as a list of rows.

        Raises:
            SelectionError: The profile lacks the slot. The message suggests the nearest names.
        """
        row = slot_row(self.table, slot)
        return row | {"cells": self.cells.filter(pc.equal(self.cells["slot"], slot)).to_pylist()}

    def plot_auc(self) -> "Figure":
        """Bars of the AUC of each slot alone, the largest first, as a matplotlib Figure.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        return plot_auc(self.label, self.table)

    def plot_rates(self, slot: str) -> "Figure":
        """The label's rate for the values of an id slot, or the bins of a float slot, as a
        matplotlib Figure.

        Raises:
            SelectionError: The profile lacks the slot, or the label is known in no row.
            MissingDependencyError: matplotlib is not installed.
        """
        return plot_rates(self.label, slot, self[slot]["cells"], self.names, self.rate)

    def plot_partitions(self) -> "Figure":
        """The label's rate in each partition, such as a day, as a matplotlib Figure.

        Raises:
            InputError: The table has no partitions.
            MissingDependencyError: matplotlib is not installed.
        """
        return plot_partition_rates(self.label, self.partitions)

    def as_dict(self) -> dict[str, Any]:
        """The profile as JSON types."""
        cells = rows_by_slot(self.cells)
        return {
            "label": self.label,
            "num_rows": self.num_rows,
            "num_known": self.num_known,
            "num_positive": self.num_positive,
            "slots": [row | {"cells": cells[row["slot"]]} for row in self.table.to_pylist()],
            "partitions": self.partitions.to_pylist(),
        }

    def _head(self) -> str:
        known = f" of {self.num_known:,} known" if self.num_known != self.num_rows else ""
        rate = f"{self.label} {number_text(self.rate, 3)}"
        rows = f"{self.num_rows:,} rows, {rate}{known} ({SOURCE})"
        return "\n".join(filter(None, [rows, self.remark]))

    def _shown(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Slots that say most of the label come first."""
        rows = sorted(self.table.to_pylist(), key=lambda row: -(row["auc"] or 0.0))
        return _HEADERS, [
            (
                row["slot"],
                row["kind"],
                whole(auc_text(row["auc"], row["auc_standard_error"])),
                two_digits(row["mutual_information"]),
                two_digits(row["information_value"]),
                share_text(row["coverage"]),
                f"{row['num_cells']:,}",
            )
            for row in rows
        ]

    def text(self, width: int | None = None) -> str:
        """The profile as text, with tables of `width` characters at most if given. Of at most three
        slots it has the rates by value or bin, too.
        """
        slots = self.table["slot"].to_pylist() if self.table.num_rows <= _MOST_TEXTS else []
        cells = [
            f"\n{slot}\n{text_table(self._rates(slot), _RATE_HEADERS, width=width)}"
            for slot in slots
        ]
        return "\n".join([super().text(width), *cells])

    def _rates(self, slot: str) -> list[Sequence[str]]:
        """The rates by value or bin: of ids the most frequent ones, and all others together."""
        shown, hidden = cells_in_order(slot, self[slot]["cells"], self.names, _MOST_CELLS)
        more = [(f"({len(hidden):,} more values counted: `cells`, --json)", "", "", "")]
        return [
            *(
                (
                    cell_text(slot, cell, self.names),
                    number_text(cell["rate"], 3),
                    f"{number_text(cell['rate_low'], 3)} to {number_text(cell['rate_high'], 3)}",
                    f"{cell['num_values']:,}",
                )
                for cell in shown
            ),
            *(more if hidden else []),
        ]

    def _foot(self) -> Sequence[str]:
        return [
            f"{row['partition']}: {row['num_rows']:,} rows, {self.label} "
            f"{number_text(row['rate'], 3)} ({number_text(row['rate_low'], 3)} to "
            f"{number_text(row['rate_high'], 3)})"
            for row in self.partitions.to_pylist()
        ]


def leak_remark(label: str, aucs: Mapping[str, float | None]) -> str:
    """The remark of `LabelProfile`, from the AUC of each slot."""
    slots = [slot for slot, auc in aucs.items() if auc is not None and auc >= _NEARLY_ALL]
    if not slots:
        return ""
    return (
        f"nearly all of {label} is said by {short_names(slots)}, each alone (AUC of "
        f"{_NEARLY_ALL:g} or more): is it known before the label, or does the label leak?"
    )


def label_rows(
    batches: Iterable[pa.RecordBatch],
    slots: Sequence[Slot],
    label: str,
    partition_keys: Sequence[str] = (),
    *,
    budget_bytes: int = BUDGET_BYTES,
) -> LabelProfile:
    """Profiles rows against a label.

    Args:
        batches: The rows as batches with the columns of `slots`, `label` and `partition_keys`, by
            name, and missing values as null.
        slots: The slots to profile.
        label: The label.
        partition_keys: The columns whose values make a partition.
        budget_bytes: The memory that counts may take. What exceeds it is sorted to a temporary
            file.

    Raises:
        InputError: The label has values besides 0 and 1.
        DiskFullError: The disk of temporary files is full.
    """
    with CountingSpace(budget_bytes) as space:
        list_bytes = budget_bytes // max(1, sum(bool(slot.shape) for slot in slots))
        counted = [_LabelledCounts(space, slot, list_bytes) for slot in slots]
        num_rows, total, partitions = 0, np.zeros(4), dict[str, Floats]()
        for batch in batches:
            rows = _Labelled(batch.column(label), label, num_rows)
            num_rows += batch.num_rows
            total += rows.sums()
            _add_partitions(partitions, batch, partition_keys, rows)
            known = batch.filter(pa.array(rows.known)) if not rows.known.all() else batch
            for one in counted:
                one.add(known.column(one.slot.name), rows)
        found = [one.finish(total) for one in counted]
    return LabelProfile(
        label=label,
        num_rows=num_rows,
        num_known=int(total[0]),
        num_positive=int(total[2]),
        table=pa.Table.from_pylist([row for row, _ in found], SCHEMA),
        cells=nullable_integers(
            pa.Table.from_pylist([cell for _, cells in found for cell in cells], CELLS)
        ),
        partitions=_partition_table(partitions),
    )


class _Labelled:
    """The labels of a batch.

    Attributes:
        known: Whether a row's label is known, bool (num_rows,).
        keys: A random number for each row with a known label, int64 (num_known,).
        weights: Of these rows: whether a row is in the first half of all rows, whether it is
            positive, and whether it is both, float64 (num_known,) each.
    """

    def __init__(self, column: pa.Array, label: str, first_row: int) -> None:
        numbers = label_numbers(column)
        self.known = ~np.isnan(numbers)
        positive = numbers[self.known]
        wrong = positive[(positive != 0.0) & (positive != 1.0)]
        if len(wrong):
            raise InputError(
                f"label {label!r}: expected 0 and 1, found {wrong[0]:g}; a rate needs a label that "
                f"is one of the two"
            )
        # Halves by a hash of the row's number, as its parity may go with its time.
        rows = np.arange(first_row + 1, first_row + len(numbers) + 1, dtype=np.int64)
        self.keys = mix(rows)[self.known]
        half = (self.keys & 1).astype(np.float64)
        self.weights = (half, positive, half * positive)

    def sums(self, rows: Any = slice(None)) -> Floats:
        """The number of rows, and the sums of the weights over them, float64 (4,)."""
        chosen = [weight[rows] for weight in self.weights]
        return np.array([len(chosen[0]), *(weight.sum() for weight in chosen)])


# Rows without a value are cells of their own.
_WITHOUT = ("missing", "empty")


class _LabelledCounts:
    """How often each value of a slot occurs: in all rows, the first half, and so among positives.

    The sums are those of `_Labelled.sums`, here and below: rows, rows in the first half, positive
    rows, positive rows in the first half.
    """

    def __init__(self, space: CountingSpace, slot: Slot, list_bytes: int) -> None:
        self.slot = slot
        self._is_id = slot.kind is SlotKind.ID
        dtype = np.int64 if self._is_id else np.float32
        self._counter = ValueCounter(space, dtype, 3)
        self._without = np.zeros((len(_WITHOUT), 4))
        self._lists = ListRows(dtype, list_bytes) if slot.shape else None

    def add(self, column: pa.Array, labelled: _Labelled) -> None:
        """Counts the next rows, those with a known label."""
        values, rows = known_values(self.slot, column)
        at = slice(None) if rows is None else rows
        self._counter.add(values, [weight[at] for weight in labelled.weights])
        if rows is None:
            return
        self._sample(values, 0, at, labelled)
        without = np.ones(len(column), np.bool_)
        without[at] = False
        # A list of nothing but nulls or NaN is empty, too; a number that is NaN is missing.
        known = values_of(pc.is_valid(column)) if self.slot.shape else np.zeros_like(without)
        for i, chosen in enumerate((without & ~known, without & known)):
            places = np.flatnonzero(chosen)
            self._without[i] += labelled.sums(places)
            self._sample(np.zeros(len(places)), i + 1, places, labelled)

    def _sample(self, values: Any, kind: int, rows: Any, labelled: _Labelled) -> None:
        if self._lists is not None:
            first, positive, _ = labelled.weights
            self._lists.add(values, kind, labelled.keys[rows], 1 - first[rows], positive[rows])

    def finish(self, total: Floats) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The slot's row of `LabelProfile.table`, and those of `LabelProfile.cells`."""
        curves = HalfCurves(float(total[2] / total[0]) if total[0] else 0.0)
        cells = self._of_ids(curves) if self._is_id else self._of_floats(curves)
        for i, (name, sums) in enumerate(zip(_WITHOUT, self._without, strict=True)):
            if sums[0]:
                cells.append({"cell": name, "sums": sums})
                self._add(curves, sums[:, None], np.zeros(1), np.zeros(1), i + 1)
        positives = np.array([cell["sums"][2] for cell in cells])
        negatives = np.array([cell["sums"][0] for cell in cells]) - positives
        row = {
            "slot": self.slot.name,
            "number": self.slot.number,
            "kind": str(self.slot.kind),
            "coverage": 1 - self._without[0][0] / total[0] if total[0] else 0.0,
            "num_cells": len(cells),
            **curves.area(self._lists),
            "mutual_information": mutual_information(positives, negatives),
            "information_value": information_value(positives, negatives),
        }
        return row, [_cell(self.slot.name, cell) for cell in cells]

    def _add(self, curves: HalfCurves, sums: Floats, low: Any, high: Any, kind: int = 0) -> None:
        """Adds values or bins to the curves, and gives the rows of lists their scores."""
        scores = curves.add(sums)
        if self._lists is not None:
            self._lists.find(scores, low, high, kind)

    def _of_ids(self, curves: HalfCurves) -> list[dict[str, Any]]:
        """Cells of the most frequent ids and of all others. All ids are added to the curves."""
        others, top = np.zeros(4), self._counter.none
        for part in self._counter.merged():
            sums = _sums(part)
            self._add(curves, sums, part.values, part.values)
            others += sums.sum(axis=1)
            best = most_frequent(part, NUM_VALUES)
            top = most_frequent(merge_counts([top, best]), NUM_VALUES)
        cells = [
            {"cell": "value", "value": value, "sums": sums}
            for value, sums in zip(top.values.tolist(), _sums(top).T, strict=True)
        ]
        others -= _sums(top).sum(axis=1)
        return cells + ([{"cell": "other", "sums": others}] if others[0] else [])

    def _of_floats(self, curves: HalfCurves) -> list[dict[str, Any]]:
        """Cells of bins, which are added to the curves. Equal values are in one bin, that of their
        middle.
        """
        sums, before = np.zeros((4, NUM_BINS)), 0.0
        low, high = np.full(NUM_BINS, np.inf), np.full(NUM_BINS, -np.inf)
        for part in self._counter.merged():
            ends = before + np.cumsum(part.counts)
            middles = ends - part.counts / 2
            bins = (middles * (NUM_BINS / max(self._counter.num_values, 1))).astype(np.intp)
            for i, of_values in enumerate(_sums(part)):
                sums[i] += np.bincount(bins, weights=of_values, minlength=NUM_BINS)
            np.minimum.at(low, bins, part.values)
            np.maximum.at(high, bins, part.values)
            before = float(ends[-1]) if len(ends) else before
        used = np.flatnonzero(sums[0])
        self._add(curves, sums[:, used], low[used], high[used])
        return [{"cell": "bin", "low": low[i], "high": high[i], "sums": sums[:, i]} for i in used]


def _sums(counts: ValueCounts) -> Floats:
    return np.concatenate([counts.counts[None].astype(np.float64), counts.sums])


def _cell(slot: str, cell: Mapping[str, Any]) -> dict[str, Any]:
    num_values, _, num_positive, _ = cell["sums"].tolist()
    known = {name: cell[name] for name in ("cell", "value", "low", "high") if name in cell}
    counts = {"num_values": int(num_values), "num_positive": int(num_positive)}
    return {"slot": slot, **known, **counts, **_rate(num_positive, num_values)}


def _rate(num_positive: float, num: float) -> dict[str, float | None]:
    low, high = wilson(num_positive, num)
    rate = num_positive / num if num else None
    return {"rate": rate, "rate_low": float(low), "rate_high": float(high)}


def _add_partitions(
    partitions: dict[str, Floats],
    batch: pa.RecordBatch,
    keys: Sequence[str],
    labelled: _Labelled,
) -> None:
    """Adds rows, known rows and positive rows to those of each partition, by its name."""
    if not keys:
        return
    positive = np.zeros(batch.num_rows)
    positive[labelled.known] = labelled.weights[1]
    columns = {f"key{i}": batch.column(key) for i, key in enumerate(keys)}
    counted = (
        pa.table({**columns, "known": pa.array(labelled.known), "positive": pa.array(positive)})
        .group_by(list(columns), use_threads=False)  # whose threads would hold numpy's memory
        .aggregate([([], "count_all"), ("known", "sum"), ("positive", "sum")])
    )
    for row in counted.to_pylist():
        name = ", ".join(f"{key}={row[f'key{i}']}" for i, key in enumerate(keys))
        sums = np.array([row["count_all"], row["known_sum"], row["positive_sum"]], np.float64)
        partitions[name] = partitions.get(name, 0.0) + sums


def _partition_table(partitions: Mapping[str, Floats]) -> pa.Table:
    rows = []
    for name, sums in sorted(partitions.items()):
        num_rows, num_known, num_positive = map(int, sums)
        counts = {"num_rows": num_rows, "num_known": num_known, "num_positive": num_positive}
        rows.append({"partition": name, **counts, **_rate(num_positive, num_known)})
    return pa.Table.from_pylist(rows, PARTITIONS)
