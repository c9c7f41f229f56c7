"""The thread that keeps a living worker's leases, and how often it renews them."""

import contextlib
import threading
from collections.abc import Callable

from featstore.dispatch.leases.clock import Clock
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import Store
from featstore.errors import DispatchError

_BEATS_PER_LEASE = 3
# How long ranks in step wait for each other's sign of life at the end of an epoch, at most.
_TAIL_BEAT_S = 0.5
# Looks for such a sign: each is at most a quarter of the time waited so far after it came, eleven
# in the first two seconds.
_FIRST_LOOK_S, _LOOK_GROWTH = 0.05, 1.25


def look_pause_s(num_looks: int, longest_s: float) -> float:
    """Seconds from one look for a sign of life to the next, after so many looks."""
    return min(_FIRST_LOOK_S * _LOOK_GROWTH**num_looks, longest_s)


def renewal_pause_s(lease_s: float) -> float:
    """Seconds between two renewals: three fit into a lease, so that a late one does not end it."""
    return lease_s / _BEATS_PER_LEASE


def in_step_pause_s(lease_s: float, *, num_taken: int, num_left: int, elapsed_s: float) -> float:
    """Seconds to the next renewal of a rank that trains in step with others: short once the plan is
    handed out.

    A rank that has become idle then waits for one renewal of each holder. Before, the pause is half
    of the time that is expected to be left, so that the end is not missed and the store is asked
    little.

    Args:
        lease_s: The lease time in seconds.
        num_taken: Positions of the plan that were handed out in the last `elapsed_s`.
        num_left: Positions that are not handed out.
        elapsed_s: Seconds since the worker began.
    """
    expected_s = elapsed_s * (num_left / num_taken if num_taken else 1)
    shortest_s = min(_TAIL_BEAT_S, renewal_pause_s(lease_s))
    return (
        shortest_s
        if not num_left
        else max(shortest_s, min(expected_s / 2, renewal_pause_s(lease_s)))
    )


class InStepPace:
    """When a rank that trains in step renews next, as the plan's cursor tells it. Used by the
    renewing thread alone.
    """

    def __init__(
        self, store: Store, keys: EpochKeys, num_splits: int, lease_s: float, clock: Clock
    ) -> None:
        self._keys, self._num_splits, self._lease_s, self._clock = keys, num_splits, lease_s, clock
        self._began_s, self._began_at = clock.now_s(), self._num_handed_out(store)

    def pause_s(self, store: Store) -> float:
        """Asks the store for one key."""
        at = self._num_handed_out(store)
        return in_step_pause_s(
            self._lease_s,
            num_taken=at - self._began_at,
            num_left=self._num_splits - at,
            elapsed_s=self._clock.now_s() - self._began_s,
        )

    def _num_handed_out(self, store: Store) -> int:
        return min(int(store.get_or_none(self._keys.cursor) or 0), self._num_splits)


class Renewer:
    """Renews leases with a store handle of its own, which it closes; ends when `closed` is set.

    `pause_s(store)` is asked before each wait.
    """

    def __init__(
        self,
        store: Store,
        pause_s: Callable[[Store], float],
        renew: Callable[[Store], None],
        closed: threading.Event,
        clock: Clock,
    ) -> None:
        self._store, self._pause_s, self._renew, self._closed, self._clock = (
            store,
            pause_s,
            renew,
            closed,
            clock,
        )
        self._thread = threading.Thread(
            target=self._run, name="featstore-lease-renewal", daemon=True
        )
        self._thread.start()

    def join(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(self._store), contextlib.suppress(DispatchError):
            while not self._clock.wait(self._closed, self._pause_s(self._store)):
                self._renew(self._store)
