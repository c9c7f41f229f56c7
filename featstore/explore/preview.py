"""What the slots of a spec would hold, from raw rows of all places and without a commit."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.errors import InputError, SpecError, nearest
from featstore.base.intervals import spread_with_rows
from featstore.base.redaction import redact
from featstore.base.schema import Slot, SlotKind
from featstore.base.table_result import TableResult, auc_text, number_text, share_text, two_digits
from featstore.base.text_table import whole
from featstore.explore.label_profile import AUC_HEADER, label_rows, leak_remark
from featstore.explore.profile import Profile, numeric_labels, result_schema, shown_top
from featstore.explore.profiling import profile_rows
from featstore.explore.table import Table, open_table
from featstore.explore.whatis import named_profile
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.raw import Unit, find_raw_files, plan_units
from featstore.extraction.units.stand_ins import SlotTexts
from featstore.extraction.units.unit import extract_range
from featstore.reading.tables import marks_to_nulls
from featstore.spec.graph import Graph
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.spec.value_names import (
    ValueNames,
    ValueText,
    kept_values,
    member_names,
    names_of_spec,
    short_sign,
)
from featstore.statistics.measures import mean_error
from featstore.statistics.stale_groups import ERROR

NUM_ROWS = 10_000
_NO_EVENTS = (
    "the slots of histories need all events of their keys; extract a day, and see its rows with "
    "`featstore table show --rows 10` and its lengths and ages with `featstore table profile`"
)
_NUM_RANKED = 3  # previewed slots whose rank the text says
_NUM_TOP = 5  # top values that the text shows
_HEADERS = ("slot", "from", "kind", "shape", "coverage", "distinct", "quantiles or top values")


# The columns of a profile's table that a preview has, too.
_COPIED = (
    "slot",
    "number",
    "kind",
    "shape",
    "num_present",
    "coverage",
    "distinct",
    "mean",
    "min",
    "max",
    "quantiles",
    "top",
)
_AUC = ("auc", "auc_standard_error")
_TOP = pa.struct(
    [
        ("value", pa.int64()),
        ("text", pa.string()),
        ("share", pa.float64()),
        ("label_rates", pa.map_(pa.string(), pa.float64())),
    ]
)


@dataclass(frozen=True, kw_only=True)
class PreviewedSlot:
    """A slot of the previewed spec, or of the table beside it.

    Attributes:
        source: `preview` or `table`.
        statistics: The slot's row of `Profile.table`, as JSON types. Each of its top values has a
            `text` besides; None if it is not known. `coverage_error` is the error of `coverage`, as
            `PreviewedRows.label_errors`.
        auc: For each label of 0 and 1, the AUC of the slot alone over the same rows, as of
            `LabelProfile`; None if it is not known.
        auc_standard_error: The standard error of each; the text shows the error of 95 %.
        names: What its top values mean, and their order.
    """

    source: str
    statistics: Mapping[str, Any]
    auc: Mapping[str, float | None]
    auc_standard_error: Mapping[str, float | None] = field(default_factory=dict)
    names: ValueNames = field(default_factory=ValueNames, compare=False, repr=False)

    @property
    def key(self) -> object:
        """What it shares with the table's same slot."""
        number = self.statistics["number"]
        return self.statistics["slot"] if number is None else number

    def cells(self, labels: Sequence[str]) -> tuple[object, ...]:
        """Its row of the table of text, with the AUC for these labels."""
        row = self.statistics
        is_float = row["kind"] == SlotKind.FLOAT
        return (
            row["slot"],
            self.source,
            row["kind"],
            row["shape"],
            share_text(row["coverage"], row["coverage_error"]),
            f"{row['distinct']:,}",
            *(whole(auc_text(self.auc.get(n), self.auc_standard_error.get(n))) for n in labels),
            " ".join(f"{number:.4g}" for number in row["quantiles"] or ())
            if is_float
            else "  ".join(map(_top_text, shown_top(row, self.names, _NUM_TOP))),
        )


