"""A campaign against the network of an elastic job: hosts of workers, and the server's, are cut off,
and workers and hosts are killed; every row must come all the same.

    python -m tests.hosts.elastic [--epochs 200] [--networks 2] [--results FILE] [--only N ...]

As root. Each trial is one epoch, or two, of two workers on each of three hosts; a launcher starts
another worker where one was killed or ended with an error. The number of a trial draws what happens
to it, one thing after the other: cuts of 0.1 to 3 leases of a worker's host, of the server's, of
both, and of one direction only; hosts that vanish and come back; a server that is killed and comes
back on its file; and between them workers that are killed. With `--results` trials are noted in a
file, and a campaign that was broken off goes on where it was, as long as the code is the same. Prints a table and one line
`RESULT {json}`; exits 1 if rows are missing, an epoch hangs, a worker ends otherwise than by a cut of
a lease or more, or more rows came twice than the receipt says.
"""

import argparse
import json
import math
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.epoch_end import code_digest
from tests.hosts.crew import Crew, Station, Worker
from tests.hosts.hosts import Network
from tests.parquet_files import put_row_files

FILES, FILE_ROWS, GROUP_ROWS, BATCH_ROWS = 6, 4_000, 200, 20
NUM_ROWS = FILES * FILE_ROWS
HOSTS, WORKERS_PER_HOST = 3, 2
LEASE_S, PAUSE_S, HANG_S = 4.0, 0.04, 150.0
WORKER, SERVER, BOTH = "cut: a worker's host", "cut: the server's host", "cut: both"
SENDS, RECEIVES = "cut: what a worker's host sends", "cut: what it receives"
LOST, RESTART = "a worker's host vanishes", "the server is killed, and comes back"
KINDS = (WORKER, SERVER, BOTH, SENDS, LOST, WORKER, SERVER, RECEIVES, RESTART)


def draw_trial(number: int) -> dict[str, Any]:
    """What happens in the trial of this number: the same at each run."""
    drawn = random.Random(f"elastic {number}")
    kinds = [KINDS[number % len(KINDS)], *drawn.choices(KINDS, k=drawn.randint(0, 2))]
    return {
        "number": number,
        "epochs": 2 if drawn.random() < 0.2 else 1,
        "shuffles": drawn.random() < 0.3,
        "seed": drawn.randrange(1 << 30),
        "events": [
            {
                "kind": kind,
                "host": drawn.randrange(HOSTS),
                # As often between 0.1 and 0.55 leases as between that and 3.
                "seconds": round(LEASE_S * 0.1 * 30 ** drawn.random(), 2),
                "after_s": round(drawn.uniform(0.2, 1) * LEASE_S, 2),
                "kills": drawn.random() < 0.35,
            }
            for kind in kinds
        ],
    }


