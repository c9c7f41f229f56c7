"""Opens a URL as a snapshot: a Delta table, or a directory, glob or file of Parquet."""

from collections.abc import Iterator

from featstore.base.errors import TableNotFoundError
from featstore.base.redaction import redact
from featstore.table.delta import is_delta, open_delta, open_delta_or_none, open_head, stream_files
from featstore.table.groups import with_groups
from featstore.table.parquet_dir import open_parquet_dir
from featstore.table.snapshot import DataFile, Snapshot
from featstore.table.table_rules import check_writable


def open_snapshot(url: str, version: int | None = None) -> Snapshot:
    """Opens the snapshot at `url`, slot groups included.

    Args:
        url: A Delta table, or a directory, glob or file of Parquet.
        version: A version of a Delta table; by default the newest.

    Raises:
        TableNotFoundError: There is no table, or not in this version.
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
    """The newest snapshot at `url`, without data files if `stream_data_files` can stream them.

    Only the files of Delta tables without slot groups can be streamed.
    """
    if not is_delta(url):
        return open_parquet_dir(url)
    # The files of slot groups are matched with base files by path, which takes all of both.
    head = open_head(url)
    return head if not head.group_versions else open_snapshot(url, head.version)


def stream_data_files(snapshot: Snapshot) -> Iterator[DataFile]:
    """Yields the snapshot's data files, sorted by path.

    The files of a Delta table are read from its log again, and not kept. With slot groups all of
    them are in memory at once. A plain directory has no versions, so its files are those that the
    snapshot holds.
    """
    if snapshot.version is None:
        return iter(snapshot.data_files)
    if snapshot.group_versions:
        return iter(open_snapshot(snapshot.url, snapshot.version).data_files)
    return stream_files(snapshot.url, snapshot.version)


def open_for_writing(url: str, what: str) -> Snapshot | None:
    """The newest snapshot of a Delta table with its slot groups, to commit to; None if there is no
    table.

    Args:
        url: The table.
        what: What is to be done, for the error.

    Raises:
        InputError: The table has a rule, set by another writer, that featstore does not keep.
    """
    base = open_delta_or_none(url)
    if base is None:
        return None
    check_writable(url, base.rules, what)
    return with_groups(base)


def open_existing(url: str, what: str, expected: str = "a Delta table") -> Snapshot:
    """As `open_for_writing`, of a table that must be there.

    Raises:
        TableNotFoundError: It is not; the error says what was expected.
    """
    found = open_for_writing(url, what)
    if found is None:
        raise TableNotFoundError(f"no table at {redact(url)}: expected {expected}")
    return found
