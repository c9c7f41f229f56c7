from dataclasses import replace
from pathlib import Path

import pytest

from single_samples import BY_ID, KINDS, PLAIN, PLAIN_WAL, STORE, seconds_of


@pytest.mark.parametrize("name", KINDS)
def test_every_side_gives_the_samples_that_were_stored(name: str, tmp_path: Path) -> None:
    """What it compares before it measures, with few samples."""
    seconds = seconds_of(KINDS[name], 20, tmp_path, 2)
    assert seconds.keys() == {PLAIN, STORE, PLAIN_WAL, BY_ID}
    assert all(len(taken) == 2 and min(taken) > 0 for taken in seconds.values())


def test_a_side_that_gives_other_samples_is_no_figure(tmp_path: Path) -> None:
    rows = KINDS["rows"]
    other = replace(rows, of_payload=lambda payload: rows.of_payload(payload) + 1)
    with pytest.raises(AssertionError):
        seconds_of(other, 20, tmp_path, 1)
