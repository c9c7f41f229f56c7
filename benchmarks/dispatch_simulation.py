"""The plan and the lease code at 10,000 workers and 1,000,000 files, in simulated time: store
operations, tail, memory.

One process plays all workers on a virtual clock. Plan, records, cuts and the choice of what to take
from whom are the package's own; the store is a dict of records that counts exchanges (records are
not encoded, nothing crosses a network). A worker acknowledges every 1.5 s, and reserves what it
delivers in two. One worker in a hundred is four times slower; one in a hundred dies at some time.
Idle workers rest as `Coordinator` has them: they ask for two hints about once a second,
and look at up to 64 leases in one exchange where one of those that they saw last has rows to give,
else eight times in a lease time. What is simplified: which 64 is drawn anew for each look; a dead
worker's splits come back a lease time after its death, without the reads by which they are found;
renewals are counted as a rate. Ends with one line `RESULT {json}`; exit code 1 if a row is missing,
or the tail, from the first idle worker to the last row, is longer than a lease time and what a slow
worker needs for the rows that a quick one had reserved: somebody may die at the very end.
"""

import argparse
import heapq
import itertools
import random
import resource
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from featstore.dispatch import lease as leases
from featstore.dispatch.lease import Lease, LeaseState
from featstore.dispatch.plan import Extent, Plan, Split
from featstore.dispatch.relieving import Seen, Taker, takings
from featstore.dispatch.survey import Part
from featstore.dispatch.terms import Terms
from shared_parts.machine import print_result

FILE_UNIT_ROWS, ROWS_PER_S, BATCH_ROWS = 100_000, 50_000, 4_096
RESERVE_S = Terms().reserve_s
REPORT_S = Terms().report_s
LEASE_S, BEATS_PER_LEASE = 60.0, 3
LOOK, PAUSE_S, LOOK_EVERY_S = 64, 1.0, LEASE_S / 8
TAIL_LIMIT_S = LEASE_S + 4 * RESERVE_S


class Files(Sequence[Split]):
    """A listing that makes its items when asked: 1 to 12 times 100,000 rows a file, 260,000 on
    average, and a few of 10,000,000.
    """

    def __init__(self, num_files: int) -> None:
        self._num_files = num_files

    def __len__(self) -> int:
        return self._num_files

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._num_files:
            raise IndexError(f"file {index} of {self._num_files}")
        draw = crc32(index.to_bytes(8, "little")) / 2**32
        num_units = 100 if draw < 0.0005 else min(12, int((1 - draw) ** (-1 / 1.3)))
        return Split(
            path=f"dt=2026-11-01/part-{index:07d}.parquet", num_rows=num_units * FILE_UNIT_ROWS
        )


