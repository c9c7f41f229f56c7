"""The fuzzers' targets for a moment: they can be built, and the corpus and what is near it end none of them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "fuzz" / "run.py"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("target", ["pages", "snappy", "footer", "hash", "rows"])
def test_nothing_near_the_corpus_ends_a_kernel(target: str) -> None:
    command = [sys.executable, str(RUN), "--seconds", "2", "--target", target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "found inputs for: none" in done.stdout
