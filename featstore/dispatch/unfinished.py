"""What an epoch has left unread: leases that are not final, and whether their holders are alive."""

import json
import logging
import threading
from contextlib import closing
from dataclasses import dataclass

from featstore.base.errors import DispatchError
from featstore.dispatch.epochs import LeaseEntry, read_splits
from featstore.dispatch.lease import FINAL, Lease, LeaseState
from featstore.dispatch.receipt import EpochSize
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import Store, StoreAddress
from featstore.dispatch.survey import Part
from featstore.dispatch.terms import SYSTEM_CLOCK, Clock
from featstore.dispatch.waiting import LeaseWatch, look_pause_s

_LOG = logging.getLogger(__name__)
# Ranks in step renew every 0.5 s at the end of a plan (held.py): three renewals.
_SIGN_OF_LIFE_S = 1.5
# The longest pause between two looks for a renewal. A longer one notices later that all are alive.
_LONGEST_LOOK_S = 1.0
# Leases to name in the log, one line each; the rest is a count.
_MAX_LOGGED, _NOTHING = 20, "[]"


@dataclass(frozen=True, kw_only=True)
class OpenLease:
    """A split, or a part of one, that was not read to its end.

    Attributes:
        epoch: The epoch's number.
        part: The position in the plan, and the row at which the part begins: 0 for a whole split.
        record: The lease; None if nobody has claimed it.
    """

    epoch: int
    part: Part
    record: Lease | None

    @property
    def is_held(self) -> bool:
        """Whether a worker holds the lease, alive or not."""
        return self.record is not None and self.record.state is LeaseState.HELD

    def __str__(self) -> str:
        index, first = self.part
        if self.record is None:
            return (
                f"epoch {self.epoch}, position {index} of the plan from row {first}, claimed by "
                f"nobody"
            )
        rows = f"rows {self.record.rows} to {self.record.limit} of split {self.record.split}"
        who = (
            f"held by worker {self.record.holder}"
            if self.is_held
            else f"given back by worker {self.record.holder}"
        )
        return f"epoch {self.epoch}, {rows}, {who}"


def open_leases(store: Store, keys: EpochKeys) -> list[OpenLease]:
    """The splits and parts of an epoch whose leases are not final now.

    Empty for an epoch that never began.
    """
    text = store.get_or_none(keys.size)
    if text is None:
        return []
    size, found = EpochSize.decode(text), list[OpenLease]()
    complete, low = set(size.complete_before), int(store.get_or_none(keys.low) or 0)
    for index, entries in read_splits(store, keys, range(low, size.num_splits)):
        if index not in complete:
            found += [
                OpenLease(epoch=keys.epoch, part=(index, entry.first), record=entry.record)
                for entry in entries or [_UNCLAIMED]
                if entry.record is None or entry.record.state not in FINAL
            ]
    return found


def silent_leases(
    store: Store,
    keys: EpochKeys,
    wait_s: float,
    closed: threading.Event,
    clock: Clock = SYSTEM_CLOCK,
) -> list[OpenLease]:
    """Waits for signs of life, and returns the held leases of which none was seen.

    Returns at once if nothing is held, and as soon as each held lease was renewed, claimed again or
    given back.

    Args:
        store: The store.
        keys: The epoch's keys.
        wait_s: Seconds to wait at most.
        closed: Ends the wait early once it is set.
        clock: The clock to wait by.
    """
    watch, until, num_looks = LeaseWatch(wait_s), clock.now_s() + wait_s, 0
    watch.begin_waiting()
    while True:
        held = [lease for lease in open_leases(store, keys) if lease.is_held]
        for lease in held:
            watch.is_expired(lease.part, lease.record, clock.now_s())  # Called to note the reading.
        silent = [lease for lease in held if not watch.is_living(lease.part)]
        left_s = until - clock.now_s()
        if (
            not silent
            or left_s <= 0
            or clock.wait(closed, min(look_pause_s(num_looks, _LONGEST_LOOK_S), left_s))
        ):
            return silent
        num_looks += 1


_UNCLAIMED = LeaseEntry(first=0, end=None, record=None)


class UnreadEpochs:
    """Epochs that ended for a rank while other ranks, alive by then, still held rows of them.

    They are noted in the store, because the workers of a DataLoader end with their iteration: one
    worker notes what another one, or the process that started them, reports.

    Args:
        address: The store.
        key: A key of the rank's own, under which the epochs are noted.
        clock: The clock to wait by.
    """

    def __init__(self, address: StoreAddress, key: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._address, self._key, self._clock = address, key, clock

    def note(self, keys: EpochKeys) -> None:
        """Remembers the epoch in the store."""
        with closing(self._address.open()) as store:
            while True:
                text = store.get_or_none(self._key) or ""
                noted = json.dumps([*json.loads(text or "[]"), [keys.prefix, keys.epoch]])
                if store.compare_set(self._key, text, noted) == noted:
                    return

    def log_unread(self) -> None:
        """Logs what is still unread of the noted epochs, and forgets them.

        A lease whose holder is silent now, or that nobody holds, is a warning. Takes at most the
        time in which a living holder renews its lease, and no time if everything was read. A lost
        store is logged, not raised.
        """
        try:
            with closing(self._address.briefly().open()) as store:
                for prefix, epoch in self._take(store):
                    _log_unread(store, EpochKeys(prefix, epoch), self._clock)
        except DispatchError as error:
            _LOG.info(
                "cannot look up what other ranks still had to deliver of the last epoch: %s",
                error,
            )

    def _take(self, store: Store) -> list[tuple[str, int]]:
        """Takes the noted epochs out of the store; empty if another process was first."""
        text = store.get_or_none(self._key) or _NOTHING
        is_taken = text != _NOTHING and store.compare_set(self._key, text, _NOTHING) == _NOTHING
        return [(prefix, epoch) for prefix, epoch in json.loads(text)] if is_taken else []


def _log_unread(store: Store, keys: EpochKeys, clock: Clock) -> None:
    silent = {
        lease.part
        for lease in silent_leases(store, keys, _SIGN_OF_LIFE_S, threading.Event(), clock)
    }
    leases = open_leases(store, keys)
    for lease in leases[:_MAX_LOGGED]:
        if lease.is_held and lease.part not in silent:
            _LOG.info("still being delivered: %s", lease)
            continue
        _LOG.warning(
            "rows are unread: %s%s; they are read again after a restart from a checkpoint of "
            "before the end of epoch %d",
            lease,
            ", which is silent" if lease.is_held else "",
            keys.epoch,
        )
    if len(leases) > _MAX_LOGGED:
        _LOG.warning(
            "epoch %d has %d further splits that were not read to their end",
            keys.epoch,
            len(leases) - _MAX_LOGGED,
        )
