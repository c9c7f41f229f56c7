"""Schema evolution: how a table's schema grows when a run with another spec writes to it."""

from dataclasses import replace

import pyarrow as pa

from featstore.base.errors import InputError
from featstore.base.schema import Slot, SlotSchema
from featstore.histories.file_format import histories_of


def merge_schemas(old: SlotSchema, new: SlotSchema, where: str) -> SlotSchema:
    """The schema of a table after files of another schema are added: its own columns in their
    order, then the new ones.

    A slot is identified by its number, so a renamed slot keeps its position.

    Args:
        old: The table's schema.
        new: The schema of the files.
        where: The table, for error messages.

    Raises:
        InputError: A slot number is reused for another feature, a name changes its meaning, or
            weight, partition keys or a history differ.
    """
    others = {column.name for column in new.others}
    # A column of another writer that the new files write as its type says, is what they say it is.
    old = replace(
        old,
        slots=tuple(s for s in old.slots if s.name not in old.foreign or s.name not in others),
        kept=tuple(c for c in old.kept if c.name not in old.foreign or c.name not in others),
    )
    slots = _merge_slots(old.slots, new.slots, where)
    merged = SlotSchema(
        slots=slots,
        labels=_merge_fields(old.labels, new.labels),
        weight=new.weight or old.weight,
        kept=_merge_fields(old.kept, new.kept),
        partition_keys=old.partition_keys,
        foreign=old.foreign,
    )
    if [key.name for key in old.partition_keys] != [key.name for key in new.partition_keys]:
        raise InputError(
            f"{where} is partitioned by {_names(old)}, this run writes partitions by {_names(new)}"
        )
    if old.weight is not None and new.weight is not None and old.weight.name != new.weight.name:
        raise InputError(
            f"{where} has the weight {old.weight.name!r}, this run another, {new.weight.name!r}, "
            f"and a table has one: name it {old.weight.name!r}, or keep it as a label or in keep"
        )
    _check_names(old, new, where)
    _check_histories(old, new, where)
    check_case(merged, where)
    return merged


def check_foreign(old: SlotSchema, new: SlotSchema, where: str) -> None:
    """Checks that files of a schema may join a table with columns of another writer, whose types
    and rules stay as they are.

    Args:
        old: The table's schema.
        new: The schema of the files, in the types of the table.
        where: The table, for error messages.

    Raises:
        InputError: A column would be written in another type than the other writer declared, or
            one that may not be null would be.
    """
    written = {column.name: column for column in new.to_arrow(nullable=True)}
    for name, column in old.foreign.items():
        found = written.get(name)
        if found is not None and (name in new or found.type != column.type):
            typed = "" if name in new else "give it this type, or "
            raise InputError(
                f"{where}: column {name!r} is {column.type} of another writer, and would be "
                f"written as {'the slot' if name in new else 'a column'} {name!r} "
                f"({found.type}); {typed}take another name"
            )
        if not column.nullable:
            raise InputError(
                f"{where}: column {name!r} of another writer may not be null (NOT NULL), and "
                f"{'may be null in' if found is not None else 'is not written by'} this run; write "
                f"to another table, or let its owner drop the rule"
            )


def check_case(schema: SlotSchema, where: str) -> None:
    """Checks that no two column names differ in case alone, which Delta and its engines treat as
    one name.

    Raises:
        InputError: Two names do.
    """
    names: dict[str, str] = {}
    for name in schema.to_arrow(partition_keys=True).names:
        known = names.setdefault(name.lower(), name)
        if known != name:
            raise InputError(
                f"{where} would have columns {known!r} and {name!r}, one name to Delta; rename "
                f"{name!r}"
            )


def _merge_slots(old: tuple[Slot, ...], new: tuple[Slot, ...], where: str) -> tuple[Slot, ...]:
    by_number = {slot.number: slot for slot in new}
    names = {slot.name: slot for slot in old}
    for slot in new:
        known = names.get(slot.name)
        if known is not None and known.number != slot.number and known.number not in by_number:
            raise InputError(
                f"slot {slot.name!r} has number {slot.number}, in {where} that name belongs to "
                f"number {known.number}; numbers are permanent: keep {known.number}, or take "
                f"another name"
            )
    # Slots that the new files lack stay: they read as missing there.
    kept = [_continued(slot, by_number.get(slot.number), where) for slot in old]
    numbers = {slot.number for slot in old}
    return (*kept, *(slot for slot in new if slot.number not in numbers))


