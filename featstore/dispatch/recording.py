"""The order in which an epoch was delivered: what each worker acknowledged, claim by claim. Saved
as JSON, it can be replayed.

Format 1 (docs/contracts.md): `{"format": 1, "plan": digest, "epoch": n, "window_rows": n,
"workers": {worker: [[position, first, end], ...]}}`.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from featstore.base.errors import ConfigError, DispatchError
from featstore.base.redaction import redact
from featstore.dispatch import lease as leases
from featstore.dispatch.epochs import announced_in_run, read_splits
from featstore.dispatch.orders import SplitRange
from featstore.dispatch.receipt import EpochSize
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import Store, open_read_only

FORMAT = 1
NOT_RECORDED = (
    "the dispatch store has no record of epoch {epoch} of run {run_id!r} for a loader of this "
    "table version, selection, seed and split size: an epoch is recorded when it is read in order "
    "dynamic; set order.recording, or the store and run_id of the recorded run"
)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The order in which an epoch was delivered.

    Attributes:
        plan: The digest of the epoch's plan, see `Plan.digest`.
        epoch: The epoch's number.
        workers: The ranges of rows that each worker acknowledged, in its order. A worker is named
            `{index}-{process}`.
        window_rows: As of `Plan`, if rows were permuted in windows; None: they were not, or an
            earlier version has recorded the order.
    """

    plan: str
    epoch: int
    workers: Mapping[str, tuple[SplitRange, ...]]
    window_rows: int | None = None

    @property
    def num_workers(self) -> int:
        """How many workers a replay needs. Processes of one index count as one worker."""
        return len({name.partition("-")[0] for name in self.workers})

    def of(self, index: int) -> Iterator[SplitRange]:
        """What the worker of one index delivered, one process after the other, by their numbers.

        Empty if the epoch had no such worker.
        """
        # Shorter names come first, so that process 9 precedes process 10.
        for name in sorted(self.workers, key=lambda name: (len(name), name)):
            if name.partition("-")[0] == str(index):
                yield from self.workers[name]

    def to_json(self) -> dict[str, Any]:
        """The recording as values for `json.dumps`, see the module's docstring."""
        workers = {
            name: [[one.index, one.first, one.end] for one in ranges]
            for name, ranges in self.workers.items()
        }
        windows = {} if self.window_rows is None else {"window_rows": self.window_rows}
        known = {"format": FORMAT, "plan": self.plan, "epoch": self.epoch}
        return {**known, **windows, "workers": workers}

    @classmethod
    def from_json(cls, data: Any) -> "Recording":
        """Reads what `to_json` made.

        Raises:
            ConfigError: The data has another format, or is damaged.
        """
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, Mapping) else type(data).__name__
            raise ConfigError(f"recorded order: expected format {FORMAT}, found {found!r}")
        try:
            workers = {
                name: tuple(
                    SplitRange(index=index, first=first, end=end) for index, first, end in ranges
                )
                for name, ranges in data["workers"].items()
            }
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


def recorded_by(
    store: Store, loader: str, run_id: str, epoch: int | None = None
) -> Recording | None:
    """The order in which loaders of one key read an epoch the last time.

    Args:
        store: The store.
        loader: The loader's key, see `run_prefix`.
        run_id: The run.
        epoch: The epoch. None is the one that was read last.

    Returns:
        The recording, or None if the store has no such epoch.
    """
    notes = announced_in_run(store, run_id, epoch)
    keys = [note.keys for note in notes if note.loader == loader]
    return read_recording(store, keys[-1]) if keys else None


def read_recording(store: Store, keys: EpochKeys) -> Recording:
    """The order of an epoch, from its current leases: the acknowledged rows of each worker, in the
    order of its claims.
    """
    size = EpochSize.decode(store.get_or_none(keys.size) or "")
    plan, *others = (store.get_or_none(keys.plan) or "").split("+")
    by_worker: dict[str, list[tuple[int, SplitRange]]] = defaultdict(list)
    for index, entries in read_splits(store, keys, range(size.num_splits)):
        for entry in entries:
            for share in leases.all_shares(entry.record) if entry.record is not None else ():
                by_worker[share.worker].append(
                    (share.turn, SplitRange(index=index, first=share.first, end=share.through))
                )
    ordered = {
        worker: sorted(ranges, key=lambda item: item[0])
        for worker, ranges in sorted(by_worker.items())
    }
    return Recording(
        plan=plan,
        epoch=keys.epoch,
        workers={name: tuple(one for _, one in ranges) for name, ranges in ordered.items()},
        window_rows=int(others[1]) if len(others) > 1 else None,
    )
