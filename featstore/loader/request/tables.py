"""The table that an argument names, an open one, its snapshot, or a URL, and a request for it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from featstore.base.errors import ConfigError
from featstore.base.named_errors import NamedErrors
from featstore.loader.request.matching import matching, require_fresh_files
from featstore.loader.request.request import Request, resolve
from featstore.statistics.stale_groups import reading
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


def resolved(
    table: TableLike | Snapshot | str | Path,
    columns: Mapping[str, Any],
    stale_groups: str,
    opened: Callable[[str], Snapshot] = open_snapshot,
) -> tuple[Snapshot, Request]:
    """The table's snapshot, and the request for columns of it.

    Args:
        table: As of `snapshot_of`.
        columns: The arguments of `resolve`.
        stale_groups: Whether slots of stale groups are an error, or are read as missing.
        opened: Opens a URL.

    Raises:
        StaleGroupError: A slot group that is read is stale beside files that are read.
        Everything that `snapshot_of` and `resolve` raise.
    """
    snapshot = reading(snapshot_of(table, opened), stale_groups)
    request = resolve(snapshot.schema, **columns)
    if snapshot.groups:
        require_fresh_files(snapshot, matching(snapshot, request), request)
    return snapshot, request


def naming_table(table: object) -> NamedErrors:
    """Names a table, given as of `snapshot_of`, in errors of the operating system."""
    return NamedErrors(str(getattr(getattr(table, "snapshot", table), "url", table)))
