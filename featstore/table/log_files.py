"""The files of a Delta log, listed and read here: which versions the log holds, and what their
commits say; the data files of its add actions; and a local copy of a log on Hadoop's file systems.

delta-rs takes several failures of a store for absences: its `TableNotFoundError` stands for any, an
entry whose `stat` fails is no entry of the newest version, and its history numbers the commits that
it has read backwards, whichever of them are missing. So what decides over data is held against a
listing of our own. The layout is that of the Delta protocol:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md

delta-rs takes no file system from Python, and its own clients of HDFS are others than those of the
data files. So the log is copied to a private directory and read there, and what a commit adds to a
copy is published by `put_new`, of which one of several writers of a version succeeds. See
`docs/design/files.md`.
"""

import contextlib
import io
import itertools
import json
import os
import re
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.closing import when_gone
from featstore.base.errors import DataFileError, StoreError
from featstore.base.processes import module_lock
from featstore.base.redaction import redact
from featstore.files.hadoop import HADOOP_SCHEMES
from featstore.files.listings import FileEntry, list_own
from featstore.files.looks import names_in
from featstore.files.private_directory import PrivateDirectory
from featstore.files.retry import thread_pool
from featstore.files.storage import (
    delete,
    fetch,
    join,
    local_path,
    modified_s,
    open_write,
    put_new,
    scheme,
)
from featstore.native.columns import Numbers, narrow, numbers, text_of, texts
from featstore.table.layout import LOG_DIR, decode_path, is_whole
from featstore.table.parquet_dir import each_footer
from featstore.table.snapshot import FileList, Partition

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*(?:parquet|json)")
# Files of a log that are read at once from a store: most are small, so that requests count.
_NUM_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class LogFiles:
    """The versions of a log, as one listing shows them.

    Attributes:
        versions: Those whose commits are there, in order.
        checkpoints: Those that have a checkpoint, in order.
    """

    versions: tuple[int, ...] = ()
    checkpoints: tuple[int, ...] = ()

    @property
    def newest(self) -> int:
        """The newest version; -1 if there is none."""
        return max((*self.versions[-1:], *self.checkpoints[-1:]), default=-1)

    def holds(self, version: int) -> bool:
        """Whether the log has all that a version is made of: a checkpoint and each commit after it,
        or every commit.
        """
        base = max((known for known in self.checkpoints if known <= version), default=-1)
        return not set(range(base + 1, version + 1)).difference(self.versions)

    def through(self, version: int) -> tuple[int, ...]:
        """The versions of commits up to one that may have come after the listing."""
        later = range(self.newest + 1, version + 1)
        return tuple(known for known in (*self.versions, *later) if known <= version)


def list_log(url: str) -> LogFiles:
    """Lists the log of a table. It is empty if there is no table.

    Raises:
        StoreError: The log cannot be listed.
    """
    return log_of(log_names(url))


def log_names(url: str) -> Sequence[str]:
    """The names of the files of a table's log; none if there is no table.

    Raises:
        StoreError: The log cannot be listed.
    """
    log_url = join(url, LOG_DIR)
    path = local_path(log_url)
    return names_in(path) if path is not None else [file.name for file in list_own(log_url)]


def log_of(names: Iterable[str]) -> LogFiles:
    """The log that files of these names make. Pure."""
    commits, checkpoints = set[int](), set[int]()
    for name in names:
        if match := _COMMIT.fullmatch(name):
            commits.add(int(match[1]))
        elif match := _CHECKPOINT.fullmatch(name):
            checkpoints.add(int(match[1]))
    return LogFiles(versions=tuple(sorted(commits)), checkpoints=tuple(sorted(checkpoints)))


def commit_url(url: str, version: int) -> str:
    """The file of a version's commit."""
    return join(url, LOG_DIR, f"{version:020d}.json")


