"""Who reads what, where nobody asks a store: the orders `static`, `rank` and `replay` as claims of
one worker.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from featstore.dispatch.accounts.recording import Recording
from featstore.dispatch.leases.delivered import Done, as_ranges
from featstore.dispatch.orders import MiniEpoch, SplitRange, WorkerInfo, static_ranges
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.terms import Claim
from featstore.errors import ConfigError
from featstore.files.storage import open_read
from featstore.redaction import redact

DYNAMIC, STATIC, RANK, REPLAY = KINDS = ("dynamic", "static", "rank", "replay")


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """Who reads which rows of an epoch.

    `dynamic`: who claims them. `static`: the epoch's rows in one order, dealt out batch by batch,
    whatever the number of workers. `rank`: each worker has its part of the splits, in `mini_epochs`
    parts of its own, drawn anew each epoch. `replay`: what each worker delivered in an earlier
    epoch, as `recording` has it: a file that `featstore dispatch receipt --save` wrote, or what is
    in it, as `FeatureLoader.recorded_order()` gives; None where the loader's dispatch store holds
    the recorded run under its `run_id`. ConfigError for what cannot be.
    """

    kind: str = DYNAMIC
    mini_epochs: int = 1
    recording: str | Path | Mapping[str, Any] | Recording | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"order: expected one of {', '.join(KINDS)}, found {self.kind!r}")
        if (
            isinstance(self.mini_epochs, bool)
            or not isinstance(self.mini_epochs, int)
            or self.mini_epochs < 1
        ):
            raise ConfigError(
                f"order.mini_epochs: expected an integer of 1 or more, found {self.mini_epochs!r}"
            )
        if self.mini_epochs > 1 and self.kind != RANK:
            raise ConfigError(
                f"order.mini_epochs: only order rank has mini-epochs, found {self.mini_epochs} "
                f"with {self.kind}"
            )
        if self.recording is not None and self.kind != REPLAY:
            raise ConfigError(
                f"order.recording: order replay takes a recorded order, and no other one does, "
                f"found one with {self.kind}"
            )
        if self.recording is not None and not isinstance(self.recording, Recording):
            object.__setattr__(self, "recording", _load(self.recording))

    @property
    def is_dynamic(self) -> bool:
        return self.kind == DYNAMIC

    @property
    def is_replay(self) -> bool:
        return self.kind == REPLAY

    @property
    def given(self) -> Recording | None:
        """The recorded order that the options hold."""
        return self.recording if isinstance(self.recording, Recording) else None

    def claims(
        self,
        plan: Plan,
        worker_info: WorkerInfo,
        batch_rows: int,
        done: Done,
        recording: Recording | None,
    ) -> Iterator[Claim]:
        """What the worker reads of an epoch in static order, or, with a recording, replayed, in its
        order.

        ConfigError where a recorded order is of another plan, epoch or number of workers.
        """
        if recording is None:
            return _claims(plan, static_ranges(plan, worker_info, batch_rows, done))
        return _claims(plan, _without(done, _recorded(recording, plan, worker_info), plan))

    def mini_epoch(self, number: int, seed: int, epoch: int, worker_info: WorkerInfo) -> MiniEpoch:
        """A worker's part of an epoch in rank order."""
        return MiniEpoch(
            seed=seed,
            epoch=epoch,
            worker_info=worker_info,
            number=number,
            num_mini_epochs=self.mini_epochs,
        )


def _recorded(recording: Recording, plan: Plan, worker_info: WorkerInfo) -> Iterator[SplitRange]:
    if (recording.plan, recording.epoch) != (plan.digest, plan.epoch):
        raise ConfigError(
            f"order.recording: of epoch {recording.epoch} of plan {recording.plan}, found epoch "
            f"{plan.epoch} of plan {plan.digest}: table version, selection, seed and split sizes "
            "must be those of the recorded run; call set_epoch with its epoch"
        )
    if recording.num_workers > worker_info.num_workers:
        raise ConfigError(
            f"order.recording: of {recording.num_workers} workers, found {worker_info.num_workers}"
        )
    return recording.of(worker_info.index)


def _without(
    done: Done, stretches: Iterable[SplitRange], plan: Plan | Mapping[int, Split]
) -> Iterator[SplitRange]:
    """The stretches without what was delivered of them."""
    for stretch in stretches:
        row = stretch.first
        for first, end in as_ranges(done.get(stretch.index, 0), plan[stretch.index].num_rows):
            if row < min(first, stretch.end):
                yield SplitRange(index=stretch.index, first=row, end=min(first, stretch.end))
            row = max(row, end)
        if row < stretch.end:
            yield SplitRange(index=stretch.index, first=row, end=stretch.end)


def rank_claims(splits: Iterable[Split], positions: Iterable[int], done: Done) -> Iterator[Claim]:
    """Whole splits at these positions of the epoch's order, without what was delivered of them."""
    for index, split in zip(positions, splits, strict=True):
        whole = [SplitRange(index=index, first=0, end=split.num_rows)]
        yield from _claims({index: split}, _without(done, whole, {index: split}))


def _claims(plan: Plan | Mapping[int, Split], stretches: Iterable[SplitRange]) -> Iterator[Claim]:
    for stretch in stretches:
        split, first = plan[stretch.index], stretch.first
        yield Claim(
            index=stretch.index,
            split=split,
            fence=1,
            start_row=first,
            part=first,
            end_row=stretch.end,
        )


def _load(source: Any) -> Recording:
    if isinstance(source, Mapping):
        return Recording.from_json(source)
    try:
        with open_read(str(source)) as file:
            return Recording.from_json(json.load(file))
    except (FileNotFoundError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"order.recording: {redact(str(source))}: expected a recorded order: {error}"
        ) from error
