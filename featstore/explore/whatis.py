"""What the signs of a table mean: in profiles, in rows, and one by one."""

import functools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.errors import InputError, SelectionError, nearest
from featstore.base.schema import SlotKind, SlotSchema
from featstore.base.table_result import nullable_integers
from featstore.explore.label_profile import LabelProfile
from featstore.explore.profile import Profile
from featstore.ops.signature import readable
from featstore.spec.graph import build_graph
from featstore.spec.parse import load_spec
from featstore.spec.value_names import ValueNames, names_of_spec
from featstore.statistics.values_file import find_names, stored_signs
from featstore.table.open import open_snapshot
from featstore.table.snapshot import Snapshot

_MOST_ENUMERATED = 10_000_000  # values of one slot that a spec names


_SIGN = re.compile(r"([1-9][0-9]*)(…|\.\.\.)?")
_LARGEST = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class FoundValue:
    """A value that a sign stands for.

    Attributes:
        sign: The sign, or the index.
        slot: The slot.
        text: The value.
        count: How often extractions counted it; None if it is known from a spec.
    """

    sign: int
    slot: str
    text: str
    count: int | None

    def __str__(self) -> str:
        times = "" if self.count is None else f" (counted {self.count:,} times)"
        return f"{self.slot} = {self.text}{times}"


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What a sign stands for: one value, or with indices and shared signs one of several slots; or
    the values of all known signs that begin with some digits; or the signs of a text.

    Attributes:
        sign: The sign, or the index; None if only its first digits were given (`387120…`).
        prefix: The first digits by which signs were looked up; None if the sign itself was.
        values: The values; empty if nothing is known of it.
        of_text: The text by which signs were looked up; None if none was.
    """

    sign: int | None
    prefix: str | None
    values: tuple[FoundValue, ...]
    of_text: str | None = None

    def __str__(self) -> str:
        if not self.values:
            return self._unknown()
        if self.prefix is None and self.of_text is None:
            return "\n".join(map(str, self.values))
        return "\n".join(f"{value.sign}: {value}" for value in self.values)

    def _unknown(self) -> str:
        if self.of_text is not None:
            return (
                f"{self.of_text!r}: no known sign has this text: the value is not among the "
                "frequent ones, or the slot's texts are not kept; an Extractor of the spec "
                "computes the sign of any raw value"
            )
        why = (
            "a sign of another table or slot, of a value that is not among the frequent ones, or "
            "of a slot whose texts are not kept"
        )
        if self.sign is None:
            return f"{self.prefix}…: no known sign begins with these digits: {why}"
        also = "" if self.prefix is None else "; no known sign begins with these digits either"
        return f"{self.sign}: not known: {why}{also}"


@dataclass(frozen=True, kw_only=True)
class _ValueLookup:
    """A table, a spec or both, and the slots that are asked for."""

    slots: tuple[str, ...]
    snapshot: Snapshot | None
    of_spec: ValueNames

    def values_of_prefix(self, digits: str) -> tuple[FoundValue, ...]:
        """The values of all known signs that begin with these digits."""
        signs = {sign for texts in self.of_spec.by_slot.values() for sign in texts}
        found = {sign for sign in signs if str(sign).startswith(digits)}
        if self.snapshot is not None:
            found |= stored_signs(
                self.snapshot, lambda rows: pc.starts_with(rows["id"].cast(pa.string()), digits)
            )
        return self.values(found)

    def values_of_text(self, text: str) -> tuple[FoundValue, ...]:
        """The values whose text this is, and their signs. Texts are kept as people read them, so
        that the empty text and tabs are found by what stands for them, and long texts by their
        beginning.
        """
        kept = {text, readable(text)}
        found = {
            sign
            for texts in self.of_spec.by_slot.values()
            for sign, value in texts.items()
            if value.text in kept
        }
        if self.snapshot is not None:
            texts = pa.array(list(kept), pa.string())
            found |= stored_signs(self.snapshot, lambda rows: pc.is_in(rows["text"], texts))
        return tuple(value for value in self.values(found) if value.text in kept)

    def values(self, signs: Collection[int]) -> tuple[FoundValue, ...]:
        """The values of some signs, in the order of the slots."""
        names = self.of_spec
        if self.snapshot is not None:
            wanted = dict.fromkeys(self.slots, signs)
            names = find_names(self.snapshot, wanted, most_files=None).over(names)
        return tuple(
            FoundValue(sign=sign, slot=name, text=value.text, count=value.count)
            for name in self.slots
            for sign, value in sorted(names.by_slot.get(name, {}).items())
            if sign in signs
        )


def whatis(
    sign: int | str | None = None,
    *,
    text: str | None = None,
    table_url: str | None = None,
    version: int | None = None,
    spec_url: str | None = None,
    slot: str | None = None,
) -> Meaning:
    """Finds the value that a sign or an index stands for, or the signs of a value.

    Args:
        sign: The sign, as a table stores it; or its text: `387120…` and `387120...` stand for all
            known signs that begin with these digits, and so does `387120` if it is not itself
            known.
        text: In place of a sign: a value, as it is or as `head` shows it, whose signs to find, such
            as for a `where`. Of longer values than are kept, those with the same beginning.
        table_url: The table, with the texts that extractions kept.
        version: A version of the table; by default the newest.
        spec_url: A spec, which names the values of some operators.
        slot: The slot; by default all.

    Raises:
        InputError: Not one of sign and text is given, the sign is none, or neither a table nor a
            spec is given.
        SelectionError: There is no id slot of this name.
    """
    if text is not None and sign is None:
        of_text = _source(table_url, version, spec_url, slot).values_of_text(text)
        return Meaning(sign=None, prefix=None, values=of_text, of_text=text)
    if sign is None or text is not None:
        found = "neither" if sign is None else "both"
        raise InputError(f"whatis: expected a sign or a text, found {found}")
    digits, cut = _parse(str(sign))
    source = _source(table_url, version, spec_url, slot)
    if cut:
        return Meaning(sign=None, prefix=digits, values=source.values_of_prefix(digits))
    number, values = int(digits), source.values({int(digits)})
    if values or isinstance(sign, int):
        return Meaning(sign=number, prefix=None, values=values)
    return Meaning(sign=number, prefix=digits, values=source.values_of_prefix(digits))


def _parse(text: str) -> tuple[str, bool]:
    """The digits of a sign, and whether more follow."""
    match = _SIGN.fullmatch(text)
    if match is None or int(match[1]) > _LARGEST:
        raise InputError(
            f"sign: expected a number from 1 to {_LARGEST}, or its first digits as 387120… or "
            f"387120..., found {text!r}"
        )
    return match[1], match[2] is not None


def _source(
    table_url: str | None, version: int | None, spec_url: str | None, slot: str | None
) -> _ValueLookup:
    if table_url is None and spec_url is None:
        raise InputError("whatis: expected a table or a spec that has the sign, found neither")
    graph = None if spec_url is None else build_graph(load_spec(spec_url))
    snapshot = None if table_url is None else open_snapshot(table_url, version)
    of_spec = () if graph is None else _id_slots(graph.schema)
    of_table = () if snapshot is None else _id_slots(snapshot.schema)
    known = dict.fromkeys([*of_spec, *of_table])
    if slot is not None and slot not in known:
        raise SelectionError(f"no slot {slot!r} that holds ids{nearest(slot, known)}")
    named = [name for name in of_spec if slot in (None, name)]
    return _ValueLookup(
        slots=tuple(name for name in known if slot in (None, name)),
        snapshot=snapshot,
        of_spec=ValueNames()
        if graph is None
        else names_of_spec(graph, named, most=_MOST_ENUMERATED),
    )


def _id_slots(schema: SlotSchema) -> Sequence[str]:
    return [slot.name for slot in schema if slot.kind is SlotKind.ID]


def named_profile(profile: Profile, snapshot: Snapshot) -> Profile:
    """The profile with what its top values mean, as far as extractions kept it."""
    wanted = {
        row["slot"]: {value["value"] for value in row["top"] or ()}
        for row in profile.table.select(["slot", "top"]).to_pylist()
    }
    finder = functools.partial(find_names, snapshot)
    return profile.named(finder(wanted), finder)


def named_label_profile(profile: LabelProfile, snapshot: Snapshot) -> LabelProfile:
    """The profile with what the ids of its cells mean, as far as extractions kept it."""
    wanted: dict[str, set[int]] = {slot: set() for slot in profile.table["slot"].to_pylist()}
    for cell in profile.cells.select(["slot", "value"]).to_pylist():
        if cell["value"] is not None:
            wanted[cell["slot"]].add(cell["value"])
    names, cells = find_names(snapshot, wanted), profile.cells
    pairs = zip(cells["slot"].to_pylist(), cells["value"].to_pylist(), strict=True)
    texts = [None if value is None else names.known(slot, value) for slot, value in pairs]
    place = cells.column_names.index("text")
    cells = cells.set_column(place, cells.field(place), pa.array(texts, pa.string()))
    return replace(profile, names=names, cells=cells)


def named_rows(rows: pa.Table, snapshot: Snapshot) -> pa.Table:
    """The rows with texts in place of signs and indices; those that nobody knows are the digits of
    their signs, all of them, so that different values stay different.
    """
    slots = [
        slot.name
        for slot in snapshot.all_slots
        if slot.kind is SlotKind.ID and slot.name in rows.column_names
    ]
    columns = {name: rows[name].to_pylist() for name in slots}
    wanted = {
        name: {id_ for row in ids for id_ in (row if isinstance(row, list) else [row])} - {None}
        for name, ids in columns.items()
    }
    names = find_names(snapshot, wanted)
    for name, ids in columns.items():
        type_ = pa.list_(pa.string()) if pa.types.is_nested(rows[name].type) else pa.string()
        texts = pa.array([_text(names, name, row) for row in ids], type_)
        rows = rows.set_column(rows.column_names.index(name), name, texts)
    return nullable_integers(rows)


def _text(names: ValueNames, slot: str, row: Any) -> Any:
    if isinstance(row, list):
        return [_text(names, slot, value) for value in row]
    if row is None:
        return None
    known = names.known(slot, row)
    return str(row) if known is None else known
