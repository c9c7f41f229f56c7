"""Workers that die at the end of an epoch leave no row unread: a short campaign, or the long one of
`make faults`.
"""

import json
import sys
from pathlib import Path

import pytest

from tests.programs import run_python

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("epoch_end.py")
RESULTS = Path(__file__).parents[2] / ".campaign" / "epoch_end.jsonl"


@pytest.mark.parametrize("store", ["sqlite", "tcp"])
def test_no_row_is_missing_when_workers_die_at_the_end_of_an_epoch(
    store: str, is_campaign: bool
) -> None:
    arguments = ["--store", store, "--epochs", "200" if is_campaign else "10"]
    if is_campaign:  # Broken off, it goes on where it was.
        RESULTS.parent.mkdir(exist_ok=True)
        arguments += ["--results", str(RESULTS)]
    done = run_python(SCRIPT, *arguments, status=None, timeout=None if is_campaign else 900)
    result = json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))
    sys.stderr.write(f"{result}\n")
    assert done.returncode == 0, done.stderr[-5000:]
    assert (result["rows_missing"], result["hangs"], result["errors"]) == (0, 0, 0)
    assert result["rows_twice"] <= result["rows_twice_at_most"]
    assert result["modes"]["late"] >= 4
    assert all(result["modes"].values()), "some fault never happened"
