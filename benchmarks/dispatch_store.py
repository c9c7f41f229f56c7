"""What dispatch costs in each store, for 1, 8 and 64 workers, beside a server that hands out
samples one by one over HTTP.

Workers claim and complete splits of one plan through the coordinator; those of the server ask it
for the next sample, as small teams write it (`http.server`, one thread a connection, connections
kept). Both sides run in turn within one repetition. Ends with one line `RESULT {json}`; exit code 1
if any split or sample was handed out twice or not at all.
"""

import argparse
import contextlib
import http.client
import http.server
import multiprocessing
import signal
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.store_keys import run_prefix
from featstore.dispatch.stores.address import StoreAddress, bind
from featstore.dispatch.stores.server import serve_until_signal
from shared_parts.machine import print_result

SIDES = ("memory", "sqlite", "tcp", "tcp, file", "torch", "http")
ROWS_PER_SPLIT = 100_000
_FORK = multiprocessing.get_context(
    "fork"
)  # Each of 64 processes would import torch for seconds otherwise.


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--small", action="store_true", help="fewer splits, samples and repetitions"
    )
    small = parser.parse_args().small
    num_items, num_repeats = (600, 1) if small else (2_000, 3)
    figures: dict[str, Any] = {}
    closing_s: dict[str, Any] = {}
    ok = True
    for num_workers in (1, 8, 64):
        runs: dict[str, list[float]] = {}
        ends: dict[str, list[float]] = {}
        for _ in range(num_repeats):
            for name in SIDES:
                rate, over_s, is_right = _run(name, num_workers, num_items)
                ok &= is_right
                runs.setdefault(name, []).append(rate)
                ends.setdefault(name, []).append(over_s)
        figures[str(num_workers)] = {
            name: round(statistics.median(rates)) for name, rates in runs.items()
        }
        closing_s[str(num_workers)] = {
            name: round(statistics.median(spent), 2) for name, spent in ends.items()
        }
    rows = {
        name: {
            workers: rates[name] * (1 if name == "http" else ROWS_PER_SPLIT)
            for workers, rates in figures.items()
        }
        for name in SIDES
    }
    plan_bytes = _plan_bytes(100_000)
    result = {
        "ok": ok,
        "claims_per_s": figures,
        "rows_per_s": rows,
        "closing_s": closing_s,
        "plan_bytes_per_split": plan_bytes,
        "num_items": num_items,
    }
    print_result(result)
    return 0 if ok else 1


def _run(name: str, num_workers: int, num_items: int) -> tuple[float, float, bool]:
    """Items handed out in a second, seconds from the last one to the end of all workers, and
    whether each came once.
    """
    with _served(name, num_items) as url:
        address = None if name == "http" else bind(url)
        spawn: Any = threading.Thread if name == "memory" else _FORK.Process
        results: Any = _FORK.Queue()
        ready, go = _FORK.Semaphore(0), _FORK.Event()
        started = [
            spawn(target=_work, args=(address, url, f"w{number}", num_items, ready, go, results))
            for number in range(num_workers)
        ]
        for worker in started:
            worker.start()
        for _ in started:
            ready.acquire()
        go.set()
        parts = [results.get(timeout=300) for _ in started]
        for worker in started:
            worker.join()
    began, last, over = (
        min(part[0] for part in parts),
        max(part[1] for part in parts),
        max(part[2] for part in parts),
    )
    got = sorted(item for part in parts for item in part[3])
    return num_items / (last - began), over - last, got == list(range(num_items))


def _work(
    address: StoreAddress | None,
    url: str,
    name: str,
    num_items: int,
    ready: Any,
    go: Any,
    results: Any,
) -> None:
    if address is None:
        take: Any = _samples(url)
    else:
        take = _splits(address, name, num_items)
    next(take)
    ready.release()
    go.wait()
    start = last = time.monotonic()
    items = []
    for item in take:
        items.append(item)
        last = time.monotonic()
    results.put((start, last, time.monotonic(), items))


def _splits(address: StoreAddress, name: str, num_items: int) -> Iterator[int]:
    # Of no rows, which need no reservation.
    plan = Plan(splits=[Split(path=f"{i}.parquet", num_rows=0) for i in range(num_items)])
    with Coordinator(address, plan=plan, prefix=run_prefix("run"), worker=name) as coordinator:
        yield -1
        for claim in coordinator.claims():
            assert coordinator.complete(claim)
            yield claim.index


def _samples(url: str) -> Iterator[int]:
    connection = http.client.HTTPConnection(url)
    connection.connect()
    yield -1
    while True:
        connection.request("GET", "/next")
        number = int(connection.getresponse().read())
        if number < 0:
            break
        yield number
    connection.close()


@contextlib.contextmanager
def _served(name: str, num_items: int) -> Iterator[str]:
    """The URL of a new, empty store, or the address of a sample server; both servers in a process
    of their own.
    """
    if name == "memory":
        yield f"memory://{uuid.uuid4().hex}"
        return
    if name == "sqlite":
        with tempfile.TemporaryDirectory() as directory:
            yield f"sqlite://{directory}/dispatch.db"
        return
    told: Any = _FORK.Queue()
    with tempfile.TemporaryDirectory() as directory:
        targets: dict[str, Callable[[], None]] = {
            "tcp": partial(serve_until_signal, "127.0.0.1", 0, told.put),
            "tcp, file": partial(
                serve_until_signal, "127.0.0.1", 0, told.put, file=Path(directory, "d.db")
            ),
            "torch": partial(_serve_torch, told.put),
            "http": partial(_serve_samples, num_items, told.put),
        }
        process = _FORK.Process(target=targets[name])
        process.start()
        try:
            yield told.get(timeout=60)
        finally:
            process.terminate()
            process.join()


def _serve_torch(tell: Callable[[str], object]) -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    tell(f"torch://127.0.0.1:{server.port}")
    signal.pause()


class _Samples(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    lock = threading.Lock()
    num_samples = 0
    num_given = 0

    def do_GET(self) -> None:
        with self.lock:
            number = _Samples.num_given if _Samples.num_given < _Samples.num_samples else -1
            _Samples.num_given += 1
        body = str(number).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def _serve_samples(num_samples: int, tell: Any) -> None:
    _Samples.num_samples = num_samples
    with _Server(("127.0.0.1", 0), _Samples) as server:
        tell(f"127.0.0.1:{server.server_port}")
        server.serve_forever()


def _plan_bytes(num_splits: int) -> int:
    """What a worker holds for each split of a plan kept as a list: the objects and their paths."""
    paths = [f"dt=2026-11-01/part-{i:05}-{uuid.uuid4()}.parquet" for i in range(num_splits)]
    splits = [Split(path=path, num_rows=ROWS_PER_SPLIT) for path in paths]
    sizes = (
        sys.getsizeof(s)
        + sys.getsizeof(s.__dict__)
        + sys.getsizeof(s.path)
        + sys.getsizeof(s.num_rows)
        + 8
        for s in splits
    )
    return round(sum(sizes) / num_splits)


if __name__ == "__main__":
    sys.exit(main())
