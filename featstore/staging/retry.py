"""Which failures of a download are worth another attempt, after which pause, and waiting that can
be stopped.
"""

import errno
import logging
import threading
import time
from dataclasses import dataclass

from featstore.errors import StagingError

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1
LOG_EVERY_S = 60.0

# A file that is not there, or refused, will be so again; and what featstore itself found wrong.
_HOPELESS = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    StagingError,
)
_REFUSED = errno.EINVAL
_LOCAL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Pauses double from `first_pause_s` to `longest_pause_s`; the last `max_attempts`-th failure
    in a row is final.

    Failures are in a row until `progress_bytes` came in between. A stream that brings fewer than
    `stall_bytes` while it is waited for `stall_s` has failed, too.
    """

    max_attempts: int = 5
    first_pause_s: float = 0.2
    longest_pause_s: float = 30.0
    progress_bytes: int = 1 << 20
    stall_s: float = 60.0
    stall_bytes: int = 64 << 10

    def pause_s(self, num_failures: int, draw: float) -> float:
        """The pause after so many failures in a row; `draw`, in [0, 1), spreads those who failed
        together over its half.
        """
        longest_s = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(num_failures - 1, 64))
        return longest_s * (0.5 + draw / 2)

    def is_stalled(self, num_bytes: int, waited_s: float) -> bool:
        """Whether a stream that brought so much in so long only trickles."""
        return waited_s >= self.stall_s and num_bytes < self.stall_bytes

    def gives_up(self, num_failures: int) -> bool:
        """Whether that was the last attempt."""
        return num_failures >= self.max_attempts


def is_retryable(error: BaseException) -> bool:
    """Whether the transport failed in a way that may pass: a broken or stalled connection, a server
    in trouble.
    """
    if isinstance(error, _HOPELESS) or not isinstance(error, OSError | EOFError):
        return False
    return not isinstance(error, OSError) or (error.errno != _REFUSED and not is_local(error))


def is_local(error: BaseException) -> bool:
    """Whether it is the local disk that failed."""
    return isinstance(error, OSError) and error.errno in _LOCAL


class Stopped(Exception):
    """The stager was closed in the middle of its work."""


class StoppableBackoff:
    """Pauses that grow to a limit, end when `stop` is set, and are told of in the log when they add
    up.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop, self._since = stop, time.monotonic()
        self._pause_s, self._told_at = _FIRST_PAUSE_S, self._since

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self._since

    def wait(self, why: str) -> None:
        """One pause; raises Stopped once `stop` is set."""
        if self._stop.wait(self._pause_s):
            raise Stopped
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if time.monotonic() - self._told_at >= LOG_EVERY_S:
            self._told_at = time.monotonic()
            _LOG.warning("%s (%.0f s so far)", why, self.waited_s)
