"""What tests start ends with the test."""

import subprocess
from pathlib import Path

import psutil
import pytest

from tests.process import await_that
from tests.programs import run_python

# As torchrun starts ranks: in a session of their own.
PARENT = """
import subprocess, sys
from pathlib import Path
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
Path(sys.argv[1]).write_text(str(child.pid))
child.wait()
"""


def test_a_program_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    told = tmp_path / "child"
    told.touch()
    for limit_s in (2, 20, 120):  # One that is slow to start has started nothing yet.
        with pytest.raises(subprocess.TimeoutExpired):
            run_python(PARENT, told, timeout=limit_s)
        if told.read_text():
            break
    await_that(lambda: _has_ended(int(told.read_text())))


def _has_ended(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
