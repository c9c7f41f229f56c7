"""A campaign against the end of an epoch: workers are killed and stopped there, and every row must
come all the same.

    python tests/faults/epoch_end.py --store sqlite|tcp [--epochs 200] [--results FILE]

Each trial is one epoch, or two, over a store of its own run: two to six workers, of which one or
two are killed with SIGKILL at a place that the trial's number draws, others are stopped and go on.
A trial counts only if its fault happened: a worker that was killed late has left a lease that is
not final. With `--results` the trials are noted in a file, and a campaign that was broken off goes
on where it was, as long as the code is the same. Ends with one line `RESULT {json}`; exits 1 if
rows are missing, a worker hangs or ends with an error, or more rows came twice than the receipt
says, and a batch for each DataLoader that lost a worker: its other worker returns the last one.
"""

import argparse
import hashlib
import json
import os
import random
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset

import featstore
from featstore.dispatch.epochs import announced, read_splits
from featstore.dispatch.lease import FINAL
from featstore.dispatch.receipt import receipts
from featstore.dispatch.stores.address import bind
from featstore.dispatch.stores.sqlite import SqliteStore
from featstore.dispatch.stores.tcp import TcpStore

FILES, FILE_ROWS, GROUP_ROWS, BATCH_ROWS = 6, 4_000, 200, 100
NUM_ROWS = FILES * FILE_ROWS
PAUSE_S, HANG_S = 0.02, 120.0
# A round trip of a busy machine takes longer over TCP, and must not take a lease.
LEASE_S = {"sqlite": 1.0, "tcp": 4.0}
# Half of the kills are late: in the last lease time of the epoch. The others hit a worker at one
# point of its protocol.
LATE, ANY, COUNTER, CUT, PART, WAITING = "late", "any", "counter", "cut", "cut part", "waiting"
MODES = (LATE, ANY, LATE, COUNTER, LATE, CUT, LATE, PART, LATE, WAITING)
LEAST_LATE = 4


def draw_trial(number: int) -> dict[str, Any]:
    """What happens in the trial of this number: the same at each run."""
    drawn = random.Random(f"epoch end {number}")
    mode = MODES[number % len(MODES)]
    workers = drawn.randint(3 if mode in (CUT, PART) else 2, 6)
    return {
        "number": number,
        "mode": mode,
        "workers": workers,
        "victims": drawn.choice([1, 1, 2]) if mode in (LATE, ANY) and workers > 2 else 1,
        "epochs": 2 if drawn.random() < 0.2 else 1,
        "dataloader": mode in (LATE, ANY) and drawn.random() < 0.25,
        "stops": drawn.random() < 0.3,
        "at": drawn.uniform(0.8, 0.97) if mode == LATE else drawn.uniform(0.1, 0.8),
        "seed": drawn.randrange(1 << 30),
    }


class Traps:
    """Kills the process that it is set in at one point of what it asks of the store: the process
    really dies there.

    Set in several workers, the first that comes to the point makes `marker`, and dies.
    """

    def __init__(self, mode: str, marker: str) -> None:
        self.mode, self.marker, self.dies_after_batch = mode, marker, False
        for kind in (SqliteStore, TcpStore):
            for verb in ("add", "compare_set", "get_many"):
                setattr(kind, verb, self._trapped(getattr(kind, verb), getattr(self, verb)))

    def _trapped(self, act: Callable[..., Any], seen: Callable[..., None]) -> Callable[..., Any]:
        def trapped(store: object, *arguments: Any) -> Any:
            result = act(store, *arguments)
            seen(result, *arguments)
            return result

        return trapped

    def add(self, result: int, key: str, amount: int) -> None:
        if self.mode == COUNTER and key.endswith("/cursor") and FILES // 2 < result <= FILES:
            self.die()

    def compare_set(self, result: str, key: str, expected: str, desired: str) -> None:
        if result != desired or "/split/" not in key:
            return
        record = json.loads(desired)
        is_mine = _process_of(record["worker"]) == os.getpid()
        if self.mode == CUT and record.get("cuts") and not is_mine:
            self.die()
        if (
            self.mode == PART
            and re.search(r"/split/\d+/\d+$", key)
            and is_mine
            and record["state"] == "held"
        ):
            self.dies_after_batch = True

    def get_many(self, result: list[str | None], keys: list[str]) -> None:
        if (
            self.mode == WAITING
            and len(keys) == 2
            and keys[1].endswith("/given_back")
            and keys[0].endswith("/low")
        ):
            self.die()

    def die(self) -> None:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def after_batch(self) -> None:
        if self.dies_after_batch:
            self.die()


