"""Removes files that no retained version of a table references: those replaced long ago, and the
leftovers of dead runs.

A file of a retained version is never removed, nor one that a running job may still write or commit:
a file must be older than the grace, and its run must have no young mark. Files that neither the log
references nor a featstore run has named are left alone. All times are the store's, so that hosts'
clocks do not matter. See `docs/design/table_life.md`.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from featstore.base.closing import noted_on_failure
from featstore.base.errors import ChangedTableError, InputError, TableNotFoundError
from featstore.base.processes import cached_property
from featstore.base.redaction import redact
from featstore.files.listings import FileEntry, list_own
from featstore.files.storage import delete, join, modified_s
from featstore.table.delta import GROUPS, files_at, is_delta, open_delta
from featstore.table.iceberg_mirror import mirrors_in, release
from featstore.table.layout import (
    GROUPS_DIR,
    LOG_DIR,
    RUNS_DIR,
    STATISTICS_DIR,
    base_path,
    is_data_file,
    partial_of,
    statistics_tag,
    tag_of,
)
from featstore.table.log_files import LogFiles, commit_url, list_log, paths_of, read_actions
from featstore.table.running import (
    MIN_GRACE_S,
    marked_vacuum,
    modified_or,
    running,
    versions_restored,
)
from featstore.table.snapshot import Snapshot
from featstore.table.table_rules import check_kept

# Delta Lake's default for `VACUUM`, so that readers of older versions have a week.
RETAIN_S = 7 * 86_400.0
# Files that were written within a day are kept, as are those of runs that renewed their mark in it.
GRACE_S = 86_400.0
_MARK, _REPLACED, _ORPHAN = "mark of a dead run", "replaced", "orphan"
_STAGED_LOG_FILE = re.compile(rf"{LOG_DIR}/(.+#\d+|_commit_[0-9a-f-]+\.json\.tmp)")


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A file that no retained version references.

    Attributes:
        path: The path below the table.
        size_bytes: Its size.
        kind: What it is, such as `replaced` or `orphan`, as the report names it.
    """

    path: str
    size_bytes: int
    kind: str


@dataclass(frozen=True, kw_only=True)
class VacuumReport:
    """The result of a vacuum.

    Attributes:
        table_url: The table.
        oldest_version: The oldest version whose files are all left.
        removed: The files removed, or with `dry_run` those that would be.
        num_young: Files left alone because they are younger than the grace.
        num_running: Files left alone because their run is alive.
        dry_run: Whether nothing was removed.
    """

    table_url: str = field(repr=False)
    oldest_version: int
    removed: tuple[Leftover, ...]
    num_young: int
    num_running: int
    dry_run: bool

    @property
    def size_bytes(self) -> int:
        """The bytes of all removed files."""
        return sum(leftover.size_bytes for leftover in self.removed)

    def __str__(self) -> str:
        verb = "would be removed" if self.dry_run else "removed"
        lines = [f"{leftover.kind}: {leftover.path}" for leftover in self.removed]
        total = (
            f"{redact(self.table_url)}: {len(self.removed):,} files, {self.size_bytes:,} bytes "
            f"{verb}"
        )
        spared = f"{self.num_young:,} too young, {self.num_running:,} of running jobs left alone"
        return "\n".join(
            [*lines, f"{total}; {spared}; versions from {self.oldest_version} on can be read"]
        )


@dataclass(frozen=True, kw_only=True)
class References:
    """The files that a table's log references.

    Attributes:
        live: Paths that a retained version references.
        logged: Paths that any version in the log references.
        oldest_version: The oldest retained version that can be opened.
        groups: The versions of slot groups, by name, that retained versions reference.
    """

    live: frozenset[str] = frozenset()
    logged: frozenset[str] = frozenset()
    oldest_version: int = 0
    groups: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @cached_property
    def tags(self) -> frozenset[str]:
        """The tags of the live files."""
        return frozenset(tag for tag in map(tag_of, self.live) if tag is not None)


