"""Opens whatever is at a URL as a snapshot: a Delta table, or any directory, glob or file of Parquet."""

from featstore.errors import TableNotFoundError
from featstore.files import redact
from featstore.table.delta import is_delta, open_delta, open_delta_or_none
from featstore.table.groups import with_groups
from featstore.table.parquet_dir import open_parquet_dir
from featstore.table.snapshot import Snapshot


def open_snapshot(url: str, version: int | None = None) -> Snapshot:
    """The snapshot at `url`, at `version` or the newest. TableNotFoundError where there is no table or no such version."""
    if is_delta(url):
        return with_groups(open_delta(url, version))
    if version is not None:
        raise TableNotFoundError(f"{redact(url)}: expected a Delta table to open version {version}, found plain Parquet files")
    return open_parquet_dir(url)


def open_table_or_none(url: str) -> Snapshot | None:
    """The newest snapshot of a Delta table with its slot groups, or None where there is no table yet."""
    base = open_delta_or_none(url)
    return None if base is None else with_groups(base)
