"""Where the CPU time of a loader goes, as `perf` samples it in all threads of this process.

Samples are sorted by the library and the function in which they fall, without their callers. What
the compiler moved into its caller counts as the caller's: the kernels' decompression is told apart
only where it is a function of its own. Memory that Python asks libc for is libc's. Footers are read
by Python and by the kernels; `costs_of` tells their time.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

_SAMPLES_PER_S, _CPU_S, _LEAST_SAMPLES, _SEPARATOR = 997, 1.0, 200, "|"
# What the names of libraries begin with; other modules of Python are the interpreter's.
_LIBRARIES: dict[str, tuple[str, ...]] = {
    "kernels": ("kernels",),
    "numpy": ("_multiarray", "_generator", "bit_generator", "_pcg64", "mtrand"),
    "arrow": ("libarrow", "libparquet", "lib.cpython", "_parquet"),
    "torch": ("libtorch", "libc10"),
    "libc": ("libc.so", "libm.so", "ld-linux"),
    "system": ("[",),
    "interpreter": ("libpython", "python"),
}
# Of some libraries the parts that are told apart, by what their functions' names contain; the last
# is what remains.
_PARTS: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "kernels": [
        ("decompress", ("snappy", "decompress")),
        ("gather", ("gather", "take", "permut")),
        ("decode", ("",)),
    ],
    "interpreter": [
        ("garbage collection", ("gc_", "visit_", "traverse")),
        ("allocation", ("alloc", "_free", "_Free")),
        ("interpreter", ("",)),
    ],
    "libc": [
        ("allocation", ("alloc", "free", "unlink_chunk")),
        ("copy", ("memmove", "memcpy", "memset")),
        ("libc", ("",)),
    ],
    "system": [
        ("page faults", ("clear_page", "fault", "folio", "rmqueue", "zap_", "free_unref")),
        ("read of files", ("copy_to_iter", "filemap", "_copy_to_user", "rep_movs")),
        ("system", ("",)),
    ],
}


def profile(epoch: Callable[[], Iterator[Any]]) -> dict[str, float] | str:
    """Shares of the CPU time by part, the largest first; `other` is every library not named here.

    Args:
        epoch: Reads all batches; it is run again and again.

    Returns:
        The shares, or why there are none: `perf` is not installed, may not look at this process, or
        took too few samples.
    """
    report = reported(epoch)
    return report if isinstance(report, str) else shares_of(report, part_of)


def reported(epoch: Callable[[], Iterator[Any]], cpu_s: float = _CPU_S) -> Sequence[str] | str:
    """The lines of perf's report of so many seconds of CPU time, for `shares_of`, or why there are
    none; see `profile`.
    """
    if shutil.which("perf") is None:
        return "perf is not installed"
    with tempfile.TemporaryDirectory() as made:
        samples = str(Path(made) / "samples")
        command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(_SAMPLES_PER_S)]
        errors = _run_beside([*command, "-p", str(os.getpid()), "-o", samples], epoch, cpu_s)
        if not Path(samples).exists():
            return f"perf took no samples: {errors.strip()}"
        report = ["perf", "report", "-i", samples, "--stdio", "--sort", "dso,sym"]
        out = subprocess.run(
            [*report, "-t", _SEPARATOR], capture_output=True, text=True, check=True
        ).stdout
    return out.splitlines()


def _run_beside(perf: Sequence[str], epoch: Callable[[], Iterator[Any]], cpu_s: float) -> str:
    """Epochs beside this command, for so much CPU time from when it says that it samples; its
    errors.
    """
    (told, tell), (answer, answers) = os.pipe(), os.pipe()
    control = ["--delay=-1", f"--control=fd:{told},{answers}"]  # It waits to be told to begin.
    with (
        subprocess.Popen(
            [*perf, *control], pass_fds=(told, answers), stderr=subprocess.PIPE, text=True
        ) as running,
        os.fdopen(tell, "wb", buffering=0) as commands,
        os.fdopen(answer, "rb", buffering=0) as acknowledged,
    ):
        commands.write(b"enable\n")
        os.close(told)
        os.close(answers)  # So that a perf that has ended is seen as the end of its answers.
        if acknowledged.readline():
            end = time.process_time() + cpu_s
            while time.process_time() < end:
                for _ in epoch():
                    pass
        running.send_signal(signal.SIGINT)
        return running.communicate()[1]


def shares_of(lines: Iterable[str], name_of: Callable[[str, str], str]) -> dict[str, float] | str:
    """The shares that a report of `perf report --sort dso,sym -t '|'` tells, by the name that
    `name_of(library, function)` gives; or, of fewer than 200 samples, only how many there are.
    """
    percents: defaultdict[str, float] = defaultdict(float)
    num_samples = "0"
    for line in lines:
        if line.startswith("# Samples: "):
            num_samples = line.removeprefix("# Samples: ").split()[0]
        if line.startswith("#") or line.count(_SEPARATOR) < 2:
            continue
        percent, library, function = line.split(_SEPARATOR, 2)
        name = name_of(library.strip(), function)
        percents[name] += float(percent.strip().removesuffix("%"))
    if num_samples.isdecimal() and int(num_samples) < _LEAST_SAMPLES:  # not so "4K"
        return f"perf took only {num_samples} samples"
    largest_first = sorted(percents.items(), key=lambda part: -part[1])
    return {name: round(percent / 100, 3) for name, percent in largest_first}


def library_of(library: str, _: str = "") -> str:
    """Whose the library is; `other` where it is not known here."""
    for name, prefixes in _LIBRARIES.items():
        if library.startswith(prefixes):
            return name
    return "interpreter" if ".cpython-" in library else "other"


def part_of(library: str, function: str) -> str:
    """The part of the library to which the function belongs."""
    owner = library_of(library)
    parts = _PARTS.get(owner, [(owner, ("",))])
    return next(part for part, names in parts if any(name in function for name in names))
