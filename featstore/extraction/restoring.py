"""Makes an earlier version of a table its newest one again, in one commit."""

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from featstore.base.closing import noted_on_failure
from featstore.base.errors import CommitConflictError, InputError
from featstore.base.redaction import redact
from featstore.files.listings import find_file
from featstore.files.retry import thread_pool
from featstore.table import delta
from featstore.table.groups import open_group_for_writing
from featstore.table.layout import partition_path
from featstore.table.open import open_existing, open_snapshot
from featstore.table.running import marked_restore
from featstore.table.snapshot import DataFile, Snapshot

_NUM_LOOKING_THREADS = 16


@dataclass(frozen=True, kw_only=True)
class RestoreReport:
    """The result of going back to a version.

    Attributes:
        table_url: The table.
        restored: The version that the newest one is equal to.
        version: The newest version.
        num_rows: Its rows.
        num_files_back, num_files_left: Data files that the table has again, and has no longer.
        committed: False if there was nothing to do, or with `dry_run`.
        dry_run: Whether nothing was changed.
        deletions: The undone versions that had deleted rows, oldest first. These rows are back.
    """

    table_url: str = field(repr=False)
    restored: int
    version: int
    num_rows: int
    num_files_back: int
    num_files_left: int
    committed: bool
    dry_run: bool = False
    deletions: tuple[int, ...] = ()

    def __str__(self) -> str:
        where, changed = redact(self.table_url), (self.num_files_back, self.num_files_left)
        rows = f"{self.num_rows:,} rows as of version {self.restored}"
        files = "{:,} data files are back, {:,} are left out".format(*changed)
        if self.deletions:
            which = ", ".join(map(str, self.deletions))
            files += f"; rows that version {which} had deleted are back: delete them again"
        if self.dry_run:
            return f"{where}: would restore {rows}: {files}"
        if not self.committed:
            return f"nothing to do: version {self.version} of {where} has {rows}"
        return f"committed version {self.version} of {where}: {rows}; {files}"


def restore(table_url: str, version: int, *, dry_run: bool = False) -> RestoreReport:
    """Commits a new version with the files, columns and slot groups of an earlier one.

    Versions in between can still be opened, until a vacuum removes their files. The logs of slot
    groups go back after the table's; if the process dies in between, the next run into a group does
    it.

    Args:
        table_url: The table.
        version: The version to go back to.
        dry_run: Only look whether it is possible, and what would change.

    Raises:
        TableNotFoundError: There is no Delta table, or not in this version.
        InputError: Files of the version are gone, or rows are deleted by deletion vectors. The
            table is unchanged.
        CommitConflictError: Another writer committed meanwhile, or a vacuum is at work; the table
            is unchanged.
    """
    now = open_existing(table_url, "restore")
    then = open_snapshot(table_url, version)
    if now.data_files.has_masks or then.data_files.has_masks:
        raise InputError(
            f"{redact(table_url)}: expected versions whose rows are deleted by writing files "
            f"again, found deletion vectors; nothing is restored: use the engine that wrote them"
        )
    before, after = ({file.path: file for file in each.data_files} for each in (now, then))
    is_same = (before.keys(), now.schema, now.group_versions) == (
        after.keys(),
        then.schema,
        then.group_versions,
    )
    commits = not (is_same or dry_run)
    newest = now.version or 0
    with marked_restore(table_url, version) if commits else contextlib.nullcontext():
        _check_present(then, after.values())
        deletions = () if is_same else tuple(_deletions(now, version))
        if commits:
            newest = delta.restore(table_url, version, uuid.uuid4().hex, base=now.version)
    if commits:
        with noted_on_failure(
            f"Version {newest} of {redact(table_url)} is as version {version}. The logs of its "
            f"slot groups go back with what is extracted into them next."
        ):
            _restore_groups(delta.open_delta(table_url, newest))
    return RestoreReport(
        table_url=table_url,
        restored=version,
        version=newest,
        num_rows=then.num_rows,
        num_files_back=len(after.keys() - before.keys()),
        num_files_left=len(before.keys() - after.keys()),
        committed=commits,
        dry_run=dry_run,
        deletions=deletions,
    )


def _deletions(now: Snapshot, version: int) -> Iterator[int]:
    """Yields the versions in effect after a version that deleted rows, oldest first: in the log,
    a deletion is a compaction that leaves fewer rows.
    """
    commits = [*delta.in_effect(delta.history(now.url))]
    for commit in reversed(commits):
        if commit.version <= version:
            continue
        made = commit.metadata
        if made is None and commit.operation == "DELETE":
            yield commit.version
        elif made is not None and made.origins:
            before = delta.files_at(now.url, commit.version - 1).in_partitions(made.partitions)
            if sum(one.num_rows for one in before.totals()) > made.num_rows:
                yield commit.version


def _check_present(then: Snapshot, files: Iterable[DataFile]) -> None:
    parts = [(file, part) for file in files for part in file.parts]
    with thread_pool(_NUM_LOOKING_THREADS) as threads:
        found = threads.map(lambda pair: find_file(pair[1].url), parts)
        gone = [pair for pair, entry in zip(parts, found, strict=True) if entry is None]
    if gone:
        file, part = gone[0]
        raise InputError(
            f"{redact(then.url)}: expected all {len(parts):,} files of version {then.version}, "
            f"found {len(gone):,} gone, such as {part.path} of {partition_path(file.partition)}: "
            f"they were vacuumed; nothing is restored: take a later version, or extract the "
            f"partitions again"
        )


def _restore_groups(base: Snapshot) -> None:
    made = [commit.metadata for commit in delta.history(base.url) if commit.metadata is not None]
    for name in sorted({name for each in made for name in each.groups or ()}):
        # Where another writer commits to the group meanwhile, the next run into it looks again.
        with contextlib.suppress(CommitConflictError):
            open_group_for_writing(base, name)
