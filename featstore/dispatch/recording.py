"""The order in which an epoch was delivered: what each worker acknowledged, claim by claim. Saved
as JSON, it can be replayed.

Format 2 (docs/contracts.md): `{"format": 2, "plan": digest, "epoch": n, "window_rows": n,
"workers": [{"name": name, "index": n, "ranges": [[position, first, end], ...]}, ...]}`. Workers of
one index come in the order in which they began the epoch. In format 1, `workers` was `{name:
ranges}`, with names `{index}-{process}`.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from featstore.base.errors import ConfigError, DispatchError
from featstore.base.redaction import redact
from featstore.dispatch.epochs import announced_in_run, read_splits
from featstore.dispatch.orders import SplitRange
from featstore.dispatch.receipt import EpochSize
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import Store, open_read_only

FORMAT = 2
_NOT_RECORDED = (
    "the dispatch store has no record of epoch {epoch} of run {run_id!r} for a loader of this "
    "table version, selection, seed and split size: an epoch is recorded when it is read in order "
    "dynamic; set order.recording, or the store and run_id of the recorded run"
)


@dataclass(frozen=True, kw_only=True)
class RecordedWorker:
    """What one worker delivered.

    Attributes:
        name: The worker's name.
        index: Its number in the job.
        ranges: The ranges of rows that it acknowledged, in its order.
    """

    name: str
    index: int
    ranges: tuple[SplitRange, ...]

    def to_json(self) -> dict[str, Any]:
        ranges = [[one.index, one.first, one.end] for one in self.ranges]
        return {"name": self.name, "index": self.index, "ranges": ranges}

    @classmethod
    def from_json(cls, name: str, index: int, ranges: Any) -> "RecordedWorker":
        """ValueError or TypeError if the values are no worker's."""
        if type(name) is not str or type(index) is not int or index < 0:
            raise ValueError(f"expected a name and an index, found {name!r} and {index!r}")
        found = (SplitRange(index=index, first=first, end=end) for index, first, end in ranges)
        return cls(name=name, index=index, ranges=tuple(found))


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The order in which an epoch was delivered.

    Attributes:
        plan: The digest of the epoch's plan, see `Plan.digest`.
        epoch: The epoch's number.
        workers: The workers by index; those of one index in the order in which they began the
            epoch.
        window_rows: As of `Plan`, if rows were permuted in windows; None: they were not, or an
            earlier version has recorded the order.
    """

    plan: str
    epoch: int
    workers: tuple[RecordedWorker, ...]
    window_rows: int | None = None

    @property
    def num_workers(self) -> int:
        """How many workers a replay needs: one for each index, also for those without a row."""
        return 1 + max((worker.index for worker in self.workers), default=-1)

    def of(self, index: int) -> Iterator[SplitRange]:
        """What the workers of one index delivered, one after the other, in the order in which they
        began the epoch.

        Empty if the epoch had no such worker.
        """
        for worker in self.workers:
            if worker.index == index:
                yield from worker.ranges

    def to_json(self) -> dict[str, Any]:
        """The recording as values for `json.dumps`, see the module's docstring."""
        workers = [worker.to_json() for worker in self.workers]
        windows = {} if self.window_rows is None else {"window_rows": self.window_rows}
        known = {"format": FORMAT, "plan": self.plan, "epoch": self.epoch}
        return {**known, **windows, "workers": workers}

    @classmethod
    def from_json(cls, data: Any) -> "Recording":
        """Reads what `to_json` made, in this version or one of format 1.

        Raises:
            ConfigError: The data has another format, or is damaged.
        """
        found = data.get("format") if isinstance(data, Mapping) else type(data).__name__
        if found not in (1, FORMAT):
            raise ConfigError(f"recorded order: expected format 1 or {FORMAT}, found {found!r}")
        try:
            if found == 1:
                workers = _workers_of_format_1(data["workers"])
            else:
                workers = tuple(RecordedWorker.from_json(**worker) for worker in data["workers"])
            window_rows = data.get("window_rows")
            if window_rows is not None and type(window_rows) is not int:
                raise ValueError(f"window_rows: expected an integer, found {window_rows!r}")
            return cls(
                plan=data["plan"], epoch=data["epoch"], workers=workers, window_rows=window_rows
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"recorded order: damaged, or changed by hand: {error!r}") from error

    def encode(self) -> str:
        """The text of a recording file."""
        return json.dumps(self.to_json(), sort_keys=True) + "\n"


