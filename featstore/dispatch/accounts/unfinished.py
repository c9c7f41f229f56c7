"""What an epoch has left unread: leases that are not final, and whether those who hold them
live.
"""

import json
import logging
import threading
from contextlib import closing
from dataclasses import dataclass, replace

from featstore.dispatch.accounts.ledger import LeaseEntry, read_splits
from featstore.dispatch.accounts.receipt import EpochSize
from featstore.dispatch.leases.clock import SYSTEM_CLOCK, Clock
from featstore.dispatch.leases.lease import FINAL, Lease, LeaseState
from featstore.dispatch.leases.renewer import look_pause_s
from featstore.dispatch.leases.survey import LeaseWatch, Part
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import Store, StoreAddress
from featstore.errors import DispatchError

_LOG = logging.getLogger(__name__)
# Three of the renewals that ranks in step make at the end of a plan.
_SIGN_OF_LIFE_S = 1.5
_LONGEST_LOOK_S = 1.0
# Of a store that may be gone, as that of a job is once its first rank has ended.
_LOOK_TIMEOUT_S = 2.0
_MOST_NAMED, _NOTHING = 20, "[]"


@dataclass(frozen=True, kw_only=True)
class OpenLease:
    """A split (`part[1]` 0), or a part of one, that is not read to its end. `record` is None where
    nobody has claimed it.
    """

    epoch: int
    part: Part
    record: Lease | None

    @property
    def is_held(self) -> bool:
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
            f"held by worker {self.record.worker}"
            if self.is_held
            else f"given back by worker {self.record.worker}"
        )
        return f"epoch {self.epoch}, {rows}, {who}"


def open_leases(store: Store, keys: EpochKeys) -> list[OpenLease]:
    """All that is not final of an epoch, as its keys are now; nothing of an epoch that never
    began.
    """
    text = store.get_or_none(keys.size)
    if text is None:
        return []
    size, found = EpochSize.decode(text), list[OpenLease]()
    complete, low = set(size.complete_before), int(store.get_or_none(keys.low) or 0)
    for index, entries in read_splits(store, keys, range(low, size.num_splits)):
        if index not in complete:
            found += [
                _open(keys, index, entry)
                for entry in entries or [_UNCLAIMED]
                if not _is_final(entry)
            ]
    return found


def silent_leases(
    store: Store,
    keys: EpochKeys,
    wait_s: float,
    closed: threading.Event,
    clock: Clock = SYSTEM_CLOCK,
) -> list[OpenLease]:
    """Leases that are held and were not renewed, claimed or given back while this waited, at most
    `wait_s` seconds.

    Returns at once where nothing is held, and as soon as each holder was seen to live. Ends early
    when `closed` is set.
    """
    watch, until, num_looks = LeaseWatch(wait_s), clock.now_s() + wait_s, 0
    watch.begin_waiting()
    while True:
        held = [lease for lease in open_leases(store, keys) if lease.is_held]
        for lease in held:
            watch.is_expired(lease.part, lease.record, clock.now_s())
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


def _is_final(entry: LeaseEntry) -> bool:
    return entry.record is not None and entry.record.state in FINAL


def _open(keys: EpochKeys, index: int, entry: LeaseEntry) -> OpenLease:
    return OpenLease(epoch=keys.epoch, part=(index, entry.first), record=entry.record)


class LeftOpen:
    """Epochs that ended for a rank while others, which were seen to live, still held rows of them.

    They are noted in the store, under a `key` of the rank's own: of workers of a DataLoader, which
    end with their pass, one notes what another, or the process that made them, names.
    """

    def __init__(self, address: StoreAddress, key: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._address, self._key, self._clock = address, key, clock

    def note(self, keys: EpochKeys) -> None:
        with closing(self._address.open()) as store:
            while True:
                text = store.get_or_none(self._key) or ""
                noted = json.dumps([*json.loads(text or "[]"), [keys.prefix, keys.epoch]])
                if store.compare_set(self._key, text, noted) == noted:
                    return

    def name(self) -> None:
        """Says in the log what is still unread of the epochs, and forgets them: a warning where the
        holder is silent now.

        Takes no longer than a holder takes to show that it lives, and no time where everything was
        read.
        """
        try:
            with closing(
                replace(
                    self._address, timeout_s=min(self._address.timeout_s, _LOOK_TIMEOUT_S)
                ).open()
            ) as store:
                for prefix, epoch in self._take(store):
                    _name(store, EpochKeys(prefix, epoch), self._clock)
        except DispatchError as error:
            _LOG.info(
                "what other ranks had still to deliver of the last epoch cannot be looked up: %s",
                error,
            )

    def _take(self, store: Store) -> list[tuple[str, int]]:
        """What was noted, unless somebody else names it."""
        text = store.get_or_none(self._key) or _NOTHING
        is_taken = text != _NOTHING and store.compare_set(self._key, text, _NOTHING) == _NOTHING
        return [(prefix, epoch) for prefix, epoch in json.loads(text)] if is_taken else []


def _name(store: Store, keys: EpochKeys, clock: Clock) -> None:
    silent = {
        lease.part
        for lease in silent_leases(store, keys, _SIGN_OF_LIFE_S, threading.Event(), clock)
    }
    leases = open_leases(store, keys)
    for lease in leases[:_MOST_NAMED]:
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
    if len(leases) > _MOST_NAMED:
        _LOG.warning(
            "of epoch %d, %d further splits are not read to their end",
            keys.epoch,
            len(leases) - _MOST_NAMED,
        )
