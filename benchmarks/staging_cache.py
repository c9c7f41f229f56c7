"""What the cache's bookkeeping costs: CPU time of one more file, of one that is there, and of one
that another must go for, in caches of more and more files, beside that of a bare `os.listdir` of
the directory. No figure is demanded.

The directory is locked for that time, for all processes of the host. The files are small: nothing
is downloaded.

    python benchmarks/staging_cache.py [--small]
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from featstore.staging.cache import Cache, Download, Limits, Pin, entry_name
from featstore.staging.record import Record
from shared_parts.machine import print_result

NUM_TIMED, SIZE_BYTES = 9, 100


def main() -> int:
    """Prints a line for each size of the cache, and one line `RESULT {json}`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="at most 1,000 files")
    sizes = [100, 1_000] if parser.parse_args().small else [100, 1_000, 8_000]
    found = {num_files: _measure(num_files) for num_files in sizes}
    print_result({"ok": True, "milliseconds": found})
    return 0


def _measure(num_files: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        cache = Cache(directory, Limits(budget_bytes=10**12))
        for number in range(num_files):
            _write(cache, number)
        full = Cache(directory, Limits(budget_bytes=(num_files + NUM_TIMED) * SIZE_BYTES))
        found = {
            "listdir": _median_ms(lambda number: os.listdir(cache.root)),  # noqa: PTH208  what is compared with
            "one_more": _median_ms(lambda number: _stage(cache, num_files + number)),
            "is_there": _median_ms(lambda number: _find(cache, number)),
            "one_goes": _median_ms(lambda number: _stage(full, num_files + NUM_TIMED + number)),
        }
        assert full.num_evicted == NUM_TIMED, full.num_evicted
    print(f"{num_files:,} files: {found}", flush=True)
    return found


def _record(number: int) -> Record:
    return Record.of(f"http://host/{number}", SIZE_BYTES, "tag", ((0, SIZE_BYTES, 0),))


def _name(number: int) -> str:
    return entry_name(f"http://host/{number}", SIZE_BYTES)


def _write(cache: Cache, number: int) -> None:
    path = Path(cache.root) / f"{_name(number)}.{SIZE_BYTES}.staged"
    path.with_suffix(".held").write_text(_record(number).to_json())
    path.write_bytes(bytes(SIZE_BYTES))


def _stage(cache: Cache, number: int) -> None:
    download = cache.request(_name(number), SIZE_BYTES, SIZE_BYTES)
    assert isinstance(download, Download), download
    download.publish(_record(number)).release()


def _find(cache: Cache, number: int) -> None:
    pin = cache.request(_name(number), SIZE_BYTES, SIZE_BYTES)
    assert isinstance(pin, Pin), pin
    pin.release()


def _median_ms(work: Callable[[int], object]) -> float:
    taken = []
    for number in range(NUM_TIMED):
        since = time.process_time()
        work(number)
        taken.append(time.process_time() - since)
    return round(1000 * statistics.median(taken), 2)


if __name__ == "__main__":
    sys.exit(main())
