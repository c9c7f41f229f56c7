"""The value behind a sign, of a table or of a spec."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from featstore.errors import InputError, SelectionError, nearest
from featstore.schema import SlotKind, SlotSchema
from featstore.spec.graph import build_graph
from featstore.spec.parse import load_spec
from featstore.spec.value_names import ValueNames, names_of_spec
from featstore.table.open import open_snapshot
from featstore.table.statistics.stored_names import find_names

_MOST_ENUMERATED = 10_000_000  # values of one slot that a spec names


@dataclass(frozen=True, kw_only=True)
class FoundValue:
    """A value that a sign stands for.

    Attributes:
        slot: The slot.
        text: The value.
        count: How often extractions counted it; None if it is known from a spec.
    """

    slot: str
    text: str
    count: int | None


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What a sign stands for: one value, or with indices and shared signs one of several slots.

    Attributes:
        sign: The sign, or the index.
        values: The values; empty if nothing is known of it.
    """

    sign: int
    values: tuple[FoundValue, ...]

    def __str__(self) -> str:
        if not self.values:
            return (
                f"{self.sign}: not known: a sign of another table or slot, of a value that is not "
                f"among the frequent ones, or of a slot whose texts are not kept"
            )
        lines = []
        for value in self.values:
            times = "" if value.count is None else f" (counted {value.count:,} times)"
            lines.append(f"{value.slot} = {value.text}{times}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The meaning as JSON types."""
        return asdict(self)


def whatis(
    sign: int,
    *,
    table_url: str | None = None,
    version: int | None = None,
    spec_url: str | None = None,
    slot: str | None = None,
) -> Meaning:
    """Finds the value that a sign or an index stands for.

    Args:
        sign: The sign, as a table stores it.
        table_url: The table, with the texts that extractions kept.
        version: A version of the table; by default the newest.
        spec_url: A spec, which names the values of some operators.
        slot: The slot; by default all.

    Raises:
        InputError: Neither a table nor a spec is given.
        SelectionError: There is no id slot of this name.
    """
    if table_url is None and spec_url is None:
        raise InputError("whatis: expected a table or a spec that has the sign, found neither")
    names, known = ValueNames(), dict[str, None]()
    if spec_url is not None:
        graph = build_graph(load_spec(spec_url))
        known |= dict.fromkeys(_id_slots(graph.schema))
        wanted = [name for name in _id_slots(graph.schema) if slot in (None, name)]
        names = names_of_spec(graph, wanted, most=_MOST_ENUMERATED)
    if table_url is not None:
        snapshot = open_snapshot(table_url, version)
        known |= dict.fromkeys(_id_slots(snapshot.schema))
        wanted = [name for name in _id_slots(snapshot.schema) if slot in (None, name)]
        stored = find_names(snapshot, {name: {sign} for name in wanted}, most_files=None)
        names = stored.over(names)
    if slot is not None and slot not in known:
        raise SelectionError(f"no slot {slot!r} that holds ids{nearest(slot, known)}")
    found = ((name, names.known(name, sign)) for name in known)
    values = (
        FoundValue(slot=name, text=value.text, count=value.count)
        for name, value in found
        if value is not None
    )
    return Meaning(sign=sign, values=tuple(values))


def _id_slots(schema: SlotSchema) -> Iterable[str]:
    return [slot.name for slot in schema if slot.kind is SlotKind.ID]
