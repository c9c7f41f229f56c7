"""The clock by which leases are judged: the system's, or another where time is simulated."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time, and waiting by it. Used by several threads at once."""

    def now_s(self) -> float:
        """Seconds since some moment in the past."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Waits until the event is set, `timeout_s` seconds at most. Whether it is set."""
        ...


class SystemClock:
    """The monotonic clock of the operating system."""

    def now_s(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


SYSTEM_CLOCK = SystemClock()
