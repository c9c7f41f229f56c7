"""In which Python functions the threads of this process spend CPU time.

A thread looks every few milliseconds at the innermost function of each other thread, and counts for
it the CPU time that this thread has taken since the last look, as the kernel tells it. What the
function calls outside Python is part of that. Not seen: threads that Python does not know, and what
a thread takes between the last look and its end.
"""

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

# So short, as a thread that runs Python is seen where it gives up the interpreter's lock.
_PERIOD_S, _SWITCH_S = 0.003, 2e-5


def python_profile(
    epoch: Callable[[], Iterator[Any]], cpu_s: float, num_functions: int = 20
) -> dict[str, float]:
    """Shares of the CPU time that the functions take, of all that was seen, the largest first.

    Args:
        epoch: Reads all batches; it is run until so much CPU time is spent.
        cpu_s: Seconds.
        num_functions: The most that are told.

    Returns:
        By `thread file:function`.
    """
    spent_ns: defaultdict[str, int] = defaultdict(int)
    is_over = threading.Event()
    looks = threading.Thread(target=_look, args=(spent_ns, is_over))
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    looks.start()
    try:
        end = time.process_time() + cpu_s
        while time.process_time() < end:
            for _ in epoch():
                pass
    finally:
        is_over.set()
        looks.join()
        sys.setswitchinterval(before)
    largest_first = sorted(spent_ns.items(), key=lambda of: -of[1])[:num_functions]
    total = sum(spent_ns.values())
    return {name: round(ns / total, 3) for name, ns in largest_first}


def _look(spent_ns: defaultdict[str, int], is_over: threading.Event) -> None:
    before: dict[int, int] = {}
    while not is_over.wait(_PERIOD_S):
        now = {}
        for tid, where in _functions().items():
            if (taken_ns := _taken_ns(tid)) is not None:
                spent_ns[where] += taken_ns - before.get(tid, 0 if before else taken_ns)
                now[tid] = taken_ns
        before = now


def _functions() -> dict[int, str]:
    """Where each other thread is, by its id at the kernel."""
    own, frames = threading.get_ident(), sys._current_frames()
    return {
        thread.native_id: f"{thread.name} {_named(frames[thread.ident].f_code)}"
        for thread in threading.enumerate()
        if thread.ident in frames and thread.ident != own and thread.native_id
    }


def _named(code: CodeType) -> str:
    """The file, in its folder, and the function."""
    return f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_qualname}"


def _taken_ns(tid: int) -> int | None:
    """None where the thread has ended."""
    try:
        return int(Path(f"/proc/self/task/{tid}/schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return None
