"""Metrics of a loader: counts, seconds, and what an epoch waited for."""

import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

Item = TypeVar("Item")
# Below this share of waiting, which includes the wait for the first batch, faster data would hardly
# shorten the epoch. Chosen, not measured.
_IDLE_SHARE = 0.1
_COUNTS = (
    "rows",
    "batches",
    "epochs",
    "null_labels_dropped",
    "null_labels_filled",
    "rows_filtered",
    "row_groups_pruned",
    "row_groups_skipped",
    "row_groups_sliced",
    "row_groups_beyond_budget",
    "negatives_dropped",
    "files_skipped",
    "rows_skipped",
)


@dataclass(frozen=True, kw_only=True)
class EpochTimes:
    """Seconds of one epoch in one process.

    Attributes:
        total_s: From the epoch's first claim to its end.
        data_wait_s: How long the consumer waited for batches.
        decode_s: How long the decoding thread worked.
        staging_wait_s: How long the decoding thread waited for staged files.
    """

    total_s: float
    data_wait_s: float
    decode_s: float
    staging_wait_s: float

    def since(self, before: "EpochTimes") -> "EpochTimes":
        """The difference to an earlier reading."""
        return EpochTimes(
            **{name: value - getattr(before, name) for name, value in vars(self).items()}
        )


@dataclass
class Stats:
    """Counts and seconds by name.

    Each name is written by one thread, so no lock is needed. Names that run/delivery.py counts are
    written under its lock.
    """

    counts: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    column_bytes: Counter[str] = field(default_factory=Counter)
    # Separate, since the decoding and the assembling thread write them.
    column_decode_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    column_assemble_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    verdict: str = ""

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

    def times(self, staging_wait_s: float) -> EpochTimes:
        """The clocks now; `since` makes the times of an epoch out of two readings."""
        return EpochTimes(
            total_s=time.perf_counter(),
            data_wait_s=self.seconds["wait_s"],
            decode_s=self.seconds["decode_s"],
            staging_wait_s=staging_wait_s,
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
            **self.seconds,
        }

    def slots(self) -> dict[str, dict[str, int | float]]:
        """For each column that was read: its `bytes` as stored in the files, and its parts of the
        busy seconds of the stages `decode` and `assemble`, divided as rows/filtering.py says.
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
                "rows": counts("rows", 0),
                "batches": counts("batches", 0),
            },
        }


def verdict(times: EpochTimes) -> str:
    """The bottleneck of an epoch (model, remote store or decoding) with the shares of its time, and
    what would make the epoch shorter, in one line.
    """
    total_s = max(times.total_s, 1e-9)
    waited = min(1.0, times.data_wait_s / total_s)
    shares = (
        f"{times.total_s:.1f} s, of which training waited {waited:.0%} for data, decoding worked "
        f"{times.decode_s / total_s:.0%} and waited {times.staging_wait_s / total_s:.0%} for files"
    )
    if waited < _IDLE_SHARE:
        return f"{shares}: the model is the bottleneck; a quicker step is all that would help"
    if times.staging_wait_s >= times.decode_s:
        return (
            f"{shares}: the remote store is the bottleneck; fewer slots, staging.mode ranges, a "
            "staging.directory that is kept (`featstore stage warm`) or more bandwidth would help"
        )
    return (
        f"{shares}: decoding is the bottleneck; fewer slots, more cores or more worker processes "
        f"would help"
    )
