import bisect
import datetime
import math
import zoneinfo
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.ops import numbers, timestamps

INF = math.inf


def test_bucketize_is_open_at_both_ends_and_closed_below() -> None:
    values = pa.array([-INF, 9.99, 10, 49.9, 50, 199, 200, INF, None])
    counts: Counter[str] = Counter()
    buckets = numbers.bucketize(values, boundaries=(10.0, 50.0, 200.0), counts=counts)
    assert buckets.to_pylist() == [0, 0, 1, 1, 2, 2, 3, 3, None]
    assert not counts


def test_bucketize_tells_longs_apart_that_float64_cannot() -> None:
    values = pa.array([2**53 + 3, 2**53 + 4, 2**63 - 1, -(2**63), None])
    assert values[0].as_py() < 2.0**53 + 4 == float(values[0].as_py())
    buckets = numbers.bucketize(
        values, boundaries=(-(2.0**63), 2.0**53 + 4, 2.0**63), counts=Counter()
    )
    assert buckets.to_pylist() == [1, 2, 2, 1, None]


EDGES = [0, 2**53, 2**62, 2**63 - 1, -(2**53), -(2**63)]
LONGS = st.builds(
    lambda edge, by: min(max(edge + by, -(2**63)), 2**63 - 1),
    st.sampled_from(EDGES),
    st.integers(-3, 3),
)
BOUNDS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    LONGS.map(float),
    st.integers(-3, 3).map(lambda n: n / 2),
)


@given(
    values=st.lists(st.none() | LONGS | st.integers(-(2**63), 2**63 - 1)),
    bounds=st.sets(BOUNDS, min_size=1, max_size=6),
)
def test_bucketize_of_longs_is_what_python_which_compares_exactly_makes_of_them(
    values: list[int | None], bounds: set[float]
) -> None:
    boundaries = tuple(sorted(bounds))
    buckets = numbers.bucketize(
        pa.array(values, pa.int64()), boundaries=boundaries, counts=Counter()
    )
    assert buckets.to_pylist() == [
        None if value is None else bisect.bisect_right(boundaries, value) for value in values
    ]


def test_log1p_is_null_and_counted_outside_of_its_domain() -> None:
    counts: Counter[str] = Counter()
    result = numbers.log1p(pa.array([0.0, -1.0, -2.0, INF, -INF, None]), counts=counts).to_pylist()
    assert result == [0.0, None, None, None, None, None]
    assert counts == {"not finite": 4}


def test_log1p_keeps_small_numbers_apart() -> None:
    assert numbers.log1p(pa.array([1e-12]), counts=Counter())[0].as_py() == pytest.approx(
        1e-12, rel=1e-11
    )


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 5.0, [0, 0, 3, 5, 5]),
        (0.0, None, [0, 0, 3, 9, None]),
        (None, 5.0, [None, -2, 3, 5, 5]),
    ],
)
def test_clip_takes_infinities_to_its_bounds(
    low: float | None, high: float | None, expected: list[Any]
) -> None:
    counts: Counter[str] = Counter()
    result = numbers.clip(pa.array([-INF, -2, 3, 9, INF]), min=low, max=high, counts=counts)
    assert result.to_pylist() == expected
    assert counts.total() == expected.count(None)


def test_identity_drops_infinite_elements_and_counts_them() -> None:
    counts: Counter[str] = Counter()
    lists = pa.array([[1.0, INF, 2.0], None, []], pa.list_(pa.float64()))
    assert numbers.identity(lists, max_len=None, truncate="head", counts=counts).to_pylist() == [
        [1.0, 2.0],
        None,
        [],
    ]
    assert counts == {"not finite": 1}


def test_hour_and_day_follow_the_clock_of_the_zone() -> None:
    times = pa.array([1362898800_000000, None], pa.int64()).view(
        pa.timestamp("us", tz="UTC")
    )  # Sunday 2013-03-10 07:00 UTC
    options: dict[str, Any] = {"counts": Counter()}
    assert timestamps.hour(times, tz="UTC", **options).to_pylist() == [7, None]
    assert timestamps.hour(times, tz="America/New_York", **options).to_pylist() == [3, None]
    assert timestamps.day_of_week(times, tz="UTC", **options).to_pylist() == [6, None]


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64()])
@pytest.mark.parametrize("num_more", [0, 40])
def test_boundaries_that_no_float64_is_are_compared_exactly(kind: Any, num_more: int) -> None:
    given = [2**53 + n for n in (1, 2, 3)] + [2**60 + n for n in range(num_more)] + [2**63 - 1]
    read, of = numbers.boundaries(given), int if kind == pa.int64() else float
    assert [type(b) for b in read[:3]] == [int, float, int]
    values = [
        2**53 - 1,
        2**53,
        2**53 + 2,
        2**53 + 4,
        2**62,
        *([2**63 - 1] if kind == pa.int64() else []),
    ]
    found = numbers.bucketize(pa.array(map(of, values), kind), boundaries=read, counts=Counter())
    assert found.to_pylist() == [sum(b <= x for b in given) for x in values]
    assert numbers.boundaries([1, 2.5]) == (1.0, 2.5)
    assert all(type(b) is float for b in numbers.boundaries([1, 2.5, 2**53, 2**63]))


@pytest.mark.parametrize("tz", ["America/New_York", "Asia/Tokyo", "Europe/Berlin", "Asia/Kolkata"])
def test_hours_and_days_are_those_of_the_zone_in_any_year(tz: str) -> None:
    zone, cycle = zoneinfo.ZoneInfo(tz), 146_097 * 86_400_000_000
    start = datetime.datetime(2400, 1, 1, tzinfo=datetime.UTC)
    for hours in range(0, 24 * 366, 7):
        instant = start + datetime.timedelta(hours=hours)
        us = (instant - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(
            microseconds=1
        )
        times = pa.array([us + n * cycle for n in (0, 1, 19, 20, 600)], pa.timestamp("us", "UTC"))
        local = instant.astimezone(zone)
        assert set(timestamps.hour(times, tz=tz, counts=Counter()).to_pylist()) == {local.hour}
        days = timestamps.day_of_week(times, tz=tz, counts=Counter())
        assert set(days.to_pylist()) == {local.weekday()}
