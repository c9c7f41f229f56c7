"""Commands and epochs under one failing system call at a time: two minutes of it, or the long
campaign of `make faults`.
"""

import json
import sys

import pytest

from tests.programs import run_python

pytestmark = pytest.mark.slow

CODE = "import sys; from tests.faults.failing_calls.__main__ import main; sys.exit(main())"


def test_no_failing_call_ends_in_a_wrong_result_or_a_hang(is_campaign: bool) -> None:
    long, short = ["--trials", "1500"], ["--seconds", "120", "--trials", "1500"]
    arguments = ["--seed", "1", *(long if is_campaign else short)]
    done = run_python(CODE, *arguments, status=None, timeout=None if is_campaign else 900)
    assert done.stdout, done.stderr[-5000:]
    result = json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))
    if "skipped" in result:
        pytest.skip(result["skipped"])
    sys.stderr.write(done.stdout[-8000:])
    assert (result["wrong"], result["hang"], result["rerun_wrong"]) == (0, 0, 0), done.stdout
    assert result["hits"] >= 30, "too few calls failed"
