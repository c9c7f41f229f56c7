"""Running jobs: the mark of each, a small file that is renewed while the run lives, so that a
vacuum leaves the run's files alone; and the files that it writes before its commit.

A run may last longer than the age at which a vacuum removes unreferenced files. Its mark proves
that it is alive. Ages are differences of the store's own times, never of a host's clock. See
`docs/design/table_life.md`.
"""

import contextlib
import json
import logging
import posixpath
import re
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from featstore.base.closing import cleaned_up_on_failure
from featstore.base.errors import CommitConflictError, InputError, UnsafeStoreError
from featstore.base.redaction import redact
from featstore.files.listings import list_own
from featstore.files.looks import exists
from featstore.files.retry import BRIEF, retrying
from featstore.files.storage import (
    check_store,
    delete,
    join,
    local_path,
    modified_s,
    open_write,
    remove_empty_directories,
    remove_if_empty,
    size_bytes,
)
from featstore.table.layout import (
    GROUPS_DIR,
    RUNS_DIR,
    STATISTICS_DIR,
    has_tag,
    partition_path,
)
from featstore.table.metadata import to_json
from featstore.table.snapshot import DataFile

# A vacuum's grace is at least an hour, so a mark stays young through many failed renewals. Each
# renewal is one small write to the store.
RENEW_S = 60.0
# Many times that, so that a run whose renewals fail for a while is not taken for dead.
MIN_GRACE_S = 3_600.0
_RESTORE = re.compile(r"restore-(?P<version>\d+)-[0-9a-f]{8}")
_VACUUM = "vacuum-"
# Raised before anything of a commit is sent, or after another writer's commit that rules it out.
_NOT_COMMITTED = (CommitConflictError, InputError, UnsafeStoreError)
_LOG = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Mark:
    """The mark of one run, made by `marked`.

    One thread calls `run`; `end`, called by another one, stops it.
    """

    url: str = field(repr=False)
    _kept: bool = False
    _ended: threading.Event = field(default_factory=threading.Event)

    def write(self) -> None:
        """Creates the mark."""
        with open_write(self.url) as file:
            file.write(json.dumps({"format": 1}).encode())

    def renew(self) -> None:
        """Rewrites the mark, which makes it young.

        Raises:
            FileNotFoundError: A vacuum removed the mark. It is not created again, so that the run
                notices before it commits.
        """
        size_bytes(self.url)
        self.write()

    def keep(self) -> None:
        """Leaves the mark behind, for a run that does not know whether its commit landed."""
        self._kept = True

    def run(self) -> None:
        """Renews the mark periodically until `end` is called. A failed renewal is tried again."""
        while not self._ended.wait(RENEW_S):
            with contextlib.suppress(OSError):
                self.renew()

    def end(self) -> None:
        """Makes `run` return."""
        self._ended.set()

    def remove(self) -> None:
        """Removes the mark, unless it is to be kept. A failure leaves it to a later vacuum."""
        if not self._kept:
            with contextlib.suppress(OSError), retrying(BRIEF):
                delete(self.url)


@contextlib.contextmanager
def marked(table_url: str, tag: str) -> Iterator[Mark]:
    """Marks the run of this tag as alive until the end of the block.

    Raises:
        UnsafeStoreError: The store has no conditional writes. Raised before the block.
        OSError: The store cannot be written to. Raised before the block.
    """
    check_store(table_url)
    mark = Mark(url=join(table_url, RUNS_DIR, tag))
    with _without_empty_directories(table_url):
        mark.write()
        thread = threading.Thread(target=mark.run, name="featstore-mark")
        thread.start()
        try:
            yield mark
        finally:
            # The thread ends before the mark is removed: a renewal after that would create it
            # again.
            mark.end()
            thread.join()
            mark.remove()


@contextlib.contextmanager
def _without_empty_directories(table_url: str) -> Iterator[None]:
    """Removes the directories of a new local table, or slot group, if the block fails and leaves no
    file in them.

    A run that lives has its mark there, so its directories stay.
    """
    root = local_path(table_url)
    is_new = root is not None and not exists(root)
    try:
        yield
    except BaseException:
        if root is not None and is_new:
            remove_empty_directories(root)
            if root.parent.name == GROUPS_DIR:
                remove_if_empty(str(root.parents[1]), GROUPS_DIR)
        raise


def check_not_removed(mark: Mark, table_url: str, files: Sequence[DataFile]) -> None:
    """Checks, as the last step before a commit, that the run's mark and data files still exist.

    Each partition is listed once.

    Raises:
        CommitConflictError: The mark or a file is gone.
        OSError: The store failed.
    """
    # The order matters. The renewed mark stops a vacuum that begins now; the listings show what an
    # earlier one removed.
    try:
        mark.renew()
    except FileNotFoundError:
        raise _taken_for_dead(
            table_url, f"its mark {RUNS_DIR}/{mark.url.rpartition('/')[2]} is gone"
        ) from None
    sizes = _sizes(table_url, files)
    gone = [file.path for file in files if sizes.get(file.path) != file.size_bytes]
    if gone:
        raise _taken_for_dead(
            table_url,
            f"{len(gone)} of {len(files)} data files are gone or of another size ({gone[0]}, ...)",
        )


