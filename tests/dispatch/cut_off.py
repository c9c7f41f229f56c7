"""A worker that was cut off from its store."""

from collections.abc import Callable
from typing import Any

from featstore.dispatch.stores.base import Store
from featstore.dispatch.terms import AnsweredClock
from tests.dispatch.simulated_clock import SimulatedClock

OUTAGE_S = 200.0


class CutOff:
    """A handle whose first request for some key is answered late.

    Args:
        inner: Another handle.
        clock: The time that passes.
        key: A part of the key.
        meanwhile: What another worker does once its request is answered, too.

    Attributes:
        clock: The time without the outage.
    """

    def __init__(
        self,
        inner: Store,
        clock: SimulatedClock,
        key: str,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        self._inner, self._key, self._meanwhile = inner, key, meanwhile
        self._clock, self._unanswered_s = clock, 0.0
        self.clock = AnsweredClock(clock, lambda: self._unanswered_s)

    def __getattr__(self, verb: str) -> Any:
        act = getattr(self._inner, verb)

        def call(*arguments: Any) -> Any:
            if self._unanswered_s or self._key not in str(arguments[0]):
                return act(*arguments)
            self._clock.sleep(OUTAGE_S)
            self._unanswered_s = OUTAGE_S
            answer = act(*arguments)
            self._meanwhile()
            return answer

        return call
