"""Which calls may fail, and how: drawn from the calls of a run without faults."""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tests.faults.failing_calls import strace
from tests.faults.failing_calls.strace import SHORT, Call, Fault

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
ONCE = frozenset({"EINTR", "0", SHORT})


@dataclass(frozen=True, kw_only=True)
class Target:
    """Calls of one kind with one path.

    Attributes:
        call: The name.
        path: The path.
        num_calls: How many of them a thread makes at most.
        offsets: Where these begin to read, if a file that does not change is read.
        succeeds: Whether any of them succeeds.
    """

    call: str
    path: str
    num_calls: int
    offsets: tuple[int, ...]
    succeeds: bool


def targets(calls: Iterable[Call], root: Path, template: Path) -> list[Target]:
    """What a run calls with the paths below `root`, which was a copy of `template` when it began."""
    by_thread: defaultdict[tuple[str, str], dict[str, list[Call]]] = defaultdict(dict)
    for call in calls:
        for path in call.paths:
            if call.name in ERRORS and Path(path).is_relative_to(root):
                by_thread[call.name, path].setdefault(call.thread, []).append(call)
    found = []
    for (name, path), threads in sorted(by_thread.items()):
        most = max(threads.values(), key=len)
        is_same = path.endswith(".parquet") and (template / Path(path).relative_to(root)).exists()
        found.append(
            Target(
                call=name,
                path=path,
                num_calls=len(most),
                offsets=tuple(call.offset or 0 for call in most) if is_same else (),
                succeeds=any(call.error is None for call in chain(*threads.values())),
            )
        )
    return found


def draw(found: Sequence[Target], drawn: random.Random) -> Fault:
    """One fault: each kind of call is as likely, and each path of a kind."""
    call = drawn.choice(sorted({target.call for target in found}))
    target = drawn.choice([target for target in found if target.call == call])
    # "Not there" is a lie only of what is there.
    errors = [error for error in ERRORS[call] if error != "ENOENT" or target.succeeds]
    if call == "pread64" and target.offsets:
        errors.append(SHORT)
    error, number = drawn.choice(errors), drawn.randint(1, target.num_calls)
    goes_on = error not in ONCE and drawn.random() < 0.3
    if error == SHORT:
        error = f"{SHORT}{target.offsets[number - 1]}"
    return Fault(call=call, path=target.path, when=f"{number}{'+' if goes_on else ''}", error=error)
