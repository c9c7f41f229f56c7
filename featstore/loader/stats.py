"""What a loader has done so far, in numbers."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from featstore.loader.verdict import EpochTimes

Item = TypeVar("Item")
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


@dataclass
class Stats:
    """Counts and seconds by name. Each name has one writing thread, so no lock is needed; those that
    delivery.py counts are written under its lock."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    column_bytes: Counter[str] = field(default_factory=Counter)
    # Apart, since one thread decodes and another one assembles.
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
        """The items, and the time that each takes to come."""
        while True:
            with self.timed(name):
                item = next(items, None)
            if item is None:
                return
            yield item
            del item

    def times(self, staging_wait_s: float) -> EpochTimes:
        """Where the clocks stand."""
        return EpochTimes(
            total_s=time.perf_counter(),
            data_wait_s=self.seconds["wait_s"],
            decode_s=self.seconds["decode_s"],
            staging_wait_s=staging_wait_s,
        )

    def to_dict(self) -> dict[str, Any]:
        """Counts and seconds by name."""
        zeros = dict.fromkeys(_COUNTS, 0)
        return {**zeros, **self.counts, "wait_s": 0.0, "decode_s": 0.0, "assemble_s": 0.0, **self.seconds}

    def slots(self) -> dict[str, dict[str, int | float]]:
        """What each column that was read took: `bytes` as stored in the files, `decode_s` and `assemble_s` as metering.py
        says, which are parts of what the stages of these names were busy."""
        return {
            name: {
                "bytes": num_bytes,
                "decode_s": self.column_decode_s.get(name, 0.0),
                "assemble_s": self.column_assemble_s.get(name, 0.0),
            }
            for name, num_bytes in list(self.column_bytes.items())
        }

    def stages(self, staging: Mapping[str, int | float]) -> dict[str, dict[str, int | float]]:
        """The stages in the order of the data: what kept each busy, and what it waited for. `staging`: a stager's counts."""
        wait_s, of = self.seconds.get, self.counts.get
        return {
            "staging": {
                "bytes": staging.get("fetched_bytes", 0),
                "files": staging.get("num_staged", 0),
                "retries": staging.get("num_retries", 0),
            },
            "decode": {
                "busy_s": wait_s("decode_s", 0.0),
                "wait_for_files_s": staging.get("wait_s", 0.0),
                "wait_for_room_s": wait_s("decode_room_s", 0.0),
                "bytes": self.column_bytes.total(),
                "rows": of("rows_decoded", 0),
            },
            "assemble": {"busy_s": wait_s("assemble_s", 0.0)},
            "transform": {
                "busy_s": wait_s("transform_s", 0.0),
                "wait_for_blocks_s": wait_s("transform_wait_s", 0.0),
                "wait_for_room_s": wait_s("transform_room_s", 0.0),
            },
            "delivery": {"wait_s": wait_s("wait_s", 0.0), "rows": of("rows", 0), "batches": of("batches", 0)},
        }
