"""The log of a Delta table on Hadoop's file systems, which delta-rs works on in a local copy.

delta-rs takes no file system from Python, and its own clients of HDFS are others than those of the
data files. So the log is copied to a private directory and read there, and what a commit adds to a
copy is published by `put_new`, of which one of several writers of a version succeeds. See
`docs/design/files.md`.
"""

import contextlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from featstore.base.closing import when_gone
from featstore.base.redaction import redact
from featstore.files.hadoop import HADOOP_SCHEMES
from featstore.files.listings import FileEntry, list_own
from featstore.files.private_directory import PrivateDirectory
from featstore.files.retry import thread_pool
from featstore.files.storage import delete, fetch, join, open_write, put_new, scheme
from featstore.table.layout import LOG_DIR

_COMMIT = re.compile(r"\d{20}\.json")
_NUM_THREADS = 8  # each copies a file of the log; most are small, so that requests are what counts


class VersionTakenError(Exception):
    """Another writer published the version first. Nothing of this attempt is visible."""


def is_mirrored(url: str) -> bool:
    """Whether delta-rs works on a copy of the log, instead of the store itself."""
    return scheme(url) in HADOOP_SCHEMES


# The mirrors of this process, by URL, and the lock of this mapping, which is taken alone.
_mirrors: "dict[str, LogMirror]" = {}
_mirrors_lock = threading.Lock()


def log_mirror(url: str) -> "LogMirror":
    """The mirror of a table's log in this process."""
    with _mirrors_lock:
        if url not in _mirrors:
            _mirrors[url] = LogMirror(url)
        return _mirrors[url]


class LogMirror:
    """A local copy of a table's log. Threads may share it.

    `_lock` guards the directory of the copy, and `_copied`, which describes its files. No other
    lock is taken while it is held.

    The files of a log never change, so each is copied once; one that is replaced, since the table
    was written anew at the same URL, has another time. `_last_checkpoint` is not copied: it is a
    hint for stores with slow listings, and may name a file that came after the listing.

    Args:
        url: The table.
    """

    def __init__(self, url: str) -> None:
        self._log_url = join(url, LOG_DIR)
        self._private = PrivateDirectory()
        when_gone(self, self._private.remove)
        self._root = self._private.path / "table"
        self._root.mkdir()
        self._lock = threading.Lock()
        self._copied: dict[str, FileEntry] = {}

    def refresh(self) -> Path:
        """Brings the copy up to date.

        Returns:
            The local table, which has a log only. Its log directory is missing if there is none.

        Raises:
            OSError: The store failed.
        """
        with self._lock:
            listed = {
                entry.name: entry
                for entry in list_own(self._log_url)
                if entry.name.endswith((".json", ".parquet"))
            }
            changes = changed(self._copied, listed)
            for name in self._copied.keys() - listed.keys():
                self._path(name).unlink()
                del self._copied[name]
            with thread_pool(_NUM_THREADS) as threads:
                for entry in threads.map(self._copy, changes):
                    self._copied[entry.name] = entry
        return self._root

    def _path(self, name: str) -> Path:
        return self._root / LOG_DIR / name

    def _copy(self, entry: FileEntry) -> FileEntry:
        target = self._path(entry.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        # A copy is renamed over an earlier one, since an attempt may have a link to that.
        partial = target.with_name(f"{target.name}.partial")
        with partial.open("wb") as file:
            num_bytes = fetch(entry.url, file)
        if num_bytes != entry.size_bytes:
            raise OSError(
                f"{redact(entry.url)}: {num_bytes:,} bytes were read, expected "
                f"{entry.size_bytes:,}; it was replaced meanwhile: try again"
            )
        # delta-rs judges the age of commits, which it removes in the end, by these times.
        os.utime(partial, ns=(entry.modified_ns, entry.modified_ns))
        partial.replace(target)
        return entry

    @contextlib.contextmanager
    def attempt(self) -> Iterator[Path]:
        """Yields a local table with the log of the last refresh, and publishes what the block does
        to it: one commit, and checkpoints that come with it.

        Raises:
            VersionTakenError: Another writer has the commit's version.
            OSError: The store failed. The commit may have been published.
        """
        with tempfile.TemporaryDirectory(dir=self._private.path) as directory:
            log = Path(directory, LOG_DIR)
            with self._lock:
                before = set(self._copied)
                for name in before:
                    (log / name).parent.mkdir(parents=True, exist_ok=True)
                    (log / name).hardlink_to(self._path(name))
            yield Path(directory)
            self._publish(log, before)

    def _publish(self, log: Path, before: set[str]) -> None:
        after = {entry.name: entry.url for entry in list_own(str(log))}
        now = {name: Path(after[name]).read_bytes for name in after.keys() - before}
        # The commit comes first. A failure after it is no failure of the commit, which the caller
        # finds in the log, and leaves at most a checkpoint to the next writer.
        for name in sorted(now, key=lambda name: not _COMMIT.fullmatch(name)):
            url = join(self._log_url, name)
            if not _COMMIT.fullmatch(name):
                with open_write(url) as file:
                    file.write(now[name]())
            elif not put_new(url, now[name]()):
                raise VersionTakenError(f"{redact(url)} exists")
        # A checkpoint makes delta-rs remove commits that are older than the log's retention.
        for name in before - after.keys():
            delete(join(self._log_url, name))


def changed(copied: Mapping[str, FileEntry], listed: Mapping[str, FileEntry]) -> list[FileEntry]:
    """The listed files that are not copied, or are copied from another version. Pure."""
    return [
        entry
        for name, entry in listed.items()
        if name not in copied or not entry.is_same(copied[name])
    ]
