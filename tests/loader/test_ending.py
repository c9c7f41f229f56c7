"""A loader ends cleanly however it ends: no thread and no file stays behind."""

import gc
import itertools
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import DispatchError, StateError
from featstore.loader.feature_loader import FeatureLoader
from tests.process import num_descriptors, our_files, our_threads
from tests.programs import Program, run_python
from tests.tiers import tiered

STAGING = [None, {"mode": "whole", "ahead_files": 1}]
REPEATS = 6


def loader_for(table_url: str, staging: Any = None) -> FeatureLoader:
    return FeatureLoader(table_url, slots=["*"], batch_size=40, staging=staging, memory_budget=1)


def exhaust(loader: FeatureLoader) -> None:
    assert sum(batch.num_rows for batch in loader) == 280


def leave(loader: FeatureLoader) -> None:
    for _ in loader:
        break


def fail(loader: FeatureLoader) -> None:
    with pytest.raises(ZeroDivisionError):
        _divided(loader)


def _divided(loader: FeatureLoader) -> None:
    for batch in loader:
        batch.num_rows / 0


def _interrupted(loader: FeatureLoader) -> None:
    for number, _ in enumerate(loader):
        if number == 2:
            signal.raise_signal(signal.SIGINT)


def forget(loader: FeatureLoader) -> None:
    next(iter(loader))


def close(loader: FeatureLoader) -> None:
    with loader:
        next(batches := iter(loader))
    with pytest.raises(StateError, match="closed before its end"):
        next(batches)


def throw(loader: FeatureLoader) -> None:
    """Ctrl-C, as Python tells it, while the loop waits or works."""
    with pytest.raises(KeyboardInterrupt):
        _interrupted(loader)


@pytest.mark.parametrize("staging", STAGING, ids=["in place", "staged"])
@pytest.mark.parametrize("end", [exhaust, leave, fail, forget, close, throw])
def test_nothing_is_left_behind_however_often(table_url: str, end: Any, staging: Any) -> None:
    before = our_files()
    descriptors = None
    for repeat in range(REPEATS):
        end(loader_for(table_url, staging))
        gc.collect()
        assert (our_threads(), our_files() - before) == (set(), set())
        if repeat == 1:
            descriptors = num_descriptors()
    assert descriptors is not None
    assert num_descriptors() <= descriptors


PROGRAM = """
import os, signal, sys, threading
from torch.utils.data import DataLoader
from featstore.loader.feature_loader import FeatureLoader

table, num_workers, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
loader = FeatureLoader(table, slots=["*"], batch_size=4, memory_budget=1, staging={"mode": "whole"})
batches = iter(DataLoader(loader, batch_size=None, num_workers=num_workers) if num_workers else loader)
next(batches)
if how == "exit":
    sys.exit(3)
print("ready", flush=True)
while how == "signal":  # Goes round until the signal comes, from outside.
    for batch in loader if not num_workers else batches:
        pass
    batches = iter(DataLoader(loader, batch_size=None, num_workers=num_workers)) if num_workers else None
"""


def leavings(num_workers: int) -> str:
    """Of workers that torch may terminate in the middle, their private directories stay; the
    parent's own do not.
    """
    return "featstore-run*" if num_workers else "*"


def interrupted(program: Program) -> str:
    """What a program says until Ctrl-C has ended it. Python ignores an interrupt that lands in what
    it calls when an object goes (a `__del__` of torch's, a callback of a weak reference), and says
    so; one presses Ctrl-C again then.
    """
    for num_ignored in itertools.count(1):
        program.send_signal(signal.SIGINT)
        try:
            return program.communicate(timeout=60)[1]
        except subprocess.TimeoutExpired as error:
            if (error.stderr or b"").count(b"Exception ignored in") != num_ignored:
                raise
    raise AssertionError


@pytest.mark.parametrize("num_workers", tiered([0, 2], bool))
def test_a_program_that_is_interrupted_ends_with_its_threads_and_leaves_no_file(
    table_url: str, tmp_path: Path, num_workers: Any
) -> None:
    with Program(
        PROGRAM,
        table_url,
        num_workers,
        "signal",
        warnings="ignore",
        variables={"TMPDIR": str(tmp_path)},
    ) as program:
        assert program.line() == "ready"
        errors = interrupted(program)
    assert "KeyboardInterrupt" in errors
    assert program.returncode in (-signal.SIGINT, 130)
    assert list(tmp_path.glob(leavings(num_workers))) == []


@pytest.mark.parametrize("num_workers", tiered([0, 2], bool))
def test_a_program_that_exits_in_the_middle_leaves_no_file(
    table_url: str, tmp_path: Path, num_workers: Any
) -> None:
    variables = {"TMPDIR": str(tmp_path)}
    given = [table_url, num_workers, "exit"]
    run_python(PROGRAM, *given, status=3, variables=variables, warnings="ignore")
    assert list(tmp_path.glob(leavings(num_workers))) == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_iteration_that_a_fork_copied_is_refused_with_the_fix(table_url: str) -> None:
    with loader_for(table_url) as loader:
        batches = iter(loader)
        rows = next(batches).num_rows
        child = os.fork()
        if child == 0:
            try:
                next(batches)
            except DispatchError as error:
                os._exit(0 if "iterate anew in this process" in str(error) else 2)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert rows + sum(batch.num_rows for batch in batches) == 280


ITERATING = """
import sys, threading
import featstore
loader = featstore.FeatureLoader(sys.argv[1], slots=["*"], batch_size=40, order=sys.argv[2])
batches = iter(getattr(loader, sys.argv[3])() if len(sys.argv) > 3 else loader)
next(batches)
"""


@pytest.mark.parametrize("feed", [[], ["numpy"]])
@pytest.mark.parametrize("order", ["dynamic", "static"])
def test_an_iterator_that_is_a_global_of_a_program_says_nothing_at_its_end(
    table_url: str, order: str, feed: list[str]
) -> None:
    assert run_python(ITERATING, table_url, order, *feed).stderr == ""
