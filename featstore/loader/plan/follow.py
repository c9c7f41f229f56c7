"""Reading a table that grows: at the end of a plan it is opened again, and partitions that are new
are the next plan.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import StoreAddress
from featstore.errors import ConfigError
from featstore.loader.plan.data_files import Partition
from featstore.selection.where import Where
from featstore.table.open import open_snapshot
from featstore.table.snapshot import DataFile, Snapshot

Files = Mapping[str, tuple[DataFile, Partition]]
Followed = tuple[int | None, int | None]
"""The version all of whose partitions have been read (None: none yet), and that whose new ones are
the plan (None: awaited).
"""
_Key = tuple[tuple[str, str | None], ...] | str


@dataclass(frozen=True, kw_only=True)
class Follow:
    """How a table is followed: looked at every `every_s` while there is nothing new, until a
    partition that matches `until`, SQL over partition keys, has been read; None is for ever, or
    until the loader is closed. ConfigError for what cannot be."""

    until: str | None = None
    every_s: float = 30.0

    def __post_init__(self) -> None:
        if (
            isinstance(self.every_s, bool)
            or not isinstance(self.every_s, int | float)
            or self.every_s <= 0
        ):
            raise ConfigError(f"follow.every_s: expected seconds above 0, found {self.every_s!r}")


@dataclass(frozen=True, kw_only=True)
class NewFiles:
    """The files of one plan, and the digest of the snapshot that they are of."""

    files: Files
    table: str


@dataclass(frozen=True, kw_only=True)
class Following:
    """A table that is followed: `select` gives what is read of a snapshot, `version` is where
    reading begins.
    """

    options: Follow
    url: str = field(repr=False)
    version: int
    until: Where | None
    select: Callable[[Snapshot], Files]

    def files(self, followed: Followed) -> NewFiles:
        """What a state stands for: the files of its plan, none where it awaits one.
        TableNotFoundError where one of its versions cannot be opened any more."""
        read, plan = followed
        snapshot = open_snapshot(self.url, read if plan is None else plan)
        return NewFiles(
            files={} if plan is None else new_files(self.select(snapshot), self.known(read)),
            table=snapshot.digest,
        )

    def known(self, version: int | None) -> dict[_Key, DataFile]:
        """The partitions that are read once this version was: each with one of its files."""
        files = {} if version is None else self.select(open_snapshot(self.url, version))
        return {_partition(file): file for file, _ in files.values()}


class Follower:
    """The plans of one pass, one after the other. All workers agree on each one's version through
    the store. One consumer.
    """

    def __init__(self, table: Following, followed: Followed) -> None:
        self._table = table
        self._known = table.known(followed[0])
        self._read, self._plan = followed

    @property
    def followed(self) -> Followed:
        """Where the pass is, for a state."""
        return self._read, self._plan

    def next(
        self, address: StoreAddress, keys: EpochKeys, closed: threading.Event
    ) -> NewFiles | None:
        """The files of the next plan, waited for; None once `closed` is set, or where the last
        partition has been read.
        """
        while not self._is_over() and not closed.is_set():
            with closing(address.open()) as store:
                agreed = store.get_or_none(keys.version)
                if agreed is None and (offered := self._offer()) is not None:
                    agreed = store.compare_set(keys.version, "", str(offered))
            if agreed is not None:
                self._plan = int(agreed)
                snapshot = open_snapshot(self._table.url, self._plan)
                return NewFiles(
                    files=new_files(self._table.select(snapshot), self._known),
                    table=snapshot.digest,
                )
            closed.wait(self._table.options.every_s)
        return None

    def finish(self, files: Files) -> None:
        """The plan has been read."""
        self._known.update((_partition(file), file) for file, _ in files.values())
        self._read, self._plan = self._plan, None

    def _offer(self) -> int | None:
        """The version whose new partitions could be the next plan: that with which the pass begins,
        or the newest.
        """
        if self._plan is not None:
            return self._plan
        snapshot = open_snapshot(self._table.url)
        return snapshot.version if new_files(self._table.select(snapshot), self._known) else None

    def _is_over(self) -> bool:
        """Whether the partition that is the last has been read."""
        until = self._table.until
        return until is not None and any(
            until.matches_partition(file.partition) is True for file in self._known.values()
        )


def new_files(files: Files, known: Mapping[_Key, DataFile]) -> Files:
    """Those of partitions that are not known."""
    return {path: item for path, item in files.items() if _partition(item[0]) not in known}


def _partition(file: DataFile) -> _Key:
    """What makes a file new: its partition, or itself where there are no partitions."""
    return tuple(sorted(file.partition.items())) or file.path
