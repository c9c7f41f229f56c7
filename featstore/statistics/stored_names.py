"""What the signs of a table mean, from the texts that extractions kept beside its files."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.schema import SlotSchema
from featstore.spec.value_names import ValueNames, ValueText
from featstore.statistics.values_file import (
    SCHEMA,
    StoredValues,
    merge_values,
    read_values,
    write_values,
)
from featstore.table.layout import group_url, tag_of, values_path
from featstore.table.snapshot import DataFile, Snapshot

# Files that are read for a look at some values, newest partitions first. What none of them knows is
# rare.
MOST_FILES = 32


@dataclass(frozen=True, kw_only=True)
class ValuesPlace:
    """Where a run's texts of a partition are, if it kept any."""

    table_url: str = field(repr=False)
    path: str


def find_names(
    snapshot: Snapshot,
    wanted: Mapping[str, Collection[int]],
    *,
    most_files: int | None = MOST_FILES,
) -> ValueNames:
    """What some signs of a table mean, as far as any partition knows.

    Args:
        snapshot: The table.
        wanted: Signs, or indices, by slot name.
        most_files: How many files to read at most; None reads all, and counts values in all.

    Raises:
        DataFileError: A file is damaged, or of a newer format.
    """
    found: dict[str, dict[int, ValueText]] = {slot: {} for slot in wanted}
    left = {slot: set(signs) - {0} for slot, signs in wanted.items()}
    for number, values in enumerate(_each(values_places(snapshot, snapshot.data_files[::-1]))):
        if number == most_files:
            break
        for slot, sign, text in _texts(values, snapshot.schema, left):
            known = found[slot].get(sign)
            found[slot][sign] = text if known is None else _added(known, text)
        if most_files is not None:
            left = {slot: signs - found[slot].keys() for slot, signs in left.items()}
            if not any(left.values()):
                break
    return ValueNames(by_slot={slot: texts for slot, texts in found.items() if texts})


def stored_signs(snapshot: Snapshot, digits: str) -> set[int]:
    """The signs, or indices, that begin with these digits and of which any partition keeps a text.

    Raises:
        DataFileError: A file is damaged, or of a newer format.
    """
    found: set[int] = set()
    for values in _each(values_places(snapshot, snapshot.data_files)):
        signs = values.table["id"]
        begins = pc.starts_with(signs.cast(pa.string()), digits)
        found.update(signs.filter(begins).to_pylist())
    return found


def signs_of_texts(snapshot: Snapshot, texts: Collection[str]) -> set[int]:
    """The signs, or indices, of which any partition keeps exactly one of these texts.

    Raises:
        DataFileError: A file is damaged, or of a newer format.
    """
    found: set[int] = set()
    for values in _each(values_places(snapshot, snapshot.data_files)):
        is_it = pc.is_in(values.table["text"], pa.array(list(texts), pa.string()))
        found.update(values.table["id"].filter(is_it).to_pylist())
    return found


def values_places(snapshot: Snapshot, files: Sequence[DataFile]) -> list[ValuesPlace]:
    """Where the texts of some files of a table, and of its slot groups, may be, each once."""
    places: dict[tuple[str, str], ValuesPlace] = {}
    for file in files:
        parts = [(snapshot.url, file.path)]
        parts += [(group_url(snapshot.url, part.group), part.path) for part in file.groups]
        for url, path in parts:
            tag = tag_of(path)
            if tag is not None:
                place = ValuesPlace(table_url=url, path=values_path(file.partition, tag))
                places.setdefault((url, place.path), place)
    return list(places.values())


def copy_values(snapshot: Snapshot, partition: Mapping[str, str], tag: str) -> None:
    """Writes the texts of a partition, and of its slot groups, for files with the same rows under
    another run's tag.
    """
    merged = partition_values(snapshot, partition)
    if merged.table.num_rows or merged.left_out:
        write_values(snapshot.url, values_path(partition, tag), merged)


def partition_values(snapshot: Snapshot, partition: Mapping[str, str | None]) -> StoredValues:
    """The texts of a partition and of its slot groups; empty if none are kept.

    Raises:
        DataFileError: A file is damaged, or of a newer format.
    """
    places = values_places(snapshot, snapshot.in_partitions([partition]))
    # Each part was bounded when it was made.
    return merge_values(_each(places), unlimited=snapshot.schema.names)


def _each(places: Sequence[ValuesPlace]) -> Iterator[StoredValues]:
    """The texts at these places, without those that kept none."""
    for place in places:
        try:
            yield read_values(place.table_url, place.path)
        except FileNotFoundError:
            continue


def _texts(
    values: StoredValues, schema: SlotSchema, wanted: Mapping[str, Collection[int]]
) -> Iterator[tuple[str, int, ValueText]]:
    """The wanted texts, by the names that slots have now: of the slot, and of those that share its
    signs.
    """
    signs_like = {slot.number: slot.share_slot or slot.number for slot in schema}
    names: dict[int | None, list[str]] = {}
    for slot in schema:
        names.setdefault(signs_like[slot.number], []).append(slot.name)
    signs = pa.array(sorted(set[int]().union(*wanted.values())), pa.int64())
    rows = values.table.filter(pc.is_in(values.table["id"], signs))
    columns = (rows[name].to_pylist() for name in SCHEMA.names)
    for _, number, sign, text, rank, count in zip(*columns, strict=True):
        for name in names.get(signs_like.get(number), ()):
            if sign in wanted.get(name, ()):
                yield name, sign, ValueText(text=text, rank=rank, count=count)


def _added(one: ValueText, other: ValueText) -> ValueText:
    counts = [value.count for value in (one, other) if value.count is not None]
    return ValueText(text=one.text, rank=one.rank, count=sum(counts))
