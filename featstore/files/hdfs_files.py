"""What the two clients of HDFS have in common: when a request is made again, how a file is written,
and which error an exception of a name node becomes.

HDFS shows a file before it is whole. So a file is kept on this machine until it is closed, sent
under a hidden name, and renamed. A file that is sent whole can be sent again, to other data nodes.
"""

import contextlib
import logging
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import IO, Any, TypeVar

from fsspec.spec import AbstractFileSystem

from featstore.base.closing import cleaned_up_on_failure
from featstore.base.named_errors import system_error
from featstore.files.random_reader import RandomReader
from featstore.files.retry import BRIEF, Failures, RetryPolicy
from featstore.files.store_errors import PASSING_WORDS, is_unresolved, retry_after_s

_SPOOLED_BYTES = 8 << 20  # of a file that is being written: larger ones are kept on local disk
# A warning is logged after so many failures in a row, which take less than a second where a
# connection is refused: the budget of time may be minutes, and the port may be a wrong one.
_WARNED_AFTER = 3
# Outside of a budget of time a failure so long after the first one is final, however few they were:
# a host that does not answer, which is most often a wrong one, is told by WebHDFS within 10 s.
_BRIEF_S = 4.0
_PREFIX = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/]*")
# Exceptions of a name node that another one, or a later request, may not raise.
_PASSING = (
    *("StandbyException", "RetriableException", "ObserverRetryOnActiveException"),
    "SafeModeException",
)
_REFUSED = (
    *("AccessControlException", "SecurityException", "AuthenticationException"),
    *("AuthorizationException", "InvalidToken"),
)
_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class HdfsError(OSError):
    """An answer or a connection that failed.

    Attributes:
        is_passing: Whether another request may succeed.
        headers: The headers of the answer.
        tried: How often and how long, where the request was made again.
    """

    tried: str = ""

    def __init__(
        self, text: str, *, is_passing: bool = False, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.is_passing, self.headers = is_passing, headers or {}


class SilentError(HdfsError):
    """Servers were waited for as long as their time limits allow.

    Attributes:
        num_servers: How many could have answered. Each costs a time limit, so outside of a budget
            of time as many attempts are made, and no more.
    """

    def __init__(self, text: str, num_servers: int = 1) -> None:
        super().__init__(text, is_passing=True)
        self.num_servers = num_servers


def remote_error(name: str, words: str, where: str) -> OSError:
    """The error for an exception of a name node or data node. Pure.

    Args:
        name: The class of the exception, without its package.
        words: Its message. Only the first line is for users.
        where: Who answered.
    """
    text = f"{name}: {words.partition(chr(10))[0]} ({where})"
    if name == "FileNotFoundException":
        return FileNotFoundError(text)
    if name in ("FileAlreadyExistsException", "AlreadyBeingCreatedException"):
        return FileExistsError(text)
    if name in _REFUSED:
        return PermissionError(text)
    return HdfsError(text, is_passing=name in _PASSING or PASSING_WORDS.search(text) is not None)


class HdfsFiles(AbstractFileSystem):  # type: ignore[misc]
    """A file system of one name service, for fsspec. Threads may share it.

    Subclasses have `info` and `ls` of fsspec, which also report `mtime`, the seconds since the
    epoch; and what is declared here.

    Args:
        retry: When a failed request is made again.
    """

    def __init__(self, retry: RetryPolicy = BRIEF, **options: Any) -> None:
        super().__init__(**options)
        self._retry = retry

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Renames a file in one step, or a directory.

        Raises:
            FileExistsError: The target exists, and is not to be overwritten.
            FileNotFoundError: There is nothing at the source.
        """
        raise NotImplementedError

    def remove_once(self, path: str) -> None:
        """Removes a file, or an empty directory, by one attempt."""
        raise NotImplementedError

    def create(self, path: str, data: IO[bytes]) -> None:
        """Writes a file of any content, from the data's beginning. It may be seen before it is
        whole.
        """
        raise NotImplementedError

    def reader(self, path: str) -> "HdfsReader":
        """A reader of a file."""
        raise NotImplementedError

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return _PREFIX.sub("", path).rstrip("/") or "/"

    def again(self, act: Callable[[], _Result]) -> _Result:
        """The result of `act`, which is called again after failures that may pass."""
        failures = Failures()
        while True:
            try:
                return act()
            except HdfsError as error:
                self._pause(failures, error)

    def _pause(self, failures: Failures, error: HdfsError) -> None:
        """Waits after a failure. Raises it if it is final."""
        policy = self._retry
        if is_unresolved(str(error)):  # It is most often misspelled.
            policy = replace(policy, max_attempts=BRIEF.max_attempts)
        elif policy.max_attempts is not None:
            if isinstance(error, SilentError):
                policy = replace(policy, max_attempts=min(policy.max_attempts, error.num_servers))
            else:
                policy = replace(policy, retry_s=min(policy.retry_s, _BRIEF_S))
        asked_s = retry_after_s(error.headers, time.time())
        pause_s = failures.add(policy, asked_s=asked_s) if error.is_passing else None
        if pause_s is None:
            error.tried = failures.told("retry_s", policy) if failures.num else ""
            raise error
        is_told = isinstance(error, SilentError) or failures.num == _WARNED_AFTER
        if is_told and policy.max_attempts is None:
            _LOG.warning(
                "%s; it is asked again until %g s have passed (retry_s)", error, policy.retry_s
            )
        time.sleep(pause_s)

    def rm_file(self, path: str) -> None:
        self.again(partial(self.remove_once, path))

    def modified(self, path: str) -> datetime:
        """The time of the last change of a file's content."""
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        """Renames a file or directory in one step. It never replaces a file.

        Raises:
            OSError: It was not renamed; or it was, the reply was lost, and then there is nothing at
                the old name any more.
        """
        self.rename(path1, path2, overwrite=False)

    def replace(self, source: str, target: str) -> None:
        """Renames a file of a unique name in one step, in place of the file at the target."""
        try:
            self.rename(source, target, overwrite=True)
        except FileNotFoundError:
            # After a lost reply the operation is made again: the source is then gone.
            with contextlib.suppress(FileNotFoundError):
                self.info(target)
                return
            raise

    def upload(self, source: IO[bytes], path: str) -> None:
        """Sends a file of known size, which appears whole under its name, or not at all."""
        size_bytes = source.seek(0, 2)
        directory, _, name = self._strip_protocol(path).rpartition("/")
        partial = f"{directory}/.{name}.{uuid.uuid4().hex[:8]}.partial"
        try:
            self.create(partial, source)
            if (written := self.info(partial)["size"]) != size_bytes:
                raise HdfsError(f"{written:,} of {size_bytes:,} bytes were written")
            self.replace(partial, path)
        except BaseException as error:
            # What cannot be removed now is left to a vacuum.
            if not isinstance(error, SilentError):
                with contextlib.suppress(OSError):
                    self.remove_once(partial)
            raise

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return HdfsWriter(self, path) if mode == "wb" else self.reader(path)


class HdfsReader(RandomReader):
    """An unbuffered reader that streams reads which follow one another. Not thread-safe.

    A request costs as much as some MiB, and bytes that are sent and not read are wasted. So a
    request asks for as many bytes as were read in a row before it, if that is more than is wanted.

    Args:
        client: Has failed requests made again.
        size_bytes: Size of the file.
    """

    def __init__(self, client: HdfsFiles, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._client, self._num_bytes = client, size_bytes
        self._restart(0)

    def stream(self, first: int, num_bytes: int) -> Iterator[bytes]:
        """As `RandomReader.stream`. Raises HdfsError, here or in the iterator."""
        raise NotImplementedError

    def fetch(self, first: int, num_bytes: int) -> bytes:
        return self._client.again(partial(self._fetch, first, num_bytes))

    def _restart(self, first: int) -> None:
        self._next = first  # where the last read ended
        self._row_bytes = 0  # were read in a row up to there
        self._blocks = iter(list[bytes]())  # what comes after `_held`
        self._held = b""
        self._coming_bytes = 0  # in both

    def _fetch(self, first: int, num_bytes: int) -> bytes:
        if first != self._next:
            self._restart(first)
        with cleaned_up_on_failure(partial(self._restart, first)):
            parts = list(self._parts(num_bytes))
        self._next += num_bytes
        self._row_bytes += num_bytes
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _parts(self, num_bytes: int) -> Iterator[bytes]:
        position = self._next
        while num_bytes:
            if not self._coming_bytes:
                rest_bytes = self._num_bytes - position
                self._coming_bytes = min(max(num_bytes, self._row_bytes), rest_bytes)
                self._blocks = self.stream(position, self._coming_bytes)
            block = self._held or next(self._blocks, b"")
            if not block:
                raise HdfsError(
                    f"{self._coming_bytes:,} bytes from {position:,} on did not come",
                    is_passing=True,
                )
            part, self._held = block[:num_bytes], block[num_bytes:]
            yield part
            position, num_bytes = position + len(part), num_bytes - len(part)
            self._coming_bytes -= len(part)


class HdfsWriter:
    """A writer that keeps the file on this machine until it is closed. Not thread-safe.

    Raises DiskFullError or another StoreError that names the place if the file cannot be kept.
    """

    def __init__(self, client: HdfsFiles, path: str) -> None:
        self._client, self._path = client, path
        self._file = tempfile.SpooledTemporaryFile(_SPOOLED_BYTES)  # noqa: SIM115  closed below

    def write(self, data: Any) -> int:
        with self._on_local_disk():
            return self._file.write(data)

    @contextlib.contextmanager
    def _on_local_disk(self) -> Iterator[None]:
        """Has an error of the system in the block say that it is not the store's."""
        try:
            yield
        except OSError as error:
            place = tempfile.tempdir or "TMPDIR"
            raise system_error(
                f"the upload to {self._path} on HDFS cannot be kept in {place} until it is sent",
                error,
                "or point TMPDIR to another disk, then run it again",
            ) from error

    def close(self) -> None:
        """Publishes the file."""
        try:
            with self._on_local_disk():
                self._file.flush()
            self._client.upload(self._file, self._path)
        finally:
            self.discard()

    def discard(self) -> None:
        """Forgets the file."""
        # What is buffered is not wanted any more, and a full disk does not take it.
        with contextlib.suppress(OSError):
            self._file.close()
