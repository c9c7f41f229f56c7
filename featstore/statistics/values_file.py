"""Texts of frequent values on disk: a small Parquet file for each partition and run that wrote to
it, beside the statistics; and what the signs of a table mean, from these texts.

A text belongs to a sign whatever rows there are, so that, unlike statistics, the texts of several
runs can be read together, and those of replaced rows do no harm.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.errors import DataFileError
from featstore.base.schema import Slot
from featstore.ops.arrays import Integers, values_of
from featstore.ops.lists import array_of_bits
from featstore.spec.value_names import MAX_DISTINCT, ValueNames, ValueText
from featstore.statistics.statistics_file import read_own, write_own
from featstore.table.layout import group_url, tag_of, values_path
from featstore.table.snapshot import DataFile, Snapshot

FORMAT = 1
NUM_KEPT = 1_000  # the most frequent values of a slot and partition
# A partition's texts take at most this share of the bytes of its data files, or as many bytes as
# follow, if that is more.
_BYTES_SHARE = 0.01
_MIN_BYTES = 256 * 1024
_ENTRY_BYTES = 25  # what an entry takes beside the bytes of its text, without compression
TEXT_BYTES = _ENTRY_BYTES + 16  # the same with a text of usual length
SCHEMA = pa.schema(
    [
        ("slot", pa.string()),
        ("number", pa.int64()),
        ("id", pa.int64()),
        ("text", pa.string()),
        ("rank", pa.int32()),
        ("count", pa.int64()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class StoredValues:
    """Texts of values of some rows.

    Attributes:
        table: A row for each id of each slot, with the columns of `SCHEMA`: the slot's name and
            number, the sign or index, its text, its position in the slot's own order (null if the
            slot has none), and how often it was counted. Slots lie together, the most frequent id
            first. Those of a unit hold all ids, with null for texts that were not looked for.
        left_out: Slots whose texts are not kept: they had too many different values, or a unit with
            some of the rows was too small to count them.
    """

    table: pa.Table = field(default_factory=SCHEMA.empty_table)
    left_out: frozenset[str] = frozenset()


def merge_values(parts: Iterable[StoredValues], unlimited: Collection[str] = ()) -> StoredValues:
    """The texts of the rows of all parts together.

    Args:
        parts: Consumed one by one, so that memory holds two of them.
        unlimited: Slots that may have more than `MAX_DISTINCT` different values. Of these the most
            frequent are kept.
    """
    whole = StoredValues()
    for part in parts:
        # Most partitions have a single part, which is in order already.
        both = pa.concat_tables([whole.table, part.table])
        table = _summed(both) if whole.table.num_rows else part.table
        beyond = _ranks(table) >= MAX_DISTINCT
        names = table["slot"].filter(array_of_bits(beyond)).unique().to_pylist()
        left_out = whole.left_out | part.left_out | (set(names) - set(unlimited))
        excluded = pc.is_in(table["slot"], pa.array(sorted(left_out), pa.string()))
        kept = pc.and_not(array_of_bits(~beyond), excluded.combine_chunks())
        whole = StoredValues(table=table.filter(kept), left_out=left_out)
    return whole


def room_for_texts(data_bytes: int) -> float:
    """The bytes that texts may take beside data files of this size."""
    return max(_BYTES_SHARE * data_bytes, _MIN_BYTES)


def most_frequent(values: StoredValues, data_bytes: int) -> StoredValues:
    """What a partition keeps: the `NUM_KEPT` most frequent values of each slot, or as many of each
    as take a small share of its data files.

    Args:
        values: The result of `merge_values`.
        data_bytes: The bytes of the partition's data files.
    """
    ranks = _ranks(values.table)
    lengths = values_of(pc.binary_length(values.table["text"]).combine_chunks())
    sizes = lengths.astype(np.int64) + _ENTRY_BYTES
    # The most frequent value of every slot goes first, then the second, and so on.
    order = np.argsort(ranks, kind="stable")
    fits = np.zeros(len(order), np.bool_)
    fits[order] = np.cumsum(sizes[order]) <= room_for_texts(data_bytes)
    table = values.table.filter(array_of_bits(fits & (ranks < NUM_KEPT)))
    return replace(values, table=table.filter(pc.field("text").is_valid()))


def recounted(values: StoredValues, counts: Integers) -> StoredValues:
    """The texts of values that still occur.

    Args:
        values: The texts.
        counts: How often each occurs now: int64 (num_texts,).
    """
    table = values.table.set_column(
        SCHEMA.get_field_index("count"), SCHEMA.field("count"), pa.array(counts)
    )
    return replace(values, table=_by_frequency(table.filter(array_of_bits(counts > 0))))


def write_values(table_url: str, path: str, values: StoredValues) -> None:
    """Writes texts to `path` below the table. The file appears whole or not at all."""
    metadata = {"format": FORMAT, "left_out": sorted(values.left_out)}
    write_own(table_url, path, values.table, metadata, dictionaries=["slot", "number"])


def read_values(table_url: str, path: str) -> StoredValues:
    """Reads what `write_values` wrote.

    Raises:
        FileNotFoundError: There is no such file.
        DataFileError: The file is damaged, or of a format that this version does not know.
    """
    table, stored = read_own(table_url, path, "texts")
    if stored.get("format") != FORMAT:
        raise DataFileError(
            f"{path}: texts of format {stored.get('format')!r}, this featstore reads {FORMAT}; "
            f"upgrade it"
        )
    return StoredValues(
        table=table.replace_schema_metadata(None).cast(SCHEMA),
        left_out=frozenset(stored["left_out"]),
    )


def _summed(table: pa.Table) -> pa.Table:
    """One row for each id, with the sum of its counts; slot by slot, the most frequent first."""
    grouped = table.group_by(["slot", "number", "id"], use_threads=False)
    # Of two texts with one sign the lesser is kept, so that the order of files does not matter.
    summed = grouped.aggregate([("text", "min"), ("rank", "min"), ("count", "sum")])
    return _by_frequency(summed.rename_columns(SCHEMA.names).cast(SCHEMA))


def _by_frequency(table: pa.Table) -> pa.Table:
    return table.sort_by([("slot", "ascending"), ("count", "descending"), ("id", "ascending")])


def _ranks(table: pa.Table) -> Integers:
    """The position of each row among those of its slot, which lie together."""
    codes = values_of(table["slot"].combine_chunks().dictionary_encode().indices)
    places = np.arange(len(codes))
    is_first = np.append(True, codes[1:] != codes[:-1])[: len(codes)]
    return places - np.maximum.accumulate(np.where(is_first, places, 0))


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
        for slot, sign, text in _texts(values, snapshot.all_slots, left):
            known = found[slot].get(sign)
            if known is not None:
                text = replace(known, count=(known.count or 0) + (text.count or 0))
            found[slot][sign] = text
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
    values: StoredValues, slots: Sequence[Slot], wanted: Mapping[str, Collection[int]]
) -> Iterator[tuple[str, int, ValueText]]:
    """The wanted texts, by the names that slots have now: of the slot, and of those that share its
    signs.
    """
    signs_like = {slot.number: slot.share_slot or slot.number for slot in slots}
    names: dict[int | None, list[str]] = {}
    for slot in slots:
        names.setdefault(signs_like[slot.number], []).append(slot.name)
    signs = pa.array(sorted(set[int]().union(*wanted.values())), pa.int64())
    rows = values.table.filter(pc.is_in(values.table["id"], signs))
    columns = (rows[name].to_pylist() for name in SCHEMA.names)
    for _, number, sign, text, rank, count in zip(*columns, strict=True):
        for name in names.get(signs_like.get(number), ()):
            if sign in wanted.get(name, ()):
                yield name, sign, ValueText(text=text, rank=rank, count=count)