def running(table_url: str, *, now_s: float, grace_s: float) -> set[str]:
    """The tags of runs whose marks were renewed within the last `grace_s` before `now_s`, the
    store's time.

    A mark that vanished since the listing belongs to a run that has just ended, and whose files
    count as young.
    """
    marks = list_own(join(table_url, RUNS_DIR), hidden=False)
    return {entry.name for entry in marks if now_s - modified_or(entry.url, now_s) <= grace_s}


@contextlib.contextmanager
def marked_restore(table_url: str, version: int) -> Iterator[None]:
    """Marks a version as one that is about to be the newest again, so that a vacuum that begins
    before the end of the block keeps it. After an error that may hide a commit the mark stays.

    Restores and vacuums write their marks before they look for those of the others, so that of two
    at once at least one sees the other.

    Raises:
        CommitConflictError: A vacuum is at work. Raised before the block.
    """
    with marked(table_url, f"restore-{version}-{uuid.uuid4().hex[:8]}") as mark:
        at_work = running(table_url, now_s=modified_s(mark.url), grace_s=MIN_GRACE_S)
        if found := sorted(tag for tag in at_work if tag.startswith(_VACUUM)):
            raise CommitConflictError(
                f"{redact(table_url)}: expected no vacuum at work, which may remove files of "
                f"version {version}, found the mark {RUNS_DIR}/{found[0]}; nothing is restored: "
                f"run it again once the vacuum has ended, or if it was killed, in an hour"
            )
        try:
            yield
        except _NOT_COMMITTED:
            raise
        except BaseException:
            mark.keep()
            raise


def marked_vacuum(table_url: str) -> AbstractContextManager[Mark]:
    """Marks that a vacuum is at work. The time at which the store wrote the mark is its "now"."""
    return marked(table_url, f"{_VACUUM}{uuid.uuid4().hex[:8]}")


def versions_restored(tags: Iterable[str]) -> list[int]:
    """The versions that restores at work, whose marks have these tags, make the newest again."""
    return [int(found["version"]) for found in map(_RESTORE.fullmatch, sorted(tags)) if found]


def modified_or(url: str, gone_s: float) -> float:
    """The modification time of a file, or `gone_s` for one that has vanished since its listing."""
    try:
        return modified_s(url)
    except FileNotFoundError:
        return gone_s


def _sizes(table_url: str, files: Sequence[DataFile]) -> dict[str, int]:
    """The sizes, by path, of the files that exist in the directories of `files`: one listing per
    partition, of the innermost directory that its files share.
    """
    paths: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        paths[to_json(file.partition)].append(posixpath.dirname(file.path))
    sizes: dict[str, int] = {}
    for directory in {posixpath.commonpath(of_partition) for of_partition in paths.values()}:
        entries = list_own(join(table_url, directory), ".parquet", hidden=False)
        sizes |= {posixpath.join(directory, entry.name): entry.size_bytes for entry in entries}
    return sizes


def _taken_for_dead(table_url: str, problem: str) -> CommitConflictError:
    return CommitConflictError(
        f"{redact(table_url)}: expected the mark and the data files of this run to exist until its "
        f"commit, but {problem}: a vacuum took the run for dead, or somebody else removed them; "
        f"nothing is committed: run it again"
    )


@dataclass(frozen=True, kw_only=True)
class WrittenFiles:
    """What one run writes to a table before its commit.

    Attributes:
        tag: Part of the names of these files. They are found by it, not by the run id: another
            process may be working under the same run id.
        partitions: The partitions that the run writes.
    """

    table_url: str = field(repr=False)
    tag: str
    partitions: Sequence[Mapping[str, str]]

    def remove(self) -> None:
        """Removes the files, and directories that are empty then. What the store refuses to remove
        is logged, and left to a vacuum. No budget of time is spent on it: it follows an error.
        """
        with retrying(BRIEF):
            for partition in map(partition_path, self.partitions):
                for directory in (partition, join(STATISTICS_DIR, partition)):
                    url = join(self.table_url, directory)
                    with _left_to_vacuum(url):
                        own = [e for e in list_own(url, hidden=False) if has_tag(e.name, self.tag)]
                        for entry in own:
                            with _left_to_vacuum(entry.url):
                                delete(entry.url)
                    remove_if_empty(self.table_url, directory)

    def removed_on_failure(self) -> AbstractContextManager[None]:
        """Removes the files if the block fails, which must not commit."""
        return cleaned_up_on_failure(self.remove)

    @contextlib.contextmanager
    def kept_if_committed(
        self, mark: Mark, what: str, num_files: int, again: str
    ) -> Iterator[None]:
        """Around the commit alone, which alone tells whether the files may be removed.

        After an error that rules a commit out they are removed. Any other one, also an interrupt,
        may hide a commit that landed or is about to: files and mark are kept, and the error says so
        in a note. An orphan costs space, a deleted live file costs the table.

        Args:
            mark: The mark of the run, which protects its files from a vacuum until it expires.
            what: What may be committed.
            num_files: The number of data files.
            again: What the same call does if it is repeated.
        """
        try:
            yield
        except _NOT_COMMITTED:
            with self.removed_on_failure():
                raise
        except BaseException as error:
            mark.keep()
            error.add_note(
                f"It is not known whether {what} was committed, so its {num_files} data files "
                f"(part-*-{self.tag}-*.parquet) are left in {redact(self.table_url)}. {again}"
            )
            raise


@contextlib.contextmanager
def _left_to_vacuum(url: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _LOG.warning(
            "%s: what a failed run wrote there is left to a vacuum, since it cannot be removed: %s",
            redact(url),
            error,
        )
