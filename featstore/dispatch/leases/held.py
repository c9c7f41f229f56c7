"""The leases that one worker holds: every change is a compare-and-set from its own last record of
them.
"""

import threading
from collections.abc import Callable

from featstore.dispatch.leases import lease as leases
from featstore.dispatch.leases.lease import Lease, LeaseState
from featstore.dispatch.leases.survey import Part
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import Store

Change = Callable[[Lease, int], Lease]


class Holdings:
    """What a worker holds, by part. Safe to use from several threads, each with a store handle or
    sharing one.

    `_lock` guards the records and is never held while the store is asked.
    """

    def __init__(self, keys: EpochKeys) -> None:
        self._keys = keys
        self._held: dict[Part, Lease] = {}
        self._lost: set[tuple[Part, int]] = set()
        self._lock = threading.Lock()
        self._work = 0

    def __contains__(self, part: Part) -> bool:
        return part in self._held

    def __len__(self) -> int:
        return len(self._held)

    def get(self, part: Part, fence: int) -> Lease | None:
        """The worker's last record of a claim, or None once it has ended."""
        mine = self._held.get(part)
        return mine if mine is not None and mine.fence == fence else None

    def take(self, part: Part, mine: Lease) -> None:
        """Notes a claim that was written."""
        with self._lock:
            self._held[part] = mine

    def is_lost(self, part: Part, fence: int) -> bool:
        """Whether a claim was found to be taken over. Asks no store."""
        return (part, fence) in self._lost

    def worked(self) -> None:
        """The worker has done something: what others judge by whether it stalled."""
        with self._lock:
            self._work += 1

    def change(self, store: Store, part: Part, change: Change) -> Lease | None:
        """Writes the changed record of a held part and returns it; None when the lease is lost.

        `change(mine, work)` is applied anew where another worker has cut the lease, or another
        thread of this one was first.
        """
        mine = self._held.get(part)
        while mine is not None:
            changed = change(mine, self._work)
            found = store.compare_set(self._keys.part(part), mine.encode(), changed.encode())
            if found == changed.encode():
                self._remember(part, changed)
                return changed
            current = Lease.decode(found)
            if not current.same_claim(mine) or current.state is not LeaseState.HELD:
                self._lost.add((part, mine.fence))
                self._remember(part, leases.release(mine))
                return None
            mine = current
        return None

    def looked_up(self, store: Store) -> dict[Part, Lease]:
        """What is held, as the store has it now: cut by others perhaps."""
        held = list(self._held.items())
        texts = store.get_many([self._keys.part(part) for part, _ in held])
        found = {
            part: Lease.decode(text)
            for (part, _), text in zip(held, texts, strict=True)
            if text is not None
        }
        return {
            part: found[part]
            for part, mine in held
            if part in found and found[part].same_claim(mine)
        }

    def renew_all(self, store: Store) -> None:
        for part in list(self._held):
            self.change(store, part, leases.renew)

    def release_all(self, store: Store) -> list[Part]:
        """Gives all back; returns what was given back indeed."""
        return [
            part
            for part in list(self._held)
            if self.change(store, part, lambda mine, _: leases.release(mine)) is not None
        ]

    def _remember(self, part: Part, record: Lease) -> None:
        """Keeps what was written as this worker's view, unless another thread already saw the claim
        end, or wrote later: the order in which threads come here is not that of their writes, which
        the beat tells."""
        with self._lock:
            held = self._held.get(part)
            if held is None or not held.same_claim(record):
                return
            if record.state is not LeaseState.HELD:
                del self._held[part]
            elif record.beat > held.beat:
                self._held[part] = record
