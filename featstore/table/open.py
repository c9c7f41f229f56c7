"""Opens whatever is at a URL as a snapshot: a Delta table, or any directory, glob or file of
Parquet.
"""

from collections.abc import Iterator

from featstore.errors import TableNotFoundError
from featstore.redaction import redact
from featstore.table.delta import is_delta, open_delta, open_delta_or_none, open_head, stream_files
from featstore.table.groups import with_groups
from featstore.table.parquet_dir import open_parquet_dir
from featstore.table.snapshot import DataFile, Snapshot


def open_snapshot(url: str, version: int | None = None) -> Snapshot:
    """The snapshot at `url`, at `version` or the newest. TableNotFoundError where there is no table
    or no such version.
    """
    if is_delta(url):
        return with_groups(open_delta(url, version))
    if version is not None:
        raise TableNotFoundError(
            f"{redact(url)}: expected a Delta table to open version {version}, found plain Parquet "
            f"files"
        )
    return open_parquet_dir(url)


def open_without_files(url: str) -> Snapshot:
    """The newest snapshot at `url`, of a Delta table without slot groups without its data files:
    for who streams them.
    """
    if not is_delta(url):
        return open_parquet_dir(url)
    head = open_head(url)
    return head if not head.group_versions else open_snapshot(url, head.version)


def stream_data_files(snapshot: Snapshot) -> Iterator[DataFile]:
    """The snapshot's data files by path. Those of a Delta table are listed anew and not kept, but
    with slot groups, which takes all of them at once; a plain directory has no versions, and so
    only the files that the snapshot has."""
    if snapshot.version is None:
        return iter(snapshot.data_files)
    if snapshot.group_versions:
        return iter(open_snapshot(snapshot.url, snapshot.version).data_files)
    return stream_files(snapshot.url, snapshot.version)


def open_table_or_none(url: str) -> Snapshot | None:
    """The newest snapshot of a Delta table with its slot groups, or None where there is no table
    yet.
    """
    base = open_delta_or_none(url)
    return None if base is None else with_groups(base)
