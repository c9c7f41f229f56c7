"""Which worker reads which rows. The orders `static`, `rank` and `replay` give a worker its claims
without asking a store.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from featstore.base.errors import ConfigError, require_integer
from featstore.base.redaction import redact
from featstore.dispatch.orders import MiniEpoch, SplitRange, WorkerInfo, static_ranges
from featstore.dispatch.plan import Done, Plan, Split, as_ranges
from featstore.dispatch.recording import Recording
from featstore.dispatch.terms import Claim
from featstore.files.storage import open_read

DYNAMIC, STATIC, RANK, REPLAY = KINDS = ("dynamic", "static", "rank", "replay")


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """Which worker reads which rows of an epoch.

    Attributes:
        kind: `dynamic`: workers claim splits as they need them. `static`: the epoch's rows have one
            order for any number of workers, and batches are dealt out in turn. `rank`: each worker
            has its own part of the splits, drawn anew each epoch. `replay`: each worker reads what
            it delivered in a recorded epoch.
        mini_epochs: In order `rank`, into how many parts each worker's splits are divided.
        recording: In order `replay`, a file that `featstore dispatch receipt --save` wrote, or its
            content, as `FeatureLoader.recorded_order()` returns it. None: the loader's dispatch
            store holds the recorded run under its `run_id`.

    Raises:
        ConfigError: An option is invalid, does not fit the kind, or the recording cannot be read.
    """

    kind: str = DYNAMIC
    mini_epochs: int = 1
    recording: str | Path | Mapping[str, Any] | Recording | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"order: expected one of {', '.join(KINDS)}, found {self.kind!r}")
        require_integer("order.mini_epochs", self.mini_epochs)
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
    def has_whole_splits(self) -> bool:
        """Whether workers read splits that they claim, or claimed when the epoch was recorded."""
        return self.is_dynamic or self.is_replay

    @property
    def given(self) -> Recording | None:
        """The recording in the options; None if it is to be looked up in the store."""
        return self.recording if isinstance(self.recording, Recording) else None

    def claims(
        self,
        plan: Plan,
        worker_info: WorkerInfo,
        batch_rows: int,
        done: Done,
        recording: Recording | None,
    ) -> Iterator[Claim]:
        """A worker's claims of an epoch.

        Args:
            plan: The epoch's plan.
            worker_info: The worker, and how many there are.
            batch_rows: Rows of a batch, in static order.
            done: Rows that were delivered before.
            recording: The order to replay; None is static order.

        Raises:
            ConfigError: The recording is of another plan, epoch or number of workers.
        """
        if recording is None:
            return _claims(plan, static_ranges(plan, worker_info, batch_rows, done))
        return _claims(plan, _not_delivered(done, _recorded(recording, plan, worker_info), plan))

    def mini_epoch(self, number: int, seed: int, epoch: int, worker_info: WorkerInfo) -> MiniEpoch:
        """One of a worker's parts of an epoch in rank order."""
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
            f"{plan.epoch} of plan {plan.digest}: table version, selection, seed, shuffle.within "
            "and split sizes must be those of the recorded run; call set_epoch with its epoch"
        )
    if recording.window_rows != plan.window_rows:
        raise ConfigError(
            f"order.recording: of windows of {recording.window_rows} rows of a split, found "
            f"{plan.window_rows} (shuffle.window_rows / shuffle.interleave): rows would be others; "
            "replay it with the recorded run's `shuffle`; a version that drew one split at a time "
            'has not recorded the number: add "window_rows", the run\'s shuffle.window_rows, to '
            "the recording"
        )
    if recording.num_workers > worker_info.num_workers:
        raise ConfigError(
            f"order.recording: of {recording.num_workers} workers, found {worker_info.num_workers}"
        )
    return recording.of(worker_info.index)


def _not_delivered(
    done: Done, ranges: Iterable[SplitRange], plan: Plan | Mapping[int, Split]
) -> Iterator[SplitRange]:
    """The ranges without the rows that were delivered."""
    for range_ in ranges:
        row = range_.first
        for first, end in as_ranges(done.get(range_.index, 0), plan[range_.index].num_rows):
            if row < min(first, range_.end):
                yield SplitRange(index=range_.index, first=row, end=min(first, range_.end))
            row = max(row, end)
        if row < range_.end:
            yield SplitRange(index=range_.index, first=row, end=range_.end)


def rank_claims(splits: Iterable[Split], positions: Iterable[int], done: Done) -> Iterator[Claim]:
    """Claims of whole splits at these positions of the epoch's order, without delivered rows."""
    for index, split in zip(positions, splits, strict=True):
        whole = [SplitRange(index=index, first=0, end=split.num_rows)]
        yield from _claims({index: split}, _not_delivered(done, whole, {index: split}))


def _claims(plan: Plan | Mapping[int, Split], ranges: Iterable[SplitRange]) -> Iterator[Claim]:
    for range_ in ranges:
        split, first = plan[range_.index], range_.first
        yield Claim(
            index=range_.index,
            split=split,
            fence=1,
            start_row=first,
            part=first,
            end_row=range_.end,
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
