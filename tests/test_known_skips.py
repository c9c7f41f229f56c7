"""A run with `--known-skips` fails if a test is skipped for another reason than those allowed."""

from pathlib import Path

import pytest

from tests.known_skips import KNOWN
from tests.programs import run_python

CONFTEST = "from tests.known_skips import pytest_addoption, pytest_sessionfinish\n"
TESTS = """
import pytest
@pytest.mark.skip(reason={known!r})
def test_known(): pass
def test_other():
    {other}
"""
RUN = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


@pytest.mark.parametrize(("other", "status"), [("pytest.skip('no nginx on PATH')", 1), ("pass", 0)])
@pytest.mark.parametrize("processes", [(), ("--numprocesses", 2)])
def test_a_skip_fails_the_run_unless_it_is_known(
    tmp_path: Path, other: str, status: int, processes: tuple[object, ...]
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    test = tmp_path / "test_it.py"
    test.write_text(TESTS.format(known=next(iter(KNOWN)), other=other))
    run_python(RUN, test)
    given = ("--known-skips", "--rootdir", tmp_path, test, *processes)
    done = run_python(RUN, *given, status=status)
    told = [line for line in done.stdout.splitlines() if "does not know" in line]
    assert [line.endswith(": no nginx on PATH") for line in told] == [True] * status
