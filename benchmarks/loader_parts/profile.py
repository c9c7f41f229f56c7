"""Where the CPU time of a loader goes, as `perf` samples it in all threads of this process.

Samples are sorted by the library and the function in which they fall, without their callers. What
the compiler moved into its caller counts as the caller's: the kernels' decompression is told apart
only where it is a function of its own. Footers are read by Python and by the kernels; `costs_of`
tells their time.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

_SAMPLES_PER_S, _CPU_S, _LEAST_SAMPLES, _SEPARATOR = 997, 1.0, 200, "|"
_MOST_S = 30.0  # by the clock, where other work leaves little CPU
# Of each library the parts that are told apart, by what their functions' names contain; the last is
# what remains.
_PARTS: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "kernels": [
        ("decompress", ("snappy", "decompress")),
        ("gather", ("gather", "take", "permut")),
        ("decode", ("",)),
    ],
    "libpython": [
        ("garbage collection", ("gc_", "visit_", "traverse")),
        ("allocation", ("alloc", "_free", "_Free")),
        ("interpreter", ("",)),
    ],
    "libc.so": [
        ("allocation", ("alloc", "free", "unlink_chunk")),
        ("copy", ("memmove", "memcpy", "memset")),
        ("libc", ("",)),
    ],
    "[kernel": [
        ("page faults", ("clear_page", "fault", "folio", "rmqueue", "zap_", "free_unref")),
        ("read of files", ("copy_to_iter", "filemap", "_copy_to_user", "rep_movs")),
        ("system", ("",)),
    ],
    "libtorch": [("torch", ("",))],
    "libc10": [("torch", ("",))],
    "libarrow": [("arrow", ("",))],
    "libparquet": [("arrow", ("",))],
    "_multiarray": [("numpy", ("",))],
}


def profile(epoch: Callable[[], Iterator[Any]]) -> dict[str, float] | str:
    """Shares of the CPU time by part, the largest first; `other` is every library not named here.

    Args:
        epoch: Reads all batches; it is run again and again.

    Returns:
        The shares, or why there are none: `perf` is not installed, may not look at this process, or
        took too few samples.
    """
    if shutil.which("perf") is None:
        return "perf is not installed"
    with tempfile.TemporaryDirectory() as made:
        samples = str(Path(made) / "samples")
        command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(_SAMPLES_PER_S)]
        with subprocess.Popen(
            [*command, "-p", str(os.getpid()), "-o", samples], stderr=subprocess.PIPE, text=True
        ) as perf:
            _run_beside(perf, epoch, Path(samples))
            perf.send_signal(signal.SIGINT)
            _, errors = perf.communicate()
        if not Path(samples).exists():
            return f"perf took no samples: {errors.strip()}"
        report = ["perf", "report", "-i", samples, "--stdio", "--sort", "dso,sym"]
        out = subprocess.run(
            [*report, "-t", _SEPARATOR], capture_output=True, text=True, check=True
        ).stdout
    return shares_of(out.splitlines())


def _run_beside(
    perf: "subprocess.Popen[str]", epoch: Callable[[], Iterator[Any]], samples: Path
) -> None:
    """Epochs until perf, which takes its time to start, has seen a second of CPU time."""
    end, begun = time.perf_counter() + _MOST_S, 0.0
    while perf.poll() is None and time.perf_counter() < end:
        if not begun and samples.exists():
            begun = time.process_time()
        if begun and time.process_time() - begun > _CPU_S:
            return
        for _ in epoch():
            pass


def shares_of(lines: Iterable[str]) -> dict[str, float] | str:
    """The shares that a report of `perf report --sort dso,sym -t '|'` tells, by part; or, of fewer
    than 200 samples, only how many there are.
    """
    percents: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        if line.startswith("# Samples: "):
            num_samples = line.removeprefix("# Samples: ").split()[0]
            if num_samples.isdecimal() and int(num_samples) < _LEAST_SAMPLES:
                return f"perf took only {num_samples} samples"
        if line.startswith("#") or line.count(_SEPARATOR) < 2:
            continue
        percent, library, function = line.split(_SEPARATOR, 2)
        percents[_part(library.strip(), function)] += float(percent.strip().removesuffix("%"))
    largest_first = sorted(percents.items(), key=lambda part: -part[1])
    return {name: round(percent / 100, 3) for name, percent in largest_first}


def _part(library: str, function: str) -> str:
    for prefix, parts in _PARTS.items():
        if library.startswith(prefix):
            return next(part for part, names in parts if any(name in function for name in names))
    return "other"