def vacuum(
    url: str,
    *,
    retain_s: float = RETAIN_S,
    grace_s: float = GRACE_S,
    keep_versions: Sequence[int] = (),
    dry_run: bool = False,
    now_s: float | None = None,
) -> VacuumReport:
    """Removes files that no retained version of a table references.

    In slot groups the files stay that retained versions of the table read, and those that the
    group's next commit may reference. Snapshots of Iceberg tables that show the table are expired
    first where they name a file that is removed. If a removal fails, the files removed before stay
    removed, which harms no retained version.

    Args:
        url: The table.
        retain_s: Keep all versions that were current within this time, in seconds.
        grace_s: Keep files that were written within this time, in seconds, and files of runs that
            renewed their mark within it. At least `MIN_GRACE_S`.
        keep_versions: Further versions to keep.
        dry_run: Remove nothing, and report what would be removed.
        now_s: The store's time, in seconds since the epoch; by default that of the vacuum's mark,
            which is also written with `dry_run`.

    Raises:
        TableNotFoundError: There is no Delta table.
        InputError: The grace is too short, the retention negative, or the table needs more; or a
            snapshot of an Iceberg table cannot be expired. Nothing is removed.
        ConfigError, MissingDependencyError: The catalog of an Iceberg table cannot be used here.
            Nothing is removed.
        ChangedTableError: It cannot be told which files are referenced; nothing is removed.
        OSError: The store cannot be written to, or a removal failed.
    """
    if grace_s < MIN_GRACE_S or retain_s < 0:
        raise InputError(
            f"vacuum: expected a grace of at least {MIN_GRACE_S:.0f} s and a retention of 0 s or "
            f"more, found {grace_s:g} and {retain_s:g}"
        )
    if not is_delta(url):
        raise TableNotFoundError(
            f"no table at {redact(url)}: expected a Delta table ({LOG_DIR}/ is missing)"
        )
    check_kept(url, open_delta(url, with_files=False).rules.vacuuming, "vacuum")
    # The order matters: files are listed first, marks read second, the log last. A run that commits
    # in between is seen by its mark or by its commit, a restore by that of either.
    entries = list_own(url)
    with marked_vacuum(url) as mark:
        now_s = modified_s(mark.url) if now_s is None else now_s
        groups = {name: join(url, GROUPS_DIR, name) for name in _group_names(entries)}
        running_tags = set().union(
            *(running(table, now_s=now_s, grace_s=grace_s) for table in (url, *groups.values()))
        )
        log = _log(url)
        oldest = oldest_retained(_log_times(url, log.versions), now_s - retain_s)
        restored = [v for v in versions_restored(running_tags) if log.holds(v)]
        references = read_references(url, log, oldest, [*keep_versions, *restored])
        group_references = {
            name: _group_references(
                group_url,
                references.live,
                references.groups.get(name, frozenset()),
                now_s - retain_s,
            )
            for name, group_url in groups.items()
        }
        found = find_leftovers(entries, references, group_references)
        # A file whose commits the log has lost is an orphan, and snapshots may still name it.
        gone = {leftover.path for leftover in found if leftover.kind in (_REPLACED, _ORPHAN)}
        if gone and not dry_run:
            with noted_on_failure("Nothing was removed."):
                for name in mirrors_in(entry.name for entry in entries):
                    release(url, name, gone)
        # Marks first: a run that was taken for dead and wakes up then finds its mark gone.
        leftovers = sorted(found, key=lambda leftover: leftover.kind != _MARK)
        outcomes = [
            _remove(url, leftover, running_tags, now_s - grace_s, dry_run=dry_run)
            for leftover in leftovers
        ]
        pairs = zip(leftovers, outcomes, strict=True)
        return VacuumReport(
            table_url=url,
            oldest_version=references.oldest_version,
            removed=tuple(leftover for leftover, outcome in pairs if outcome == "removed"),
            num_young=outcomes.count("young"),
            num_running=outcomes.count("running"),
            dry_run=dry_run,
        )


def _log(url: str) -> LogFiles:
    log = list_log(url)
    if not log.versions:
        raise _unproved(url, "its log holds no commits")
    return log


