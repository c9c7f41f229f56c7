"""The leases that one worker holds. It changes each by compare-and-set from the value that it wrote
or read last.
"""

import threading
from collections.abc import Callable

from featstore.dispatch import lease as leases
from featstore.dispatch.lease import Lease, LeaseState
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import Store
from featstore.dispatch.survey import Part

# From the worker's record of a lease, and the count of what it has done so far, to the new record.
Change = Callable[[Lease, int], Lease]


class Holdings:
    """The leases that a worker holds, by part. Safe for several threads, which may share a store
    handle or use one each.

    `_lock` guards the writes to the records. It is never held during a call of the store, which may
    take until its timeout. Reads are single operations of the dict and take no lock.
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
        """The worker's last record of a claim, or None once the claim has ended."""
        mine = self._held.get(part)
        return mine if mine is not None and mine.fence == fence else None

    def take(self, part: Part, mine: Lease) -> None:
        """Adds a claim that was written to the store."""
        with self._lock:
            self._held[part] = mine

    def is_lost(self, part: Part, fence: int) -> bool:
        """Whether the worker has noticed that a claim was taken over. Does not ask the store."""
        return (part, fence) in self._lost

    def worked(self) -> None:
        """Counts something that the worker did. Others judge by this count whether it stalls."""
        with self._lock:
            self._work += 1

    def change(self, store: Store, part: Part, change: Change) -> Lease | None:
        """Changes the record of a held part, in the store and here.

        `change` is applied again if another worker has cut the lease meanwhile, or another thread
        of this worker has changed it.

        Returns:
            The new record, or None if the lease was lost.
        """
        mine = self._held.get(part)
        while mine is not None:
            changed = change(mine, self._work)
            text = store.compare_set(self._keys.part(part), mine.encode(), changed.encode())
            if text == changed.encode():
                self._remember(part, changed)
                return changed
            current = Lease.decode(text)
            if not current.same_claim(mine) or current.state is not LeaseState.HELD:
                # Noted before the record goes, so that no thread sees neither.
                self._lost.add((part, mine.fence))
                self._remember(part, leases.release(mine))
                return None
            # The value is newer than this thread's: apply the change to that one.
            mine = current
        return None

    def looked_up(self, store: Store) -> dict[Part, Lease]:
        """The held leases as the store has them now: others may have cut them."""
        held = list(self._held.items())
        texts = store.get_many([self._keys.part(part) for part, _ in held])
        current = {
            part: Lease.decode(text)
            for (part, _), text in zip(held, texts, strict=True)
            if text is not None
        }
        return {
            part: current[part]
            for part, mine in held
            if part in current and current[part].same_claim(mine)
        }

    def renew_all(self, store: Store) -> None:
        """Renews every held lease, one write each."""
        for part in list(self._held):
            self.change(store, part, leases.renew)

    def release_all(self, store: Store) -> list[Part]:
        """Gives all leases back. Returns the parts that were not lost before."""
        return [
            part
            for part in list(self._held)
            if self.change(store, part, lambda mine, _: leases.release(mine)) is not None
        ]

    def _remember(self, part: Part, record: Lease) -> None:
        """Keeps a written record, unless another thread saw the claim end or wrote later.

        Threads may arrive here in another order than their writes reached the store. The beat,
        which grows with each write, tells which write was last.
        """
        with self._lock:
            held = self._held.get(part)
            if held is None or not held.same_claim(record):
                return
            if record.state is not LeaseState.HELD:
                del self._held[part]
            elif record.beat > held.beat:
                self._held[part] = record
