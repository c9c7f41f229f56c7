"""Opens a URL as a snapshot: a Delta table, or a directory, glob or file of Parquet."""

from featstore.base.errors import TableNotFoundError
from featstore.base.redaction import redact
from featstore.table.delta import files_at, is_delta, open_delta, open_delta_or_none
from featstore.table.groups import with_groups
from featstore.table.parquet_dir import open_parquet_dir
from featstore.table.snapshot import FileList, Snapshot
from featstore.table.table_rules import check_kept


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
    """The newest snapshot at `url`, without data files if `data_files_of` can list them again.

    Those of Delta tables with slot groups can, too, but the groups' schemas are in their logs.
    """
    if not is_delta(url):
        return open_parquet_dir(url)
    head = open_delta(url, with_files=False)
    return head if not head.group_versions else open_snapshot(url, head.version)


def data_files_of(snapshot: Snapshot) -> FileList:
    """The snapshot's data files.

    Those of a Delta table are read from its log again. A plain directory has no versions, so its
    files are those that the snapshot holds.
    """
    if snapshot.version is None:
        return snapshot.data_files
    if snapshot.group_versions:
        return open_snapshot(snapshot.url, snapshot.version).data_files
    return files_at(snapshot.url, snapshot.version)


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
    check_kept(url, base.rules.writing, what)
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
