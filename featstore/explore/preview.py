"""What the slots of a spec would hold, from the first raw rows and without a commit."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from featstore.errors import InputError, SpecError, nearest
from featstore.explore.profile import Profile, numeric_labels
from featstore.explore.row_profile import profile_rows
from featstore.explore.table import Table, open_table
from featstore.extraction.extractor import Extractor
from featstore.extraction.raw import RawFile, find_raw_files, plan_units
from featstore.extraction.texts.slot_texts import SlotTexts
from featstore.extraction.unit import extract_range
from featstore.reading.missing import marks_to_nulls
from featstore.redaction import redact
from featstore.schema import Slot, SlotKind
from featstore.spec.parse import load_spec
from featstore.spec.value_names import ValueNames, ValueText, short_sign
from featstore.table.statistics.stored_names import find_names
from featstore.text_table import text_table

NUM_ROWS = 10_000
_NUM_TOP = 5  # top values that the text shows
_HEADERS = ("slot", "from", "kind", "shape", "coverage", "distinct", "quantiles or top values")


@dataclass(frozen=True, kw_only=True)
class PreviewedSlot:
    """A slot of the previewed spec, or of the table beside it.

    Attributes:
        source: `preview` or `table`.
        statistics: The slot's row of `Profile.table`, as JSON types. Each of its top values has a
            `text` besides; None if it is not known.
    """

    source: str
    statistics: Mapping[str, Any]

    @property
    def cells(self) -> tuple[object, ...]:
        """Its row of the table of text."""
        row = self.statistics
        is_float = row["kind"] == SlotKind.FLOAT
        return (
            row["slot"],
            self.source,
            row["kind"],
            row["shape"],
            f"{row['coverage']:.1%}",
            f"{row['distinct']:,}",
            " ".join(f"{number:.4g}" for number in row["quantiles"] or ())
            if is_float
            else "  ".join(map(_top_text, row["top"][:_NUM_TOP])),
        )


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The slots of a spec over the first raw rows, and those of a table.

    Attributes:
        input_url: The raw input.
        num_rows: The rows that were extracted.
        label_rates: The mean of each label over them; None if no row has it.
        slots: The previewed slots, each before the table's slot of the same number, then the
            table's other slots.
    """

    input_url: str = field(repr=False)
    num_rows: int
    label_rates: Mapping[str, float | None]
    slots: tuple[PreviewedSlot, ...]

    def text(self, width: int | None = None) -> str:
        """The preview as text, with a table of `width` characters at most if given."""
        rates = (
            f"{name} {'-' if rate is None else format(rate, '.4g')}"
            for name, rate in self.label_rates.items()
        )
        head = ", ".join([f"the first {self.num_rows:,} rows of {redact(self.input_url)}", *rates])
        table = text_table([slot.cells for slot in self.slots], _HEADERS, width=width)
        return f"{head}\n{table}"

    def __str__(self) -> str:
        return self.text()

    def as_dict(self) -> dict[str, Any]:
        """The preview as JSON types."""
        return {
            "input": redact(self.input_url),
            "num_rows": self.num_rows,
            "label_rates": dict(self.label_rates),
            "slots": [{"from": slot.source, **slot.statistics} for slot in self.slots],
        }


def preview(
    spec_url: str,
    input_url: str,
    *,
    num_rows: int = NUM_ROWS,
    slot: str | None = None,
    table_url: str | None = None,
) -> Preview:
    """Extracts the first raw rows in memory, and profiles the slots.

    Args:
        spec_url: The spec.
        input_url: Raw rows: a file, a directory or a glob.
        num_rows: How many rows to extract.
        slot: Only this slot, by name or number; by default all.
        table_url: A table whose slots are shown beside, from its stored statistics if possible.

    Raises:
        SpecError: The spec is wrong, or has no such slot.
        InputError: There are no raw rows, or they do not fit the spec.
        OperatorError: An operator failed; names the slot and the row.
    """
    spec = load_spec(spec_url)
    extractor = Extractor(spec)
    slots = _wanted(extractor, slot)
    raw: list[pa.RecordBatch] = []
    extractor.watch(raw.append)
    files = find_raw_files(input_url, {}, (), spec.inputs)
    rows = _first_rows(extractor, files, input_url, num_rows)
    profile = profile_rows(
        marks_to_nulls(rows, extractor.schema.slots).to_batches(),
        slots,
        numeric_labels(extractor.schema),
    )
    found = _with_texts(profile, _names(extractor, profile, raw), "preview")
    others = [] if table_url is None else _of_table(open_table(table_url))
    return Preview(
        input_url=input_url,
        num_rows=profile.num_rows,
        label_rates=profile.label_rates,
        slots=tuple(_beside(found, others)),
    )


