"""Metrics of a loader: counts, seconds, what an epoch waited for, and whom they are told to."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from featstore.base.errors import ConfigError
from featstore.loader.batches.memory_budget import Budget
from featstore.loader.request.options import as_options, function_of

Item = TypeVar("Item")
# Below this share of waiting, which includes the wait for the first batch, faster data would hardly
# shorten the epoch. Chosen, not measured.
_IDLE_SHARE = 0.1
# Threads that together work for a smaller share of an epoch are not what it waited for. Chosen.
_BUSY_SHARE = 0.5
# Of fewer rows in pieces the budget is not what an epoch waited for. Chosen.
_PIECES_SHARE = 0.5
# What is asked of `memory_budget` beyond what is needed: this part of it. Chosen, not measured.
_WANTED_ROOM_SHARE = 4
# A smaller share of padding is not worth a word: a table is rarely divided better. Chosen.
_PADDING_SHARE = 0.1
_COUNTS = (
    "rows",
    "batches",
    "padding_batches",
    "epochs",
    "null_labels_dropped",
    "null_labels_filled",
    "rows_filtered",
    "rows_masked",
    "row_groups_pruned",
    "row_groups_skipped",
    "row_groups_sliced",
    "row_groups_beyond_budget",
    "rows_in_pieces",
    "negatives_dropped",
    "files_skipped",
    "rows_skipped",
    "rows_dropped_last",
    "rows_dropped_tail",
)
_ROWS_READ = ("rows", "rows_filtered", "rows_masked", "negatives_dropped", "null_labels_dropped")
# What waits between the threads of an iteration, and what is made and reserved ahead of the loop.
NOTHING_WAITS = dict.fromkeys(
    ("decoded", "assembled", "transformed", "pending_batches", "made_rows", "reserved_rows"), 0
)


@dataclass(frozen=True, kw_only=True)
class EpochTimes:
    """Seconds of one epoch in one process.

    Attributes:
        total_s: From the epoch's first claim to its end.
        data_wait_s: How long the consumer waited for batches.
        decode_s: How long the decoding thread worked.
        staging_wait_s: How long the decoding thread waited for staged files.
        staging_room_s: How long the threads that stage waited for room in the budget.
        assemble_s: How long the assembling thread worked.
        first_wait_s: The part of `data_wait_s` before the first batch, or, where the worker read in
            several rounds, before the first batch of each.
        others_wait_s: The part of `data_wait_s` in which nothing was left to claim, and other
            workers had rows that they had not delivered.
    """

    total_s: float
    data_wait_s: float
    decode_s: float
    staging_wait_s: float
    assemble_s: float = 0.0
    first_wait_s: float = 0.0
    others_wait_s: float = 0.0
    staging_room_s: float = 0.0

    def since(self, before: "EpochTimes") -> "EpochTimes":
        """The difference to an earlier reading."""
        return EpochTimes(
            **{name: value - getattr(before, name) for name, value in vars(self).items()}
        )


@dataclass
class Stats:
    """Counts and seconds by name.

    Each name is written by one thread, so no lock is needed. Names that delivery.py or
    bad_files.py count are written under their locks.
    """

    counts: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    column_bytes: Counter[str] = field(default_factory=Counter)
    # Separate, since the decoding and the assembling thread write them.
    column_decode_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    column_assemble_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    # The budget of the newest iteration, and the one with which rows would not come in pieces.
    budget: Budget | None = None
    wanted_budget_bytes: int = 0
    # The workers that were waited for last, and the rows that they had: whoever waits replaces it.
    awaited: Mapping[str, int] = field(default_factory=dict)
    verdict: str = ""

    def is_first(self, name: str, number: int = 1) -> bool:
        """Counts `number` more. Returns whether they are the first, which are warned of."""
        self.counts[name] += number
        return self.counts[name] == number

    def note_pieces(self, num_rows: int, wanted_bytes: int) -> bool:
        """Counts rows that are read or gathered in small pieces since `memory_budget` holds no more
        of them. Returns whether to warn: they want more than `wanted_budget_bytes` was.

        Args:
            num_rows: The rows.
            wanted_bytes: The budget with which they would not be.
        """
        self.counts["rows_in_pieces"] += num_rows
        if wanted_bytes <= self.wanted_budget_bytes:
            return False
        # With room for longer rows, which come later: few are warned of.
        self.wanted_budget_bytes = wanted_bytes + wanted_bytes // _WANTED_ROOM_SHARE
        return True

    def budget_wanted(self, counts: Mapping[str, int]) -> int:
        """`wanted_budget_bytes` if, of what an epoch counted, many rows came in pieces; else 0."""
        num_rows = sum(counts.get(name, 0) for name in _ROWS_READ)
        is_in_pieces = counts.get("rows_in_pieces", 0) > _PIECES_SHARE * num_rows
        return self.wanted_budget_bytes if is_in_pieces else 0

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def each(self, name: str, items: Iterator[Item]) -> Iterator[Item]:
        """The items; the time that `items` takes to produce them is counted as `name`."""
        while True:
            with self.timed(name):
                item = next(items, None)
            if item is None:
                return
            yield item
            del item  # Frees its memory before the next one is waited for.

    def paced(self, items: Generator[Item, None, None], name: str) -> Generator[Item, None, None]:
        """The items; the time that their consumer takes between two of them is counted as `name`.
        Where the consumer puts them into a queue, that is the wait for room in it.
        """
        try:
            for item in items:
                started = time.perf_counter()
                yield item
                self.seconds[name] += time.perf_counter() - started
                del item  # Frees its memory before the next one is made.
        finally:
            items.close()

    def times(self, staging_wait_s: float, staging_room_s: float = 0.0) -> EpochTimes:
        """The clocks now; `since` makes the times of an epoch out of two readings."""
        return EpochTimes(
            total_s=time.perf_counter(),
            data_wait_s=self.seconds["wait_s"],
            decode_s=self.seconds["decode_s"],
            staging_wait_s=staging_wait_s,
            staging_room_s=staging_room_s,
            assemble_s=self.seconds["assemble_s"],
            first_wait_s=self.seconds["first_wait_s"],
            others_wait_s=self.seconds["others_wait_s"],
        )

    def to_dict(self) -> dict[str, Any]:
        """Counts and seconds by name."""
        zeros = dict.fromkeys(_COUNTS, 0)
        return {
            **zeros,
            **self.counts,
            "wait_s": 0.0,
            "decode_s": 0.0,
            "assemble_s": 0.0,
            "others_wait_s": 0.0,
            **self.seconds,
        }

    def memory(self) -> dict[str, int]:
        """What the memory budget is, and what is and was held of it."""
        if (budget := self.budget) is None:
            return dict.fromkeys(("budget_bytes", "held_bytes", "peak_bytes"), 0)
        return {
            "budget_bytes": budget.most_bytes,
            "held_bytes": 0 if budget.is_closed else budget.held_bytes,
            "peak_bytes": budget.peak_bytes,
        }

    def slots(self) -> dict[str, dict[str, int | float]]:
        """For each column that was read: its `bytes` as stored in the files, and its parts of the
        busy seconds of the stages `decode` and `assemble`, divided as filtering.py says.
        """
        return {
            name: {
                "bytes": num_bytes,
                "decode_s": self.column_decode_s.get(name, 0.0),
                "assemble_s": self.column_assemble_s.get(name, 0.0),
            }
            for name, num_bytes in list(self.column_bytes.items())
        }

    def stages(self, staging: Mapping[str, int | float]) -> dict[str, dict[str, int | float]]:
        """Busy and waiting seconds of each stage, in the order of the data.

        Args:
            staging: The stager's counts by name; empty if nothing is staged.
        """
        seconds, counts = self.seconds.get, self.counts.get
        return {
            "staging": {
                "bytes": staging.get("fetched_bytes", 0),
                "files": staging.get("num_staged", 0),
                "retries": staging.get("num_retries", 0),
            },
            "decode": {
                "busy_s": seconds("decode_s", 0.0),
                "wait_for_files_s": staging.get("wait_s", 0.0),
                "wait_for_room_s": seconds("decode_room_s", 0.0),
                "bytes": self.column_bytes.total(),
                "rows": counts("rows_decoded", 0),
            },
            "assemble": {"busy_s": seconds("assemble_s", 0.0)},
            "transform": {
                "busy_s": seconds("transform_s", 0.0),
                "wait_for_blocks_s": seconds("transform_wait_s", 0.0),
                "wait_for_room_s": seconds("transform_room_s", 0.0),
            },
            "delivery": {
                "wait_s": seconds("wait_s", 0.0),
                "wait_for_others_s": seconds("others_wait_s", 0.0),
                "rows": counts("rows", 0),
                "batches": counts("batches", 0),
            },
        }


@dataclass(frozen=True, kw_only=True)
class EpochReading:
    """How an epoch was read.

    Attributes:
        awaited: The workers that were waited for last, with the rows that they had.
        wanted_budget_bytes: A `memory_budget` with which rows would not come in small pieces; 0 if
            few did.
        is_dynamic: Whether the order is `dynamic`.
    """

    awaited: Mapping[str, int] = field(default_factory=dict)
    wanted_budget_bytes: int = 0
    is_dynamic: bool = True


def verdict(times: EpochTimes, num_batches: int, reading: EpochReading | None = None) -> str:
    """The bottleneck of an epoch (model, other workers, remote store, start, memory budget,
    decoding or assembling) with the shares of its time, and what would make the epoch shorter, in
    one line.

    Args:
        times: Where the time of the epoch went.
        num_batches: The batches that the consumer got.
        reading: How it was read.
    """
    if not num_batches:
        return (
            f"{times.total_s:.1f} s without a batch: others read the rows, no row was selected, or "
            f"fewer were left than a batch has (drop_last)"
        )
    total_s = max(times.total_s, 1e-9)
    waited = min(1.0, times.data_wait_s / total_s)
    shares = (
        f"{times.total_s:.1f} s, of which training waited {waited:.0%} for data "
        f"({min(waited, times.first_wait_s / total_s):.0%} before first batches), decoding worked "
        f"{times.decode_s / total_s:.0%} and waited {times.staging_wait_s / total_s:.0%} for "
        f"files, and assembling worked {times.assemble_s / total_s:.0%}"
    )
    return f"{shares}: {_bottleneck(times, total_s, waited, reading or EpochReading())}"


def _bottleneck(times: EpochTimes, total_s: float, waited: float, reading: EpochReading) -> str:
    if waited < _IDLE_SHARE:
        return (
            "the model is the bottleneck; a quicker step, or on a busy host fewer threads of torch "
            "(OMP_NUM_THREADS), is all that would help"
        )
    steady_s = times.data_wait_s - times.first_wait_s
    if times.first_wait_s < _BUSY_SHARE * total_s and steady_s < _IDLE_SHARE * total_s:
        return (
            "the model is the bottleneck after the start, which weighs less the longer an epoch "
            "is; a quicker step or more rows in an epoch would help"
        )
    if times.others_wait_s >= times.data_wait_s / 2:
        who = ", ".join(f"{worker} {num_rows:,}" for worker, num_rows in reading.awaited.items())
        return (
            f"for {times.others_wait_s:.1f} s nothing was left to claim, and other workers had "
            f"rows to deliver{f' (at last {who})' if who else ''}; a smaller dispatch.reserve_s, "
            "where their steps are shorter than it, or a smaller dispatch.lease_s, where one of "
            "them had died, would help"
        )
    if times.staging_wait_s >= max(times.decode_s, 1e-9):
        if times.staging_room_s >= times.staging_wait_s / 2:
            return (
                "staging.budget_bytes is the bottleneck: files that were read left no room for the "
                "next ones; a larger budget, a smaller shuffle.interleave or fewer slots would help"
            )
        return (
            "the remote store is the bottleneck; fewer slots, staging.mode ranges, a "
            "staging.directory that is kept (`featstore stage warm`) or more bandwidth (a higher "
            "staging.max_bytes_per_s, if it is set) would help"
        )
    if times.first_wait_s >= times.data_wait_s / 2:
        return (
            "the start of the epoch is the bottleneck, when nothing is made ahead; a smaller "
            "shuffle.window_rows or shuffle.interleave, or more rows in an epoch would help"
        )
    if wanted_bytes := reading.wanted_budget_bytes:
        return (
            "memory_budget is the bottleneck, which holds so few rows that they come in small "
            f"pieces; {wanted_bytes} or more, fewer slots, or shorter lists would help"
        )
    if times.decode_s + times.assemble_s < _BUSY_SHARE * total_s:
        return (
            "no stage was busy: its threads waited for a core; fewer threads (OMP_NUM_THREADS, "
            "decode_threads), or fewer other processes on the host, would help"
        )
    if times.decode_s >= times.assemble_s:
        return (
            "decoding is the bottleneck; fewer slots, more cores or more worker processes would "
            "help"
        )
    order = "" if reading.is_dynamic else "order dynamic, "
    return (
        "assembling is the bottleneck, which puts rows in order and makes batches; fewer slots, "
        f"{order}more cores or more worker processes would help"
    )


def padding_note(num_padding: int, num_steps: int) -> str:
    """What a verdict says of padding; empty if there is little.

    Args:
        num_padding: The padding batches of an iteration.
        num_steps: All of its batches.
    """
    if num_padding <= _PADDING_SHARE * num_steps:
        return ""
    return (
        f"{num_padding} of {num_steps} steps were padding, since other ranks had more rows: more "
        "splits (a smaller dispatch.split_rows) or order static would "
        "help"
    )


_OF_TABLE = ("rows", "batches", "epochs", "wait_s", "decode_s")


def summed_stats(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of all numbers by name, `worker` as it is, and under `tables` some numbers of each
    table, by its number in the config.

    Args:
        tables: `FeatureLoader.stats()` of each table, at least one.
    """
    total = _sum([{k: v for k, v in each.items() if k != "worker"} for each in tables])
    if (batch := tables[0].get("batch")) is not None:
        total["batch"] = batch_fill(total, batch["max_values"])
    own = {str(i): {key: each[key] for key in _OF_TABLE} for i, each in enumerate(tables)}
    return {**total, "worker": dict(tables[0]["worker"]), "tables": own}


