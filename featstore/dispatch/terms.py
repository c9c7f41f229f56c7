"""Claims on splits, the terms on which a worker holds them, and the clock of leases."""

import enum
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from featstore.base.processes import cached_property
from featstore.dispatch.plan import Split


class WaitFor(enum.Enum):
    """What a worker waits for that finds nothing to claim.

    `ALL`: every lease is final. `SILENT`: each open lease has a holder that was seen to renew it
    since the waiting began, or has expired. `NOTHING`: it does not wait.
    """

    ALL = "all"
    SILENT = "silent"
    NOTHING = "nothing"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """When a lease ends; equal for all workers of an epoch.

    Attributes:
        lease_s: Seconds after which a worker that does not renew its leases loses its splits.
        stall_s: Seconds after which a worker that renews its leases but makes no progress loses its
            splits.
        max_failures: A split is quarantined when this many claims on it in a row have failed
            without an acknowledged row.
        in_step: Whether workers meet in a collective operation at each step, so that none of them
            may wait for rows that a living one holds. Leases are then renewed every half second at
            the end of the plan, which shows quickly which workers live.
        reserve_s: For how many seconds of its loop a worker reserves rows: those are its own,
            idle workers may take the others.
    """

    lease_s: float = 60.0
    stall_s: float = 1800.0
    max_failures: int = 5
    in_step: bool = False
    reserve_s: float = 2.0

    @property
    def report_s(self) -> float:
        """Seconds between two acknowledgements: three quarters of `reserve_s`, so that a
        reservation is renewed before it is used up. At most a quarter of a lease: a worker that
        stood still for a whole one learns soon whether its claims were taken over. At least 0.05,
        so that the thread that acknowledges takes no core from the loop.
        """
        return max(0.05, min(0.75 * self.reserve_s, self.lease_s / 4))

    @property
    def leave_s(self) -> float:
        """Seconds for which a worker that is about to end waits for a store that does not answer,
        to give back what it holds: others have it after a lease in any case.
        """
        return self.lease_s / 4


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to deliver rows of one split, counted in the order of delivery.

    Made by the coordinator, or by the orders in which claims are computed. Consumed by the
    `SliceSource`. It is valid until the lease is completed, released or lost.

    Attributes:
        index: The split's position in the plan.
        split: The split.
        fence: Counts the claims on this part of the split.
        start_row: The first row to deliver; those before it are delivered.
        part: The row at which this part was cut off the split; 0 for the split itself.
        end_row: The row after the last one, or less, as `Coordinator.reserve` says.
    """

    index: int
    split: Split
    fence: int
    start_row: int = 0
    part: int = 0
    end_row: int = 0

    @cached_property  # Asked for with each batch.
    def key(self) -> tuple[int, int, int]:
        """Identifies the claim among all that a worker makes in an epoch, which may include several
        on one split.
        """
        return (self.index, self.part, self.fence)


class Clock:
    """Monotonic time, and waiting by it: the operating system's; tests have a simulated one. Safe
    for several threads.
    """

    def now_s(self) -> float:
        """Seconds since some moment in the past."""
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Waits at most `timeout_s` seconds for the event. Returns whether it is set."""
        return event.wait(timeout_s)


class AnsweredClock(Clock):
    """The time by which leases of others are judged: without that in which the store did not answer
    this process, and perhaps neither their holders.

    Args:
        clock: The time with it.
        unanswered_s: Returns how much that was, `StoreAddress.unanswered_s`.
    """

    def __init__(self, clock: Clock, unanswered_s: Callable[[], float]) -> None:
        self._clock, self._unanswered_s = clock, unanswered_s

    def now_s(self) -> float:
        return self._clock.now_s() - self._unanswered_s()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return self._clock.wait(event, timeout_s)


SYSTEM_CLOCK = Clock()