@dataclass(frozen=True, kw_only=True)
class PreviewedRows:
    """The rows on one side of a preview.

    Attributes:
        url: The raw input, or the table.
        num_rows: The rows that were looked at.
        num_all: All rows there.
        label_rates: The mean of each label over them; None if no row has it.
        label_errors: The errors of the rates, 95 %, from how much parts of the rows differ; 0 of
            all rows.
        drawn_from: Where the rows were drawn, if they are not all.
    """

    url: str = field(repr=False)
    num_rows: int
    num_all: int
    label_rates: Mapping[str, float | None]
    label_errors: Mapping[str, float] = field(default_factory=dict)
    drawn_from: str = ""

    def __str__(self) -> str:
        is_all = self.num_rows == self.num_all
        which = "all" if is_all else f"{self.num_rows:,} of"
        drawn = "" if is_all else f" (random ones of {self.drawn_from}; ± is their error, 95 %)"
        errors = {name: f" ±{two_digits(e)}" for name, e in self.label_errors.items() if e}
        rates = (
            f"{name} {number_text(rate, 3)}{errors.get(name, '')}"
            for name, rate in self.label_rates.items()
        )
        return ", ".join([f"{which} {self.num_all:,} rows of {redact(self.url)}{drawn}", *rates])


@dataclass(frozen=True, kw_only=True, repr=False)
class Preview(TableResult):
    """The slots of a spec over raw rows, and those of a table over some of its rows.

    Attributes:
        rows: The raw rows that were extracted.
        table_rows: The rows of the table; None without one.
        table: An Arrow table with a row per item of `slots`: `from`, `slot`, `number`, `kind`,
            `shape`, `num_present`, `coverage`, `distinct`, `mean`, `min`, `max`, `quantiles`,
            `coverage_error`, `top` (a list of `{value, text, share, label_rates}`), and
            `auc_LABEL` and `auc_standard_error_LABEL` for each label of 0 and 1.
        slots: The previewed slots and those of the table by their AUC for the first label that has
            any, the largest first: the table's slot, and below it the previewed one of its number.
        histories: The spec's histories, whose slots are left out.
    """

    rows: PreviewedRows
    table_rows: PreviewedRows | None = None
    slots: tuple[PreviewedSlot, ...]
    histories: tuple[str, ...] = ()
    table: pa.Table = field(init=False, compare=False)

    def __post_init__(self) -> None:
        rows = [
            {
                "from": slot.source,
                **{name: slot.statistics[name] for name in (*_COPIED, "coverage_error")},
                **{
                    f"{name}_{label}": getattr(slot, name).get(label)
                    for label in self.labels
                    for name in _AUC
                },
            }
            for slot in self.slots
        ]
        fields = [result_schema(()).field(name) for name in _COPIED if name != "top"]
        schema = pa.schema(
            [
                ("from", pa.string()),
                *fields,
                ("coverage_error", pa.float64()),
                ("top", pa.list_(_TOP)),
                *((f"{name}_{label}", pa.float64()) for label in self.labels for name in _AUC),
            ]
        )
        object.__setattr__(self, "table", pa.Table.from_pylist(rows, schema))

    @property
    def labels(self) -> list[str]:
        """The labels of 0 and 1 on either side."""
        return list(dict.fromkeys(label for slot in self.slots for label in slot.auc))

    def _head(self) -> str:
        beside = [] if self.table_rows is None else [f"table: {self.table_rows}"]
        aucs = {slot.statistics["slot"]: slot.auc for slot in reversed(self.slots)}
        remarks = (
            leak_remark(label, {slot: of.get(label) for slot, of in aucs.items()})
            for label in self.labels
        )
        left_out = [f"without histories: {_NO_EVENTS}"] if self.histories else []
        lines = [str(self.rows), *left_out, *beside, *self._ranks(), *filter(None, remarks)]
        return "\n".join(lines)

    def _ranks(self) -> list[str]:
        """The places of the previewed slots among all, where they stand beside a table's."""
        label = _ranking_label(self.slots)
        if self.table_rows is None or not label:
            return []
        keys = list(dict.fromkeys(slot.key for slot in self.slots))
        new = [slot for slot in self.slots if slot.source == "preview"][:_NUM_RANKED]
        ranks = (f"{s.statistics['slot']} is number {keys.index(s.key) + 1}" for s in new)
        return [f"of {len(keys):,} slots by the auc of {label}: {', '.join(ranks)}"]

    def _shown(self) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
        aucs = [AUC_HEADER.replace("auc", f"auc of {label}") for label in self.labels]
        headers = (*_HEADERS[:-1], *aucs, _HEADERS[-1])
        return headers, [slot.cells(self.labels) for slot in self.slots]

    def as_dict(self) -> dict[str, Any]:
        """The preview as JSON types."""
        return {
            "input": redact(self.rows.url),
            "num_rows": self.rows.num_rows,
            "num_input_rows": self.rows.num_all,
            "label_rates": dict(self.rows.label_rates),
            "label_errors": dict(self.rows.label_errors),
            "drawn_from": self.rows.drawn_from,
            "num_table_rows": None if self.table_rows is None else self.table_rows.num_rows,
            "slots": [
                {"from": slot.source, **slot.statistics}
                | {name: dict(getattr(slot, name)) for name in _AUC}
                for slot in self.slots
            ],
        }


