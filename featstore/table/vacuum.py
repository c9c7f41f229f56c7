"""Removes files that no retained version of a table names: those replaced long ago, and those that
dead runs left.

Never one of a retained version, never one that a running job may still write or commit: a file goes
only if it is older than the grace, and its run has no living mark. Files that neither the log nor a
featstore run knows are not touched. All times, and what they are compared with, are the store's, so
that it does not matter what a host's clock says.
"""

import contextlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from featstore.errors import InputError, TableNotFoundError
from featstore.files.listings import FileEntry, list_files
from featstore.files.storage import delete, join, modified_s, open_read
from featstore.redaction import redact
from featstore.table.delta import GROUPS, Commit, history, is_delta, open_delta
from featstore.table.layout import (
    GROUPS_DIR,
    LOG_DIR,
    RUNS_DIR,
    STATISTICS_DIR,
    base_path,
    decode_path,
    is_data_file,
    partial_of,
    statistics_tag,
    tag_of,
)
from featstore.table.running import running, store_now_s
from featstore.table.snapshot import Snapshot

RETAIN_S = 7 * 86_400.0
GRACE_S = 86_400.0
MIN_GRACE_S = 3_600.0
_MARK = "mark of a dead run"
_LOG_FILE = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, kw_only=True)
class Left:
    """A file that no retained version names: `path` below the table, and what it is."""

    path: str
    size_bytes: int
    what: str


