import itertools
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.staging.limits import Throttle, reserve_time
from tests.threads import run_together


@given(
    blocks=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 10_000)), min_size=1, max_size=50),
    bytes_per_s=st.integers(1_000, 100_000),
)
def test_bytes_pass_no_faster_than_the_limit(blocks: list[Any], bytes_per_s: int) -> None:
    now_s, free_at_s, starts = 100.0, 0.0, []
    for pause_s, num_bytes in blocks:
        now_s += pause_s
        starts_at_s, free_at_s = reserve_time(now_s, free_at_s, num_bytes, bytes_per_s)
        assert starts_at_s >= now_s
        starts.append((starts_at_s, num_bytes))
    for (one_s, num_bytes), (next_s, _) in itertools.pairwise(starts):
        assert next_s - one_s >= num_bytes / bytes_per_s - 1e-9


@pytest.mark.parametrize("left", [1e9, float("inf"), float("nan")])
def test_a_time_left_by_another_clock_does_not_count(left: float) -> None:
    assert reserve_time(50.0, left, 10, 10)[0] == 50.0


def test_two_users_of_one_file_share_the_limit(tmp_path: Path) -> None:
    throttles = [Throttle(tmp_path / "limits", 1_000_000) for _ in range(2)]
    stop, since = threading.Event(), time.monotonic()
    run_together(*(partial(throttle.wait, 200_000, stop) for throttle in throttles * 2))
    assert time.monotonic() - since >= 0.55
    assert (tmp_path / "limits").stat().st_size == 8


def test_a_throttle_returns_when_stopped_and_does_nothing_without_a_limit(tmp_path: Path) -> None:
    stop = threading.Event()
    Throttle(tmp_path / "limits", None).wait(10**12, stop)
    assert list(tmp_path.iterdir()) == []
    stop.set()
    Throttle(tmp_path / "limits", 1).wait(10**12, stop)
