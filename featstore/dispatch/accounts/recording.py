"""The order in which an epoch was delivered: what each worker acknowledged, claim by claim. As JSON
it can be replayed.

Format 1 (docs/contracts.md): `{"format": 1, "plan": digest, "epoch": n, "workers": {worker:
[[position, first, end], ...]}}`.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from featstore.dispatch.accounts.epochs import announced
from featstore.dispatch.accounts.ledger import read_splits
from featstore.dispatch.accounts.receipt import EpochSize
from featstore.dispatch.leases import lease as leases
from featstore.dispatch.orders import SplitRange
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import Store, open_to_look
from featstore.errors import ConfigError, DispatchError
from featstore.redaction import redact

FORMAT = 1
NOT_RECORDED = (
    "the dispatch store has no record of epoch {epoch} of run {run_id!r} for a loader of this "
    "table version, selection, seed "
    "and split size: an epoch is recorded where it is read in order dynamic; give order.recording, "
    "or the store and run_id "
    "of the recorded run"
)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """An epoch's order by worker; `plan` is the digest of the epoch's plan."""

    plan: str
    epoch: int
    workers: Mapping[str, tuple[SplitRange, ...]]

    @property
    def num_workers(self) -> int:
        """How many workers it takes: a worker that was started anew is the same one,
        `{index}-{process}`.
        """
        return len({name.partition("-")[0] for name in self.workers})

    def of(self, index: int) -> Iterator[SplitRange]:
        """What the worker of an index delivered, process by process, by their numbers; nothing for
        one that was not there.
        """
        for name in sorted(self.workers, key=lambda name: (len(name), name)):
            if name.partition("-")[0] == str(index):
                yield from self.workers[name]

    def to_json(self) -> dict[str, Any]:
        workers = {
            name: [[s.index, s.first, s.end] for s in found] for name, found in self.workers.items()
        }
        return {"format": FORMAT, "plan": self.plan, "epoch": self.epoch, "workers": workers}

    @classmethod
    def from_json(cls, data: Any) -> "Recording":
        """ConfigError for data of another format."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, Mapping) else type(data).__name__
            raise ConfigError(f"recorded order: expected format {FORMAT}, found {found!r}")
        try:
            workers = {
                name: tuple(
                    SplitRange(index=index, first=first, end=end) for index, first, end in found
                )
                for name, found in data["workers"].items()
            }
            return cls(plan=data["plan"], epoch=data["epoch"], workers=workers)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"recorded order: damaged, or changed by hand: {error!r}") from error

    def encode(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True) + "\n"


def recorded(url: str, run_id: str, epoch: int | None = None) -> Recording:
    """The order of the one epoch of a run, as it was read last; DispatchError where there are more
    epochs, or none, or more than one loader has read this one."""
    with closing(open_to_look(url)) as store:
        notes = [
            n
            for n in announced(store)
            if n.prefix.startswith(f"featstore/{run_id}/") and epoch in (None, n.epoch)
        ]
        plans = {(note.loader, note.epoch) for note in notes}
        if len(plans) != 1:
            names = "".join(f"\n  {note.name}" for note in notes)
            raise DispatchError(
                f"dispatch store {redact(url)}: expected one epoch of run {run_id!r} to save the "
                f"order of, found {len(plans)}; "
                f"name one with --epoch; where several loaders shared the run, `order: replay` "
                f"finds its own{names}"
            )
        return read_recording(store, notes[-1].keys)


def recorded_by(
    store: Store, loader: str, run_id: str, epoch: int | None = None
) -> Recording | None:
    """What was recorded of an epoch, or of the last, as loaders of this key read it last in a run;
    None where nothing was.
    """
    found = (
        note
        for note in announced(store)
        if note.prefix.startswith(f"featstore/{run_id}/") and note.loader == loader
    )
    keys = [note.keys for note in found if epoch in (None, note.epoch)]
    return read_recording(store, keys[-1]) if keys else None


def read_recording(store: Store, keys: EpochKeys) -> Recording:
    """The order of an epoch as its leases have it now: rows that were acknowledged, by claim, in
    each worker's turn.
    """
    size = EpochSize.decode(store.get_or_none(keys.size) or "")
    plan = (store.get_or_none(keys.plan) or "").partition("+")[0]
    found: dict[str, list[tuple[int, SplitRange]]] = defaultdict(list)
    for index, entries in read_splits(store, keys, range(size.num_splits)):
        for entry in entries:
            for share in leases.all_shares(entry.record) if entry.record is not None else ():
                found[share.worker].append(
                    (share.turn, SplitRange(index=index, first=share.first, end=share.through))
                )
    ordered = {
        worker: sorted(stretches, key=lambda item: item[0])
        for worker, stretches in sorted(found.items())
    }
    return Recording(
        plan=plan,
        epoch=keys.epoch,
        workers={name: tuple(stretch for _, stretch in each) for name, each in ordered.items()},
    )
