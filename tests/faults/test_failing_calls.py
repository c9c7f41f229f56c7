"""Commands and epochs under one failing system call at a time: two minutes of it, or the long
campaign of `make faults`.
"""

import json
import sys
from pathlib import Path

import pytest

from tests.faults.failing_calls.strace import why_not
from tests.programs import run_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=f"no calls can be made to fail: {why_not()}"),
]

SWEEP = "import sys; from tests.faults.failing_calls.__main__ import main; sys.exit(main())"
# Who swallows errors, who tells them, and who does not end, all under the same fault.
THREE = """
import json, os, sys, time
from pathlib import Path
from featstore.base.errors import InputError
from tests.faults.failing_calls import forked
from tests.faults.failing_calls.scenario import Scenario
from tests.faults.failing_calls.strace import Fault
from tests.faults.failing_calls.trials import Stage
from tests.parquet_files import put_parquet

def prepare(root):
    for day in "12":
        put_parquet(root / day / "rows.parquet", {"row": [int(day)]})

def swallow(root, rows):
    rows.extend(sorted(name for *_, names in os.walk(root) for name in names))

def tell(root, rows):
    try:
        rows.extend(sorted(os.listdir(root / "1")))
    except OSError as error:
        raise InputError(f"{root / '1'}: cannot be listed: {error}") from error

def wait(root, rows):
    try:
        os.listdir(root / "1")
    except OSError:
        time.sleep(60)

forked.HANG_S = 3.0
for act in (swallow, tell, wait):
    place = Path(sys.argv[1], act.__name__)
    scenario = Scenario(name=act.__name__, prepare=prepare, act=act, read=lambda root: {})
    fault = Fault(call="getdents64", path=str(place / "root" / "1"), when="1", error="EIO")
    outcome = Stage(scenario, place).trial(fault)
    print(json.dumps([outcome.hits, outcome.verdict, outcome.rerun]))
"""


def test_no_failing_call_ends_in_a_wrong_result_or_a_hang(is_campaign: bool) -> None:
    num_trials, timeout_s = (1500, None) if is_campaign else (30, 1_200)
    limits = ["--seed", "1", "--trials", num_trials]
    done = run_python(SWEEP, *limits, status=None, timeout=timeout_s)
    sys.stderr.write(done.stdout)
    assert done.stdout, done.stderr[-5000:]
    result = json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))
    assert (result["wrong"], result["hang"], result["rerun_wrong"]) == (0, 0, 0)
    assert result["hits"] >= num_trials, "too few calls failed"


def test_a_swallowed_error_is_wrong_a_told_one_is_not_and_who_does_not_end_hangs(
    tmp_path: Path,
) -> None:
    done = run_python(THREE, tmp_path)
    assert list(map(json.loads, done.stdout.splitlines())) == [
        [1, "wrong", None],
        [1, "told", None],
        [1, "hang", None],
    ]
