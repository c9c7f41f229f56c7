"""Functions in forks of a process that has loaded all libraries, and used none of them."""

import atexit
import contextlib
import hashlib
import importlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import threading
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from featstore.base.errors import FeatstoreError
from tests.faults.failing_calls.strace import attach

HANG_S = 60.0
Act = Callable[[list[Any]], object]
"""Adds what it delivers, one by one, to a list of what can be written as JSON."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a function ended.

    Attributes:
        code: The exit code, or the negative number of the signal; None if it hung.
        out: What it printed.
        err: What it printed on standard error.
        delivered: What it added to its list.
    """

    code: int | None
    out: str
    err: str
    delivered: list[Any]

    @property
    def has_traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.err


def run_forked(
    act: Act,
    place: Path,
    *,
    seed: str,
    options: Sequence[str] | None = None,
    temporary: Path | None = None,
) -> Ending:
    """Runs a function in a fork, with strace if there are `options` for it.

    Args:
        place: A directory for its output, and for strace's log, `place/log`.
        options: Those of strace, to trace it.
        temporary: Where its temporary files are made.
        seed: Random names are the same with the same seed, so that calls can be named beforehand.
    """
    (place / "result").write_text("[[], []]")
    gate, opener = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(opener)
        os.read(gate, 1)
        _be_child(act, place, seed, temporary)
    os.close(gate)
    tracer = None if options is None else attach(child, place / "log", options)
    os.close(opener)
    code = _wait(child)
    if tracer is not None:
        tracer.communicate()
    delivered, modules = json.loads((place / "result").read_text())
    _load(modules)
    return Ending(
        code=code,
        out=(place / "out").read_text(),
        err=(place / "err").read_text(),
        delivered=delivered,
    )


def _load(modules: Sequence[str]) -> None:
    """Imports what a fork has imported, for the next ones. None of it is used here, since its
    threads would not come along.
    """
    for name in modules:
        if name not in sys.modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def _wait(child: int) -> int | None:
    handle = os.pidfd_open(child)
    try:
        ended, _, _ = select.select([handle], [], [], HANG_S)
    finally:
        os.close(handle)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what is left of its group, or all of it
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ended else None


def _be_child(act: Act, place: Path, seed: str, temporary: Path | None) -> None:
    os.setpgid(0, 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(place / name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), number)
    _draw_from(seed)
    if temporary is not None:
        tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
    code, delivered = 1, list[Any]()
    try:
        code = _code_of(act, delivered)
        threading._shutdown()  # type: ignore[attr-defined]  # as at the end of an interpreter
        atexit._run_exitfuncs()
    finally:
        (place / "whole").write_text(json.dumps([delivered, list(sys.modules)]))
        (place / "whole").rename(place / "result")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _code_of(act: Act, delivered: list[Any]) -> int:
    try:
        act(delivered)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except FeatstoreError as error:  # as the command line tells it
        lines = [f"featstore: error: {error}", *getattr(error, "__notes__", ())]
        sys.stderr.write("\n".join(lines) + "\n")
        return 2
    except BaseException:  # noqa: BLE001  a process's boundary
        traceback.print_exc()
        return 1
    return 0


def _draw_from(seed: str) -> None:
    """Takes what names are drawn from, `uuid4` and temporary names, from a seed.

    Threads write files in any order, so an id is drawn by where it is asked for, for which file.
    Forks of this process draw others.
    """
    counts: Counter[str] = Counter()
    forks: list[None] = []
    os.register_at_fork(after_in_child=lambda: forks.append(None))

    def uuid4() -> uuid.UUID:
        frame = sys._getframe(1)
        what = frame.f_locals.get("path", frame.f_locals.get("name"))
        key = f"{seed} {len(forks)} {frame.f_code.co_qualname} {frame.f_lineno} {what}"
        counts[key] += 1
        digest = hashlib.sha256(f"{key} {counts[key]}".encode()).digest()
        return uuid.UUID(bytes=digest[:16], version=4)

    uuid.uuid4 = uuid4
    names = tempfile._RandomNameSequence()  # type: ignore[attr-defined]
    names._rng, names._rng_pid = random.Random(seed), os.getpid()
    tempfile._name_sequence = names  # type: ignore[attr-defined]
