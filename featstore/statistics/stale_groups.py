"""Slot groups that are stale in what is read: the base files that their files belong to were
replaced, by another engine or by an extraction without their columns, so these would read as
missing.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from featstore.base.errors import ConfigError, DataFileError, StaleGroupError
from featstore.base.redaction import redact
from featstore.native.footers import CheckedFooter
from featstore.reading.file_columns import Selection, find_columns
from featstore.table.layout import LABELS
from featstore.table.metadata import KEY
from featstore.table.parquet_dir import each_footer, read_footer
from featstore.table.snapshot import DataFile, Group, Snapshot, TableFile

ERROR, MISSING = "error", "missing"
READ = "; or read them as missing (`stale_groups: missing`, `--stale-groups missing`)"
_NUM_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class StaleGroup:
    """A slot group that is stale beside some base files.

    Attributes:
        name: The name of the slot group.
        columns: Its columns that some of the files lack.
        files: The base files.
    """

    name: str
    columns: tuple[str, ...]
    files: tuple[DataFile, ...]


def reading(snapshot: Snapshot, stale_groups: str) -> Snapshot:
    """The snapshot, to be read as the option `stale_groups` says. With `error`, one that was opened
    to read missing values stays so.

    Raises:
        ConfigError: The option has an unknown value.
    """
    if stale_groups not in (ERROR, MISSING):
        raise ConfigError(f"stale_groups: expected {ERROR} or {MISSING}, found {stale_groups!r}")
    return replace(snapshot, reads_stale=True) if stale_groups == MISSING else snapshot


def require_fresh(
    snapshot: Snapshot, files: Iterable[DataFile], names: Collection[str], otherwise: str = READ
) -> None:
    """Checks that no slot group is stale in what is read, unless the snapshot reads missing values.

    Args:
        snapshot: The table with its groups.
        files: The data files that are read.
        names: The columns that are read.
        otherwise: What else to do, for the error.

    Raises:
        StaleGroupError: A group is.
    """
    if found := [] if snapshot.reads_stale else stale_groups(snapshot, files, names):
        texts = "; ".join(map(_text, found))
        commands = " and ".join(f"`{_command(snapshot, each)}`" for each in found)
        raise StaleGroupError(
            f"{redact(snapshot.url)}: {texts}: the base files that its files belong to were "
            f"replaced. Write it again with {commands}, where COLUMN is a kept column that is "
            f"different in every row, or extract these partitions again as a whole{otherwise}"
        )


def stale_groups(
    snapshot: Snapshot, files: Iterable[DataFile], names: Collection[str]
) -> list[StaleGroup]:
    """The slot groups that are stale beside some of the files, as far as these columns go.

    A file is concerned if its group has no file for it, but has some for base files of its
    partition that are gone. It lacks what the group had there, unless it has these columns itself,
    as after a deletion that folded the group: footers tell, and are read of such files only.
    Partitions without files of a group were never extracted, which is no fault.

    Args:
        snapshot: The table with its groups.
        files: Data files of the snapshot.
        names: Columns.
    """
    if not any(group.stale for group in snapshot.groups):
        return []
    of_all = list(files)
    return [
        StaleGroup(name=group.name, columns=tuple(sorted(columns)), files=tuple(lacking))
        for group in snapshot.groups
        for lacking, columns in [_lacking(group, of_all, _selection(group, names))]
        if lacking
    ]


def _lacking(
    group: Group, files: Iterable[DataFile], selection: Selection
) -> tuple[list[DataFile], set[str]]:
    """The files that lack columns which the group had in their partition, and these columns."""
    wanted = {column.name for column in (*selection.slots, *selection.others)}
    gone = {_partition(file): file for file in group.stale} if wanted else {}
    concerned = [
        file
        for file in files
        if _partition(file) in gone and group.name not in {bound.group for bound in file.groups}
    ]
    had = cache(lambda partition: _had(gone[partition], selection, wanted))
    lost = {
        file.path: (wanted - held) & had(_partition(file)) if wanted - held else set()
        for file, held in zip(concerned, _held(concerned, selection), strict=True)
    }
    return [file for file in concerned if lost[file.path]], set().union(*lost.values())


def _selection(group: Group, names: Collection[str]) -> Selection:
    """The group's columns of these names. The key that binds its rows is none of them."""
    schema = group.schema
    ranges = (field for history in group.histories for field in history.row_fields)
    others = (*schema.labels, *(() if schema.weight is None else (schema.weight,)), *ranges)
    return Selection(
        slots=tuple(slot for slot in schema.slots if slot.name in names),
        others=tuple(field for field in others if field.name in names),
    )


