"""Processes on a busy core end with their own exit code: a campaign of `make faults`."""

import json
import sys

import pytest

from tests.programs import run_python

pytestmark = pytest.mark.slow

PROGRAM = (
    "import argparse, sys; from tests.faults.process_ends import main; "
    "sys.exit(main(argparse.Namespace(runs=200, few=50, only='')))"
)


def test_every_process_ends_with_its_own_code_and_nothing_else_to_say(is_campaign: bool) -> None:
    if not is_campaign:
        pytest.skip("it keeps a core busy for minutes: `make faults` runs it")
    done = run_python(PROGRAM, status=None, timeout=None)
    sys.stderr.write(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))
    assert (done.returncode, len(found)) == (0, 26), done.stderr[-5000:]
