"""Releases resources together with the object that owns them."""

from collections.abc import Callable
from multiprocessing.util import Finalize


def when_gone(owner: object, end: Callable[[], object]) -> Callable[[], object]:
    """Calls `end` once: when the owner is garbage-collected, when the interpreter exits, or when
    the returned function is called, whichever comes first.

    Unlike `weakref.finalize` it also runs at the end of a worker process of multiprocessing, and
    never in a forked copy of this process.
    """
    return Finalize(owner, end, exitpriority=100)