class Trial:
    """An epoch with what happens to it; `run` says what came of it."""

    def __init__(self, trial: dict[str, Any], crew: Crew, table: Path, directory: Path) -> None:
        self.trial, self.crew = trial, crew
        self.run_id = f"t{trial['number']}"
        self._drawn = random.Random(trial["seed"])
        self._directory = directory / self.run_id
        self._directory.mkdir()
        dispatch = {
            "store": crew.url,
            "run_id": self.run_id,
            "lease_s": LEASE_S,
            "in_step": False,
            "finished": "end",
        }
        loader = {
            "slots": ["row"],
            "batch_size": BATCH_ROWS,
            "num_epochs": trial["epochs"],
            "dispatch": dispatch,
            "shuffle": {"window_rows": 400, "interleave": 2} if trial["shuffles"] else None,
        }
        self._work = {"table": str(table), "loader": loader, "pause_s": PAUSE_S}
        self.workers: list[Worker] = []
        self._replaced: set[str] = set()
        self._deadline = time.monotonic() + HANG_S
        # (event, unix seconds at its beginning and at its end)
        self.happened: list[tuple[dict[str, Any], float, float]] = []

    def run(self) -> dict[str, Any]:
        """The outcome."""
        try:
            for station in self.crew.stations * WORKERS_PER_HOST:
                self._begin(station)
            self._await(lambda: any(worker.deliveries() for worker in self.workers))
            for event in self.trial["events"]:
                self._await(lambda: False, event["after_s"])
                if self._num_missing() and not self._is_late():
                    self._happen(event)
            self._await(lambda: not self._running())
            return self._outcome()
        finally:
            for worker in self.workers:
                worker.kill()

    def _begin(self, station: Station) -> None:
        name = self._directory / f"{len(self.workers):02}"
        self.workers.append(station.begin(str(name), self._work))

    def _running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.status is None]

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _await(self, is_so: Any, seconds: float = HANG_S) -> None:
        """Waits until it is so, for so long at most, and replaces workers as a launcher does."""
        until = min(time.monotonic() + seconds, self._deadline)
        self._replace()
        while time.monotonic() < until and not is_so():
            time.sleep(0.05)
            self._replace()

    def _replace(self) -> None:
        """Starts a worker for each that was killed, or ended with an error, on a host that is
        there.
        """
        for worker in list(self.workers):
            is_gone = worker.status not in (None, 0) and worker.name not in self._replaced
            host = worker.station.host
            if is_gone and host.is_up and not host.is_cut and not self.crew.server.is_cut:
                self._replaced.add(worker.name)
                if self._num_missing():
                    self._begin(worker.station)

    def _happen(self, event: dict[str, Any]) -> None:
        """Lets the event happen, from its beginning to its end."""
        station, begun_unix_s = self.crew.stations[event["host"]], time.time()
        with self._lasting(event["kind"], station):
            first_s = self._drawn.uniform(0, event["seconds"])
            self._await(lambda: False, first_s)
            if event["kills"] and (running := self._running()):
                self._drawn.choice(running).kill()
            self._await(lambda: False, event["seconds"] - first_s)
        self.happened.append((event, begun_unix_s, time.time()))

    @contextmanager
    def _lasting(self, kind: str, station: Station) -> Iterator[None]:
        if kind == LOST:
            station.vanish()
            yield
            station.come_back()
        elif kind == RESTART:
            self.crew.stop_server()
            yield
            self.crew.serve()
        else:
            hosts = {SERVER: [self.crew.server], BOTH: [self.crew.server, station.host]}
            cut = hosts.get(kind, [station.host])
            for host in cut:
                host.cut(sends=kind != RECEIVES, receives=kind != SENDS)
            yield
            for host in cut:
                host.restore()

    def _num_missing(self) -> int:
        return sum(max(0, self.trial["epochs"] - num) for num in self._seen().values())

    def _seen(self) -> Counter[int]:
        """How often each row was delivered."""
        seen = Counter(dict.fromkeys(range(NUM_ROWS), 0))
        for worker in self.workers:
            for _, rows in worker.deliveries():
                seen.update(rows)
        return seen

    def _touched(self, worker: Worker, event: dict[str, Any]) -> bool:
        """Whether the event came between the worker and the server."""
        is_mine = worker.station is self.crew.stations[event["host"]]
        return event["kind"] in (SERVER, BOTH, RESTART) or (is_mine and event["kind"] != LOST)

    def _ended(self) -> list[dict[str, Any]]:
        """The workers that ended with an error, and whether a silence of less than a lease ended
        them.
        """
        ended = [worker for worker in self.workers if worker.status not in (None, 0, -9)]
        return [
            {
                "worker": Path(worker.name).name,
                "host": worker.station.host.name,
                "error": worker.log().splitlines()[-1],
                "is_excused": any(
                    event["seconds"] >= LEASE_S
                    and self._touched(worker, event)
                    and worker.started_unix_s <= end
                    and begun <= worker.ended_unix_s <= end + LEASE_S
                    for event, begun, end in self.happened
                ),
            }
            for worker in ended
        ]

    def _returns(self) -> list[tuple[str, float, float]]:
        """By worker that a cut touched: the kind of the cut, how long it was, and the seconds from
        its end to the worker's next batch.

        Not of workers that had delivered nothing before or nothing until the next event, nor where
        another one was killed: whoever has nothing left then waits until a lease has expired.
        """
        found = []
        ends = [begun for _, begun, _ in self.happened[1:]] + [math.inf]
        for (event, begun, end), until in zip(self.happened, ends, strict=True):
            for worker in self.workers:
                times = [at for at, _ in worker.deliveries()]
                if (
                    not event["kills"]
                    and times
                    and times[0] < begun
                    and self._touched(worker, event)
                ):
                    later = [at for at in times if end < at < until]
                    found += [
                        (event["kind"], event["seconds"], round(at - end, 2)) for at in later[:1]
                    ]
        return found

    def _outcome(self) -> dict[str, Any]:
        hanging = self._running()
        for worker in hanging:
            worker.signal(signal.SIGUSR1)  # It logs where its threads are.
        seen, epochs = self._seen(), self.trial["epochs"]
        receipt = self.crew.receipt(self.run_id)
        return {
            **self.trial,
            "happened": [
                event["kind"] + (", and a worker is killed" if event["kills"] else "")
                for event, _, _ in self.happened
            ],
            "hangs": len(hanging),
            "missing": sum(max(0, epochs - num) for num in seen.values()) + receipt["missing"],
            "twice": sum(max(0, num - epochs) for num in seen.values()),
            "twice_at_most": receipt["repeated_at_most"],
            "ended": self._ended(),
            "returns": self._returns(),
            "seconds": round(HANG_S - (self._deadline - time.monotonic()), 1),
        }


def is_bad(outcome: dict[str, Any]) -> bool:
    """Whether the trial shows a fault of featstore."""
    return bool(
        outcome["missing"]
        or outcome["hangs"]
        or outcome["twice"] > outcome["twice_at_most"]
        or not all(ended["is_excused"] for ended in outcome["ended"])
    )