def preview(
    spec: Spec | str | Path,
    input_url: str | Path,
    *,
    num_rows: int = NUM_ROWS,
    slot: str | None = None,
    table_url: str | Path | None = None,
    with_labels: bool = True,
    stale_groups: str = ERROR,
) -> Preview:
    """Extracts some raw rows in memory, and profiles the slots, also against labels of 0 and 1.
    Slots of histories, which need the events of all time, are left out.

    The rows are random ones of the first 65,536 rows (fewer of wide rows) of each of 16 row groups
    (or files of text) that are evenly spaced in the input; of more if these have too few. The same
    input gives the same rows. Nothing is written.

    Args:
        spec: The spec, or the URL of its YAML file.
        input_url: Raw rows: a file, a directory or a glob.
        num_rows: How many rows to extract.
        slot: Only this slot, by name or number; by default all.
        table_url: A table whose slots are shown beside, over a sample of as many of its rows.
        with_labels: Whether labels and the weight are extracted, too. Raw rows to which they are
            not joined yet have none.
        stale_groups: As of `open_table`.

    Returns:
        The preview. `str()` of it is a table, and so is what a notebook shows.

    Raises:
        SpecError: The spec is wrong, or has no such slot.
        InputError: There are no raw rows, or they do not fit the spec.
        OperatorError: An operator failed; names the slot and the row.
        StaleGroupError: A slot group of the table is stale.
    """
    parsed = spec if isinstance(spec, Spec) else load_spec(spec)
    parsed = parsed if with_labels else replace(parsed, labels={}, weight=None, checks=())
    extractor = Extractor(parsed)
    if parsed.histories:
        extractor = Extractor(replace(parsed, histories=(), checks=()))
    slots = _wanted(extractor, slot, parsed)
    raw: list[pa.RecordBatch] = []
    extractor.watch(raw.append)
    files = find_raw_files(str(input_url), {}, (), parsed.raw_types)
    units = plan_units(files, 1)  # a row group each
    chosen = spread_with_rows(units, lambda unit: unit.num_rows, num_rows)
    rows = marks_to_nulls(
        _some_rows(extractor, chosen, str(input_url), num_rows), extractor.schema.slots
    )
    num_all = sum(unit.num_rows for unit in units)
    profile = profile_rows(rows.to_batches(), slots, numeric_labels(extractor.schema))
    named = profile.named(_names(extractor, profile, raw))
    drawn_from = f"{len(chosen):,} of {len(units):,} row groups or text files"
    looked_at, found = _previewed("preview", str(input_url), rows, named, num_all, drawn_from)
    table_rows, others = None, list[PreviewedSlot]()
    if table_url is not None:
        table = open_table(table_url, stale_groups=stale_groups)
        table_rows, others = _of_table(table, num_rows)
    return Preview(
        rows=looked_at,
        table_rows=table_rows,
        slots=tuple(_beside(found, others)),
        histories=tuple(history.name for history in parsed.histories),
    )


