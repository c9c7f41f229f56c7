import math
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from featstore.ops import numbers, timestamps

INF = math.inf


def test_bucketize_is_open_at_both_ends_and_closed_below() -> None:
    values = pa.array([-INF, 9.99, 10, 49.9, 50, 199, 200, INF, None])
    counts: Counter[str] = Counter()
    buckets = numbers.bucketize(values, boundaries=(10.0, 50.0, 200.0), counts=counts)
    assert buckets.to_pylist() == [0, 0, 1, 1, 2, 2, 3, 3, None]
    assert not counts


def test_bucketize_compares_integers_in_float64() -> None:
    buckets = numbers.bucketize(pa.array([2**53, 2**53 + 1]), boundaries=(float(2**53),), counts=Counter())
    assert buckets.to_pylist() == [1, 1]


def test_log1p_is_null_and_counted_outside_of_its_domain() -> None:
    counts: Counter[str] = Counter()
    result = numbers.log1p(pa.array([0.0, -1.0, -2.0, INF, -INF, None]), counts=counts).to_pylist()
    assert result == [0.0, None, None, None, None, None]
    assert counts == {"not finite": 4}


def test_log1p_keeps_small_numbers_apart() -> None:
    assert numbers.log1p(pa.array([1e-12]), counts=Counter())[0].as_py() == pytest.approx(1e-12, rel=1e-11)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 5.0, [0, 0, 3, 5, 5]), (0.0, None, [0, 0, 3, 9, None]), (None, 5.0, [None, -2, 3, 5, 5])],
)
def test_clip_takes_infinities_to_its_bounds(low: float | None, high: float | None, expected: list[Any]) -> None:
    counts: Counter[str] = Counter()
    result = numbers.clip(pa.array([-INF, -2, 3, 9, INF]), min=low, max=high, counts=counts)
    assert result.to_pylist() == expected
    assert counts.total() == expected.count(None)


def test_identity_drops_infinite_elements_and_counts_them() -> None:
    counts: Counter[str] = Counter()
    lists = pa.array([[1.0, INF, 2.0], None, []], pa.list_(pa.float64()))
    assert numbers.identity(lists, max_len=None, truncate="head", counts=counts).to_pylist() == [[1.0, 2.0], None, []]
    assert counts == {"not finite": 1}


def test_hour_and_day_follow_the_clock_of_the_zone() -> None:
    times = pa.array([1362898800_000000, None], pa.int64()).view(pa.timestamp("us", tz="UTC"))  # Sunday 2013-03-10 07:00 UTC
    options: dict[str, Any] = {"counts": Counter()}
    assert timestamps.hour(times, tz="UTC", **options).to_pylist() == [7, None]
    assert timestamps.hour(times, tz="America/New_York", **options).to_pylist() == [3, None]
    assert timestamps.day_of_week(times, tz="UTC", **options).to_pylist() == [6, None]
