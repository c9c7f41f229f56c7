"""The fuzz targets, briefly: they can be built, and inputs near the corpus crash none of them."""

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fuzz import run
from tests.programs import run_python

RUN = Path(run.__file__)

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.mark.slow
@pytest.mark.parametrize("target", run.TARGETS)
def test_nothing_near_the_corpus_ends_a_kernel(target: str) -> None:
    done = run_python(RUN, "--seconds", 2, "--target", target)
    assert "found inputs for: none" in done.stdout


@pytest.mark.skipif(
    shutil.which("clang") is not None, reason="libFuzzer's own driver goes by the clock"
)
def test_a_target_that_waits_for_longer_than_an_input_may_take_goes_on(tmp_path: Path) -> None:
    options = ["-max_total_time=2", "-timeout=1", f"-artifact_prefix={tmp_path}/"]
    corpus = RUN.parent / "corpus" / "rows"
    target = subprocess.Popen(
        [run.build("rows"), *options, corpus], stderr=subprocess.PIPE, text=True
    )
    while target.poll() is None and not (tmp_path / "current").exists():
        time.sleep(0.01)
    target.send_signal(signal.SIGSTOP)
    time.sleep(1.2)
    target.send_signal(signal.SIGCONT)
    _, told = target.communicate(timeout=60)
    assert target.returncode == 0, target.returncode
    assert "in the pool" in told