def _wanted(extractor: Extractor, slot: str | None, spec: Spec) -> Sequence[Slot]:
    slots = extractor.schema.slots
    if slot is None:
        return slots
    found = [one for one in slots if slot in (one.name, str(one.number))]
    of_events = [node for each in spec.histories for node in each.nodes if node.store]
    if not found and slot in {text for node in of_events for text in (node.name, str(node.slot))}:
        raise SpecError(f"slots: expected a slot of the rows, found {slot!r}: {_NO_EVENTS}")
    if not found:
        names = [one.name for one in slots]
        raise SpecError(f"slots: expected a slot named {slot!r}, found none{nearest(slot, names)}")
    return found


def _some_rows(
    extractor: Extractor, chosen: Sequence[Unit], input_url: str, num_rows: int
) -> pa.Table:
    """Random rows of the units, in their order."""
    batches: list[pa.RecordBatch] = []
    left = num_rows
    for i, unit in enumerate(chosen):
        # Each gives an equal part of what is left, and more if the later ones have too few.
        later = sum(other.num_rows for other in chosen[i + 1 :])
        wanted = min(unit.num_rows, max(-(-left // (len(chosen) - i)), left - later))
        if wanted <= 0:
            break
        found = list(_drawn_rows(extractor, unit, wanted))
        left -= sum(batch.num_rows for batch in found)
        batches += found
    if not batches:
        raise InputError(f"{redact(input_url)}: expected raw rows to preview, found none")
    return pa.Table.from_batches(batches)


def _drawn_rows(extractor: Extractor, unit: Unit, num_rows: int) -> Iterator[pa.RecordBatch]:
    """So many extracted rows of a unit: random ones of the first batch, or of the last of several
    that it takes.
    """
    rng = np.random.default_rng(unit.index)
    for raw in unit.ranges:
        for batch in extract_range(raw, extractor, unit.partition):
            drawn = rng.permutation(batch.num_rows)[:num_rows]
            yield batch.take(pa.array(np.sort(drawn)))
            num_rows -= batch.num_rows
            if num_rows <= 0:
                return


def _errors(
    rows: pa.Table, slots: Sequence[Slot], labels: Sequence[str], num_all: int
) -> dict[str, float]:
    """The errors of the means of labels and of the coverage of slots, by name: 0 of all rows."""
    if rows.num_rows == num_all:
        return dict.fromkeys([*(slot.name for slot in slots), *labels], 0.0)
    numbers = {name: rows[name].cast(pa.float64()).fill_null(float("nan")) for name in labels}
    present = {slot.name: pc.is_valid(rows[slot.name]).cast(pa.int8()) for slot in slots}
    found = {name: column.to_numpy() for name, column in (numbers | present).items()}
    return {name: mean_error(values.astype(np.float64)) for name, values in found.items()}


def _aucs(
    rows: pa.Table, slots: Sequence[Slot], labels: Sequence[str]
) -> dict[str, dict[str, dict[str, float | None]]]:
    """The AUC of each slot alone and its standard error, by label of 0 and 1 and by slot."""
    found = {}
    for label in labels:
        if set(pc.unique(rows[label]).cast(pa.float64()).to_pylist()) <= {0.0, 1.0, None}:
            profile = label_rows(rows.to_batches(), slots, label).table.to_pylist()
            found[label] = {row["slot"]: {name: row[name] for name in _AUC} for row in profile}
    return found


def _names(extractor: Extractor, profile: Profile, raw: Sequence[pa.RecordBatch]) -> ValueNames:
    """The texts of the top values, of signs from the raw rows, and their order, from the spec.
    Signs of slots whose texts extraction does not keep have none here either.
    """
    graph, by_slot = extractor.graph, dict[str, dict[int, ValueText]]()
    kept = kept_values(extractor.spec, graph)
    for row in profile.table.select(["slot", "kind", "top"]).to_pylist():
        if row["kind"] == SlotKind.ID:
            slot, ids = row["slot"], [top["value"] for top in row["top"]]
            pairs: Iterable[tuple[int, str]]
            if graph.schema[slot].num_indices is not None:  # The spec tells what indices mean.
                [names] = member_names(graph, slot)
                pairs = ((id_, names.text_of_index(id_)) for id_ in ids if names is not None)
            elif slot in kept:
                pairs = _raw_texts(graph, slot, ids, raw)
            else:
                continue
            ranked = names_of_spec(graph, [slot]).by_slot.get(slot, {})
            by_slot[slot] = {
                id_: replace(ranked[id_] if id_ in ranked else ValueText(text=""), text=text)
                for id_, text in pairs
            }
    return ValueNames(by_slot=by_slot)


def _raw_texts(
    graph: Graph, slot: str, ids: Sequence[int], raw: Sequence[pa.RecordBatch]
) -> Iterator[tuple[int, str]]:
    """The texts of signs, which the raw rows tell."""
    texts, signs = SlotTexts(graph, slot), np.array(ids, np.int64)
    for batch in raw:
        found = texts([batch.column(i) for i in texts.columns], signs)
        yield from zip(found.ids.tolist(), found.texts.to_pylist(), strict=True)


def _of_table(table: Table, num_rows: int) -> tuple[PreviewedRows, list[PreviewedSlot]]:
    """The slots of a table, over a sample of its rows."""
    rows, files = table.sample(num_rows), table.snapshot.data_files
    profile = profile_rows(rows.to_batches(), table.slots, numeric_labels(table.schema))
    num_read = len(spread_with_rows(files, lambda file: file.num_left, num_rows))  # by `sample`
    drawn_from = f"{num_read:,} of {len(files):,} data files"
    named = named_profile(profile, table.snapshot)
    return _previewed("table", table.url, rows, named, table.num_rows, drawn_from)


def _previewed(
    source: str, url: str, rows: pa.Table, profile: Profile, num_all: int, drawn_from: str
) -> tuple[PreviewedRows, list[PreviewedSlot]]:
    """One side of a preview: its rows, and its slots with their AUC and their errors."""
    slots = [summary.slot for summary in profile.summaries.values()]
    errors = _errors(rows, slots, list(profile.label_rates), num_all)
    aucs = _aucs(rows, slots, list(profile.label_rates))
    looked_at = PreviewedRows(
        url=url,
        num_rows=profile.num_rows,
        num_all=num_all,
        label_rates=profile.label_rates,
        label_errors={label: errors[label] for label in profile.label_rates},
        drawn_from=drawn_from,
    )
    found = [
        PreviewedSlot(
            source=source,
            statistics=row | {"coverage_error": errors[row["slot"]]},
            **{name: {label: of[row["slot"]][name] for label, of in aucs.items()} for name in _AUC},
            names=profile.names,
        )
        for row in profile.as_dict()["slots"]
    ]
    return looked_at, found


def _beside(
    previewed: Sequence[PreviewedSlot], of_table: Sequence[PreviewedSlot]
) -> list[PreviewedSlot]:
    """The slots by their AUC for `_ranking_label`, the largest first: of two with one number the
    table's above the previewed one, which has the place of both.
    """
    by_slot = {slot.key: [slot] for slot in previewed}
    for slot in of_table:
        by_slot.setdefault(slot.key, []).insert(0, slot)
    label = _ranking_label([*previewed, *of_table])
    groups = sorted(by_slot.values(), key=lambda group: -(group[-1].auc.get(label) or 0.0))
    return [slot for group in groups for slot in group]


def _ranking_label(slots: Sequence[PreviewedSlot]) -> str:
    """The first label, the spec's before the table's, for which an AUC is known; empty if none."""
    known = {label for slot in slots for label, auc in slot.auc.items() if auc is not None}
    spec_first = sorted(slots, key=lambda slot: slot.source != "preview")
    return next((label for slot in spec_first for label in slot.auc if label in known), "")


def _top_text(top: Mapping[str, Any]) -> str:
    name = short_sign(top["value"]) if top["text"] is None else top["text"]
    rates = (
        f"{label} {number_text(rate, 3)}"
        for label, rate in (top["label_rates"] or {}).items()
        if rate is not None
    )
    return whole(f"{name} ({', '.join([share_text(top['share']), *rates])})")
