"""Processes on a busy core end with their own exit code: a short campaign, or the long one of
`make faults`.
"""

import json
import sys
from pathlib import Path

import pytest

from tests.programs import run_python

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("process_ends.py")


def test_every_process_ends_with_its_own_code_and_nothing_else_to_say(is_campaign: bool) -> None:
    counts = () if is_campaign else ("--runs", 10, "--few", 3)
    done = run_python(SCRIPT, *counts, status=None, timeout=None if is_campaign else 900)
    sys.stderr.write(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))
    assert (done.returncode, len(found)) == (0, 26), done.stderr[-5000:]
