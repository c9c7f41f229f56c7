"""Folds slot groups into the base: rewrites base files with all columns, in one commit."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from featstore.base.host import num_cores
from featstore.base.redaction import redact
from featstore.extraction.rewriting import (
    CommitFunction,
    drop_folded,
    named_partitions,
    new_paths,
    replace_files,
    rewrite_file,
)
from featstore.statistics.stale_groups import require_fresh
from featstore.statistics.values_file import copy_values
from featstore.table import delta
from featstore.table.open import open_existing
from featstore.table.snapshot import DataFile, by_partition


@dataclass(frozen=True, kw_only=True)
class CompactReport:
    """The result of a compaction: `num_files` rewritten base files, and the groups folded in."""

    table_url: str = field(repr=False)
    version: int
    groups: tuple[str, ...]
    num_files: int
    num_rows: int
    size_bytes: int

    def __str__(self) -> str:
        if not self.groups:
            return (
                f"nothing to do: version {self.version} of {redact(self.table_url)} has no slot "
                f"groups"
            )
        return (
            f"committed version {self.version} of {redact(self.table_url)}: "
            f"{', '.join(self.groups)} folded into "
            f"{self.num_files:,} files, {self.num_rows:,} rows, {self.size_bytes:,} bytes"
        )


def compact(table_url: str, *, commit: CommitFunction = delta.commit) -> CompactReport:
    """Rewrites base files that have slot groups beside them, with the columns of both.

    Rows and their order stay the same. The commit makes the groups' files stale; a second commit
    removes the groups from the table. If the process dies in between, the next compaction makes the
    second commit. Earlier versions remain readable.

    Raises:
        TableNotFoundError: There is no Delta table.
        StaleGroupError: A group is stale beside some files, which would be without its columns for
            good; nothing is done.
        CommitConflictError: A partition or one of its groups was written in the meantime; the table
            is unchanged.
    """
    snapshot = open_existing(table_url, "compact", "a Delta table with slot groups")
    require_fresh(snapshot, snapshot.data_files, snapshot.schema.to_arrow().names, "")
    grouped = by_partition(file for file in snapshot.data_files if file.groups)
    partitions = named_partitions(table_url, (files[0].partition for files in grouped.values()))
    version, files = snapshot.version or 0, tuple[DataFile, ...]()

    def write(base: Sequence[DataFile], tag: str) -> list[DataFile]:
        # The pool ends, and with it each of its writes, before files of a failed run are removed.
        with ThreadPoolExecutor(num_cores(), "featstore-compact") as threads:
            done = list(threads.map(partial(rewrite_file, snapshot), base, new_paths(base, tag)))
        for partition in partitions:
            copy_values(snapshot, partition, tag)
        return done

    if partitions:
        again = "Run it again: it does what is left to do."
        version, files = replace_files(snapshot, partitions, write, "the compaction", again, commit)
    if snapshot.groups:
        version = drop_folded(snapshot, files, [group.name for group in snapshot.groups], version)
    return CompactReport(
        table_url=table_url,
        version=version,
        groups=tuple(group.name for group in snapshot.groups),
        num_files=len(files),
        num_rows=sum(file.num_rows for file in files),
        size_bytes=sum(file.size_bytes for file in files),
    )
