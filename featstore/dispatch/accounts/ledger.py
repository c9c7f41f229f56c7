"""Reads the leases of an epoch as they are now: of each split that was claimed, and of every part
that was cut off it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from featstore.dispatch.leases import lease as leases
from featstore.dispatch.leases.lease import FINAL, Lease
from featstore.dispatch.leases.survey import Part
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.base import Store

_MANY = 256


@dataclass(frozen=True, kw_only=True)
class LeaseEntry:
    """A split (`first` 0), or a part cut off it at row `first`, and its lease: None for a part that
    nobody has claimed yet.

    `end`: where the part ends, as the lease that it was cut off says.
    """

    first: int
    end: int | None
    record: Lease | None

    @property
    def split(self) -> str:
        return "" if self.record is None else self.record.split


def read_splits(
    store: Store,
    keys: EpochKeys,
    positions: Sequence[int],
    known: Mapping[Part, Lease] | None = None,
) -> Iterator[tuple[int, list[LeaseEntry]]]:
    """For each position the split's entry and those of its parts; none where it was never claimed.

    Leases that are `known` to be final are taken as known.
    """
    known = {part: record for part, record in (known or {}).items() if record.state in FINAL}
    for start in range(0, len(positions), _MANY):
        some = positions[start : start + _MANY]
        records = dict(_read(store, keys, [(index, 0) for index in some], known))
        for index in some:
            record = records[index, 0]
            yield index, [] if record is None else list(_entries(store, keys, index, record, known))


def _entries(
    store: Store, keys: EpochKeys, index: int, record: Lease, known: Mapping[Part, Lease]
) -> Iterator[LeaseEntry]:
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
    """Parts with their leases, in the order of the store's answers."""
    asked = [part for part in parts if part not in known]
    yield from ((part, known[part]) for part in parts if part in known)
    values = store.get_many([keys.part(part) for part in asked])
    yield from (
        (part, None if value is None else Lease.decode(value))
        for part, value in zip(asked, values, strict=True)
    )
