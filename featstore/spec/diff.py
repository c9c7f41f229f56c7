"""Compares two versions of a spec: which slots change their values."""

from collections.abc import Iterator
from dataclasses import dataclass

from featstore.spec.graph import build_graph
from featstore.spec.lock import Lock
from featstore.spec.meaning import make_lock
from featstore.spec.parse import load_spec


@dataclass(frozen=True, kw_only=True)
class SlotChange:
    """The change of one slot number.

    Attributes:
        what: `changed` (its values), `added`, `removed` or `renamed`.
        number: The slot number.
        name: The slot's name, the new one if it has one.
        note: The earlier or later name or number.
    """

    what: str
    number: int
    name: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.what:8} {self.number} {self.name}{self.note and f' ({self.note})'}"


@dataclass(frozen=True, kw_only=True)
class SpecDiff:
    """The changes between two specs.

    Attributes:
        slots: The changed slots, by number.
        vocabularies: A sentence for each vocabulary file of which another number of values is
            recorded.
    """

    slots: tuple[SlotChange, ...]
    vocabularies: tuple[str, ...]

    def __str__(self) -> str:
        return (
            "\n".join([*map(str, self.slots), *self.vocabularies])
            or "no slot changes values, is added, removed or renamed"
        )


def diff(old_url: str, new_url: str) -> SpecDiff:
    """Compares two specs at paths or URLs.

    Raises:
        SpecError: One of the specs is wrong.
    """
    old, new = load_spec(old_url), load_spec(new_url)
    for spec in (old, new):
        build_graph(spec)
    before, after = make_lock(old), make_lock(new)
    return SpecDiff(
        slots=tuple(slot_changes(before, after)),
        vocabularies=tuple(vocabulary_changes(before, after)),
    )


def vocabulary_changes(old: Lock, new: Lock) -> Iterator[str]:
    """Yields a line for each vocabulary file of which another number of values is recorded.

    Only values that were unknown before change then.
    """
    for file in sorted(old.vocabularies.keys() & new.vocabularies.keys()):
        before, after = old.vocabularies[file], new.vocabularies[file]
        if before != after:
            yield f"vocabulary {file}: {before.num_values:,} values, now {after.num_values:,}"


def slot_changes(old: Lock, new: Lock) -> Iterator[SlotChange]:
    """Yields the changed slots by number, ascending.

    Slots are matched by number. A name that gets another number is a removed and an added slot,
    because all its ids differ.
    """
    old_numbers, new_numbers = (
        {slot.name: number for number, slot in sorted(lock.slots.items(), reverse=True)}
        for lock in (old, new)
    )
    for number in sorted(old.slots.keys() | new.slots.keys()):
        before, after = old.slots.get(number), new.slots.get(number)
        if before is None and after is not None:
            was = old_numbers.get(after.name)
            yield SlotChange(
                what="added", number=number, name=after.name, note=f"was {was}" if was else ""
            )
        elif after is None and before is not None:
            now = new_numbers.get(before.name)
            yield SlotChange(
                what="removed", number=number, name=before.name, note=f"now {now}" if now else ""
            )
        elif before is not None and after is not None:
            renamed = f"was {before.name}" if before.name != after.name else ""
            what = "changed" if before.hash != after.hash else "renamed"
            if renamed or what == "changed":
                yield SlotChange(what=what, number=number, name=after.name, note=renamed)
