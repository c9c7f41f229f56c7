"""What tests start ends with the test."""

import subprocess
from pathlib import Path

import psutil
import pytest

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
    with pytest.raises(subprocess.TimeoutExpired):
        run_python(PARENT, told, timeout=2)
    number = int(told.read_text())
    assert not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE
