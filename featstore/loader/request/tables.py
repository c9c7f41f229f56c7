"""The table that an argument names: an open one, its snapshot, or a URL."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from featstore.base.errors import ConfigError
from featstore.base.named_errors import NamedErrors
from featstore.table.open import open_snapshot
from featstore.table.snapshot import Snapshot


class TableLike(Protocol):
    """A table opened by `featstore.open_table`."""

    @property
    def snapshot(self) -> Snapshot: ...


def snapshot_of(
    table: TableLike | Snapshot | str | Path, opened: Callable[[str], Snapshot] = open_snapshot
) -> Snapshot:
    """The table's snapshot.

    Args:
        table: An open table, a snapshot, or the path or URL of one.
        opened: Opens a URL.

    Raises:
        ConfigError: It is none of them.
        TableNotFoundError: There is no table at the URL.
    """
    if isinstance(table, Snapshot):
        return table
    if isinstance(table, str | Path):
        return opened(str(table))
    snapshot = getattr(table, "snapshot", None)
    if not isinstance(snapshot, Snapshot):
        raise ConfigError(
            f"table: expected a Table, a Snapshot or a URL, found {type(table).__name__}"
        )
    return snapshot


def naming_table(table: object) -> NamedErrors:
    """Names a table, given as of `snapshot_of`, in errors of the operating system."""
    return NamedErrors(str(getattr(getattr(table, "snapshot", table), "url", table)))
