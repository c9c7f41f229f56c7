"""The kernels with sanitizers, for half a minute. `make sanitize` runs longer."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fuzz.sanitize import build, sanitized
from tests.programs import run_python

ROOT = Path(__file__).parents[2]
OFFSET_BYTES = 12  # of two lists
WRITE = """
import ctypes, sys
import numpy as np
from fuzz.separate import COLUMN, separate
numbers = np.zeros((1, len(COLUMN)), np.int64)
numbers[0, [COLUMN["repetition"], COLUMN["width"], COLUMN["found"]]] = 1, 8, 8
offsets, values = separate(numbers, 2, 128, None)
assert numbers[0, [COLUMN["offsets_in"], COLUMN["values_in"]]].tolist() == [0, 1]
assert values.nbytes == 64
ctypes.memset(offsets.ctypes.data + int(sys.argv[1]), 0, 1)
print("went on")
"""


def _has_sanitizers() -> bool:
    """Whether there is a C compiler, and the library to preload."""
    if shutil.which("cc") is None:
        return False
    found = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False
    )
    return Path(found.stdout.strip()).is_absolute()


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _has_sanitizers(), reason="no C compiler with sanitizers"),
]


def test_neither_tests_nor_damaged_files_make_the_kernels_touch_memory_that_is_not_theirs() -> None:
    done = run_python(ROOT / "fuzz" / "sanitize.py", "--small")
    assert "1000 damaged files of seed 1; failed: none" in done.stdout


def test_a_byte_beyond_a_columns_offsets_ends_a_process_with_sanitizers() -> None:
    build()
    environment = sanitized()
    within, beyond = (
        run_python(WRITE, place, cwd=ROOT, variables=environment, status=None)
        for place in (OFFSET_BYTES - 1, OFFSET_BYTES)
    )
    assert within.stdout == "went on\n", within.stderr
    assert "heap-buffer-overflow" in beyond.stderr
    assert "went on" not in beyond.stdout
