"""Forked processes; and the end of a program: its code, what still runs, and that nothing else
does.
"""

import errno
import gc
import pickle
import threading

import pytest

from featstore.base.errors import AccessError, CheckFailedError, WorkerError
from featstore.base.processes import (
    OwnProcess,
    cached_property,
    exit_code,
    forget_in_child,
    module_lock,
)
from tests.forks import in_a_fork
from tests.programs import run_python
from tests.threads import beside

START = "import atexit, sys, threading\nfrom featstore.base.processes import end_with\n"
# Destroyed in the interpreter's own end, which is not to come.
AFTER = "class After:\n    def __del__(self): sys.__stderr__.write('taken down')\nafter = After()\n"


def test_an_own_process_is_not_that_of_a_child_nor_of_another_interpreter() -> None:
    own = OwnProcess()
    assert own.is_this()
    assert pickle.loads(pickle.dumps(own)).is_this()
    assert in_a_fork(own.is_this) == 0
    assert in_a_fork(lambda: OwnProcess().is_this()) == 1
    text = f"import pickle; print(pickle.loads({pickle.dumps(own)!r}).is_this())"
    assert run_python(text).stdout == "False\n"


class _Slow:
    """Computes a value once `may_end` is set."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    @cached_property
    def value(self) -> object:
        """What was made."""
        self.begun.set()
        assert self.may_end.wait(60)
        return object()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_computes_what_a_thread_of_its_parent_is_computing() -> None:
    slow, other = _Slow(), _Slow()
    other.may_end.set()

    def end_and_compute() -> bool:
        slow.may_end.set()
        return slow.value is None

    with beside(lambda: slow.value):
        try:
            assert slow.begun.wait(60)
            assert in_a_fork(lambda: other.value is None) == 0
            assert in_a_fork(end_and_compute) == 0
            assert other.value is other.value  # Another object's is not waited for here either.
        finally:
            slow.may_end.set()


def test_threads_that_compute_a_value_at_once_get_the_same() -> None:
    slow, found = _Slow(), list[object]()
    with beside(*[lambda: found.append(slow.value)] * 3):
        assert slow.begun.wait(60)
        slow.may_end.set()
    assert len(set(found)) == 1
    assert slow.value is found[0]
    assert _Slow.value.__doc__ == "What was made."


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_lock_that_a_thread_holds_is_free_in_a_child_and_not_here() -> None:
    lock, held, may_end = module_lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            may_end.wait(60)

    with beside(hold):
        try:
            assert held.wait(60)
            assert in_a_fork(lambda: not lock.acquire(timeout=5)) == 0
            assert not lock.acquire(blocking=False)
        finally:
            may_end.set()


class _Inherited:
    def __init__(self) -> None:
        self.num_forgotten = 0

    def forget(self) -> None:
        self.num_forgotten += 1


def test_what_a_child_inherits_is_forgotten_there_in_each_and_not_here() -> None:
    one = _Inherited()
    forget_in_child(one)
    assert in_a_fork(lambda: one.num_forgotten != 1) == 0
    assert in_a_fork(lambda: in_a_fork(lambda: one.num_forgotten != 2)) == 0
    assert one.num_forgotten == 0


def test_one_that_cannot_be_forgotten_does_not_keep_the_others(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class _Failing(_Inherited):
        def forget(self) -> None:
            super().forget()
            raise RuntimeError("lost")

    failing = [_Failing() for _ in range(3)]
    for one in failing:
        forget_in_child(one)
    assert in_a_fork(lambda: any(one.num_forgotten != 1 for one in failing)) == 0
    assert capfd.readouterr().err.count("RuntimeError: lost") == len(failing)


def test_what_is_gone_is_not_kept_to_be_forgotten() -> None:
    gone: list[bool] = []

    class _Noted(_Inherited):
        def __del__(self) -> None:
            gone.append(True)

    forget_in_child(_Noted())
    gc.collect()
    assert gone


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("lambda: None", 0),
        ("lambda: 3", 3),
        ("lambda: sys.exit(2)", 2),
        ("sys.exit", 0),
        ("lambda: sys.exit('text')", 1),
    ],
)
def test_the_process_ends_with_the_code_of_its_program_and_takes_nothing_down(
    program: str, status: int
) -> None:
    done = run_python(f"{START}{AFTER}end_with({program})", status=status)
    assert done.stderr == ""


def test_a_bug_keeps_its_traceback() -> None:
    done = run_python(f"{START}end_with(lambda: 1 / 0)", status=1)
    assert done.stderr.splitlines()[0].startswith("Traceback")
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_threads_pools_handlers_and_output_end_before_the_process() -> None:
    program = """
import time
from concurrent.futures import ThreadPoolExecutor
from featstore.base.closing import when_gone
class Owner: pass
owner = Owner()
def late(text):
    time.sleep(0.2)
    sys.stdout.write(f"{text} ")  # in one piece, which `print` of two threads is not
def main():
    when_gone(owner, lambda: print("finalizer"))
    atexit.register(print, "handler")
    threading.Thread(target=late, args=("thread",)).start()
    ThreadPoolExecutor().submit(late, "pool")
    print("program")
end_with(main)
"""
    lines = run_python(f"{START}{program}").stdout.split()
    assert lines[0] == "program"
    assert set(lines) == {"program", "thread", "pool", "handler", "finalizer"}
    assert set(lines[-2:]) == {"handler", "finalizer"}


def test_output_that_cannot_be_written_is_no_success() -> None:
    done = run_python(
        f"{START}sys.stdout = open('/dev/full', 'w')\nend_with(lambda: print('x'))", status=120
    )
    assert done.stderr.splitlines()[-1] == "OSError: [Errno 28] No space left on device"


def test_a_refusal_by_checks_has_a_code_of_its_own() -> None:
    assert exit_code(CheckFailedError("coverage")) == 3
    assert exit_code(AccessError("no bucket")) == 2
    assert exit_code(WorkerError("died")) == 75
    assert exit_code(FileNotFoundError(errno.ENOENT, "none")) == 2
    assert exit_code(ConnectionResetError(errno.ECONNRESET, "reset")) == 75
