"""Profiles and rows of a table with the texts of their signs."""

import functools
from dataclasses import replace
from typing import Any

import pyarrow as pa

from featstore.base.schema import SlotKind
from featstore.base.table_result import nullable_integers
from featstore.explore.label_profile import LabelProfile
from featstore.explore.profile import Profile
from featstore.spec.value_names import ValueNames
from featstore.statistics.stored_names import find_names
from featstore.table.snapshot import Snapshot


def named_profile(profile: Profile, snapshot: Snapshot) -> Profile:
    """The profile with what its top values mean, as far as extractions kept it."""
    wanted = {
        row["slot"]: {value["value"] for value in row["top"] or ()}
        for row in profile.table.select(["slot", "top"]).to_pylist()
    }
    finder = functools.partial(find_names, snapshot)
    return replace(profile, names=finder(wanted), find_names=finder)


def named_label_profile(profile: LabelProfile, snapshot: Snapshot) -> LabelProfile:
    """The profile with what the ids of its cells mean, as far as extractions kept it."""
    wanted: dict[str, set[int]] = {slot: set() for slot in profile.table["slot"].to_pylist()}
    for cell in profile.cells.select(["slot", "value"]).to_pylist():
        if cell["value"] is not None:
            wanted[cell["slot"]].add(cell["value"])
    names = find_names(snapshot, wanted)
    return replace(profile, names=names, cells=_with_texts(profile.cells, names))


def _with_texts(cells: pa.Table, names: ValueNames) -> pa.Table:
    """The cells with the texts of their values, where these are known."""
    pairs = zip(cells["slot"].to_pylist(), cells["value"].to_pylist(), strict=True)
    known = [None if value is None else names.known(slot, value) for slot, value in pairs]
    texts = [None if value is None else value.text for value in known]
    place = cells.column_names.index("text")
    return cells.set_column(place, cells.field(place), pa.array(texts, pa.string()))


def named_rows(rows: pa.Table, snapshot: Snapshot) -> pa.Table:
    """The rows with texts in place of signs and indices; those that nobody knows are the digits of
    their signs, all of them, so that different values stay different.
    """
    slots = [
        slot.name
        for slot in snapshot.schema
        if slot.kind is SlotKind.ID and slot.name in rows.column_names
    ]
    columns = {name: rows[name].to_pylist() for name in slots}
    names = find_names(snapshot, {name: set(_flat(ids)) for name, ids in columns.items()})
    for name, ids in columns.items():
        texts = pa.array([_text(names, name, row) for row in ids], _text_type(rows[name].type))
        rows = rows.set_column(rows.column_names.index(name), name, texts)
    return nullable_integers(rows)


def _flat(rows: list[Any]) -> list[int]:
    values = (row if isinstance(row, list) else [row] for row in rows)
    return [value for row in values for value in row if value is not None]


def _text(names: ValueNames, slot: str, row: Any) -> Any:
    if isinstance(row, list):
        return [_text(names, slot, value) for value in row]
    if row is None:
        return None
    known = names.known(slot, row)
    return str(row) if known is None else known.text


def _text_type(arrow_type: pa.DataType) -> pa.DataType:
    is_list = pa.types.is_list(arrow_type) or pa.types.is_fixed_size_list(arrow_type)
    return pa.list_(pa.string()) if is_list else pa.string()