def read_references(
    url: str, log: LogFiles, oldest: int, keep_versions: Iterable[int] = ()
) -> References:
    """Reads the files that the log references, and proves that it has seen all of them.

    Args:
        url: The table.
        log: A listing of its log.
        oldest: All versions from this one on are retained.
        keep_versions: Further versions to retain.

    Raises:
        ChangedTableError: The commits that were read do not lead from the oldest retained version
            to the newest. Which files are referenced is then not known.
        StoreError: The log cannot be read.
    """
    first = _open_from(url, oldest, log)
    entries = [_read_entry(url, version) for version in log.versions]
    later = [entry for entry in entries if entry.version > (first.version or 0)]
    _prove(url, first, later, log)
    # A stray part of the log, before a gap, still opens the versions that it holds.
    stray = [v for v in log.versions if oldest <= v < (first.version or 0) and log.holds(v)]
    kept = [first, *(open_delta(url, version) for version in (*stray, *keep_versions))]
    live = set[str]().union(
        *(snapshot.data_files.paths for snapshot in kept), *(entry.adds for entry in later)
    )
    groups: defaultdict[str, set[int]] = defaultdict(set)
    for group_versions in (
        *(snapshot.group_versions for snapshot in kept),
        *(entry.groups for entry in later),
    ):
        for name, version in group_versions.items():
            groups[name].add(version)
    return References(
        live=frozenset(live),
        logged=frozenset(live).union(*(entry.adds for entry in entries)),
        oldest_version=first.version or 0,
        groups={name: frozenset(versions) for name, versions in groups.items()},
    )


def _prove(url: str, first: Snapshot, later: Sequence["_LogEntry"], log: LogFiles) -> None:
    """Checks that the commits after `first` make the newest version of the listing out of it, so
    that the files of all versions between are among theirs.
    """
    expected = list(range((first.version or 0) + 1, log.newest + 1))
    found = [entry.version for entry in later]
    if found != expected:
        lost = sorted(set(expected) - set(found))
        raise _unproved(url, f"commits of versions {lost[:3]} are not in its log")
    files = set(first.data_files.paths)
    for entry in later:
        files = (files - entry.removes) | entry.adds
    newest = set(files_at(url, log.newest).paths)
    if files != newest:
        path = min(files ^ newest)
        raise _unproved(url, f"{path} is in one of the log and version {log.newest}, not in both")


def _unproved(url: str, problem: str) -> ChangedTableError:
    return ChangedTableError(
        f"{redact(url)}: vacuum cannot tell which files are referenced ({problem}); expected the "
        f"commits from the oldest retained version to the newest; nothing was removed: run it "
        f"again, and if that does not help look at {LOG_DIR}"
    )


def oldest_retained(written: Iterable[tuple[int, float]], cutoff_s: float) -> int:
    """The version that was current at the cutoff, or the oldest in the log.

    Args:
        written: Versions, at least one, newest first, each with the store's time of its commit. It
            is consumed no further than needed, since each time is a request to the store.
        cutoff_s: A time of the store, in seconds since the epoch.
    """
    for version, written_s in written:
        oldest = version
        if written_s <= cutoff_s:
            break
    return oldest


def find_leftovers(
    entries: Iterable[FileEntry], references: References, groups: Mapping[str, References]
) -> list[Leftover]:
    """The files that no retained version references and that featstore may remove: those with a
    name that it gives, and those that the log once referenced.

    Args:
        entries: All files below the table.
        references: Those of the base table.
        groups: Those of each slot group, by name.
    """
    leftovers = []
    for entry in entries:
        directory, _, rest = entry.name.partition("/")
        group = groups.get(rest.partition("/")[0]) if directory == GROUPS_DIR else None
        path = rest.partition("/")[2] if group else entry.name
        kind = _leftover_kind(path, group or references)
        if kind is not None:
            leftovers.append(Leftover(path=entry.name, size_bytes=entry.size_bytes, kind=kind))
    return leftovers


def _leftover_kind(path: str, references: References) -> str | None:
    """The kind of a file that may be removed, else None."""
    directory = path.partition("/")[0]
    # The client leaves these behind where it fails between writing an entry and naming it.
    if directory == LOG_DIR and _STAGED_LOG_FILE.fullmatch(path):
        return "unfinished"
    if path in references.live or directory in (LOG_DIR, GROUPS_DIR):
        return None
    # A hidden partial file is featstore's if its final name is one that featstore gives.
    target = partial_of(path)
    if target is not None:
        ours = is_data_file(target) or directory.startswith("_")
        return "unfinished" if ours else None
    if directory == RUNS_DIR:
        return _MARK
    if directory == STATISTICS_DIR:
        # Merged statistics are live as long as any data file of their run is. Those of single data
        # files are always leftovers: they are removed when they are merged.
        tag = statistics_tag(path)
        return None if tag in references.tags or not (tag or tag_of(path)) else "statistics"
    # A file that the log once referenced is removed whatever its name; files of other programs that
    # the log never referenced are left alone.
    if path in references.logged:
        return _REPLACED
    return _ORPHAN if is_data_file(path) else None


