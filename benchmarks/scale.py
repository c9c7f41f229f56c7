"""What grows with slots, files and workers, in parts that docs/scale.md multiplies: an extraction of
5,000 slots, the driver's merge of its statistics, a log and a vacuum of many files, the states of
1,000 workers, and a dispatch server with many connections.

Each part is a process of its own, so that its peak of resident memory is its own. Data files of the
log are not there; those of the vacuum are empty. Nothing is demanded: a part fails only if what it
made is wrong. Ends with one line `RESULT {json}`.

    python benchmarks/scale.py [--small]
"""

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import featstore
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.dispatch.stores.address import bind
from featstore.dispatch.stores.server import serve_until_signal
from featstore.extraction.units.unit_statistics import merge_partition
from featstore.loader.iteration.state import LoaderState, merge_states
from featstore.table.layout import data_file_name, file_statistics_path, new_tag, statistics_path
from featstore.table.open import open_snapshot
from featstore.table.snapshot import DataFile
from featstore.table.vacuum import vacuum
from many_slots import write_hour
from shared_parts.machine import print_result
from table_life import commit_files, file_of

NUM_SLOTS, NUM_WORKERS = 5_000, 1_000
ROWS_PER_ROW_GROUP = 2_048
_FORK = multiprocessing.get_context("fork")


