"""When a failed request is sent again: the policy that all clients of stores, and downloads of
staging, follow; and time limits for clients that have none.

obstore and delta-rs retry by themselves and take the policy as options; the clients of HDFS, and
downloads of staging, count their failures with `Failures`.
"""

import contextlib
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import TypeVar

from featstore.base.errors import require_seconds

NO_LIMIT = 1_000_000  # of a client's retries, so that only the time counts
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """When a failed download is tried again. Pauses double after each failure.

    Attributes:
        retry_s: A failure so long after the first one in a row is final. Stores that fail over, and
            name nodes that start, take a minute.
        max_attempts: So many failures in a row are final, too; None: only the time counts.
        max_starts: So often a file is downloaded from its beginning that was replaced meanwhile, or
            whose bytes are not those that were written.
        first_pause_s: The pause after the first failure.
        longest_pause_s: The longest pause, unless the store asks for a longer one. So much later
            than it could a download goes on.
        progress_bytes: This many bytes between two failures begin a new row.
        stall_s: A stream has also failed if it brings too few bytes while it is waited for so long
            (docs/design/staging.md). A shorter time cuts stores that take long to find an object.
        stall_bytes: Fewer bytes than this in `stall_s` are too few.
    """

    retry_s: float = 120.0
    max_attempts: int | None = None
    max_starts: int = 5
    first_pause_s: float = 0.2
    longest_pause_s: float = 10.0
    progress_bytes: int = 1 << 20
    stall_s: float = 60.0
    stall_bytes: int = 64 << 10

    def pause_s(
        self, num_failures: int, draw: float, *, tried_s: float = 0.0, asked_s: float = 0.0
    ) -> float | None:
        """The pause after a failure, with jitter; None if the failure is final. It ends at the
        latest with `retry_s`, when the last attempt is made.

        Args:
            num_failures: Failures in a row, this one included.
            draw: A random number in [0, 1). It spreads workers that failed together over the second
                half of the pause.
            tried_s: Seconds since the first of them.
            asked_s: The least pause that the store asks for.
        """
        if tried_s >= self.retry_s or num_failures >= (self.max_attempts or math.inf):
            return None
        # The exponent is bounded because 2.0 ** 1024 overflows.
        longest_s = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(num_failures - 1, 64))
        return min(max(longest_s * (0.5 + draw / 2), asked_s), self.retry_s - tried_s)

    @property
    def max_retries(self) -> int:
        """The most retries after the first attempt, for a client that takes a number."""
        return NO_LIMIT if self.max_attempts is None else self.max_attempts - 1

    def is_stalled(self, num_bytes: int, waited_s: float) -> bool:
        """Whether a stream that brought `num_bytes` in `waited_s` counts as stalled."""
        return waited_s >= self.stall_s and num_bytes < self.stall_bytes


# Of a request outside of `retrying`. Downloads, which have a policy of their own, retry beyond it.
BRIEF = RetryPolicy(max_attempts=5, first_pause_s=0.1)
ONCE = RetryPolicy(max_attempts=1)
_current = ContextVar("retry_policy", default=BRIEF)


def current_policy() -> RetryPolicy:
    """The policy of the clients that this thread asks for now."""
    return _current.get()


@contextlib.contextmanager
def retrying(policy: RetryPolicy) -> Iterator[None]:
    """Has the clients of stores that are asked for in the block retry by a policy: those of this
    thread, and of threads of a `thread_pool` that is made in it.
    """
    before = _current.set(policy)
    try:
        yield
    finally:
        _current.reset(before)


def retrying_for(retry_s: float) -> contextlib.AbstractContextManager[None]:
    """As `retrying`, by the usual policy with this budget.

    Raises:
        ConfigError: It is no number of seconds.
    """
    return retrying(RetryPolicy(retry_s=require_seconds("retry_s", retry_s)))


def retry_in_process(policy: RetryPolicy) -> None:
    """As `retrying`, for the rest of this thread: the initializer of a pool of processes, with
    `current_policy()`.
    """
    _current.set(policy)


def thread_pool(num_threads: int, name: str = "") -> ThreadPoolExecutor:
    """A pool of threads that have the caller's context: its policy, and its span of a trace."""
    return ThreadPoolExecutor(num_threads, name, initializer=_adopt, initargs=(copy_context(),))


def _adopt(context: Context) -> None:
    for variable, value in context.items():
        variable.set(value)


@dataclass(kw_only=True)
class Failures:
    """The failures in a row of one request. For one thread."""

    num: int = 0
    tried_s: float = 0.0
    _since_s: float = field(default_factory=time.monotonic)

    def add(self, policy: RetryPolicy, *, asked_s: float = 0.0) -> float | None:
        """Counts a failure. The pause before the next attempt; None if there is to be none."""
        now_s = time.monotonic()
        if self.num == 0:
            self._since_s = now_s
        self.num, self.tried_s = self.num + 1, now_s - self._since_s
        return policy.pause_s(self.num, random.random(), tried_s=self.tried_s, asked_s=asked_s)

    def told(self, name: str, policy: RetryPolicy) -> str:
        """As `gave_up`; nothing if the policy has no budget of time."""
        if policy.max_attempts is not None:
            return ""
        return gave_up(self.num, self.tried_s, name, policy.retry_s)


def gave_up(num_attempts: int, tried_s: float, name: str, retry_s: float) -> str:
    """How often and how long a request was tried, to be put after the failure in a message.

    Args:
        num_attempts: The attempts.
        tried_s: The seconds from the first failure to the last.
        name: The option of the budget of time.
        retry_s: The budget.
    """
    return f"; gave up after {num_attempts} attempts in {tried_s:.0f} s ({name} is {retry_s:g})"


def with_time_limit(act: Callable[[], _Result], limit_s: float, awaited: str) -> _Result:
    """The result of `act`, or TimeoutError after `limit_s`.

    A call that hangs cannot be cancelled. Its daemon thread ends when the call returns.

    Args:
        act: The call.
        limit_s: The time limit.
        awaited: What it waits for, for the message.
    """
    result: Future[_Result] = Future()

    def run() -> None:
        try:
            result.set_result(act())
        except BaseException as error:  # noqa: BLE001  a thread's boundary: the waiter raises it
            result.set_exception(error)

    threading.Thread(target=run, name="featstore-limited", daemon=True).start()
    try:
        return result.result(limit_s)
    except TimeoutError:
        if result.done():  # the call itself raised it
            raise
        raise TimeoutError(f"no {awaited} came in {limit_s:.0f} s") from None