def _remove(
    url: str,
    leftover: Leftover,
    running_tags: set[str],
    before_s: float,
    *,
    dry_run: bool,
) -> str:
    """Removes a file unless its run is alive or it was written after `before_s`.

    Returns:
        `removed`, `running` or `young`; `mark` for that of a running job, and `gone` for a file
        that no longer exists.
    """
    if _run_tag(leftover.path) in running_tags:
        return "mark" if leftover.kind == _MARK else "running"
    target = join(url, leftover.path)
    try:
        is_young = modified_s(target) > before_s
    except FileNotFoundError:
        return "gone"
    if is_young:
        # A mark that was renewed since the marks were read: its run was suspended and goes on.
        if leftover.kind == _MARK:
            running_tags.add(_run_tag(leftover.path) or "")
        return "young"
    if not dry_run:
        delete(target)
    return "removed"


def _run_tag(path: str) -> str | None:
    name = (partial_of(path) or path).rpartition("/")[2]
    return tag_of(name) or statistics_tag(name) or name.partition(".")[0]


def _open_from(url: str, oldest: int, log: LogFiles) -> Snapshot:
    """The oldest version from `oldest` on that the log holds, with each commit after it: that of
    earlier ones may be incomplete.
    """
    known = {*log.versions}
    unbroken = next((v for v in range(log.newest, -1, -1) if v not in known), -1) + 1
    version = next((v for v in log.versions if v >= max(oldest, unbroken) and log.holds(v)), None)
    if version is None:
        raise _unproved(url, f"commits before version {log.newest} are not in its log")
    return open_delta(url, version)


def _group_references(
    group_url: str, base_live: Set[str], referenced: Set[int], cutoff_s: float
) -> References:
    """The references of a slot group. A group's file is live if its base file is, and if a retained
    version of the group references it.

    The group's log is read after the base table's, so it holds every version that the base
    references.

    Args:
        group_url: The slot group.
        base_live: The live files of the base table.
        referenced: The group's versions that retained base versions reference.
        cutoff_s: Group versions that were current after this time are retained too: the base may be
            about to reference them, and the group's next commit builds on the newest.
    """
    if not is_delta(group_url):
        return References()  # the group's first run has not committed yet
    log = _log(group_url)
    oldest = oldest_retained(_log_times(group_url, log.versions), cutoff_s)
    references = read_references(group_url, log, min({oldest, *(referenced & {*log.versions})}))
    return replace(
        references, live=frozenset(path for path in references.live if base_path(path) in base_live)
    )


def _log_times(url: str, versions: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Yields the store's time of each commit, newest first. The time inside a commit is of a host's
    clock.
    """
    for version in reversed(versions):
        # If delta-rs cleaned up the log meanwhile, the age is unknown.
        yield version, modified_or(commit_url(url, version), math.inf)


def _group_names(entries: Iterable[FileEntry]) -> set[str]:
    parts = (entry.name.split("/") for entry in entries)
    return {part[1] for part in parts if len(part) > 3 and part[0] == GROUPS_DIR}


@dataclass(frozen=True, kw_only=True)
class _LogEntry:
    """The paths that a commit adds and removes, and the versions of slot groups if it sets any."""

    version: int
    adds: Set[str]
    removes: Set[str]
    groups: Mapping[str, int]


def _read_entry(url: str, version: int) -> _LogEntry:
    actions = read_actions(url, version)
    properties = (
        action["metaData"].get("configuration", {}).get(GROUPS)
        for action in actions
        if action.get("metaData")
    )
    return _LogEntry(
        version=version,
        adds=paths_of(url, "add", actions),
        removes=paths_of(url, "remove", actions),
        groups=json.loads(next(properties, None) or "{}"),
    )
