"""Waiting that ends when it is told to, and that says so in the log when it takes long."""

import logging
import threading
import time

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1
LOG_EVERY_S = 60.0


class Stopped(Exception):
    """The stager was closed in the middle of its work."""


class Patience:
    """Pauses that grow to a limit, end when `stop` is set, and are told of in the log when they add up."""

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