@dataclass(frozen=True, kw_only=True)
class VacuumReport:
    """What was removed, or with `dry_run` would be. `oldest_version` is the oldest that can still
    be read whole.

    `num_young` files are left alone because they are younger than the grace, `num_running` because
    their run lives.
    """

    table_url: str = field(repr=False)
    oldest_version: int
    removed: tuple[Left, ...]
    num_young: int
    num_running: int
    dry_run: bool

    @property
    def size_bytes(self) -> int:
        return sum(left.size_bytes for left in self.removed)

    def __str__(self) -> str:
        did = "would be removed" if self.dry_run else "removed"
        lines = [f"{left.what}: {left.path}" for left in self.removed]
        total = (
            f"{redact(self.table_url)}: {len(self.removed):,} files, {self.size_bytes:,} bytes "
            f"{did}"
        )
        spared = f"{self.num_young:,} too young, {self.num_running:,} of running jobs left alone"
        return "\n".join(
            [*lines, f"{total}; {spared}; versions from {self.oldest_version} on can be read"]
        )


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a table's log says of files: `live` ones are named by a retained version, `named` by any
    in the log.

    `groups` are the versions of slot groups that the retained versions name.
    """

    live: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    oldest_version: int = 0
    groups: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @cached_property
    def tags(self) -> frozenset[str]:
        """The tags of the live files."""
        return frozenset(tag for tag in map(tag_of, self.live) if tag is not None)


@dataclass(kw_only=True)
class _Tally:
    removed: list[Left] = field(default_factory=list)
    num_young: int = 0
    num_running: int = 0


def vacuum(
    url: str,
    *,
    retain_s: float = RETAIN_S,
    grace_s: float = GRACE_S,
    keep_versions: Sequence[int] = (),
    dry_run: bool = False,
    now_s: float | None = None,
) -> VacuumReport:
    """Removes what no version names that was current within the last `retain_s`, nor one of
    `keep_versions`.

    Only files last written more than `grace_s` ago, of runs that have not renewed their mark for as
    long. Of slot groups the files stay that retained versions of the table read, and those that the
    group's next commit could name. A removal that fails raises; what was removed before stays
    removed, which harms no retained version. `now_s` is the store's time, by default that of an
    object written for it. TableNotFoundError, InputError for times that cannot be, OSError where
    nothing can be written.
    """
    if grace_s < MIN_GRACE_S or retain_s < 0:
        raise InputError(f"vacuum: expected a grace of at least {MIN_GRACE_S:.0f} s and a "
            f"retention of 0 s or more, "
                         f"found {grace_s:g} and {retain_s:g}")  # fmt: skip
    if not is_delta(url):
        raise TableNotFoundError(
            f"no table at {redact(url)}: expected a Delta table ({LOG_DIR}/ is missing)"
        )
    now_s = store_now_s(url) if now_s is None else now_s
    tally = _Tally()
    # Before marks and log are read: what is committed meanwhile is then live.
    entries = list_files(url, suffix="", hidden=True, literal=True)
    groups = {name: join(url, GROUPS_DIR, name) for name in _group_names(entries)}
    tags = set().union(
        *(running(place, now_s=now_s, grace_s=grace_s) for place in (url, *groups.values()))
    )
    commits = history(url)
    known = read_known(
        url, commits, oldest_retained(_log_times(url, commits), now_s - retain_s), keep_versions
    )
    known_groups = {
        name: _known_group(place, known.live, known.groups.get(name, frozenset()), now_s - retain_s)
        for name, place in groups.items()
    }
    # Marks first: a run that was taken for dead and goes on finds its mark gone before its files.
    for left in sorted(
        find_left(entries, known, known_groups), key=lambda left: left.what != _MARK
    ):
        _remove(url, left, tags, now_s - grace_s, tally, dry_run=dry_run)
    return VacuumReport(
        table_url=url,
        oldest_version=known.oldest_version,
        removed=tuple(tally.removed),
        num_young=tally.num_young,
        num_running=tally.num_running,
        dry_run=dry_run,
    )


def read_known(
    url: str, commits: Sequence[Commit], oldest: int, keep_versions: Iterable[int] = ()
) -> Known:
    """What the log says, given the commits that it holds, newest first; all versions from `oldest`
    on are retained.
    """
    first = _open_from(url, oldest, commits)
    entries = list(_read_log(url))
    later = [entry for entry in entries if entry.version > (first.version or 0)]
    kept = [first, *(open_delta(url, version) for version in keep_versions)]
    live = {file.path for snapshot in kept for file in snapshot.data_files}.union(
        *(entry.adds for entry in later)
    )
    groups: defaultdict[str, set[int]] = defaultdict(set)
    for naming in (
        *(snapshot.group_versions for snapshot in kept),
        *(entry.groups for entry in later),
    ):
        for name, version in naming.items():
            groups[name].add(version)
    return Known(
        live=frozenset(live),
        named=frozenset(live).union(*(entry.adds for entry in entries)),
        oldest_version=first.version or 0,
        groups={name: frozenset(versions) for name, versions in groups.items()},
    )


def oldest_retained(written: Iterable[tuple[int, float]], cutoff_s: float) -> int:
    """The version that was current at the cutoff, or the oldest that there is.

    `written` are versions, at least one, newest first, each with the store's time of its commit;
    it is read no further than needed.
    """
    for version, written_s in written:
        oldest = version
        if written_s <= cutoff_s:
            break
    return oldest


def find_left(
    entries: Iterable[FileEntry], known: Known, groups: Mapping[str, Known]
) -> list[Left]:
    """The files that no retained version names, and that are ours to remove: by name, or because
    the log names them.
    """
    found = []
    for entry in entries:
        directory, _, rest = entry.name.partition("/")
        group = groups.get(rest.partition("/")[0]) if directory == GROUPS_DIR else None
        path = rest.partition("/")[2] if group else entry.name
        what = _what(path, group or known)
        if what is not None:
            found.append(Left(path=entry.name, size_bytes=entry.size_bytes, what=what))
    return found


def _what(path: str, known: Known) -> str | None:
    directory = path.partition("/")[0]
    if path in known.live or directory in (LOG_DIR, GROUPS_DIR):
        return None
    target = partial_of(path)
    if target is not None:
        ours = is_data_file(target) or directory.startswith("_")
        return "unfinished" if ours else None
    if directory == RUNS_DIR:
        return _MARK
    if directory == STATISTICS_DIR:
        tag = statistics_tag(path)
        return None if tag in known.tags or not (tag or tag_of(path)) else "statistics"
    if path in known.named:
        return "replaced"
    return "orphan" if is_data_file(path) else None


def _remove(
    url: str, left: Left, tags: set[str], before_s: float, tally: _Tally, *, dry_run: bool
) -> None:
    if _tag(left.path) in tags:
        tally.num_running += left.what != _MARK
        return
    target = join(url, left.path)
    try:
        young = modified_s(target) > before_s
    except FileNotFoundError:
        return
    if young:
        if left.what == _MARK:  # renewed since marks were read: a run that stood still goes on
            tags.add(_tag(left.path) or "")
        tally.num_young += 1
        return
    if not dry_run:
        delete(target)
    tally.removed.append(left)


def _tag(path: str) -> str | None:
    name = (partial_of(path) or path).rpartition("/")[2]
    return tag_of(name) or statistics_tag(name) or name.partition(".")[0]


def _open_from(url: str, wanted: int, commits: Sequence[Commit]) -> Snapshot:
    """The oldest version from `wanted` on that can still be opened: of others the log lost a
    part.
    """
    versions = sorted(commit.version for commit in commits if commit.version >= wanted)
    for version in versions[:-1]:
        with contextlib.suppress(TableNotFoundError):
            return open_delta(url, version)
    return open_delta(url, versions[-1])


def _known_group(group_url: str, base_live: Set[str], named: Set[int], cutoff_s: float) -> Known:
    """A slot group's files are read beside base files that are retained, at the versions that
    retained base versions name.

    Its newest version, and those that were current since the cutoff, are retained too: the base may
    be about to name them, and the group's next commit goes on from there. The group's log is read
    after the base's, and so knows what that names. A group whose first run has committed nothing
    has none, and retains nothing.
    """
    if not is_delta(group_url):
        return Known()
    commits = history(group_url)
    versions = {commit.version for commit in commits}
    oldest = oldest_retained(_log_times(group_url, commits), cutoff_s)
    known = read_known(group_url, commits, min({oldest, *(named & versions)}))
    return replace(
        known, live=frozenset(path for path in known.live if base_path(path) in base_live)
    )


def _log_times(url: str, commits: Iterable[Commit]) -> Iterator[tuple[int, float]]:
    """When the store took each commit. What a commit itself says is by its host's clock."""
    for commit in commits:
        try:
            yield commit.version, modified_s(join(url, LOG_DIR, f"{commit.version:020d}.json"))
        except FileNotFoundError:  # cleaned up meanwhile: its age can no longer be seen
            yield commit.version, math.inf


def _group_names(entries: Iterable[FileEntry]) -> set[str]:
    parts = (entry.name.split("/") for entry in entries)
    return {part[1] for part in parts if len(part) > 3 and part[0] == GROUPS_DIR}


@dataclass(frozen=True, kw_only=True)
class _LogEntry:
    """The paths that a commit adds, and the versions of slot groups if it names any."""

    version: int
    adds: frozenset[str]
    groups: Mapping[str, int]


def _read_log(url: str) -> Iterator[_LogEntry]:
    for entry in list_files(join(url, LOG_DIR), suffix=".json", literal=True):
        if found := _LOG_FILE.fullmatch(entry.name):
            with open_read(entry.url) as file:
                actions = list(map(json.loads, file))
            adds = frozenset(
                decode_path(action["add"]["path"]) for action in actions if "add" in action
            )
            named = (
                action["metaData"].get("configuration", {}).get(GROUPS)
                for action in actions
                if "metaData" in action
            )
            yield _LogEntry(
                version=int(found[1]), adds=adds, groups=json.loads(next(named, None) or "{}")
            )
