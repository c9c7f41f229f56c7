"""The files of a Delta log, listed and read here: which versions the log holds, and what their
commits say.

delta-rs takes several failures of a store for absences: its `TableNotFoundError` stands for any, an
entry whose `stat` fails is no entry of the newest version, and its history numbers the commits that
it has read backwards, whichever of them are missing. So what decides over data is held against a
listing of our own. The layout is that of the Delta protocol:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from featstore.errors import DataFileError, StoreError
from featstore.files.listings import list_own
from featstore.files.looks import names_in
from featstore.files.retry import thread_pool
from featstore.files.storage import fetch, join, local_path, modified_s
from featstore.redaction import redact
from featstore.table.layout import LOG_DIR

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*(?:parquet|json)")
# Commits that are read at once from a store: each is one small request.
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
    log_url = join(url, LOG_DIR)
    path = local_path(log_url)
    names = names_in(path) if path is not None else [file.name for file in list_own(log_url)]
    return log_of(names)


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
    return [_parsed(url, version, line) for line in _lines(url, version)]


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
    for line in _lines(url, version):
        if b'"commitInfo"' in line:  # Most lines are long, and of files.
            info |= _parsed(url, version, line).get("commitInfo") or {}
    if not isinstance(info.get("timestamp"), int):
        info["timestamp"] = int(modified_s(commit_url(url, version)) * 1_000)
    return {"operation": "unknown"} | info


def _lines(url: str, version: int) -> list[bytes]:
    file_url = commit_url(url, version)
    content = io.BytesIO()
    try:
        fetch(file_url, content)
        return [line for line in content.getvalue().splitlines() if line.strip()]
    except FileNotFoundError:
        raise StoreError(
            f"{redact(file_url)}: expected the commit that the log lists, found nothing: the log "
            f"changes while it is read; run it again"
        ) from None


def _parsed(url: str, version: int, line: bytes) -> dict[str, Any]:
    try:
        action = json.loads(line)
        if isinstance(action, dict):
            return action
        problem = f"found {type(action).__name__}"
    except ValueError as error:
        problem = str(error)
    raise DataFileError(
        f"{redact(commit_url(url, version))}: expected a JSON object in each line ({problem}); "
        f"restore the file from a copy"
    )
