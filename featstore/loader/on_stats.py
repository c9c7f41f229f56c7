"""Hands the metrics of a loader to the user's function while it runs."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from featstore.base.errors import ConfigError
from featstore.loader.request.options import as_options, function_of


@dataclass(frozen=True, kw_only=True)
class OnStats:
    """What is done with the metrics of a loader while it runs.

    Attributes:
        call: A function of `FeatureLoader.stats()`, or its name as `package.module:function`.
        every_s: Seconds from one call to the next, at least.

    Raises:
        ConfigError: There is no such function, or `every_s` is below 0.
    """

    call: Callable[[dict[str, Any]], object] | str
    every_s: float = 15.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "call", function_of("on_stats.call", self.call))
        if (
            isinstance(self.every_s, bool)
            or not isinstance(self.every_s, int | float)
            or not self.every_s >= 0
        ):
            raise ConfigError(
                f"on_stats.every_s: expected seconds, 0 or more, found {self.every_s!r}"
            )


def on_stats_options(
    option: OnStats | Mapping[str, Any] | Callable[[dict[str, Any]], object] | str | None,
) -> OnStats | None:
    """The options, as a config or a caller gives them."""
    if isinstance(option, str) or callable(option):
        return OnStats(call=option)
    return as_options(OnStats, option, "on_stats")


class StatsCalls:
    """Calls the function at the pace of the batches, in the thread that asks for them.

    Args:
        options: The function and its pace; None calls nothing.
        clock: Tells seconds.
    """

    def __init__(
        self, options: OnStats | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options, self._clock = options, clock
        self._next_s = clock()

    def tell(self, stats: Callable[[], dict[str, Any]], *, is_last: bool) -> None:
        """Calls the function if it is time to, or the iteration has ended. Raises what it raises.

        Args:
            stats: Makes the metrics.
            is_last: Whether the iteration has ended by itself.
        """
        if self._options is None:
            return
        now_s = self._clock()
        if is_last or now_s >= self._next_s:
            self._next_s = now_s + self._options.every_s
            assert callable(self._options.call)
            self._options.call(stats())
