"""Ends what must not outlive its owner."""

from collections.abc import Callable
from multiprocessing.util import Finalize


def when_gone(owner: object, end: Callable[[], object]) -> Callable[[], object]:
    """Calls `end` once: when the owner is collected, at the interpreter's exit, or when the result
    is called.

    Unlike `weakref.finalize` it also runs at the end of a worker process, and never in a forked
    copy of this one.
    """
    return Finalize(owner, end, exitpriority=100)
