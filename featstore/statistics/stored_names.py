"""What the signs of a table mean, from the texts that extractions kept beside its files."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

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
    for number, values in enumerate(_each(snapshot, snapshot.data_files[::-1])):
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


def stored_signs(snapshot: Snapshot, matches: Callable[[pa.Table], pa.ChunkedArray]) -> set[int]:
    """The signs, or indices, of the texts that any partition keeps.

    Args:
        snapshot: The table.
        matches: Which rows of `StoredValues.table` count.

    Raises:
        DataFileError: A file is damaged, or of a newer format.
    """
    found: set[int] = set()
    for values in _each(snapshot, snapshot.data_files):
        found.update(values.table.filter(matches(values.table))["id"].to_pylist())
    return found


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
    parts = _each(snapshot, snapshot.in_partitions([partition]))
    # Each part was bounded when it was made.
    return merge_values(parts, unlimited=snapshot.schema.names)


def _each(snapshot: Snapshot, files: Sequence[DataFile]) -> Iterator[StoredValues]:
    """The texts that runs kept of some files of a table, and of its slot groups, each once."""
    places = dict.fromkeys(
        (url, values_path(file.partition, tag))
        for file in files
        for url, path in [
            (snapshot.url, file.path),
            *((group_url(snapshot.url, part.group), part.path) for part in file.groups),
        ]
        if (tag := tag_of(path)) is not None
    )
    for url, path in places:
        try:
            yield read_values(url, path)
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
