"""Reading a table that grows: at the end of a plan it is opened again, and partitions that are new are the next plan."""

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from featstore.dispatch.keys import EpochKeys
from featstore.dispatch.stores.address import StoreAddress
from featstore.errors import ConfigError
from featstore.loader.decode import Partition
from featstore.selection import Where
from featstore.table.open import open_snapshot
from featstore.table.snapshot import DataFile, Snapshot

Files = Mapping[str, tuple[DataFile, Partition]]


@dataclass(frozen=True, kw_only=True)
class Follow:
    """How a table is followed: looked at every `every_s` while there is nothing new, until a partition that matches `until`,
    SQL over partition keys, has been read; None is for ever, or until the loader is closed. ConfigError for what cannot be."""

    until: str | None = None
    every_s: float = 30.0

    def __post_init__(self) -> None:
        if isinstance(self.every_s, bool) or not isinstance(self.every_s, int | float) or self.every_s <= 0:
            raise ConfigError(f"follow.every_s: expected seconds above 0, found {self.every_s!r}")


class Follower:
    """What comes after each plan of one pass. All workers agree on the table's version through the store. One consumer."""

    def __init__(self, options: Follow, snapshot: Snapshot, until: Where | None, select: Callable[[Snapshot], Files]) -> None:
        self._options, self._url, self._until, self._select = options, snapshot.url, until, select
        self._known = set(map(_partition, snapshot.data_files))

    def is_over(self, files: Files) -> bool:
        """Whether the partition that is the last has been read with these files."""
        found = (self._until.matches_partition(file.partition) for file, _ in files.values()) if self._until is not None else ()
        return any(matches is True for matches in found)

    def next(self, address: StoreAddress, keys: EpochKeys, closed: threading.Event) -> Files | None:
        """The files of the next plan, waited for; None once `closed` is set."""
        while not closed.is_set():
            with closing(address.open()) as store:
                agreed = store.get_or_none(keys.version)
                snapshot = open_snapshot(self._url, None if agreed is None else int(agreed))
                if agreed is None and self._new(snapshot):
                    agreed = store.compare_set(keys.version, "", str(snapshot.version))
                    snapshot = open_snapshot(self._url, int(agreed))
            if agreed is not None:
                files = self._new(snapshot)
                self._known.update(_partition(file) for file, _ in files.values())
                return files
            closed.wait(self._options.every_s)
        return None

    def _new(self, snapshot: Snapshot) -> Files:
        return {path: item for path, item in self._select(snapshot).items() if _partition(item[0]) not in self._known}


def _partition(file: DataFile) -> tuple[tuple[str, str | None], ...] | str:
    """What makes a file new: its partition, or itself where there are no partitions."""
    return tuple(sorted(file.partition.items())) or file.path