def _continued(old: Slot, new: Slot | None, where: str) -> Slot:
    """The slot after files with `new`, of the same number, are added."""
    if new is None or old.number is None:
        return old
    if (old.kind, old.shape) != (new.kind, new.shape):
        raise InputError(
            f"slot number {old.number} ({new.name!r}: {new.kind}, {new.shape_text}) is already "
            f"used in {where} by {old.name!r} ({old.kind}, {old.shape_text}); numbers are never "
            f"reused: take a new one"
        )
    both = (old.num_indices, new.num_indices)
    if None not in both and old.op == new.op and (old.op or "").startswith("vocabulary("):
        # Values are only appended to a vocabulary, as its lock file ensures. A run with an older
        # lock has fewer indices; the table keeps the greater number.
        new = replace(new, num_indices=max(old.num_indices or 0, new.num_indices or 0))
    elif old.num_indices != new.num_indices:
        raise InputError(
            f"slot number {old.number} ({new.name!r}) would hold {_values(new)}, in {where} it "
            f"holds {_values(old)}; old and new values cannot be told apart: take a new number"
        )
    # One change at a time: a slot that changes name and operator is another feature.
    if old.name != new.name and None not in (old.op, new.op) and old.op != new.op:
        raise InputError(
            f"slot number {old.number} is {old.name!r} = {old.op} in {where}, and would become "
            f"{new.name!r} = {new.op}, another feature; numbers are never reused: take a new one "
            f"(to rename a slot, change its name alone)"
        )
    return new


def _values(slot: Slot) -> str:
    return "signs" if slot.num_indices is None else f"indices below {slot.num_indices}"


def _merge_fields(old: tuple[pa.Field, ...], new: tuple[pa.Field, ...]) -> tuple[pa.Field, ...]:
    names = {column.name for column in old}
    return (*old, *(column for column in new if column.name not in names))


def _check_names(old: SlotSchema, new: SlotSchema, where: str) -> None:
    before, after = _meanings(old), _meanings(new)
    for name in before.keys() & after.keys():
        if before[name] != after[name]:
            raise InputError(
                f"column {name!r} is a {before[name]} in {where}, and would become a "
                f"{after[name]}; take another name"
            )


def _check_histories(old: SlotSchema, new: SlotSchema, where: str) -> None:
    """The table's columns say how all of its files are read. What is stored of a history is found
    in files by names and numbers, as other columns are, though the table's schema lacks it.
    """
    known = {history.name: history for history in histories_of(old)}
    for history in histories_of(new):
        there = known.get(history.name, history)
        if history != there:
            raise InputError(
                f"history {history.name!r} is stored in another way in {where}, whose files would "
                f"be read wrongly: expected {there.to_metadata()}, found {history.to_metadata()}; "
                f"extract into a new table"
            )
    before, after = _owners(old), _owners(new)
    for what in before.keys() & after.keys():
        if before[what] != after[what]:
            shown = f"slot number {what}" if isinstance(what, int) else f"column {what!r}"
            raise InputError(
                f"{shown} is of {before[what]} in {where}, and would be of {after[what]}; take "
                f"another"
            )


def _owners(schema: SlotSchema) -> dict[str | int, str]:
    """What has a slot number, or a name as Delta compares it: a history, or the rows."""
    rows: list[str | int | None] = [slot.number for slot in schema.slots]
    rows += (name.lower() for name in schema.to_arrow(partition_keys=True).names)
    found = {what: "the rows" for what in rows if what is not None}
    for history in histories_of(schema):
        names = (*history.row_fields, *history.hidden_fields, *history.slots)
        of_history = [slot.number for slot in history.slots] + [name.name.lower() for name in names]
        found |= {what: f"history {history.name!r}" for what in of_history if what is not None}
    return found


def _meanings(schema: SlotSchema) -> dict[str, str]:
    roles = {
        "label": schema.labels,
        "kept column": schema.kept,
        "partition key": schema.partition_keys,
    }
    roles["weight"] = () if schema.weight is None else (schema.weight,)
    meanings = {
        column.name: f"{role} ({column.type})"
        for role, columns in roles.items()
        for column in columns
    }
    return meanings | {slot.name: "slot" for slot in schema.slots}


def _names(schema: SlotSchema) -> str:
    return ", ".join(key.name for key in schema.partition_keys) or "nothing"
