"""Tables for the benchmarks of staging, and the servers that show them as remote ones."""

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.explore.table import open_table
from featstore.table.snapshot import FileList, Snapshot

ROWS_PER_ROW_GROUP = 65_536
_MOST_LISTS = 24


@dataclass(frozen=True, kw_only=True)
class Remote:
    """What a store is like: seconds to the first byte of a request, bytes per second of its line
    (0: no limit), and whether it works on one request at a time."""

    name: str
    latency_s: float
    bytes_per_s: float
    has_one_head: bool = False


def write_flat(
    directory: Path, *, num_files: int, file_bytes: int, num_slots: int = 200
) -> Snapshot:
    """Files of `num_slots` required int64 columns that do not compress, in row groups of the
    writer's default.
    """
    num_rows = file_bytes // (8 * num_slots)
    return _write(directory, num_files, lambda draw: _flat(draw, num_rows, num_slots))


def write_lists(directory: Path, *, num_files: int, num_rows: int, num_slots: int = 20) -> Snapshot:
    """Files of required list columns of few values, with a dictionary as featstore writes them:
    long to decode for their bytes. No more than `_MOST_LISTS` are different; others are further
    names of them, which a cache does not know."""
    return _write(
        directory,
        num_files,
        lambda draw: _lists(draw, num_rows, num_slots),
        use_dictionary=True,
        most=_MOST_LISTS,
    )


def _write(
    directory: Path,
    num_files: int,
    make: Callable[[np.random.Generator], pa.Table],
    *,
    use_dictionary: bool = False,
    most: int | None = None,
) -> Snapshot:
    directory.mkdir(parents=True, exist_ok=True)
    most = most or num_files
    for index in range(num_files):
        path, same = (directory / f"part-{number:03}.parquet" for number in (index, index % most))
        if not path.exists() and index >= most:
            path.hardlink_to(same)
        elif not path.exists():
            table = make(np.random.default_rng(index))
            pq.write_table(
                table,
                path,
                row_group_size=ROWS_PER_ROW_GROUP,
                use_dictionary=use_dictionary,
                compression="snappy",
            )
    return open_table(str(directory)).snapshot


def _flat(draw: np.random.Generator, num_rows: int, num_slots: int) -> pa.Table:
    fields = [pa.field(f"s{i:03}", pa.int64(), nullable=False) for i in range(num_slots)]
    values = [pa.array(draw.integers(1, 2**62, num_rows)) for _ in fields]
    return pa.table(values, schema=pa.schema(fields))


def _lists(draw: np.random.Generator, num_rows: int, num_slots: int) -> pa.Table:
    element = pa.field("element", pa.int64(), nullable=False)
    fields = [pa.field(f"l{i:02}", pa.list_(element), nullable=False) for i in range(num_slots)]
    columns = []
    for field in fields:
        offsets = np.concatenate([[0], np.cumsum(draw.integers(0, 11, num_rows))]).astype(np.int32)
        columns.append(
            pa.ListArray.from_arrays(offsets, draw.integers(1, 200, offsets[-1]), type=field.type)
        )
    return pa.table(columns, schema=pa.schema(fields))


@contextlib.contextmanager
def served(directory: Path, remote: Remote) -> Iterator[str]:
    """The URL of a server of the directory, in a process of its own."""
    program = [sys.executable, str(Path(__file__).with_name("server.py"))]
    command = [
        *program,
        str(directory),
        str(remote.latency_s),
        str(remote.bytes_per_s),
        *(["one"] if remote.has_one_head else []),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def sent_bytes(url: str) -> int:
    """How many bytes of files the server sent so far."""
    with urllib.request.urlopen(f"{url}/sent") as answer:
        return int(answer.read())


def server_cpu_s(url: str) -> float:
    """How many CPU seconds the server took so far."""
    with urllib.request.urlopen(f"{url}/cpu") as answer:
        return float(answer.read())


def at(snapshot: Snapshot, url: str) -> Snapshot:
    """The same table, its files read from a server."""
    moved = (replace(file, url=f"{url}/{Path(file.url).name}") for file in snapshot.data_files)
    return replace(snapshot, data_files=FileList.of(moved))


def disk_speeds(directory: Path, num_bytes: int = 64 << 20) -> dict[str, float]:
    """MB/s of the local disk: writing with a sync, and reading what the cache of the kernel still
    has.
    """
    path, block = directory / "speed.bin", bytes(4 << 20)
    since = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(num_bytes // len(block)):
            file.write(block)
        subprocess.run(["sync", str(path)], check=True)
    written_s, since = time.perf_counter() - since, time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(4 << 20):
            pass
    read_s = time.perf_counter() - since
    path.unlink()
    return {
        "write_mb_per_s": round(num_bytes / written_s / 1e6),
        "read_mb_per_s": round(num_bytes / read_s / 1e6),
    }
