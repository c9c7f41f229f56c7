"""Forked processes and what they must not inherit, and the end of featstore's own programs: their
exit codes, and that nothing runs after them.
"""

import atexit
import functools
import os
import sys
import threading
import traceback
import uuid
import weakref
from collections.abc import Callable
from typing import Any, Generic, NoReturn, Protocol, TypeVar, overload

from featstore.base.errors import CheckFailedError, FeatstoreError, system_may_pass

BAD_INPUT, REFUSED, MAY_PASS = 2, 3, 75  # the last one is EX_TEMPFAIL of sysexits.h
_NOT_FLUSHED = 120  # the interpreter's own code if standard output cannot be written at its end
_Value = TypeVar("_Value")


class cached_property(Generic[_Value]):  # noqa: N801  as it is called in functools
    """As `functools.cached_property` of Python 3.12 and later, which has no lock. That of 3.11 has
    one for all objects of a class: a child that is forked while a thread computes the value, as
    another loader's does, would wait for ever for that thread, which is not there.

    Threads may compute the value at once; all get the one that was there first. One that overrides
    another cannot use the value of that by `super()`.
    """

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "cached_property[_Value]": ...

    @overload
    def __get__(self, instance: object, owner: type) -> _Value: ...

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        return instance.__dict__.setdefault(self._name, self._compute(instance))


class OwnProcess:
    """The process that makes this object. A forked child, and who unpickles it, has it too.

    Attributes:
        id: The process id, for messages.
    """

    # Names this process. A forked child has another one before anything else runs in it. Process
    # ids are reused, also across hosts and containers, and take a system call.
    _token_here = uuid.uuid4().hex

    def __init__(self) -> None:
        self.id, self._token = os.getpid(), OwnProcess._token_here

    def is_this(self) -> bool:
        """Whether the caller is in that process."""
        return self._token == OwnProcess._token_here


@functools.cache
def first_user(library: str) -> OwnProcess:
    """The process that first used a library whose threads do not survive a fork. Forked children
    inherit the answer.
    """
    return OwnProcess()


class Inherited(Protocol):
    """What a forked child must not go on with as it finds it."""

    def forget(self) -> None:
        """Begins anew in the child, with new locks: a thread of the parent, which is not here, may
        have held the old ones at the fork. Connections are left to the parent.
        """


_inherited: "weakref.WeakSet[Inherited]" = weakref.WeakSet()


def forget_in_child(owner: Inherited) -> None:
    """Has `owner.forget()` called at the begin of each forked child, as long as the owner lives."""
    _inherited.add(owner)


def _forget_all() -> None:
    OwnProcess._token_here = uuid.uuid4().hex
    for owner in list(_inherited):
        try:
            owner.forget()
        except Exception:  # noqa: BLE001  as of a hook of its own: reported, and the others go on
            traceback.print_exc()


os.register_at_fork(after_in_child=_forget_all)


def module_lock() -> threading.Lock:
    """A lock for all threads of a process, which is free in a forked child: whoever held it at the
    fork is not there.
    """
    lock = threading.Lock()
    os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]
    return lock


def exit_code(error: FeatstoreError | OSError) -> int:
    """The exit code of an error, which tells those of checks, and those that may pass."""
    if isinstance(error, CheckFailedError):
        return REFUSED
    passes = error.may_pass if isinstance(error, FeatstoreError) else system_may_pass(error)
    return MAY_PASS if passes else BAD_INPUT


def end_with(program: Callable[[], int | None]) -> NoReturn:
    """Runs a program, and ends the process with the code that it returns or exits with.

    As at the interpreter's end, other threads are joined, what is registered with `atexit` runs
    (finalizers, logging, child processes), and output is flushed. Then the process ends at once.
    The interpreter would first take itself down, while threads of Arrow's pools and of the stores'
    clients go on: one that calls Python, or frees memory of Python, then aborts the process.
    """
    code = _code_of(program)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    os._exit(_flushed(code))


def _code_of(program: Callable[[], int | None]) -> int:
    try:
        return program() or 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception:  # noqa: BLE001  a program's boundary: shown as the interpreter would
        sys.excepthook(*sys.exc_info())
        return 1


def _flushed(code: int) -> int:
    """The exit code after output was flushed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # It is where the descriptor was closed at the start.
                stream.flush()
        except (OSError, ValueError):
            sys.excepthook(*sys.exc_info())
            code = code or _NOT_FLUSHED
    return code