def _wanted(extractor: Extractor, slot: str | None) -> Sequence[Slot]:
    slots = extractor.schema.slots
    if slot is None:
        return slots
    found = [one for one in slots if slot in (one.name, str(one.number))]
    if not found:
        names = [one.name for one in slots]
        raise SpecError(f"slots: expected a slot named {slot!r}, found none{nearest(slot, names)}")
    return found


def _first_rows(
    extractor: Extractor, files: Sequence[RawFile], input_url: str, num_rows: int
) -> pa.Table:
    units = plan_units(files, num_rows)
    batches, num_found = [], 0
    ranges = ((raw, unit.partition) for unit in units for raw in unit.ranges)
    extracted = itertools.chain.from_iterable(
        extract_range(raw, extractor, partition) for raw, partition in ranges
    )
    for batch in extracted:
        batches.append(batch.slice(0, num_rows - num_found))
        num_found += batches[-1].num_rows
        if num_found >= num_rows:
            break
    if not num_found:
        raise InputError(f"{redact(input_url)}: expected raw rows to preview, found none")
    return pa.Table.from_batches(batches)


def _names(extractor: Extractor, profile: Profile, raw: Sequence[pa.RecordBatch]) -> ValueNames:
    """The texts of the top values, from the raw rows."""
    by_slot: dict[str, dict[int, ValueText]] = {}
    for row in profile.table.select(["slot", "kind", "top"]).to_pylist():
        if row["kind"] == SlotKind.ID:
            signs = np.array([top["value"] for top in row["top"]], np.int64)
            texts, known = SlotTexts(extractor.graph, row["slot"]), dict[int, ValueText]()
            for batch in raw:
                found = texts([batch.column(i) for i in texts.columns], signs)
                pairs = zip(found.ids.tolist(), found.texts.to_pylist(), strict=True)
                known |= {sign: ValueText(text=text) for sign, text in pairs}
            by_slot[row["slot"]] = known
    return ValueNames(by_slot=by_slot)


def _of_table(table: Table) -> list[PreviewedSlot]:
    profile = table.profile(stored=True)
    rows = profile.table.select(["slot", "top"]).to_pylist()
    signs = {row["slot"]: {top["value"] for top in row["top"] or ()} for row in rows}
    names = find_names(table.snapshot, {name: found for name, found in signs.items() if found})
    return _with_texts(profile, names, "table")


def _with_texts(profile: Profile, names: ValueNames, source: str) -> list[PreviewedSlot]:
    """The slots of a profile, with the texts of their top values."""
    found = []
    for row in profile.table.to_pylist():
        known = [names.known(row["slot"], top["value"]) for top in row["top"] or ()]
        texts = [None if value is None else value.text for value in known]
        top = [one | {"text": text} for one, text in zip(row["top"] or (), texts, strict=True)]
        found.append(PreviewedSlot(source=source, statistics={**row, "top": top}))
    return found


def _beside(
    previewed: Sequence[PreviewedSlot], of_table: Sequence[PreviewedSlot]
) -> list[PreviewedSlot]:
    """Each previewed slot before the table's slot of the same number, then the table's others."""
    by_number = {slot.statistics["number"]: slot for slot in of_table}
    found = []
    for slot in previewed:
        same = by_number.pop(slot.statistics["number"], None)
        found += [slot] if same is None else [slot, same]
    return [*found, *by_number.values()]


def _top_text(top: Mapping[str, Any]) -> str:
    name = short_sign(top["value"]) if top["text"] is None else top["text"]
    rates = (
        f"{label} {rate:.3g}"
        for label, rate in (top["label_rates"] or {}).items()
        if rate is not None
    )
    return f"{name} ({', '.join([format(top['share'], '.1%'), *rates])})"