class Noted(IterableDataset):  # type: ignore[type-arg]
    """A loader's batches, each written to the process's ledger before it is handed on."""

    def __init__(
        self, loader: featstore.FeatureLoader, ledgers: str, pause_s: float, traps: Traps | None
    ) -> None:
        self.loader, self.ledgers, self.pause_s, self.traps = loader, ledgers, pause_s, traps

    def __iter__(self) -> Iterator[int]:
        ledger = os.open(
            f"{self.ledgers}.{os.getpid()}.rows", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600
        )
        for batch in self.loader:
            os.write(ledger, batch["row"].numpy().astype("<i8").tobytes())
            time.sleep(self.pause_s)
            if self.traps is not None:
                self.traps.after_batch()
            yield batch.num_rows
        os.close(ledger)


def work(
    trial: dict[str, Any],
    table: str,
    store: str,
    run: str,
    ledgers: str,
    pause_s: float,
    trap: str | None,
) -> None:
    """One worker, to the end of the trial's epochs."""
    torch.set_num_threads(1)
    dispatch = {"store": store, "run_id": run, "lease_s": _lease_s(store)}
    options: dict[str, Any] = {
        "slots": ["row"],
        "batch_size": BATCH_ROWS,
        "seed": 3,
        "dispatch": dispatch,
    }
    with featstore.FeatureLoader(table, num_epochs=trial["epochs"], **options) as loader:
        noted = Noted(
            loader, ledgers, pause_s, None if trap is None else Traps(trap, f"{ledgers}.dead")
        )
        for _ in (
            DataLoader(noted, batch_size=None, num_workers=2) if trial["dataloader"] else noted
        ):
            pass


def fork(*arguments: Any) -> int:
    child = os.fork()
    if child:
        return child
    status = 3
    try:
        os.setpgid(0, 0)
        work(*arguments)
        status = 0
    except BaseException:  # noqa: BLE001  a process's boundary
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


