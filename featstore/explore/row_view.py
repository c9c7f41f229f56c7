"""One row of a table, whole: `featstore table show`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from featstore.base.errors import SelectionError
from featstore.base.redaction import redact
from featstore.base.schema import SlotKind
from featstore.base.text_table import Printed, text_table
from featstore.explore.table import Table
from featstore.statistics.values_file import find_names

_HEADERS = ("slot", "name", "kind", "value", "text")


@dataclass(frozen=True, kw_only=True)
class RowColumn:
    """A column of a row.

    Attributes:
        slot: The slot number; None for other columns.
        name: The name.
        kind: `id` or `float` for a slot; otherwise `label`, `weight`, `kept` or `partition`.
        value: The value; None if it is missing.
        texts: What each sign of an id slot means, where that is known.
    """

    slot: int | None
    name: str
    kind: str
    value: Any
    texts: tuple[str | None, ...] = ()

    @property
    def cells(self) -> tuple[object, ...]:
        """Its row of the table of text."""
        value = "missing" if self.value is None else str(_short(self.value))
        known = any(text is not None for text in self.texts)
        texts = ", ".join("?" if text is None else text for text in self.texts) if known else None
        return (self.slot, self.name, self.kind, value, texts)


@dataclass(frozen=True, kw_only=True)
class RowView(Printed):
    """One row, and whether others match too."""

    columns: tuple[RowColumn, ...]
    more: bool

    def text(self, width: int | None = None) -> str:
        """A line for each column, of `width` characters at most if given."""
        table = text_table([column.cells for column in self.columns], _HEADERS, width=width)
        return f"{table}\n(the first of several rows that match)" if self.more else table

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON types."""
        return {"columns": [asdict(column) for column in self.columns], "more": self.more}


def show_row(table: Table, where: str, slots: Sequence[str] | None = None) -> RowView:
    """The first row that matches.

    Texts of signs are those that extraction kept.

    Args:
        table: The table.
        where: A predicate.
        slots: Names and globs of slots; by default all. Other columns are always shown.

    Raises:
        SelectionError: No row matches, or no slot has a name.
    """
    rows = table.head(2, slots, where).to_pylist()
    if not rows:
        raise SelectionError(
            f"{redact(table.url)}: no row matches {where!r}; `featstore table show --rows 10` "
            f"shows some"
        )
    signs = {
        slot.name: [value] if isinstance(value, int) else list(value)
        for slot in table.snapshot.all_slots
        if slot.kind is SlotKind.ID and (value := rows[0].get(slot.name)) is not None
    }
    names = find_names(table.snapshot, {name: {*values} - {None} for name, values in signs.items()})
    texts = {
        name: tuple(None if sign is None else names.known(name, sign) for sign in values)
        for name, values in signs.items()
    }
    columns = tuple(
        RowColumn(slot=number, name=name, kind=kind, value=rows[0][name], texts=texts.get(name, ()))
        for name, (number, kind) in _kinds(table).items()
        if name in rows[0]
    )
    return RowView(columns=columns, more=len(rows) > 1)


def _short(value: Any) -> Any:
    """A value, of float32 with the fewest digits that tell it from others."""
    if isinstance(value, list):
        return [*map(_short, value)]
    with np.errstate(over="ignore"):
        is_float32 = isinstance(value, float) and float(np.float32(value)) == value
    return float(str(np.float32(value))) if is_float32 else value


def _kinds(table: Table) -> Mapping[str, tuple[int | None, str]]:
    """The slot number and the kind of each column, by name, in the table's order."""
    schema = table.schema
    others = (
        ("label", schema.labels),
        ("weight", () if schema.weight is None else (schema.weight,)),
        ("kept", schema.kept),
        ("partition", schema.partition_keys),
    )
    kinds: dict[str, tuple[int | None, str]] = {
        slot.name: (slot.number, str(slot.kind)) for slot in table.snapshot.all_slots
    }
    return kinds | {field.name: (None, kind) for kind, fields in others for field in fields}
