"""An epoch of an elastic job survives that hosts are cut off and killed: a short campaign, or the
long one of `make faults`.
"""

import sys
from pathlib import Path

import pytest

from tests.hosts.elastic import KINDS, Campaign, summary, table
from tests.hosts.hosts import why_none

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).parents[2] / ".campaign" / "elastic.jsonl"
SHORT = [0, 1, 4]


def test_no_row_is_missing_when_hosts_are_cut_off_and_killed(
    tmp_path: Path, is_campaign: bool
) -> None:
    if reason := why_none():
        pytest.skip(reason)
    if is_campaign:  # Broken off, it goes on where it was.
        RESULTS.parent.mkdir(exist_ok=True)
    campaign = Campaign(tmp_path, RESULTS if is_campaign else None)
    outcomes = campaign.run(list(range(200)) if is_campaign else SHORT, num_networks=3)
    result = summary(outcomes)
    sys.stderr.write(f"{table(outcomes)}\n{result}\n")
    assert (result["rows_missing"], result["hangs"]) == (0, 0)
    assert result["ended_by_less_than_a_lease"] == 0
    assert all(outcome["twice"] <= outcome["twice_at_most"] for outcome in outcomes)
    assert all(outcome["happened"] for outcome in outcomes)
    assert not is_campaign or len(result["events"]) == 2 * len(set(KINDS))
