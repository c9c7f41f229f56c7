"""The kernels with sanitizers, for half a minute: `make sanitize` goes on from there."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _has_sanitizers() -> bool:
    """Whether there is a C compiler, and the library that a process loads first."""
    if shutil.which("cc") is None:
        return False
    found = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    return Path(found.stdout.strip()).is_absolute()


@pytest.mark.skipif(not _has_sanitizers(), reason="no C compiler with sanitizers")
def test_neither_tests_nor_damaged_files_make_the_kernels_touch_memory_that_is_not_theirs() -> None:
    command = [sys.executable, str(ROOT / "fuzz" / "sanitize.py"), "--small"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    assert "1000 damaged files of seed 1; failed: none" in done.stdout
