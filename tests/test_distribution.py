"""A test that hangs does not hang the run: it is named with its stacks, and the others run."""

import subprocess
import time
from pathlib import Path

from tests.distribution import Watched
from tests.process import await_that
from tests.programs import run_python

CONFTEST = """
from tests.distribution import OnePerFixture, watch
def pytest_configure(config): watch(config, limit_s=12)
def pytest_xdist_make_scheduler(config, log): return OnePerFixture(config, log)
"""
# With the interpreter's lock, and with a forked child that has the run's pipes. It has begun long ago
# by its file, so that it need not be waited for as long as the others may take.
TESTS = """
import ctypes, os, time
def test_before(): pass
def test_that_hangs(request):
    os.utime(f"{request.config.workerinput['noted']}/{os.getpid()}", (0, 0))
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    lock, native = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
    native.pthread_mutex_lock(lock)
    native.pthread_mutex_lock(lock)
def test_after(): pass
"""
# Once it has crashed, its child lets it have begun long ago. The other test waits until that was seen.
CRASHING = """
import os, time
from pathlib import Path
def test_that_crashes(request):
    crashed = os.getpid()
    if os.fork() == 0:
        while os.getppid() == crashed:
            time.sleep(0.01)
        os.utime(f"{request.config.workerinput['noted']}/{crashed}", (0, 0))
        os._exit(0)
    os._exit(3)
def test_later(request):
    noted = Path(request.config.workerinput["noted"])
    while {path.name for path in noted.iterdir() if not path.suffix} != {str(os.getpid())}:
        time.sleep(0.05)
"""
RUN = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


def test_a_test_that_hangs_is_named_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    test = tmp_path / "test_it.py"
    test.write_text(TESTS)
    begun = time.monotonic()
    done = run_python(RUN, "--rootdir", tmp_path, test, "--numprocesses", 2, status=1)
    assert time.monotonic() - begun < 300
    assert "test_it.py::test_that_hangs had not ended after 12 s" in done.stdout
    assert "in test_that_hangs\n" in done.stdout
    assert "1 failed, 2 passed" in done.stdout


def test_a_process_that_crashed_is_not_said_to_hang_and_its_number_is_left_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    test = tmp_path / "test_it.py"
    test.write_text(CRASHING)
    done = run_python(RUN, "--rootdir", tmp_path, test, "--numprocesses", 1, status=1)
    assert "crashed while running 'test_it.py::test_that_crashes'" in done.stdout
    assert "a test hung" not in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_a_file_of_a_process_that_is_gone_is_removed_and_no_process_of_its_number_ends(
    tmp_path: Path,
) -> None:
    other = subprocess.Popen(["sleep", "300"])
    (tmp_path / str(other.pid)).write_text("1.5 test_it.py::test_of_another_process")
    gone = subprocess.Popen(["true"])
    gone.wait(60)
    (tmp_path / str(gone.pid)).write_text("1.5 test_it.py::test_of_one_that_is_gone")
    watched = Watched(tmp_path, limit_s=0.04)
    watched.pytest_sessionstart()
    try:
        await_that(lambda: not list(tmp_path.iterdir()))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait(60)
        watched.pytest_sessionfinish()