class Campaign:
    """Trials on several networks at once, each with hosts and a server of its own.

    Args:
        directory: Where everything is written. What bad trials left stays there.
        results: A file of outcomes, which are not tried again, or None.
    """

    def __init__(self, directory: Path, results: Path | None) -> None:
        self._directory, self._results = directory, results
        self._table = put_row_files(
            directory / "table", [FILE_ROWS] * FILES, row_group_size=GROUP_ROWS
        )
        self._lock = threading.Lock()
        self._code = code_digest(Path(__file__).parent.glob("*.py"))
        self.outcomes: dict[int, dict[str, Any]] = {}
        if results is not None and results.exists():
            lines = map(json.loads, results.read_text().splitlines())
            self.outcomes = {line["number"]: line for line in lines if line["code"] == self._code}

    def run(self, numbers: list[int], num_networks: int) -> list[dict[str, Any]]:
        """The outcomes of the trials of these numbers."""
        left = iter([number for number in numbers if number not in self.outcomes])
        with ThreadPoolExecutor(num_networks) as pool:
            list(pool.map(self._run_on, range(num_networks), [left] * num_networks))
        return [self.outcomes[number] for number in numbers]

    def _run_on(self, network: int, left: Iterator[int]) -> None:
        """Runs trials that are left, of which each network takes one at a time."""
        directory = self._directory / f"network{network}"
        directory.mkdir()
        with (
            Network(directory, is_routed=network % 2 == 0) as made,
            Crew(made, directory, HOSTS) as crew,
        ):
            for number in left:
                self._note(Trial(draw_trial(number), crew, self._table, directory).run())

    def _note(self, outcome: dict[str, Any]) -> None:
        with self._lock:
            self.outcomes[outcome["number"]] = outcome
            line = json.dumps({**outcome, "code": self._code})
            if self._results is not None:
                with self._results.open("a") as file:
                    file.write(line + "\n")
            if is_bad(outcome):
                sys.stderr.write(f"BAD {line}\n")


def summary(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """What came of all trials together."""
    ended = [worker for outcome in outcomes for worker in outcome["ended"]]
    returns = [seconds for outcome in outcomes for _, _, seconds in outcome["returns"]]
    return {
        "epochs": len(outcomes),
        "events": dict(Counter(kind for outcome in outcomes for kind in outcome["happened"])),
        "rows_missing": sum(outcome["missing"] for outcome in outcomes),
        "rows_twice": sum(outcome["twice"] for outcome in outcomes),
        "rows_twice_at_most": sum(outcome["twice_at_most"] for outcome in outcomes),
        "hangs": sum(outcome["hangs"] for outcome in outcomes),
        "ended": len(ended),
        "ended_by_less_than_a_lease": sum(not worker["is_excused"] for worker in ended),
        "seconds_to_next_batch_median": statistics.median(returns or [0.0]),
        "seconds_to_next_batch_most": max(returns, default=0.0),
        "lease_s": LEASE_S,
        "ok": not any(map(is_bad, outcomes)),
    }


def table(outcomes: list[dict[str, Any]]) -> str:
    """The cuts by kind and length: how often, and when their workers delivered again."""
    found: dict[tuple[str, bool], list[float]] = {}
    num_cuts: Counter[tuple[str, bool]] = Counter()
    for outcome in outcomes:
        for event in outcome["events"][: len(outcome["happened"])]:
            num_cuts[event["kind"], event["seconds"] >= LEASE_S] += 1
        for kind, lasted_s, seconds in outcome["returns"]:
            found.setdefault((kind, lasted_s >= LEASE_S), []).append(seconds)
    lines = [f"{'what happened':40} {'lasting':>12} {'times':>6} {'median s':>9} {'most s':>7}"]
    for (kind, is_long), number in sorted(num_cuts.items()):
        seconds = found.get((kind, is_long), [])
        figures = (
            f"{statistics.median(seconds):9.2f} {max(seconds):7.2f}"
            if seconds
            else f"{'-':>9} {'-':>7}"
        )
        lasting = "a lease, more" if is_long else "less"
        lines.append(f"{kind:40} {lasting:>13} {number:5} {figures}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--networks", type=int, default=2)
    parser.add_argument("--results", type=Path, default=None)
    parser.add_argument("--directory", type=Path, default=None, help="to keep what is written")
    parser.add_argument("--only", type=int, nargs="*", default=None, help="trials of these numbers")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        campaign = Campaign(given.directory or Path(made), given.results)
        outcomes = campaign.run(given.only or list(range(given.epochs)), given.networks)
    result = summary(outcomes)
    sys.stdout.write(f"{table(outcomes)}\nRESULT {json.dumps(result)}\n")
    return int(not result["ok"])


if __name__ == "__main__":
    sys.exit(main())
