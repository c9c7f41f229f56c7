"""When the next request of a download is sent: so early that its bytes come when those before are
there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from featstore.staging.cost import Remote
from featstore.staging.filling import NEVER, Filling
from featstore.staging.ranges import Span, num_bytes

# What several requests are for lies in the buffers of their connections until it is its turn. No
# more than these hold, or a store that serves a later one first would wait for its reader, who
# waits for the store.
_TOGETHER_BYTES = 4 << 20


@dataclass(kw_only=True)
class Lookahead:
    """Called with how many bytes of the current request are still to come; says with how few left
    it wants to be called again, `NEVER` where there is nothing to do before the next request.

    As much is kept under way as `remote()` carries in its window: of short requests several, a long
    one only behind the last bytes before it. `plan()` says what is still to be asked for, None
    where that is decided once all that was asked for is there; `pass_on()` is called when nothing
    is, and another download may begin.
    """

    remote: Callable[[], Remote]
    plan: Callable[[], tuple[Span, ...] | None]
    filling: Filling
    pass_on: Callable[[], None]
    _next_bytes: int = field(default=0, init=False)

    def __call__(self, left_bytes: int) -> int:
        remote = self.remote()
        while left_bytes <= (at_bytes := remote.window_bytes - num_bytes(self.filling.asked)):
            if 1 + len(self.filling.asked) >= remote.num_at_once > 1:
                return NEVER
            if left_bytes > self._together_bytes:
                return self._together_bytes
            following = self.plan()
            if following == ():
                self.pass_on()
            if not following or remote.num_at_once == 1:
                return NEVER
            self._next_bytes = num_bytes(following[:1])
            if left_bytes > self._together_bytes:
                return self._together_bytes
            self.filling.ask(*following[0])
            self._next_bytes = 0
        return at_bytes

    @property
    def _together_bytes(self) -> int:
        """With how few left the next request may be one of several."""
        asked_bytes = num_bytes(self.filling.asked)
        return (
            _TOGETHER_BYTES - asked_bytes - self._next_bytes
            if asked_bytes
            else self.remote().window_bytes
        )