def _workers_of_format_1(workers: Mapping[str, Any]) -> tuple[RecordedWorker, ...]:
    """The workers by their numbers: shorter names come first, so that process 9 precedes 10."""
    names = sorted(workers, key=lambda name: (len(name), name))
    return tuple(
        RecordedWorker.from_json(name, int(name.partition("-")[0]), workers[name]) for name in names
    )


def recorded(url: str, run_id: str, epoch: int | None = None) -> Recording:
    """The order in which a run read its only epoch, or the given one, the last time.

    Args:
        url: The dispatch store's URL.
        run_id: The run.
        epoch: The epoch. None if the run has only one.

    Raises:
        DispatchError: The store has no such epoch or several, or several loaders have read it.
    """
    with closing(open_read_only(url)) as store:
        notes = list(announced_in_run(store, run_id, epoch))
        plans = {(note.loader, note.epoch) for note in notes}
        if len(plans) != 1:
            names = "".join(f"\n  {note.name}" for note in notes)
            raise DispatchError(
                f"dispatch store {redact(url)}: expected one epoch of run {run_id!r} to save the "
                f"order of, found {len(plans)}; name one with --epoch; if several loaders shared "
                f"the run, `order: replay` finds its own{names}"
            )
        return read_recording(store, notes[-1].keys)


def recording_in(
    stores: Iterable[Store], loader_key: str, run_id: str, epoch: int | None
) -> Recording:
    """The order in which loaders of one key read an epoch the last time, in the first store that
    has the epoch.

    Args:
        stores: The stores.
        loader_key: The loader's key, see `run_prefix`.
        run_id: The run.
        epoch: The epoch. None is the one that was read last.

    Raises:
        DispatchError: No store has such an epoch.
    """
    for store in stores:
        notes = announced_in_run(store, run_id, epoch)
        if keys := [note.keys for note in notes if note.loader == loader_key]:
            return read_recording(store, keys[-1])
    raise DispatchError(
        _NOT_RECORDED.format(epoch="(any)" if epoch is None else epoch, run_id=run_id)
    )


def plan_in(store: Store, keys: EpochKeys) -> tuple[str, int | None]:
    """The digest of an epoch's plan, and the rows of a window as of `Plan`."""
    plan, *others = (store.get_or_none(keys.plan) or "").split("+")
    return plan, int(others[1]) if len(others) > 1 else None


def read_recording(store: Store, keys: EpochKeys) -> Recording:
    """The order of an epoch, from its current leases: the acknowledged rows of each worker, in the
    order of its claims.
    """
    size = EpochSize.decode(store.get_or_none(keys.size) or "")
    plan, window_rows = plan_in(store, keys)
    by_worker = defaultdict[tuple[int, str], list[tuple[int, SplitRange]]](list)
    for index, entries in read_splits(store, keys, range(size.num_splits)):
        for entry in entries:
            for share in entry.shares:
                by_worker[share.index, share.worker].append(
                    (share.turn, SplitRange(index=index, first=share.first, end=share.through))
                )
    for ranges in by_worker.values():
        ranges.sort(key=lambda item: item[0])
    # By index, and then by the first turn: the turns of a worker that began later are larger.
    ordered = sorted(by_worker.items(), key=lambda item: (item[0][0], item[1][0][0], item[0][1]))
    return Recording(
        plan=plan,
        epoch=keys.epoch,
        workers=tuple(
            RecordedWorker(name=name, index=index, ranges=tuple(one for _, one in ranges))
            for (index, name), ranges in ordered
        ),
        window_rows=window_rows,
    )
