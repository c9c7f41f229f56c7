"""Processes on a busy core end with their own exit code: a few of each, or the campaign of
`make faults`.
"""

import pytest

from tests.faults.process_ends import count_ends

pytestmark = pytest.mark.slow


def test_every_process_ends_with_its_own_code_and_nothing_else_to_say(is_campaign: bool) -> None:
    found = count_ends(runs=200, few=50) if is_campaign else count_ends(runs=3, few=1)
    assert len(found) == 26
    assert [name for name, (num_right, num_runs) in found.items() if num_right < num_runs] == []
