"""Which data files a loader reads: those whose partitions can match its `where`."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from featstore.errors import SelectionError
from featstore.loader.decode import Partition
from featstore.loader.listing import Listed
from featstore.loader.request import Request
from featstore.redaction import short
from featstore.table.snapshot import DataFile, Snapshot


def matching_files(snapshot: Snapshot, request: Request) -> dict[str, tuple[DataFile, Partition]]:
    """The data files whose partitions can match `where`, by path. SelectionError where there are none of those in the table."""
    files = matching(snapshot, request)
    if snapshot.data_files and not files and request.where is not None:
        found = ", ".join(sorted({"/".join(f"{k}={v}" for k, v in file.partition.items()) for file in snapshot.data_files})[:5])
        raise SelectionError(f"where {short(request.where.text)!r}: matches no partition of the table, which has {found}")
    return files


def matching(snapshot: Snapshot, request: Request) -> dict[str, Listed]:
    """The data files whose partitions can match `where`, by path, with the files of slot groups that have what is read."""
    return {file.path: (file, partition) for file, partition in selected(snapshot, request, snapshot.data_files)}


def selected(snapshot: Snapshot, request: Request, files: Iterable[DataFile]) -> Iterator[Listed]:
    """Those of the snapshot's files that are read, one after the other; the groups are the snapshot's."""
    read = {slot.name for slot in request.selection.slots} | {field.name for field in request.selection.others}
    groups = {group.name for group in snapshot.groups if group.has(read)}
    for file in files:
        matches = None if request.where is None else request.where.matches_partition(file.partition)
        if matches is not False:
            chosen = (
                replace(file, groups=tuple(group for group in file.groups if group.group in groups)) if file.groups else file
            )
            yield chosen, Partition(values=file.partition, is_decided=matches is True)
