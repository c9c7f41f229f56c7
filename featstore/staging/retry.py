"""Which failures of downloads are tried again, and a backoff that can be stopped."""

import errno
import logging
import threading
import time

from featstore.base.errors import StagingError

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
# A refused request (4xx but 408 and 429, docs/design/staging.md); and a local disk that is full,
# over quota or read-only, or takes no file of that size.
_LASTING = (errno.EINVAL, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def is_retryable(error: BaseException) -> bool:
    """Whether a failure may pass: a broken or stalled connection, or a server in trouble."""
    if isinstance(error, OSError):
        return not isinstance(error, _FINAL) and error.errno not in _LASTING
    return isinstance(error, EOFError)


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
