"""In which Python functions the threads of this process spend CPU time.

The kernel sends a signal every few milliseconds of CPU time to the thread that takes it, and
`faulthandler` writes the stack of this thread, from C. (A thread that looks at `_current_frames()`
sees others only where they give up the interpreter's lock.) A sample counts for its innermost
function of one package, with what that calls outside of it: C, numpy, the standard library. Threads
that Python does not know are not seen.
"""

import faulthandler
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

_PERIOD_S = 0.001  # Linux makes it a tick of its clock, such as 4 ms.
_NUM_FUNCTIONS = 20
_BEGIN = "Stack (most recent call first):"
_FRAME = re.compile(r'  File "(?P<path>.*)", line \d+ in (?P<name>.*)')


def python_profile(
    epoch: Callable[[], Iterator[Any]], cpu_s: float, package: Path
) -> dict[str, float]:
    """Shares of the samples by function, the largest first.

    Args:
        epoch: Reads all batches; it is run until so much CPU time is spent.
        cpu_s: Seconds.
        package: The folder of the package whose functions are told.

    Returns:
        By `file:function`, with the file's path in the package; `outside` is what none of its
        functions called.
    """
    with tempfile.TemporaryFile("w+") as stacks:
        signal.signal(signal.SIGPROF, signal.SIG_IGN)  # for one that comes after the last sample
        faulthandler.register(signal.SIGPROF, file=stacks, all_threads=False)
        signal.setitimer(signal.ITIMER_PROF, _PERIOD_S, _PERIOD_S)
        try:
            end = time.process_time() + cpu_s
            while time.process_time() < end:
                for _ in epoch():
                    pass
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            faulthandler.unregister(signal.SIGPROF)
        stacks.seek(0)
        return functions_of(stacks, package)


def functions_of(lines: Iterable[str], package: Path) -> dict[str, float]:
    """The shares that stacks as `faulthandler` writes them tell; see `python_profile`."""
    samples: Counter[str] = Counter()
    is_placed = True
    for line in lines:
        if line.startswith(_BEGIN):
            samples["outside"] += 1
            is_placed = False
        found = _FRAME.match(line)
        if found and not is_placed and Path(found["path"]).is_relative_to(package):
            where = Path(found["path"]).relative_to(package)
            samples["outside"] -= 1
            samples[f"{where}:{found['name']}"] += 1
            is_placed = True
    total = samples.total()
    return {name: round(n / total, 3) for name, n in samples.most_common(_NUM_FUNCTIONS)}
