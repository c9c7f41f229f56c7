"""What is closed at the end of a `with` block, released together with the object that owns it, or
cleaned up after a block that failed.
"""

import contextlib
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from typing import Self


class Closing:
    """Makes a class with `close()` a context manager that closes itself."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError


def when_gone(owner: object, end: Callable[[], object]) -> Callable[[], object]:
    """Calls `end` once: when the owner is garbage-collected, when the interpreter exits, or when
    the returned function is called, whichever comes first.

    Unlike `weakref.finalize` it also runs at the end of a worker process of multiprocessing, and
    never in a forked copy of this process.
    """
    return Finalize(owner, end, exitpriority=100)


@contextlib.contextmanager
def cleaned_up_on_failure(clean_up: Callable[[], object]) -> Iterator[None]:
    """Calls `clean_up` if the block fails. What that raises never hides the block's error: it
    becomes a note of it.
    """
    try:
        yield
    except BaseException as error:
        try:
            clean_up()
        except Exception as other:  # noqa: BLE001  It is reported beside the first.
            error.add_note(f"The clean-up after it failed too: {other!r}")
        raise


@contextlib.contextmanager
def noted_on_failure(note: str) -> Iterator[None]:
    """Adds a note to any error of the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(note)
        raise
