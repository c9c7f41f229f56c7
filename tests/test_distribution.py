"""A test that hangs does not hang the run: it is named with its stacks, and the others run."""

import time
from pathlib import Path

from tests.programs import run_python

CONFTEST = """
from tests.distribution import OneSparkSession, watch
def pytest_configure(config): watch(config, limit_s=4)
def pytest_xdist_make_scheduler(config, log): return OneSparkSession(config, log)
"""
# With the interpreter's lock, and with a forked child that has the run's pipes.
TESTS = """
import ctypes, os, time
def test_before(): pass
def test_that_hangs():
    if os.fork() == 0:
        time.sleep(200)
        os._exit(0)
    lock, native = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
    native.pthread_mutex_lock(lock)
    native.pthread_mutex_lock(lock)
def test_after(): pass
"""
RUN = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


def test_a_test_that_hangs_is_named_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    test = tmp_path / "test_it.py"
    test.write_text(TESTS)
    begun = time.monotonic()
    done = run_python(RUN, "--rootdir", tmp_path, test, "--numprocesses", 2, status=1)
    assert time.monotonic() - begun < 100
    assert "test_it.py::test_that_hangs had not ended after 4 s" in done.stdout
    assert "in test_that_hangs\n" in done.stdout
    assert "1 failed, 2 passed" in done.stdout
