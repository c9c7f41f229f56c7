"""When the next request of a download is sent: so early that its bytes come when those before are there."""

from collections.abc import Callable
from dataclasses import dataclass, field

from featstore.staging.cost import Remote
from featstore.staging.filling import Filling
from featstore.staging.ranges import Span, num_bytes

# What several requests are for lies in the buffers of their connections until it is its turn. No more than these hold, or a
# store that serves a later one first would wait for its reader, who waits for the store.
_TOGETHER_BYTES = 4 << 20


@dataclass(kw_only=True)
class Lookahead:
    """Called with how many bytes of the current request are still to come. False where there is nothing to do before the next.

    As much is kept under way as `remote()` carries in its window: of short requests several, a long one only behind the last
    bytes before it. `plan()` says what is still to be asked for, None where that is decided once all that was asked for is
    there; `pass_on()` is called when nothing is, and another download may begin.
    """

    remote: Callable[[], Remote]
    plan: Callable[[], tuple[Span, ...] | None]
    filling: Filling
    pass_on: Callable[[], None]
    _next_bytes: int = field(default=0, init=False)

    def __call__(self, left_bytes: int) -> bool:
        remote = self.remote()
        while (under_way_bytes := left_bytes + num_bytes(self.filling.asked)) <= remote.window_bytes:
            if 1 + len(self.filling.asked) >= remote.num_at_once > 1:
                return False
            if self._is_too_much(under_way_bytes):
                return True
            following = self.plan()
            if following == ():
                self.pass_on()
            if not following or remote.num_at_once == 1:
                return False
            self._next_bytes = num_bytes(following[:1])
            if self._is_too_much(under_way_bytes):
                return True
            self.filling.ask(*following[0])
            self._next_bytes = 0
        return True

    def _is_too_much(self, under_way_bytes: int) -> bool:
        """Whether the next request is too long to be one of several."""
        return bool(self.filling.asked) and under_way_bytes + self._next_bytes > _TOGETHER_BYTES
