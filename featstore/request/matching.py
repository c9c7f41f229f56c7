"""The data files that a request reads: those whose partitions can match its `where`."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from featstore.errors import SelectionError
from featstore.redaction import short
from featstore.request.request import Request
from featstore.table.snapshot import DataFile, Snapshot


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A file's partition.

    Attributes:
        values: Values of the partition keys, as text; None is null.
        is_decided: Whether these values alone make `where` true for all rows of the file.
    """

    values: Mapping[str, str | None]
    is_decided: bool


def partition_value(field: pa.Field, partition: Partition) -> pa.Scalar:
    """The value of a partition key, in the type that the table declares."""
    return pa.scalar(partition.values.get(field.name), pa.string()).cast(field.type)


Listed = tuple[DataFile, Partition]
Files = Mapping[str, Listed]


def matching_files(snapshot: Snapshot, request: Request) -> dict[str, tuple[DataFile, Partition]]:
    """Like `matching`, but raises a SelectionError if `where` excludes every file of the table."""
    files = matching(snapshot, request)
    if snapshot.data_files and not files and request.where is not None:
        found = ", ".join(
            sorted(
                {
                    "/".join(f"{k}={v}" for k, v in file.partition.items())
                    for file in snapshot.data_files
                }
            )[:5]
        )
        raise SelectionError(
            f"where {short(request.where.text)!r}: matches no partition of the table, which has "
            f"{found}"
        )
    return files


def matching(snapshot: Snapshot, request: Request) -> dict[str, Listed]:
    """The data files whose partitions can match `where`, by path, each with the files of those slot
    groups that have requested columns.
    """
    return {
        file.path: (file, partition)
        for file, partition in selected(snapshot, request, snapshot.data_files)
    }


def selected(snapshot: Snapshot, request: Request, files: Iterable[DataFile]) -> Iterator[Listed]:
    """Streams those of `files` that `matching` would give.

    Args:
        snapshot: Where the slot groups are declared.
        request: What is read.
        files: Data files of the snapshot.
    """
    read = {slot.name for slot in request.selection.slots} | {
        field.name for field in request.selection.others
    }
    groups = {group.name for group in snapshot.groups if group.has(read)}
    for file in files:
        matches = None if request.where is None else request.where.matches_partition(file.partition)
        if matches is not False:
            chosen = (
                replace(file, groups=tuple(group for group in file.groups if group.group in groups))
                if file.groups
                else file
            )
            yield chosen, Partition(values=file.partition, is_decided=matches is True)
