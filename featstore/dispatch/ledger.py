"""Reads the current leases of an epoch: of each split that was claimed, and of every part that was
cut off it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from featstore.dispatch import lease as leases
from featstore.dispatch.lease import FINAL, Lease
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.base import Store
from featstore.dispatch.survey import Part

# Keys per exchange with the store: as many as a TCP store reads in one (stores/tcp.py).
_KEYS_PER_READ = 256


@dataclass(frozen=True, kw_only=True)
class LeaseEntry:
    """The lease of a split, or of a part that was cut off it.

    Attributes:
        first: The row at which the part begins; 0 for the split itself.
        end: The row before which the part ends, according to the lease that it was cut off. None
            if that does not say.
        record: The lease, or None for a part that nobody has claimed yet.
    """

    first: int
    end: int | None
    record: Lease | None

    @property
    def split(self) -> str:
        """The split's id; empty for a part that nobody has claimed."""
        return "" if self.record is None else self.record.split


def read_splits(
    store: Store,
    keys: EpochKeys,
    positions: Sequence[int],
    known: Mapping[Part, Lease] | None = None,
) -> Iterator[tuple[int, list[LeaseEntry]]]:
    """Reads the leases at some positions of the plan.

    Args:
        store: The store.
        keys: The epoch's keys.
        positions: Positions of the plan.
        known: Leases that were read before. The final ones among them are not read again.

    Yields:
        Each position with the entry of its split and those of its parts; with an empty list if the
        split was never claimed.
    """
    known = {part: record for part, record in (known or {}).items() if record.state in FINAL}
    for start in range(0, len(positions), _KEYS_PER_READ):
        some = positions[start : start + _KEYS_PER_READ]
        records = dict(_read(store, keys, [(index, 0) for index in some], known))
        for index in some:
            record = records[index, 0]
            yield index, [] if record is None else list(_entries(store, keys, index, record, known))


def _entries(
    store: Store, keys: EpochKeys, index: int, record: Lease, known: Mapping[Part, Lease]
) -> Iterator[LeaseEntry]:
    # Breadth first: a part may have been cut again, and its own lease names the parts.
    todo = [LeaseEntry(first=0, end=record.end, record=record)]
    while todo:
        entry = todo.pop(0)
        yield entry
        cut_off = leases.parts(entry.record) if entry.record is not None else []
        found = dict(_read(store, keys, [(index, first) for first, _ in cut_off], known))
        todo += [
            LeaseEntry(first=first, end=end, record=found[index, first]) for first, end in cut_off
        ]


def _read(
    store: Store, keys: EpochKeys, parts: list[Part], known: Mapping[Part, Lease]
) -> Iterator[tuple[Part, Lease | None]]:
    """The parts with their leases: known ones first, then what the store answers."""
    unknown = [part for part in parts if part not in known]
    yield from ((part, known[part]) for part in parts if part in known)
    values = store.get_many([keys.part(part) for part in unknown])
    yield from (
        (part, None if value is None else Lease.decode(value))
        for part, value in zip(unknown, values, strict=True)
    )