class Drawable:
    """Parts of which some can be drawn in constant time."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._places: dict[Part, int] = {}

    def add(self, part: Part) -> None:
        self._places[part] = len(self.parts)
        self.parts.append(part)

    def discard(self, part: Part) -> None:
        place, last = self._places.pop(part), self.parts.pop()
        if last != part:
            self.parts[place], self._places[last] = last, place

    def some(self, draw: random.Random, limit: int) -> list[Part]:
        return list(self.parts) if len(self.parts) <= limit else draw.sample(self.parts, limit)


class Cluster:
    """All workers, the store's records, and the clock."""

    def __init__(self, num_workers: int, num_files: int, seed: int) -> None:
        draw = random.Random(seed)
        self.plan = Plan(splits=Files(num_files), seed=seed)
        self.paces = [
            ROWS_PER_S // 4 if draw.random() < 0.01 else ROWS_PER_S for _ in range(num_workers)
        ]
        expected_s = num_files * 2.6 * FILE_UNIT_ROWS / ROWS_PER_S / num_workers
        self.dies_at = [
            draw.uniform(0, expected_s) if draw.random() < 0.01 else float("inf")
            for _ in range(num_workers)
        ]
        self.records: dict[Part, Lease] = {}
        self.open = Drawable()
        self.look_at = [0.0] * num_workers
        self.may_relieve = [True] * num_workers
        self.tail_exchanges: Counter[int] = Counter()
        self.operations: Counter[str] = Counter()
        self.cursor, self.delivered, self.repeated = 0, 0, 0
        self.first_idle_s = self.last_s = self.now = 0.0
        self.num_keys_read = 0
        self.draw, self.order = draw, itertools.count()
        self.events: list[tuple[float, int, int, Part | None]] = []
        self.orphans: list[tuple[float, Part]] = []

    def run(self) -> None:
        for worker in range(len(self.paces)):
            self._at(self.draw.uniform(0, 1), worker, None)
        while self.events:
            now, _, worker, part = heapq.heappop(self.events)
            if now < self.dies_at[worker]:
                self._step(now, worker, part)
            elif part is not None:
                self.orphans.append((now + LEASE_S, part))

    def _at(self, when: float, worker: int, part: Part | None) -> None:
        heapq.heappush(self.events, (when, next(self.order), worker, part))

    def _step(self, now: float, worker: int, part: Part | None) -> None:
        """The worker has delivered rows for REPORT_S, or the last ones of the part that it holds,
        and goes on.
        """
        if part is not None:
            mine = self.records[part]
            rows = min(mine.rows + int(self.paces[worker] * REPORT_S), mine.limit)
            delivered = leases.advance(mine, rows)
            self.delivered += rows - mine.rows
            self.last_s = now
            if self._reserve(now, worker, part, delivered):
                return
        if (taken := self._claim(now, worker)) is not None:
            self.operations["start"] += 1
            assert self._reserve(now, worker, taken, leases.start(self.records[taken]))
        elif self.open.parts or self.orphans:
            self.operations["hints of idle workers"] += 1
            self.tail_exchanges[int(now)] += 1
            self._at(now + PAUSE_S * self.draw.uniform(0.5, 1), worker, None)

    def _reserve(self, now: float, worker: int, part: Part, mine: Lease) -> bool:
        """Acknowledges, and reserves what comes soon, or says that the part is done."""
        self.operations["reserve, acknowledge or complete"] += 1
        pace = self.paces[worker]
        changed = leases.reserve(mine, mine.rows + int(pace * RESERVE_S), pace=pace)
        if changed.reserved > mine.rows:
            self.records[part] = changed
            self._at(now + min(REPORT_S, (changed.limit - mine.rows) / pace), worker, part)
            return True
        self.records[part] = leases.finish(mine)
        self.open.discard(part)
        return False

    def _claim(self, now: float, worker: int) -> Part | None:
        self.now = now
        if self.cursor < len(self.plan):
            self.operations["cursor"] += 1
            self.cursor += 1
            split = self.plan[self.cursor - 1]
            return self._take(
                (self.cursor - 1, 0),
                worker,
                Extent(split=split.id, start_row=0, end=split.num_rows),
            )
        self.first_idle_s = self.first_idle_s or now
        if now < self.look_at[worker] and not self.may_relieve[worker]:
            return None
        self.look_at[worker] = now + LOOK_EVERY_S * self.draw.uniform(0.5, 1.5)
        if self.orphans and self.orphans[0][0] <= now:
            _, part = self.orphans.pop(0)
            again = leases.claim_again(self.records[part], worker=str(worker), nonce=str(worker))
            self.repeated += again.repeated - self.records[part].repeated
            self.records[part] = again
            self.operations["claim"] += 1
            return part
        return self._cut(worker)

    def _take(self, part: Part, worker: int, extent: Extent) -> Part:
        self.operations["claim"] += 1
        self.records[part] = leases.claim(extent, worker=str(worker), nonce=str(worker))
        self.open.add(part)
        return part

    def _cut(self, worker: int) -> Part | None:
        parts = self.open.some(self.draw, LOOK)
        self.operations["looks of idle workers"] += 1
        self.tail_exchanges[int(self.now)] += 3
        self.num_keys_read += len(parts)
        seen = [
            Seen(part=part, record=self.records[part], value="", standstill_s=0.0)
            for part in parts
            if self.records[part].state is LeaseState.HELD
        ]
        self.may_relieve[worker] = any(one.record.num_left for one in seen)
        me = Taker(salt=str(worker), rows_per_s=self.paces[worker], least_rows=BATCH_ROWS)
        for taking in takings(seen, me):
            one, at = taking.lease, taking.at
            assert at is not None, "each claim has rows reserved at once"
            self.operations["cut"] += 1
            self.records[one.part] = leases.cut(one.record, at)
            end = dict(leases.parts(self.records[one.part]))[at]
            return self._take(
                (one.part[0], at), worker, Extent(split=one.record.split, start_row=at, end=end)
            )
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="500 workers and 50,000 files")
    num_workers, num_files = (500, 50_000) if parser.parse_args().small else (10_000, 1_000_000)
    started = time.monotonic()
    cluster = Cluster(num_workers, num_files, seed=3)
    cluster.run()
    num_rows = sum(split.num_rows for split in cluster.plan.splits)
    missing = num_rows - cluster.delivered
    renewals = num_workers * BEATS_PER_LEASE / LEASE_S
    tail_s = cluster.last_s - cluster.first_idle_s
    figures = {
        "num_workers": num_workers,
        "num_files": num_files,
        "epoch_s": round(cluster.last_s, 1),
        "tail_s": round(tail_s, 1),
        "operations": dict(cluster.operations),
        "operations_per_s": round(
            (cluster.operations.total() + 2 * cluster.operations["looks of idle workers"])
            / cluster.last_s
            + renewals,
            1,
        ),
        "renewals_per_s": renewals,
        "exchanges_per_s_in_the_busiest_second_of_the_tail": max(
            cluster.tail_exchanges.values(), default=0
        ),
        "keys_read_by_idle_workers": cluster.num_keys_read,
        "seconds_to_simulate": round(time.monotonic() - started),
        "peak_bytes_of_the_simulation": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "rows_missing": missing,
        "rows_repeated_at_most": cluster.repeated,
        "store_bytes_per_file": round(_record_bytes(cluster), 1),
        "worker_bytes": _worker_bytes(num_files),
    }
    ok = missing == 0 and tail_s <= TAIL_LIMIT_S
    print_result({"ok": ok, "tail_limit_s": TAIL_LIMIT_S, **figures})
    return 0 if ok else 1


def _record_bytes(cluster: Cluster) -> float:
    """What a record is in the store, on average over some."""
    some = list(itertools.islice(cluster.records.values(), 1000))
    return (
        sum(len(record.encode()) for record in some)
        * len(cluster.records)
        / len(some)
        / len(cluster.plan)
    )


def _worker_bytes(num_files: int) -> int:
    """What a worker's plan keeps when its listing makes items as asked."""
    tracemalloc.start()
    plan = Plan(splits=Files(num_files), seed=3)
    for index in range(0, num_files, num_files // 1000):
        _ = plan[index]
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept


if __name__ == "__main__":
    sys.exit(main())