def _held(files: Collection[DataFile], selection: Selection) -> Iterator[set[str]]:
    """The columns that each file and the slot groups' files beside it have."""
    footers = each_footer([part.url for file in files for part in file.parts], lambda found: found)
    for file in files:
        yield {name for part in file.parts for name in _found(next(footers), selection, part)}


def _found(footer: CheckedFooter, selection: Selection, part: TableFile) -> set[str]:
    """The columns that one file has. Labels that another engine copied are those of the base, older
    than the group's, and ranges of histories are without their lists.
    """
    columns = find_columns(footer.file_schema, selection, part.path)
    slots = {name for name, column in columns.slots.items() if column and holds(footer, column)}
    labels = {name for name, column in columns.others.items() if column and _is_ours(footer)}
    return slots | labels


def holds(footer: CheckedFooter, slot: str) -> bool:
    """Whether a file holds a slot of its schema. An engine that rewrites rows fills columns of the
    table that they lacked with nulls, where files of ours have none.

    Args:
        footer: The footer of the file.
        slot: The name of the file's column. If it has lists, only row groups without any count as
            filled: lists may be null or empty.
    """
    if _is_ours(footer):
        return True
    metadata = footer.arrow_metadata(footer.file_schema.by_name[slot], with_statistics=True)
    is_scalar = metadata.schema.column(0).max_repetition_level == 0
    chunks = [metadata.row_group(i).column(0) for i in range(metadata.num_row_groups)]
    nulls = [
        (chunk.statistics.null_count, chunk.num_values)
        for chunk in chunks
        if chunk.is_stats_set and chunk.statistics.has_null_count
    ]
    return not any(count and (is_scalar or count == of) for count, of in nulls)


def _is_ours(footer: CheckedFooter) -> bool:
    return KEY.encode() in footer.key_values


def _had(file: DataFile, selection: Selection, wanted: set[str]) -> set[str]:
    """The columns that a stale file of a group has: all where a vacuum has removed it."""
    try:
        footer = read_footer(file.url)
    except (DataFileError, FileNotFoundError):
        return wanted
    found = find_columns(footer.file_schema, selection, file.path)
    return {name for name, column in (*found.slots.items(), *found.others.items()) if column}


def _partition(file: DataFile) -> frozenset[tuple[str, str | None]]:
    return frozenset(file.partition.items())


def _command(snapshot: Snapshot, stale: StaleGroup) -> str:
    """The command that writes a group again in the partitions where it is stale."""
    partitions = {_partition(file) for file in stale.files}
    keys = [field.name for field in snapshot.schema.partition_keys]
    where = (
        [f"--partition {key}={stale.files[0].partition[key]}" for key in keys]
        if len(partitions) == 1
        else [f"--partition-from-path {key}" for key in keys]
    )
    is_labels = stale.name == LABELS
    command = "table relabel" if is_labels else "extract"
    group = [] if is_labels else [f"--group {stale.name}"]
    [histories] = [each.histories for each in snapshot.groups if each.name == stale.name]
    logs = [f"--events {history.name}=URL" for history in histories]
    table = f"--spec SPEC --input RAW --table {redact(snapshot.url)}"
    return " ".join([f"featstore {command} {table}", *where, *group, "--key COLUMN", *logs])


def _text(stale: StaleGroup) -> str:
    paths = ", ".join(file.path for file in stale.files[:_NUM_NAMED])
    more = len(stale.files) - _NUM_NAMED
    num_rows = sum(file.num_rows for file in stale.files)
    without = "as first written" if stale.name == LABELS else "missing"
    return (
        f"slot group {stale.name!r} is stale beside {len(stale.files):,} of the data files, with "
        f"{num_rows:,} rows ({paths}{f' and {more:,} more' if more > 0 else ''}), so "
        f"{', '.join(stale.columns)} would be {without} there"
    )