class Trial:
    """One epoch with its workers; `run` says what came of it."""

    def __init__(self, trial: dict[str, Any], root: Path, table: str, store: str) -> None:
        self.trial, self.store = trial, store
        self.drawn = random.Random(trial["seed"])
        self.name = f"t{trial['number']}-{os.getpid()}"
        self.ledgers = str(root / self.name)
        self.victims: list[int] = []
        last = trial["workers"] - 1
        self.is_trapped = trial["mode"] not in (LATE, ANY)
        traps = [
            trial["mode"] if self.is_trapped and i < last else None for i in range(trial["workers"])
        ]
        slow = [last] if self.is_trapped else range(trial["victims"])
        self.workers = [
            fork(
                trial,
                table,
                store,
                self.name,
                self.ledgers,
                PAUSE_S * (4 if i in slow else 1),
                trap,
            )
            for i, trap in enumerate(traps)
        ]
        self.killed_s, self.held_by_victims, self.stopped = time.monotonic(), 0, False

    def run(self) -> dict[str, Any]:
        deadline = time.monotonic() + HANG_S
        ends: dict[int, int] = {}
        num_left = 0 if self.is_trapped else self.trial["victims"]
        try:
            while len(ends) < len(self.workers):
                for worker in [worker for worker in self.workers if worker not in ends]:
                    pid, status = os.waitpid(worker, os.WNOHANG)
                    if pid:
                        ends[worker] = os.waitstatus_to_exitcode(status)
                    if pid and self.is_trapped and ends[worker] == -signal.SIGKILL:
                        self.victims, self.killed_s = [worker], time.monotonic()
                if time.monotonic() > deadline:
                    return {"hang": True, **self._outcome(ends)}
                if (
                    num_left
                    and self._num_rows() >= self.trial["at"] * NUM_ROWS * self.trial["epochs"]
                ):
                    num_left -= self._strike(ends)
                time.sleep(0.005)
            return {"hang": False, **self._outcome(ends)}
        finally:
            for worker in self.workers:
                try:
                    os.killpg(worker, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def _strike(self, ends: dict[int, int]) -> int:
        """Kills the next victim, a worker itself or one of the workers of its DataLoader; stops
        another worker for a while.
        """
        index = len(self.victims)
        victim = self.workers[index]
        if victim in ends:
            return 1
        if self.trial["stops"] and not self.stopped:
            self.stopped = True
            self._stop(self.workers[-1])
        target = (
            self.drawn.choice(_children(victim) or [victim]) if self.trial["dataloader"] else victim
        )
        os.kill(target, signal.SIGKILL)
        if target == victim:
            os.waitpid(victim, 0)
            ends[victim] = -signal.SIGKILL
        self.killed_s = time.monotonic()
        self.victims.append(victim)
        self.held_by_victims += self._num_open(target)
        return 1

    def _stop(self, worker: int) -> None:
        """For up to two leases; a helper wakes it, as this process may itself wait for a lock that
        the worker holds.
        """
        os.kill(worker, signal.SIGSTOP)
        wait_s = self.drawn.uniform(0.2, 2) * _lease_s(self.store)
        subprocess.Popen(["sh", "-c", f"sleep {wait_s}; kill -CONT {worker} 2>/dev/null"])

    def _num_rows(self) -> int:
        return sum(path.stat().st_size for path in self._paths()) // 8

    def _paths(self) -> list[Path]:
        return list(Path(self.ledgers).parent.glob(f"{self.name}.*.rows"))

    def _num_open(self, pid: int) -> int:
        """Leases that a process holds, as the store has them after its death."""
        with closing(bind(self.store).open()) as store:
            notes = [note for note in announced(store, 20) if f"/{self.name}/" in note.prefix]
            return sum(
                entry.record is not None
                and entry.record.state not in FINAL
                and _process_of(entry.record.worker) == pid
                for note in notes
                for _, entries in read_splits(store, note.keys, range(note.num_splits))
                for entry in entries
            )

    def _outcome(self, ends: dict[int, int]) -> dict[str, Any]:
        seconds = time.monotonic() - self.killed_s
        others = [code for worker, code in ends.items() if worker not in self.victims]
        happened = bool(self.victims) if self.is_trapped else self.held_by_victims > 0
        rows = np.concatenate(
            [np.fromfile(path, "<i8") for path in self._paths()] or [np.empty(0, "<i8")]
        )
        seen = np.bincount(rows, minlength=NUM_ROWS)
        found = receipts(self.store, self.name).values()
        return {
            **self.trial,
            "happened": happened,
            "missing": int((seen < self.trial["epochs"]).sum())
            + sum(receipt.missing for receipt in found),
            "twice": int((seen - self.trial["epochs"]).clip(min=0).sum()),
            "twice_at_most": sum(receipt.repeated_at_most for receipt in found),
            # A batch counts as delivered when the next one is asked for. The other worker of a
            # DataLoader that ends with an error is not asked any more, and returns its last one.
            "returned_at_most": BATCH_ROWS * len(self.victims) * self.trial["dataloader"],
            "errors": sum(code != 0 for code in others),
            "seconds": round(seconds, 2),
        }


def _lease_s(store: str) -> float:
    return LEASE_S[store.partition(":")[0]]


def _process_of(worker: str) -> int:
    """The process in a worker's name: host, process, random digits."""
    return int(worker.split("-")[-2])


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def write_table(root: Path) -> str:
    root.mkdir()
    for file in range(FILES):
        rows = pa.array(range(file * FILE_ROWS, (file + 1) * FILE_ROWS), pa.int64())
        pq.write_table(
            pa.table({"row": rows}), root / f"{file:02}.parquet", row_group_size=GROUP_ROWS
        )
    return str(root)


@contextmanager
def served(kind: str, root: Path) -> Iterator[Callable[[int], str]]:
    """The store of each trial: a file of its own, or one server for all."""
    if kind == "sqlite":
        yield lambda number: f"sqlite://{root}/{number}.sqlite"
        return
    command = [
        sys.executable,
        "-c",
        "from featstore.tools.cli import console; console()",
        "dispatch",
        "serve",
        "--port",
        "0",
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    try:
        yield lambda number: url
    finally:
        server.terminate()
        server.wait()


def code_digest(scripts: Iterable[Path]) -> str:
    """Names the code that is tried, and that of the campaign: results of other code do not
    count.
    """
    digest = hashlib.sha256()
    for path in sorted(scripts):
        digest.update(path.read_bytes())
    for path in sorted(Path(featstore.__file__).parent.glob("**/*.py")):
        if path.parent.name in ("dispatch", "stores", "loader") or "loader" in path.parts:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def run_campaign(
    kind: str, num_epochs: int, results: Path | None, only: list[int] | None
) -> list[dict[str, Any]]:
    """The outcomes of the first trials whose fault happened, `num_epochs` of them and as many more
    as it takes until each fault did, and late ones `LEAST_LATE` times, or of those that are named.
    """
    digest, known = code_digest([Path(__file__)]), dict[int, dict[str, Any]]()
    if results is not None and results.exists():
        lines = [json.loads(line) for line in results.read_text().splitlines()]
        known = {
            line["number"]: line
            for line in lines
            if line["code"] == digest and line["store"] == kind
        }
    done: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made, served(kind, Path(made)) as store_of:
        table = write_table(Path(made) / "table")
        for number in only or range(3 * num_epochs + 20):
            modes = Counter(outcome["mode"] for outcome in done)
            if len(done) >= num_epochs and modes[LATE] >= LEAST_LATE and modes.keys() == set(MODES):
                break
            outcome = known.get(number)
            if outcome is None:
                trial = Trial(draw_trial(number), Path(made), table, store_of(number))
                outcome = {**trial.run(), "store": kind, "code": digest}
                if results is not None:
                    with results.open("a") as file:
                        file.write(json.dumps(outcome) + "\n")
            if outcome["happened"]:
                done.append(outcome)
            if is_bad(outcome):
                sys.stderr.write(f"BAD {json.dumps(outcome)}\n")
    return done


def is_bad(outcome: dict[str, Any]) -> bool:
    return bool(
        outcome["missing"]
        or outcome["hang"]
        or outcome["errors"]
        or outcome["twice"] > outcome["twice_at_most"] + outcome["returned_at_most"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", choices=("sqlite", "tcp"), required=True)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--results", type=Path, default=None)
    parser.add_argument(
        "--only",
        type=int,
        nargs="*",
        default=None,
        help="the trials of these numbers, to look at one again",
    )
    arguments = parser.parse_args()
    done = run_campaign(arguments.store, arguments.epochs, arguments.results, arguments.only)
    modes = {
        mode: sum(outcome["mode"] == mode for outcome in done) for mode in dict.fromkeys(MODES)
    }
    result = {
        "store": arguments.store,
        "sqlite": sqlite3.sqlite_version,
        "epochs": len(done),
        "modes": modes,
        "rows_missing": sum(outcome["missing"] for outcome in done),
        "rows_twice": sum(outcome["twice"] for outcome in done),
        "rows_twice_at_most": sum(outcome["twice_at_most"] for outcome in done),
        "hangs": sum(outcome["hang"] for outcome in done),
        "errors": sum(outcome["errors"] for outcome in done),
        "seconds_from_death_to_end_median": statistics.median(
            outcome["seconds"] for outcome in done
        ),
        "seconds_from_death_to_end_most": max(outcome["seconds"] for outcome in done),
        "lease_s": LEASE_S[arguments.store],
        "ok": len(done) >= arguments.epochs and not any(map(is_bad, done)),
    }
    sys.stdout.write(f"RESULT {json.dumps(result)}\n")
    return int(not result["ok"])


if __name__ == "__main__":
    sys.exit(main())
