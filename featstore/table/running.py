"""The marks of runs at work: a small file for each, renewed while the run lives, so that nobody
removes what it writes.

A run may last longer than any age at which a file without a snapshot counts as left over; its mark
says that it lives. Ages are differences of the store's own times: clocks of hosts take no part.
"""

import contextlib
import json
import posixpath
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from featstore.errors import CommitConflictError
from featstore.files.listings import list_files
from featstore.files.storage import delete, join, modified_s, open_write, size_bytes
from featstore.redaction import redact
from featstore.table.layout import RUNS_DIR
from featstore.table.metadata import to_json
from featstore.table.snapshot import DataFile
from featstore.table.store import check_store

RENEW_S = 60.0


@dataclass(kw_only=True)
class Mark:
    """The mark of one run. `keep()` leaves it behind, for a run that does not know whether it was
    committed.
    """

    url: str = field(repr=False)
    _kept: bool = False
    _ended: threading.Event = field(default_factory=threading.Event)

    def write(self) -> None:
        with open_write(self.url) as file:
            file.write(json.dumps({"format": 1}).encode())

    def renew(self) -> None:
        """Writes the mark anew. FileNotFoundError where it was removed: then it stays away, so that
        the run can tell that it was taken for dead."""
        size_bytes(self.url)
        self.write()

    def keep(self) -> None:
        self._kept = True

    def run(self) -> None:
        """Renews the mark until it ends. A renewal that fails is tried again."""
        while not self._ended.wait(RENEW_S):
            with contextlib.suppress(OSError):
                self.renew()

    def end(self) -> None:
        self._ended.set()

    def remove(self) -> None:
        if not self._kept:
            with contextlib.suppress(OSError):
                delete(self.url)


@contextlib.contextmanager
def marked(table_url: str, tag: str) -> Iterator[Mark]:
    """The run of this tag is at work until the end of the block.

    Before any work is done: OSError where nothing can be written to the table, UnsafeStoreError
    where it could not be committed safely.
    """
    check_store(table_url)
    mark = Mark(url=join(table_url, RUNS_DIR, tag))
    mark.write()
    thread = threading.Thread(target=mark.run, name="featstore-mark")
    thread.start()
    try:
        yield mark
    finally:
        mark.end()
        thread.join()
        mark.remove()


def check_there(mark: Mark, table_url: str, files: Sequence[DataFile]) -> None:
    """What a run does last before it commits `files`: its mark and all of them must still be there.

    The mark is renewed first, so that a vacuum that begins now leaves the files alone; then the
    listings, one for each partition, show what an earlier one removed. CommitConflictError where
    anything is gone; OSError where the store fails.
    """
    try:
        mark.renew()
    except FileNotFoundError:
        raise _taken_for_dead(
            table_url, f"its mark {RUNS_DIR}/{mark.url.rpartition('/')[2]} is gone"
        ) from None
    there = _sizes(table_url, files)
    gone = [file.path for file in files if there.get(file.path) != file.size_bytes]
    if gone:
        what = (
            f"{len(gone)} of {len(files)} data files are gone or of another size ({gone[0]}, ...)"
        )
        raise _taken_for_dead(table_url, what)


def running(table_url: str, *, now_s: float, grace_s: float) -> set[str]:
    """The tags of the runs whose marks were renewed within the last `grace_s`; `now_s` is the
    store's time.
    """
    found = list_files(join(table_url, RUNS_DIR), suffix="", literal=True)
    return {entry.name for entry in found if now_s - _modified_s(entry.url, now_s) <= grace_s}


def store_now_s(table_url: str) -> float:
    """What time it is by the clock of the table's store: that of an object written for it.

    The object is removed again; one that is left behind is a dead run's mark to a later vacuum.
    OSError where nothing can be written to the table.
    """
    url = join(table_url, RUNS_DIR, f"clock-{uuid.uuid4().hex}")
    try:
        with open_write(url) as file:
            file.write(b"{}")
        return modified_s(url)
    finally:
        delete(url)


def _modified_s(url: str, now_s: float) -> float:
    """A mark that is gone meanwhile was that of a live run, whose commit may have landed or not."""
    try:
        return modified_s(url)
    except FileNotFoundError:
        return now_s


def _sizes(table_url: str, files: Sequence[DataFile]) -> dict[str, int]:
    """The sizes, by path, of what lies where these files do: one listing for each partition, of the
    innermost directory that its files share."""
    paths: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        paths[to_json(file.partition)].append(posixpath.dirname(file.path))
    found: dict[str, int] = {}
    for directory in {posixpath.commonpath(of_partition) for of_partition in paths.values()}:
        entries = list_files(join(table_url, directory), literal=True)
        found |= {posixpath.join(directory, entry.name): entry.size_bytes for entry in entries}
    return found


def _taken_for_dead(table_url: str, what: str) -> CommitConflictError:
    return CommitConflictError(
        f"{redact(table_url)}: expected the mark and the data files of this run to be there until "
        f"its commit, but "
        f"{what}: a vacuum took the run for dead, or somebody else removed them; nothing is "
        f"committed: run it again"
    )