def main() -> int:
    """Prints the figures of each part and one line `RESULT {json}`."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--small", action="store_true", help="a tenth of it, under 5 minutes")
    parser.add_argument("--what", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what is not None:
        what, directory, is_small = arguments.what
        print(json.dumps(_PARTS[what](Path(directory), is_small == "True")))
        return 0
    with tempfile.TemporaryDirectory() as directory:
        figures = {what: _child(what, directory, is_small=arguments.small) for what in _PARTS}
    print_result({"small": arguments.small, **figures})
    return 0


def _child(what: str, directory: str, *, is_small: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--what", what, directory, str(is_small)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(what, found, flush=True)
    return found


def extraction(directory: Path, is_small: bool) -> dict[str, Any]:
    """CPU and memory of one thread that extracts 5,000 slots, and the bytes that it writes."""
    found = _extracted(directory, "wide", is_small)
    table = directory / "wide" / "table"
    [data_file] = open_snapshot(str(table)).data_files
    parquet = pq.ParquetFile(data_file.url).metadata
    [stored] = (table / "_stats").rglob("*.statistics")
    started = time.process_time()
    profile = featstore.open_table(str(table)).profile(stored=True)
    profile_s = time.process_time() - started
    started = time.process_time()
    profile.plot_coverage()
    return found | {
        "footer_bytes": parquet.serialized_size,
        "num_row_groups": parquet.num_row_groups,
        "statistics_bytes": stored.stat().st_size,
        "stored_profile_cpu_s": round(profile_s, 2),
        "coverage_plot_cpu_s": round(time.process_time() - started, 2),
    }


def extraction_alone(directory: Path, is_small: bool) -> dict[str, Any]:
    """The same without statistics of slots."""
    return _extracted(directory, "alone", is_small, statistics=False)


def merging(directory: Path, is_small: bool) -> dict[str, Any]:
    """The driver's CPU for the statistics of one file, of a partition of so many: copies of the
    file that the part before wrote.
    """
    table, num_files = directory / "wide" / "table", 10 if is_small else 20
    [stored] = (table / "_stats").rglob("*.statistics")
    tag = new_tag("merging")
    files = [_put_statistics(table, stored, tag, unit) for unit in range(num_files)]
    started = time.process_time()
    merge_partition(str(table), tag, files, [])
    cpu_s = time.process_time() - started
    if not (table / statistics_path({"dt": "2"}, tag)).exists():
        raise ValueError("expected merged statistics, found none")
    return {
        "num_files": num_files,
        "cpu_s_a_file": round(cpu_s / num_files, 3),
        "peak_bytes": _peak_bytes(),
    }


def log(directory: Path, is_small: bool) -> dict[str, Any]:
    """One commit of many files, and opening them."""
    num_files = 100_000 if is_small else 1_000_000
    url, before_bytes = str(directory / "log"), _peak_bytes()
    commit_s = _commit(url, num_files)
    found = list[Any]()
    open_s = _cpu_s(lambda: found.append(open_snapshot(url)))
    if len(found[0].data_files) != num_files:
        raise ValueError(f"expected {num_files} files, found {len(found[0].data_files)}")
    written = [path.stat().st_size for path in (directory / "log" / "_delta_log").iterdir()]
    return {
        "num_files": num_files,
        "commit_cpu_s": round(commit_s, 2),
        "open_cpu_s": round(open_s, 2),
        "log_bytes": sum(written),
        "before_bytes": before_bytes,
        "peak_bytes": _peak_bytes(),
    }


def removal(directory: Path, is_small: bool) -> dict[str, Any]:
    """A vacuum that finds nothing to remove among many files."""
    num_files = 20_000 if is_small else 100_000
    url = str(directory / "files")
    names = list(_names(num_files))
    for day in {name.partition("/")[0] for name in names}:
        (directory / "files" / day).mkdir(parents=True)
    for name in names:
        (directory / "files" / name).touch()
    commit_files(url, _schema(num_slots=10), tuple(file_of(url, name) for name in names))
    before_bytes, reports = _peak_bytes(), list[Any]()
    spent_s = _cpu_s(lambda: reports.append(vacuum(url, dry_run=True)))
    shutil.rmtree(url)
    if reports[0].removed:
        raise ValueError(f"expected nothing to remove, found {len(reports[0].removed)} files")
    return {
        "num_files": num_files,
        "cpu_s": round(spent_s, 2),
        "before_bytes": before_bytes,
        "peak_bytes": _peak_bytes(),
    }


def states(directory: Path, is_small: bool) -> dict[str, Any]:
    """The states of 1,000 workers in the middle of an epoch, each of which has delivered every
    thousandth file and a part of one more; and their merged state.
    """
    num_files = 100_000 if is_small else 1_000_000
    of_workers = [_state(worker, num_files // 2) for worker in range(NUM_WORKERS)]
    merged = list[dict[str, Any]]()
    spent_s = _cpu_s(lambda: merged.append(merge_states(of_workers)))
    if len(LoaderState.from_json(merged[0]).done) != num_files // 2 + NUM_WORKERS:
        raise ValueError("expected what all workers have delivered in the merged state")
    return {
        "num_files": num_files,
        "bytes_of_a_worker": len(json.dumps(of_workers[7])),
        "bytes_of_all": sum(len(json.dumps(state)) for state in of_workers),
        "merged_bytes": len(json.dumps(merged[0])),
        "merge_cpu_s": round(spent_s, 2),
        "peak_bytes": _peak_bytes(),
    }


def connections(directory: Path, is_small: bool) -> dict[str, Any]:
    """A dispatch server with a file and many clients, all of them connected, which ask in turn: its
    memory, and its CPU for each request.
    """
    num_handles, num_asked = (1_000, 4_000) if is_small else (8_000, 24_000)
    with _server(directory / "dispatch.db") as (url, pid), ExitStack() as opened:
        before_bytes, before_s, address = _resident_bytes(pid), _spent_s(pid), bind(url)
        handles = [opened.enter_context(closing(address.open())) for _ in range(num_handles)]
        connected_bytes, connected_s = _resident_bytes(pid), _spent_s(pid)
        _ask(handles, num_asked, lambda one: one.get_or_none("none"))
        read_s = _spent_s(pid)
        _ask(handles, num_asked, lambda one: one.add("n", 1))
        written_s = _spent_s(pid)
        if handles[0].get_or_none("n") != str(num_asked):
            raise ValueError("expected each request once")
    return {
        "num_connections": num_handles,
        "bytes_a_connection": round((connected_bytes - before_bytes) / num_handles),
        "cpu_us_a_connection": round((connected_s - before_s) / num_handles * 1e6),
        "cpu_us_a_read": round((read_s - connected_s) / num_asked * 1e6),
        "cpu_us_a_write": round((written_s - read_s) / num_asked * 1e6),
    }


def _extracted(directory: Path, name: str, is_small: bool, **output: Any) -> dict[str, Any]:
    num_rows = 4_096 if is_small else 12_288
    output |= {"rows_per_row_group": ROWS_PER_ROW_GROUP}
    write_hour(directory, name, NUM_SLOTS, num_rows, output)
    write_hour(directory, f"{name}-few", 40)
    _extract(directory / f"{name}-few")
    before_bytes, started = _peak_bytes(), time.process_time()
    report = _extract(directory / name)
    cpu_s = time.process_time() - started
    return {
        "num_rows": num_rows,
        "cpu_s": round(cpu_s, 2),
        "data_bytes": report.size_bytes,
        "bytes_a_row": round(report.size_bytes / num_rows),
        "written_bytes_a_cpu_s": round(report.size_bytes / cpu_s),
        "peak_bytes": _peak_bytes(),
        "before_bytes": before_bytes,
    }


def _extract(hour: Path) -> Any:
    spec = featstore.load_spec(str(hour / "spec.yaml"))
    raw, table = str(hour / "raw.parquet"), str(hour / "table")
    return featstore.extract(spec, raw, table, partition={"dt": "2026-11-01"})


def _put_statistics(table: Path, stored: Path, tag: str, unit: int) -> DataFile:
    path = f"dt=2/{data_file_name(tag, unit, 0)}"
    target = table / file_statistics_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(stored, target)
    return DataFile(path=path, url="", size_bytes=1, num_rows=1, partition={"dt": "2"})


def _commit(url: str, num_files: int) -> float:
    """CPU seconds of the commit, whose list of files is let go of."""
    files = tuple(file_of(url, name) for name in _names(num_files))
    return _cpu_s(lambda: commit_files(url, _schema(), files))


def _names(num_files: int) -> Iterator[str]:
    tag = new_tag("scale")
    return (f"dt=2026-11-{i % 24 + 1:02}/{data_file_name(tag, i, 0)}" for i in range(num_files))


def _schema(num_slots: int = NUM_SLOTS) -> SlotSchema:
    numbers = range(1, num_slots + 1)
    slots = tuple(Slot(name=f"slot{i}", kind=SlotKind.ID, number=i) for i in numbers)
    return SlotSchema(slots=slots, partition_keys=(pa.field("dt", pa.string()),))


def _state(worker: int, num_done: int) -> dict[str, Any]:
    done: dict[int, Any] = dict.fromkeys(range(worker, num_done, NUM_WORKERS), "complete")
    done[num_done + worker] = 4_096
    common: dict[str, Any] = {"table": "t", "plan": "p", "request": "r", "seed": 1}
    common |= {"window_rows": None, "num_epochs": 1, "epoch": 0, "first_epoch": 0}
    state = LoaderState(**common, num_workers=NUM_WORKERS, workers=(worker,), done=done)
    return state.to_json()


@contextmanager
def _server(file: Path) -> Iterator[tuple[str, int]]:
    receiver, sender = _FORK.Pipe(duplex=False)
    serve = lambda: serve_until_signal("127.0.0.1", 0, sender.send, file=file)  # noqa: E731
    process = _FORK.Process(target=serve)
    process.start()
    try:
        assert process.pid is not None
        yield receiver.recv(), process.pid
    finally:
        process.terminate()
        process.join()


def _ask(handles: list[Any], num_asked: int, ask: Callable[[Any], object]) -> None:
    for number in range(num_asked):
        ask(handles[number % len(handles)])


def _cpu_s(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _spent_s(pid: int) -> float:
    """CPU seconds of a process, of its own and of the system for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


_PARTS: dict[str, Callable[[Path, bool], dict[str, Any]]] = {
    "extraction": extraction,
    "extraction_alone": extraction_alone,
    "merging": merging,
    "log": log,
    "removal": removal,
    "states": states,
    "connections": connections,
}
if __name__ == "__main__":
    sys.exit(main())
