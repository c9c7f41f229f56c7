"""CPU time that is spent in functions while a whole program runs."""

import time
from collections.abc import Callable
from typing import Any


class Spent:
    """CPU seconds of the calls that were timed, by name. A call within another one counts as part
    of that one. Not thread-safe.
    """

    def __init__(self) -> None:
        self.cpu_s: dict[str, float] = {}
        self._is_within = False

    def time(self, owner: Any, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            if self._is_within:
                return function(*arguments, **named)
            self._is_within = True
            started = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                self._is_within = False
                self.cpu_s[name] = self.cpu_s.get(name, 0.0) + time.thread_time() - started

        setattr(owner, name, timed)
