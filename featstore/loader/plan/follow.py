"""Follows a growing table: at the end of a plan the table is opened again, and its new partitions
become the next plan.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from featstore.base.errors import ConfigError, StoreError
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import StoreAddress
from featstore.files.retry import Failures, RetryPolicy
from featstore.loader.request.matching import SelectedFiles
from featstore.selection.where import Where
from featstore.staging.retry import is_retryable
from featstore.table.open import open_snapshot
from featstore.table.snapshot import Partition, Snapshot

Followed = tuple[int | None, int | None]
"""Two table versions: the one all of whose partitions have been read (None: none yet), and the one
whose new partitions are the current plan (None: the next plan is awaited).
"""
_LOG = logging.getLogger(__name__)
_Key = tuple[tuple[str, str | None], ...] | str


@dataclass(frozen=True, kw_only=True)
class Follow:
    """How a table is followed.

    Attributes:
        until: SQL over partition keys. The loader ends when a partition that matches it has been
            read. None: it follows until it is closed.
        every_s: Seconds between two looks at the table while there is nothing new.

    Raises:
        ConfigError: `every_s` is not a number above 0.
    """

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
    """The files of one plan by path, and the digest of their snapshot."""

    files: SelectedFiles
    table: str


@dataclass(frozen=True, kw_only=True)
class Following:
    """A table that is followed.

    Attributes:
        options: How it is followed.
        url: The table, which is opened again for each plan.
        version: The version with which reading begins.
        until: The parsed condition for the last partition.
        select: Gives the files of a snapshot that are read.
        require: Called with a snapshot and the files of a plan; raises if they must not be read.
        reads_stale: As of a snapshot.
        schema_id: Likewise; the request is for columns of this schema.
    """

    options: Follow
    url: str = field(repr=False)
    version: int
    until: Where | None
    select: Callable[[Snapshot], SelectedFiles]
    require: Callable[[Snapshot, SelectedFiles], None]
    reads_stale: bool = False
    schema_id: int | None = None

    def files(self, followed: Followed) -> NewFiles:
        """The files of the plan that a saved state was in; none if it awaited the next plan.

        Raises:
            TableNotFoundError: One of its versions can no longer be opened.
        """
        read, plan = followed
        snapshot = self.open(read if plan is None else plan)
        if plan is None:
            return NewFiles(files=SelectedFiles.of(()), table=snapshot.digest)
        return self.new(snapshot, self.known(read))

    def known(self, version: int | None) -> dict[_Key, Partition]:
        """The partitions of a version by their keys; none for None."""
        return {} if version is None else _partitions(self.select(self.open(version)))

    def new(self, snapshot: Snapshot, known: Mapping[_Key, Partition]) -> NewFiles:
        """The plan of those partitions of a snapshot that are not in `known`.

        Raises:
            StaleGroupError: A slot group that is read is stale in them.
        """
        files = new_files(self.select(snapshot), known)
        self.require(snapshot, files)
        return NewFiles(files=files, table=snapshot.digest)

    def open(self, version: int | None = None) -> Snapshot:
        """A version of the table, by default the newest."""
        found = open_snapshot(self.url, version, self.schema_id)
        return replace(found, reads_stale=self.reads_stale)


class Follower:
    """The successive plans of one iteration. All workers agree on the version of each plan through
    the store. For one consumer.
    """

    def __init__(self, table: Following, followed: Followed) -> None:
        self._table = table
        self._known = table.known(followed[0])
        self._read, self._plan = followed
        self._failures = Failures()
        # A second look may fail, however rare looks are.
        retry_s = max(RetryPolicy.retry_s, 2 * table.options.every_s)
        self._retry = RetryPolicy(retry_s=retry_s)

    @property
    def followed(self) -> Followed:
        """Where the iteration is, for a saved state."""
        return self._read, self._plan

    def next(
        self, address: StoreAddress, keys: EpochKeys, closed: threading.Event
    ) -> NewFiles | None:
        """Waits for the next plan.

        Returns:
            Its files; None once `closed` is set, or when the last partition has been read.
        """
        while not self._is_over() and not closed.is_set():
            with closing(address.open()) as store:
                agreed = store.get_or_none(keys.version)
                if agreed is None and (offered := self._offer()) is not None:
                    agreed = store.compare_set(keys.version, "", str(offered))
            if agreed is not None:
                self._plan = int(agreed)
                return self._table.new(self._table.open(self._plan), self._known)
            closed.wait(self._table.options.every_s)
        return None

    def finish(self, files: SelectedFiles) -> None:
        """Called when the current plan has been read."""
        self._known.update(_partitions(files))
        self._read, self._plan = self._plan, None

    def _offer(self) -> int | None:
        """The version that this worker proposes for the next plan: the one with which the iteration
        begins, or the newest if it has new partitions. The first proposal in the store wins. None,
        too, if the table cannot be reached now: it is looked at again.
        """
        if self._plan is not None:
            return self._plan
        try:
            snapshot = self._table.open()
        except StoreError as error:
            if not is_retryable(error) or self._failures.add(self._retry) is None:
                raise
            _LOG.warning("%s; it is looked at again", error)
            return None
        self._failures = Failures()
        return snapshot.version if new_files(self._table.select(snapshot), self._known) else None

    def _is_over(self) -> bool:
        """Whether a partition that matches `until` has been read."""
        until = self._table.until
        return until is not None and any(
            until.matches_partition(values) is True for values in self._known.values()
        )


def new_files(files: SelectedFiles, known: Mapping[_Key, Partition]) -> SelectedFiles:
    """The files of partitions that are not in `known`."""
    places = files.files.places
    if all(places):
        return files.at_places([_key(place) not in known for place in places])
    return files.take([index for index, path in enumerate(files) if path not in known])


def _partitions(files: SelectedFiles) -> dict[_Key, Partition]:
    """The partitions of the files by their keys; in a table without partitions the paths."""
    found = [total.partition for total in files.files.totals()]
    return {_key(values): values for values in found} if all(found) else {p: {} for p in files}


def _key(partition: Partition) -> _Key:
    return tuple(sorted(partition.items()))
