"""A clock for tests: time passes only while every thread that uses it waits."""

import threading

from featstore.dispatch.terms import Clock
from tests.process import await_that


class SimulatedClock(Clock):
    """A clock in simulated time, independent of the machine's
    speed. The thread that made it and every thread that has waited once take part. Once all of them
    wait, time jumps to the earliest moment that one of them waits for. A thread that does anything
    else stops the clock.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self._changed = threading.Condition()
        self._waiting: dict[threading.Thread, float] = {}
        self._taking_part = {threading.current_thread()}

    def now_s(self) -> float:
        with self._changed:
            return self._now_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        me = threading.current_thread()
        with self._changed:
            until_s = self._now_s + timeout_s
            self._taking_part.add(me)
            self._waiting[me] = until_s
            try:
                while not event.is_set() and self._now_s < until_s:
                    if self._all_wait() and until_s == min(self._waiting.values()):
                        self._now_s = until_s
                        self._changed.notify_all()
                    else:
                        self._changed.wait(0.001)  # An event that is set tells nobody here.
            finally:
                del self._waiting[me]
        return event.is_set()

    def sleep(self, duration_s: float) -> None:
        """Lets time pass for the calling thread."""
        self.wait(threading.Event(), duration_s)

    def await_threads(self, num_threads: int) -> None:
        """Waits, in real time, until so many threads take part: one that has begun does so only
        once it has waited, and time passes without it before.
        """
        await_that(lambda: len(self._taking_part) >= num_threads)

    def leave(self) -> None:
        """The calling thread takes no part any more, until it waits again."""
        with self._changed:
            self._taking_part.discard(threading.current_thread())

    def join(self, thread: threading.Thread) -> None:
        """Waits for the end of a thread. Until then the calling thread does not take part."""
        with self._changed:
            self._taking_part.discard(threading.current_thread())
        thread.join(300)
        assert not thread.is_alive(), "a thread hangs"
        with self._changed:
            self._taking_part.add(threading.current_thread())

    def _all_wait(self) -> bool:
        return all(thread in self._waiting or not thread.is_alive() for thread in self._taking_part)
