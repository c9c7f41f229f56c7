"""Which worker reads which rows. The orders `static`, `rank` and `replay` give a worker its claims
without asking a store. In order `dynamic` workers of one pace take fair shares.

Sections of an epoch are the files of one value of a partition key, such as one day. With
`shuffle.within` they are read in the order of their values, and rows are mixed within them only.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from featstore.base.errors import ConfigError, nearest, require_integer
from featstore.base.redaction import redact
from featstore.base.schema import SlotSchema
from featstore.dispatch.orders import SplitRange, WorkerInfo, static_ranges
from featstore.dispatch.plan import Done, Plan, Split, as_ranges
from featstore.dispatch.recording import Recording
from featstore.dispatch.terms import Claim
from featstore.files.storage import open_read
from featstore.loader.plan.shuffle import Shuffle
from featstore.loader.request.matching import Partition, SelectedFiles, matching
from featstore.loader.request.request import Request
from featstore.table.snapshot import Snapshot

DYNAMIC, STATIC, RANK, REPLAY = KINDS = ("dynamic", "static", "rank", "replay")


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """Which worker reads which rows of an epoch.

    Attributes:
        kind: `dynamic`: workers claim splits as they need them. `static`: the epoch's rows have one
            order for any number of workers, and batches are dealt out in turn. `rank`: each worker
            has its own part of the splits, drawn again each epoch. `replay`: each worker reads what
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
    def has_whole_splits(self) -> bool:
        """Whether workers read splits that they claim, or claimed when the epoch was recorded."""
        return self.kind in (DYNAMIC, REPLAY)

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


# Shares of this many splits differ by a tenth at most.
EVEN_SPLITS = 10


def claims_of_share(claims: Iterable[Claim], share_rows: int, split_rows: int) -> Iterator[Claim]:
    """The first claims, until another split would exceed the share; at least one if there is any.
    No further one is asked for then.

    Args:
        claims: What the worker can claim.
        share_rows: Rows of the share.
        split_rows: Rows of a split, on average.
    """
    num_rows = 0
    for claim in claims:
        yield claim
        num_rows += claim.end_row - claim.start_row
        if num_rows + split_rows > share_rows:
            return


def splits_of_shares(num_splits: int, num_workers: int) -> tuple[int, int]:
    """How many splits the smallest and the largest share of an epoch have."""
    return num_splits // num_workers, -(-num_splits // num_workers)


def uneven_shares(num_splits: int, num_workers: int) -> str:
    """What to say of shares that differ by more than a tenth; empty if they do not."""
    least, most = splits_of_shares(num_splits, num_workers)
    if (most - least) * EVEN_SPLITS <= most:
        return ""
    return (
        f"{num_splits} splits for {num_workers} workers that train in step: shares of {least} to "
        f"{most} splits, so up to {(most - least) / most:.0%} of a worker's steps have no rows of "
        f"its own; {EVEN_SPLITS * num_workers} splits or more are even enough: set "
        "dispatch.split_rows, which cuts files at their row groups, or choose order static"
    )


def section_key(shuffle: Shuffle | None, schema: SlotSchema, ordering: Ordering) -> pa.Field | None:
    """The partition key that `shuffle.within` names; None if it names none.

    Raises:
        ConfigError: The table has no such key, or workers in this order do not begin with the same
            section.
    """
    if shuffle is None or shuffle.within is None:
        return None
    if ordering.kind == RANK:
        raise ConfigError(
            "shuffle.within: expected order dynamic, static or replay, found rank, in which each "
            "worker has a part of the epoch for itself, so that the last one would begin with the "
            "last partitions"
        )
    keys = {field.name: field for field in schema.partition_keys}
    if shuffle.within not in keys:
        known = f"it has {', '.join(keys)}" if keys else "it has none"
        raise ConfigError(
            f"shuffle.within: expected a partition key of the table, found {shuffle.within!r}"
            f"{nearest(shuffle.within, keys)}; {known}"
        )
    return keys[shuffle.within]


def in_sections(files: SelectedFiles, key: pa.Field | None) -> SelectedFiles:
    """The files in the order of their sections: null first, then by the key's value, as its type
    compares. Without a key in the order in which they are.
    """
    return files if key is None else files.sorted_by(_value_of(key))


def matching_in_sections(
    snapshot: Snapshot, request: Request, key: pa.Field | None
) -> SelectedFiles:
    """The data files of a snapshot that can match, in the order of their sections."""
    return in_sections(matching(snapshot, request), key)


def section_sizes(
    splits: Sequence[Split], files: SelectedFiles, key: pa.Field | None
) -> tuple[int, ...]:
    """How many splits each section has, of splits in the order of `in_sections`. Empty without a
    key.
    """
    if key is None:
        return ()
    value_of = _value_of(key)
    found = groupby(splits, key=lambda split: value_of(files[split.path][1]))
    return tuple(sum(1 for _ in of_section) for _, of_section in found)


def _value_of(key: pa.Field) -> Callable[[Partition], tuple[bool, Any]]:
    """Gives the value of a partition key, which many files share, so that it compares: whether
    there is a value, and the value; those without compare as equal.
    """

    @cache
    def of_text(text: str | None) -> tuple[bool, Any]:
        value = pa.scalar(text, pa.string()).cast(key.type).as_py()
        return value is not None, value

    return lambda partition: of_text(partition.values.get(key.name))