def read_actions(url: str, version: int) -> list[dict[str, Any]]:
    """The actions of a version's commit.

    Raises:
        StoreError: The commit is gone, or cannot be read.
        DataFileError: It is no JSON.
    """
    file_url = commit_url(url, version)
    lines = content_of(file_url).splitlines()
    return [_parsed(file_url, line) for line in lines if line.strip()]


def paths_of(url: str, kind: str, actions: Iterable[Mapping[str, Any]]) -> set[str]:
    """The paths of data files in the actions of a kind, such as `add`."""
    return {decode_path(url, each[kind]["path"]) for each in actions if each.get(kind)}


def commit_infos(url: str, versions: Iterable[int]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields each version with what its commit says of itself, in the given order. A few commits
    are read ahead.

    A commit need not say anything: its `timestamp`, in ms since the epoch, is then the store's time
    of the file, and its `operation` is "unknown".

    Raises:
        StoreError: A commit is gone, or cannot be read.
        DataFileError: A commit is no JSON.
    """
    if local_path(url) is not None:
        yield from ((version, _commit_info(url, version)) for version in versions)
        return
    waiting = iter(versions)
    with thread_pool(_NUM_THREADS) as threads:
        while ahead := list(itertools.islice(waiting, _NUM_THREADS)):
            yield from zip(
                ahead, threads.map(lambda version: _commit_info(url, version), ahead), strict=True
            )


def _commit_info(url: str, version: int) -> Mapping[str, Any]:
    info: dict[str, Any] = {}
    # Most lines are of files, up to millions of them.
    file_url = commit_url(url, version)
    content = content_of(file_url)
    for found in re.finditer(rb'"commitInfo".*', content):
        line = content[content.rfind(b"\n", 0, found.start()) + 1 : found.end()]
        info |= _parsed(file_url, line).get("commitInfo") or {}
    if not isinstance(info.get("timestamp"), int):
        info["timestamp"] = int(modified_s(file_url) * 1_000)
    return {"operation": "unknown"} | info


def content_of(file_url: str) -> bytes:
    """The bytes of a file of the log. StoreError if it is gone, or cannot be read."""
    content = io.BytesIO()
    try:
        fetch(file_url, content)
        return content.getvalue()
    except FileNotFoundError:
        raise StoreError(
            f"{redact(file_url)}: expected the file that the log lists, found nothing: the log "
            f"changes while it is read; run it again"
        ) from None


def _parsed(file_url: str, line: bytes) -> dict[str, Any]:
    try:
        action = json.loads(line)
        if isinstance(action, dict):
            return action
        problem = f"found {type(action).__name__}"
    except ValueError as error:
        problem = str(error)
    raise DataFileError(
        f"{redact(file_url)}: expected a JSON object in each line ({problem}); "
        f"restore the file from a copy"
    )


class Masks(NamedTuple):
    """Row masks of data files.

    Attributes:
        paths: The paths of the files, large_binary (num_masks,).
        texts: The masks, as of the column `mask` of a `FileList`, likewise.
    """

    paths: pa.Array
    texts: pa.Array


NO_MASKS = Masks(texts(()), texts(()))


def decoded_paths(url: str, logged: pa.Array) -> pa.Array:
    """`decode_path` of paths in a table's log, large_binary: these themselves if they are so."""
    # Few tables have escaped or absolute paths, and decoding is a call in Python for each file.
    if not pc.any(pc.match_substring_regex(logged, "%|^/|:/")).as_py():
        return logged
    return texts(decode_path(url, text_of(path)) for path in logged.to_pylist())


def files_of(
    url: str,
    actions: pa.Table,
    keys: Sequence[str],
    crc32s: Mapping[str, int],
    masks: Masks,
) -> FileList:
    """The data files of add actions. The footers of files without a row count are read.

    Args:
        url: The URL of the table.
        actions: The add actions of delta-rs, flattened.
        keys: The partition keys.
        crc32s: The CRC-32s of files that are known, by path.
        masks: The row masks of files that have one.
    """
    if not actions.num_rows:
        return FileList.of()
    # Arrow counts the bytes of a plain text column with 32 bits: enough for 30 million files.
    logged = actions["path"].cast(pa.large_binary())
    paths = decoded_paths(url, logged)
    selected = ("size_bytes", "num_records", "modification_time", *(f"partition.{k}" for k in keys))
    # One batch, as the rows that are taken are one chunk.
    [ordered] = (
        actions.select(selected)
        .append_column("path", paths)
        .take(pc.sort_indices(paths))
        .to_batches()
    )
    columns = {
        "path": ordered["path"],
        "size_bytes": narrow(ordered["size_bytes"]),
        "num_rows": narrow(ordered["num_records"]),
        "version": ordered["modification_time"].cast(pa.string()).dictionary_encode(),
    }
    if paths is not logged:
        decoded = [text_of(path) for path in columns["path"].to_pylist()]
        if any(map(is_whole, decoded)):
            columns["url"] = texts(p if is_whole(p) else join(url, p) for p in decoded)
    if crc32s:
        # The last one, -1, is for files of commits that were not read.
        known = numbers([*crc32s.values(), -1])
        found = pc.index_in(columns["path"], value_set=texts(crc32s))
        columns["crc32"] = known.take(pc.coalesce(found, numbers([len(crc32s)])[0]))
    place, places = _places({key: ordered[f"partition.{key}"] for key in keys}, len(ordered))
    root = f"{join(url)}/"
    if len(masks.paths):
        # The last one is for files without a mask.
        found = pc.index_in(columns["path"], value_set=masks.paths)
        of = pc.coalesce(found, numbers([len(masks.paths)])[0])
        columns["mask"] = pa.concat_arrays([masks.texts, texts([""])]).take(of)
    files = FileList(columns=columns, root=root, place=place, places=places).sorted()
    return _counted(url, files)


def _places(keys: Mapping[str, pa.Array], num_files: int) -> tuple[Numbers, list[Partition]]:
    """The index of each file's partition, and the partitions."""
    place: Numbers = np.zeros(num_files, np.int64)
    places = [dict[str, str | None]()]
    for key, values in keys.items():
        encoded = values.dictionary_encode(null_encoding="encode")
        found = list(map(_text, encoded.dictionary.to_pylist()))
        # Both indices in one number, which then becomes an index of the pairs that occur.
        pairs = numbers(place * len(found) + np.from_dlpack(encoded.indices)).dictionary_encode()
        place = np.from_dlpack(pairs.indices).astype(np.int64)
        places = [
            {**places[pair // len(found)], key: found[pair % len(found)]}
            for pair in pairs.dictionary.to_pylist()
        ]
    return place.astype(np.int32), list(places)


def _counted(url: str, files: FileList) -> FileList:
    """The files, with the rows of their footers where the log does not tell them."""
    rows = files.columns["num_rows"]
    if not rows.null_count and (pc.min(rows).as_py() or 0) >= 0:
        return files
    known = rows.to_pylist()
    unknown = [index for index, count in enumerate(known) if count is None or count < 0]
    gone = f"the log of {redact(url)} names it; restore it, or remove it from the log (FSCK REPAIR)"
    urls = list(files.urls)
    counted = each_footer(
        (urls[i] for i in unknown), lambda footer: footer.num_rows, lambda _: gone
    )
    for index, count in zip(unknown, counted, strict=True):
        known[index] = count
    return replace(files, columns={**files.columns, "num_rows": narrow(numbers(known))})


def _text(value: object) -> str | None:
    """A partition value as text that casts back to its type."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


class VersionTakenError(Exception):
    """Another writer published the version first. Nothing of this attempt is visible."""


def is_mirrored(url: str) -> bool:
    """Whether delta-rs works on a copy of the log, instead of the store itself."""
    return scheme(url) in HADOOP_SCHEMES


# The mirrors of this process, by URL, and the lock of this mapping, which is taken alone.
_mirrors: "dict[str, LogMirror]" = {}
_mirrors_lock = module_lock()


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
    was rewritten at the same URL, has another time. `_last_checkpoint` is not copied: it is a
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
