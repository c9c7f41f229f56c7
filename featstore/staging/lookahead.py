"""When the next request of a download is sent: early enough that its bytes come when those before
are here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import dropwhile

from featstore.base.intervals import Span, num_bytes
from featstore.staging.filling import Filling
from featstore.staging.remote import Remote

NEVER = -1
# What several requests are for waits in the buffers of their connections until it is read. Those
# hold about so much: with more a store that serves a later request first would wait for its reader,
# who waits for the store.
_TOGETHER_BYTES = 4 << 20


@dataclass(kw_only=True)
class RequestsAhead:
    """Keeps requests of one download in flight, ahead of the one whose bytes come.

    As much is kept in flight as the store's window carries: of short requests several, a long one
    only behind the last bytes before it.

    Attributes:
        choose: Chooses the requests that remain.
        remote: What is known of the store now.
        filling: The file that is downloaded.
        pass_on: Called when nothing is left to request, and another download may begin.
    """

    choose: Callable[[], tuple[Span, ...]]
    remote: Callable[[], Remote]
    filling: Filling
    pass_on: Callable[[], None]
    _chosen: tuple[Span, ...] = field(default=(), init=False)
    _chosen_for: Remote | None = field(default=None, init=False)
    _num_broken: int = field(default=0, init=False)
    _next_bytes: int = field(default=0, init=False)

    def remaining(self) -> tuple[Span, ...]:
        """The requests that are still to be sent. They are chosen again only when what is known of
        the store has changed, or a request broke: choosing takes as long as receiving a short
        request.
        """
        remote, num_broken = self.remote(), self.filling.num_broken
        # With a request that breaks those in flight are dropped, and the choice before may have
        # left them out.
        if (
            self._chosen_for is None
            or not remote.is_near(self._chosen_for)
            or num_broken != self._num_broken
        ):
            self._chosen, self._chosen_for, self._num_broken = self.choose(), remote, num_broken
        # They are sent in their order, so those that come are the first ones.
        self._chosen = tuple(dropwhile(self.filling.is_coming, self._chosen))
        return self._chosen

    def fetch(self, first: int, end: int) -> None:
        """Downloads one span, and sends the requests that become due meanwhile."""
        for attempt in self.filling.attempts(first, end):
            due_bytes = end - first
            for left_bytes in attempt:
                if left_bytes <= due_bytes:
                    due_bytes = self._send(left_bytes)

    def _send(self, left_bytes: int) -> int:
        """Sends the requests that are due while `left_bytes` of the current one are missing.

        Returns:
            At how many missing bytes another may be due; `NEVER`: not before the current one ends.
        """
        remote = self.remote()
        while left_bytes <= (window_bytes := remote.window_bytes - self._in_flight_bytes):
            if 1 + len(self.filling.in_flight) >= remote.num_at_once > 1:
                return NEVER
            if left_bytes > self._together_bytes:
                return self._together_bytes
            following = self.remaining()
            if not following:
                self.pass_on()
            if not following or remote.num_at_once == 1:
                return NEVER
            self._next_bytes = num_bytes(following[:1])
            if left_bytes > self._together_bytes:
                return self._together_bytes
            self.filling.send(*following[0])
            self._next_bytes = 0
        return window_bytes

    @property
    def _in_flight_bytes(self) -> int:
        return num_bytes(self.filling.in_flight)

    @property
    def _together_bytes(self) -> int:
        """At how many missing bytes the next request may join those in flight."""
        if not self._in_flight_bytes:
            return self.remote().window_bytes
        return _TOGETHER_BYTES - self._in_flight_bytes - self._next_bytes
