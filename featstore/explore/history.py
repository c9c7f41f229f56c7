"""The commits of a table for people to read: `featstore table history`."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from featstore.redaction import redact
from featstore.table.delta import Commit, history
from featstore.text_table import text_table

_HEADERS = ("version", "time (UTC)", "operation", "partitions", "files", "rows", "bytes", "spec")
_ALIGN = ("right", "left", "left", "left", "right", "right", "right", "left")
_HASH_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class History:
    """Commits of a table.

    Attributes:
        table: The URL of the table.
        commits: The commits, newest first.
        num_more: Earlier commits that the log holds besides.
    """

    table: str
    commits: tuple[Commit, ...]
    num_more: int

    def text(self, width: int | None = None) -> str:
        """A line for each commit, of `width` characters at most if given."""
        table = text_table(
            [_cells(commit) for commit in self.commits], _HEADERS, align=_ALIGN, width=width
        )
        return f"{table}\n(and {self.num_more:,} earlier ones)" if self.num_more else table

    def __str__(self) -> str:
        return self.text()

    def as_dict(self) -> dict[str, Any]:
        """The commits as JSON types, without the checksum of each file."""
        return {
            "table": self.table,
            "commits": [_as_dict(commit) for commit in self.commits],
            "num_more": self.num_more,
        }


def table_history(url: str, last: int | None = None) -> History:
    """The commits that a table's log still holds.

    Args:
        url: A Delta table.
        last: Only the newest so many; by default all.

    Raises:
        TableNotFoundError: There is no table.
    """
    commits = history(url)
    shown = commits if last is None else commits[:last]
    return History(table=redact(url), commits=tuple(shown), num_more=len(commits) - len(shown))


def _cells(commit: Commit) -> tuple[object, ...]:
    of = commit.metadata
    head = (commit.version, _time(commit), commit.operation)
    if of is None:
        return (*head, "(by another writer)", None, None, None, None)
    numbers = (f"{number:,}" for number in (of.num_files, of.num_rows, of.size_bytes))
    where = _partitions(of.partitions)
    if not where and of.groups is not None:
        where = f"slot groups: {', '.join(sorted(of.groups)) or 'none'}"
    return (*head, where, *numbers, of.spec_hash[:_HASH_DIGITS])


def _partitions(partitions: tuple[Mapping[str, str], ...]) -> str:
    """The only one, or the first and the last and how many there are."""
    names = sorted(
        ", ".join(f"{key}={value}" for key, value in of.items()) or "(none)" for of in partitions
    )
    if len(names) <= 1:
        return "".join(names)
    return f"{names[0]} to {names[-1]} ({len(names)})"


def _time(commit: Commit) -> str:
    at = datetime.datetime.fromtimestamp(commit.timestamp_ms / 1000, datetime.UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S")


def _as_dict(commit: Commit) -> dict[str, Any]:
    known = {} if commit.metadata is None else commit.metadata.to_mapping()
    return {
        "version": commit.version,
        "timestamp_ms": commit.timestamp_ms,
        "operation": commit.operation,
        "metadata": {key: value for key, value in known.items() if key != "crc32s"} or None,
    }
