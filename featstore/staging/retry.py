"""The retry policy of downloads: which failures are tried again and after which pause, and a
backoff that can be stopped.
"""

import errno
import logging
import threading
import time
from dataclasses import dataclass

from featstore.errors import StagingError

_LOG = logging.getLogger(__name__)
# Pauses of a process that waits for room in the cache, or for another one's download: it looks at
# the cache again after each. Longer ones are idle time once there is room; shorter ones lock the
# cache's directory more often for all processes of the host.
_FIRST_PAUSE_S = 0.005
_MAX_PAUSE_S = 0.1
LOG_EVERY_S = 60.0  # A long wait is logged this often.

# A file that is missing or refused will be so again, and so will what featstore itself found wrong.
_FINAL = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    StagingError,
)
# A refused request is raised as this errno (4xx but 408 and 429, docs/design/staging.md).
_REFUSED = errno.EINVAL
_LOCAL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """When a failed download is tried again. Pauses double after each failure.

    Attributes:
        retry_s: A failure so long after the first one in a row is final. Stores that fail over, and
            name nodes that start, take a minute.
        max_attempts: So many failures in a row are final, too; None: only the time counts.
        max_starts: So often a file is downloaded from its beginning that was replaced meanwhile, or
            whose bytes are not those that were written.
        first_pause_s: The pause after the first failure.
        longest_pause_s: The longest pause, unless the store asks for a longer one. So much later
            than it could a download goes on.
        progress_bytes: This many bytes between two failures begin a new row.
        stall_s: A stream has also failed if it brings too few bytes while it is waited for so long
            (docs/design/staging.md). A shorter time cuts stores that take long to find an object.
        stall_bytes: Fewer bytes than this in `stall_s` are too few.
    """

    retry_s: float = 120.0
    max_attempts: int | None = None
    max_starts: int = 5
    first_pause_s: float = 0.2
    longest_pause_s: float = 10.0
    progress_bytes: int = 1 << 20
    stall_s: float = 60.0
    stall_bytes: int = 64 << 10

    def pause_s(
        self, num_failures: int, draw: float, *, tried_s: float = 0.0, asked_s: float = 0.0
    ) -> float | None:
        """The pause after a failure, with jitter; None if the failure is final. It ends at the
        latest with `retry_s`, when the last attempt is made.

        Args:
            num_failures: Failures in a row, this one included.
            draw: A random number in [0, 1). It spreads workers that failed together over the second
                half of the pause.
            tried_s: Seconds since the first of them.
            asked_s: The least pause that the store asks for.
        """
        if tried_s >= self.retry_s or num_failures == self.max_attempts:
            return None
        # The exponent is bounded because 2.0 ** 1024 overflows.
        longest_s = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(num_failures - 1, 64))
        return min(max(longest_s * (0.5 + draw / 2), asked_s), self.retry_s - tried_s)

    def is_stalled(self, num_bytes: int, waited_s: float) -> bool:
        """Whether a stream that brought `num_bytes` in `waited_s` counts as stalled."""
        return waited_s >= self.stall_s and num_bytes < self.stall_bytes


def is_retryable(error: BaseException) -> bool:
    """Whether a failure may pass: a broken or stalled connection, or a server in trouble."""
    if isinstance(error, _FINAL) or not isinstance(error, OSError | EOFError):
        return False
    return not isinstance(error, OSError) or (error.errno != _REFUSED and not is_local(error))


def is_local(error: BaseException) -> bool:
    """Whether the local disk failed: it is full, over quota or read-only, or takes no file of that
    size.
    """
    return isinstance(error, OSError) and error.errno in _LOCAL_DISK


class Stopped(Exception):
    """Raised in a thread of the stager that is closed while the thread works."""


class StoppableBackoff:
    """Growing pauses that end once `stop` is set. Logs a warning each minute. For one thread."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop, self._since = stop, time.monotonic()
        self._pause_s, self._logged_at = _FIRST_PAUSE_S, self._since

    @property
    def waited_s(self) -> float:
        """Seconds since this backoff was made."""
        return time.monotonic() - self._since

    def wait(self, why: str) -> None:
        """Waits for one pause.

        Args:
            why: What is waited for, for the log.

        Raises:
            Stopped: `stop` is set.
        """
        if self._stop.wait(self._pause_s):
            raise Stopped
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
        if time.monotonic() - self._logged_at >= LOG_EVERY_S:
            self._logged_at = time.monotonic()
            _LOG.warning("%s (%.0f s so far)", why, self.waited_s)