def batch_fill(counts: Mapping[str, int], max_values: int) -> dict[str, Any]:
    """The cap on the values of a batch, and the share of it that batches used on average."""
    most = max_values * max(1, counts.get("batches", 0))
    return {"max_values": max_values, "used": counts.get("batch_values", 0) / most}


def _sum(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of numbers by name, in mappings of mappings."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(key for part in parts for key in part):
        values = [part[name] for part in parts if name in part]
        is_group = isinstance(values[0], Mapping)
        found[name] = _sum(values) if is_group else sum(values)
    return found


@dataclass(frozen=True, kw_only=True)
class OnStats:
    """What is done with the metrics of a loader while it runs.

    Attributes:
        call: A function of `FeatureLoader.stats()`, or its name as `package.module:function`.
        every_s: Seconds from one call to the next, at least.

    Raises:
        ConfigError: There is no such function, or `every_s` is below 0.
    """

    call: Callable[[dict[str, Any]], object] | str
    every_s: float = 15.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "call", function_of("on_stats.call", self.call))
        if (
            isinstance(self.every_s, bool)
            or not isinstance(self.every_s, int | float)
            or not self.every_s >= 0
        ):
            raise ConfigError(
                f"on_stats.every_s: expected seconds, 0 or more, found {self.every_s!r}"
            )


def on_stats_options(
    option: OnStats | Mapping[str, Any] | Callable[[dict[str, Any]], object] | str | None,
) -> OnStats | None:
    """The options, as a config or a caller gives them."""
    if isinstance(option, str) or callable(option):
        return OnStats(call=option)
    return as_options(OnStats, option, "on_stats")


class StatsCalls:
    """Calls the function at the pace of the batches, in the thread that asks for them.

    Args:
        options: The function and its pace; None calls nothing.
        clock: Tells seconds.
    """

    def __init__(
        self, options: OnStats | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options, self._clock = options, clock
        self._next_s = clock()

    def tell(self, stats: Callable[[], dict[str, Any]], *, is_last: bool) -> None:
        """Calls the function if it is time to, or the iteration has ended. Raises what it raises.

        Args:
            stats: Makes the metrics.
            is_last: Whether the iteration has ended by itself.
        """
        if self._options is None:
            return
        now_s = self._clock()
        if is_last or now_s >= self._next_s:
            self._next_s = now_s + self._options.every_s
            assert callable(self._options.call)
            self._options.call(stats())
