"""The clock by which leases expire: the system's, or a simulated one in tests."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time, and waiting by it. Safe for several threads."""

    def now_s(self) -> float:
        """Seconds since some moment in the past."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Waits at most `timeout_s` seconds for the event. Returns whether it is set."""
        ...


class SystemClock:
    """The monotonic clock of the operating system."""

    def now_s(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """See `Clock`."""
        return event.wait(timeout_s)


SYSTEM_CLOCK = SystemClock()
