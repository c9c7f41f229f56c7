"""The thread that renews a worker's leases, and how often it does."""

import contextlib
import threading
from collections.abc import Callable

from featstore.base.errors import DispatchError
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import Store
from featstore.dispatch.terms import Clock

# Two renewals may be late or lost before a lease expires. More of them load the store: at 10,000
# workers renewals are a part of 15,000 exchanges per second (benchmarks/dispatch_simulation.md).
_BEATS_PER_LEASE = 3
# At the end of an epoch a rank that trains in step waits for one renewal of each holder: at most
# this long (docs/dispatch.md). No cost was seen (benchmarks/epoch_barrier.md); longer delays each
# epoch's end, shorter writes more often while the last splits are read.
_TAIL_BEAT_S = 0.5
# Pauses between two looks for such a renewal, growing by a quarter: so each renewal is noticed
# after at most a quarter of the time waited so far, with eleven looks in the first two seconds.
_FIRST_LOOK_S, _LOOK_GROWTH = 0.05, 1.25


def look_pause_s(num_looks: int, longest_s: float) -> float:
    """Seconds to wait for a sign of life before the next look, after `num_looks` of them."""
    return min(_FIRST_LOOK_S * _LOOK_GROWTH**num_looks, longest_s)


def renewal_pause_s(lease_s: float) -> float:
    """Seconds between two renewals: a third of a lease, so that a late one does not end it."""
    return lease_s / _BEATS_PER_LEASE


def in_step_pause_s(lease_s: float, *, num_taken: int, num_left: int, elapsed_s: float) -> float:
    """Seconds to the next renewal of a rank that trains in step with others.

    Once the plan is handed out the pause is short, because idle ranks wait for one renewal of each
    holder. Before that it is half of the time that the rest of the plan is expected to take, so
    that the end is not missed and the store is asked rarely.

    Args:
        lease_s: The lease time in seconds.
        num_taken: Positions of the plan that were handed out in the last `elapsed_s`.
        num_left: Positions that are not handed out yet.
        elapsed_s: Seconds since the worker began.
    """
    # Before the first position was handed out, as much time is expected as has passed.
    expected_s = elapsed_s * (num_left / num_taken if num_taken else 1)
    shortest_s = min(_TAIL_BEAT_S, renewal_pause_s(lease_s))
    return (
        shortest_s
        if not num_left
        else max(shortest_s, min(expected_s / 2, renewal_pause_s(lease_s)))
    )


class InStepPace:
    """When a rank that trains in step renews next, measured by the plan's cursor.

    Only the renewing thread uses it.

    Args:
        store: A handle to read the cursor with at the beginning.
        keys: The epoch's keys.
        num_splits: Splits of the plan.
        lease_s: The lease time in seconds.
        clock: The clock that rates are measured by.
    """

    def __init__(
        self, store: Store, keys: EpochKeys, num_splits: int, lease_s: float, clock: Clock
    ) -> None:
        self._keys, self._num_splits, self._lease_s, self._clock = keys, num_splits, lease_s, clock
        self._began_s, self._began_at = clock.now_s(), self._num_handed_out(store)

    def pause_s(self, store: Store) -> float:
        """Seconds to the next renewal. Reads one key of the store."""
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
    """A thread that renews leases until `closed` is set, or the store is lost.

    Args:
        store: A handle of the thread's own; the thread closes it.
        pause_s: Returns the seconds to wait before the next renewal.
        renew: Renews all leases that the worker holds.
        on_failure: Called with the error if the store is lost; the thread ends then.
        closed: Ends the thread once it is set.
        clock: The clock to wait by.
    """

    def __init__(
        self,
        store: Store,
        pause_s: Callable[[Store], float],
        renew: Callable[[Store], None],
        on_failure: Callable[[DispatchError], None],
        closed: threading.Event,
        clock: Clock,
    ) -> None:
        self._store, self._pause_s, self._renew = store, pause_s, renew
        self._on_failure, self._closed, self._clock = on_failure, closed, clock
        self._thread = threading.Thread(
            target=self._run, name="featstore-lease-renewal", daemon=True
        )
        self._thread.start()

    def hurry(self, wait_s: float) -> None:
        """Lets the thread wait so many seconds more for a store that does not answer."""
        self._store.wait_at_most(wait_s)

    def join(self) -> None:
        """Waits for the thread to end. Returns at once if the thread itself calls it."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(self._store):
            try:
                while not self._clock.wait(self._closed, self._pause_s(self._store)):
                    self._renew(self._store)
            except DispatchError as error:
                self._on_failure(error)
