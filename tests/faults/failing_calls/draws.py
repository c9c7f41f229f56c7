"""Which calls may fail, and how: drawn from the calls of a run without faults."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.faults.failing_calls import strace
from tests.faults.failing_calls.forked import PID
from tests.faults.failing_calls.strace import Call, Fault

_ANY = ("EIO", "EACCES", "ESTALE")
ERRORS: dict[str, tuple[str, ...]] = (
    dict.fromkeys(strace.STATS, (*_ANY, "ENOENT"))
    | dict.fromkeys(strace.LOOKS, (*_ANY, "EINTR"))
    | dict.fromkeys(strace.WRITES, ("EIO", "ENOSPC", "EINTR"))
    | dict.fromkeys(strace.NAMES, (*_ANY, "ENOSPC"))
    | dict.fromkeys(strace.LOCKS, ("EIO", "EINTR", "EACCES"))
    | {
        "openat": (*_ANY, "ENOENT", "EMFILE", "EINTR", "ENOSPC"),
        "getdents64": (*_ANY, "EMFILE"),
        "read": ("EIO", "ESTALE", "EINTR", "0"),
        "pread64": ("EIO", "ESTALE", "EINTR", "0"),
        "write": ("EIO", "ENOSPC", "EINTR", "0"),
        "pwrite64": ("EIO", "ENOSPC", "EINTR", "0"),
        "copy_file_range": ("EIO", "ENOSPC"),
        "sendfile": ("EIO", "ENOSPC"),
        "mmap": ("EIO", "ENOMEM", "EACCES"),
        "lseek": ("EIO", "ESTALE"),
        "fstat": ("EIO", "ESTALE", "EACCES"),
    }
)
# Who is interrupted, or gets nothing, tries again: for ever, if it is told the same each time.
ONCE = frozenset({"EINTR", "0"})


@dataclass(frozen=True, kw_only=True)
class Target:
    """Calls of one kind with one path: how many of them a thread makes at most, and whether one
    succeeds.
    """

    call: str
    path: str
    num_calls: int
    succeeds: bool


def targets(calls: Iterable[Call], root: str, pid: str) -> list[Target]:
    """What a run calls with the paths below `root`; `pid` is how names have its process id."""
    counts: Counter[tuple[str, str, str]] = Counter()
    succeeding = set()
    for call in calls:
        for path in (path.replace(pid, f".{PID}.") for path in call.paths):
            if call.name in ERRORS and (path == root or path.startswith(f"{root}/")):
                counts[call.name, path, call.thread] += 1
                if call.error is None:
                    succeeding.add((call.name, path))
    most: dict[tuple[str, str], int] = {}
    for (name, path, _), count in counts.items():
        most[name, path] = max(count, most.get((name, path), 0))
    return [
        Target(
            call=name, path=path, num_calls=most[name, path], succeeds=(name, path) in succeeding
        )
        for name, path in sorted(most)
    ]


def draw(found: Sequence[Target], drawn: random.Random) -> Fault:
    """One fault: each kind of call is as likely, and each path of a kind."""
    call = drawn.choice(sorted({target.call for target in found}))
    target = drawn.choice([target for target in found if target.call == call])
    # "Not there" is a lie only of what is there.
    errors = [error for error in ERRORS[call] if error != "ENOENT" or target.succeeds]
    error = drawn.choice(errors)
    goes_on = error not in ONCE and drawn.random() < 0.3
    when = f"{drawn.randint(1, target.num_calls)}{'+' if goes_on else ''}"
    return Fault(call=call, path=target.path, when=when, error=error)
