from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.staging.remote import Remote

REMOTES = {
    "near": Remote(latency_s=0.001, bytes_per_s=200e6, weight_bytes=1e9),
    "regional": Remote(latency_s=0.02, bytes_per_s=50e6, weight_bytes=1e9),
    "disk-like": Remote(latency_s=0.01, bytes_per_s=40e6, weight_bytes=1e9),
}


@given(
    latency_s=st.floats(1e-4, 1),
    bytes_per_s=st.floats(1e6, 1e9),
    sizes=st.lists(st.integers(10**6, 10**8), min_size=40, max_size=60),
)
def test_estimates_come_near_what_the_downloads_show(
    latency_s: float, bytes_per_s: float, sizes: list[int]
) -> None:
    remote = Remote()
    for size_bytes in sizes:
        remote = remote.observed(
            waited_s=latency_s,
            num_bytes=size_bytes,
            later_bytes=size_bytes,
            stream_s=size_bytes / bytes_per_s,
        )
    assert remote.latency_s == pytest.approx(latency_s, rel=0.01)
    assert remote.bytes_per_s == pytest.approx(bytes_per_s, rel=0.9)
    assert remote.num_seen == len(sizes)


def test_short_answers_do_not_change_the_bandwidth() -> None:
    assert (
        Remote().observed(waited_s=0.5, num_bytes=1000, later_bytes=1000, stream_s=1e-9).bytes_per_s
        == Remote().bytes_per_s
    )
    assert (
        Remote().observed(waited_s=0.5, num_bytes=1000, later_bytes=1000, stream_s=1e-9).latency_s
        == 0.5
    )


@given(latency_s=st.floats(0, 100), bytes_per_s=st.floats(1, 1e12))
def test_the_hole_limit_is_bounded(latency_s: float, bytes_per_s: float) -> None:
    assert 16 << 10 <= Remote(latency_s=latency_s, bytes_per_s=bytes_per_s).hole_bytes <= 64 << 20


def test_a_stream_faster_than_a_round_trip_counts_only_if_it_is_long() -> None:
    remote = Remote().observed(
        waited_s=0.02, num_bytes=480_000, later_bytes=480_000, stream_s=0.001
    )
    assert not remote.has_bandwidth
    assert remote.bytes_per_s == Remote().bytes_per_s
    assert remote.observed(
        waited_s=0.02, num_bytes=8 << 20, later_bytes=8 << 20, stream_s=0.004
    ).bytes_per_s == pytest.approx(2.1e9, rel=0.01)
    slow = remote.observed(waited_s=0.02, num_bytes=480_000, later_bytes=480_000, stream_s=0.1)
    assert slow.bytes_per_s == pytest.approx(4.8e6)
    assert slow.request_bytes > remote.request_bytes


def test_the_connection_time_of_the_first_request_is_forgotten_at_the_second() -> None:
    first = Remote().observed(waited_s=0.045, num_bytes=0, later_bytes=0, stream_s=0)
    assert first.latency_s == 0.045
    second = first.observed(waited_s=0.02, num_bytes=0, later_bytes=0, stream_s=0)
    assert second.latency_s == pytest.approx(0.02)
    assert second.observed(
        waited_s=0.01, num_bytes=0, later_bytes=0, stream_s=0
    ).latency_s == pytest.approx(0.015)
    assert first.observed(
        waited_s=0.065, num_bytes=0, later_bytes=0, stream_s=0
    ).latency_s == pytest.approx(0.047)


@given(latency_s=st.floats(1e-3, 0.5), bytes_per_s=st.floats(1e6, 1e10))
def test_at_a_store_with_one_request_at_a_time_a_hole_costs_a_round_trip(
    latency_s: float, bytes_per_s: float
) -> None:
    remote = Remote(latency_s=latency_s, bytes_per_s=bytes_per_s)
    for _ in range(60):
        remote = remote.observed(
            waited_s=latency_s, num_bytes=0, later_bytes=0, stream_s=0, was_ahead=True
        )
    assert remote.latency_s == latency_s
    assert remote.stall_s == pytest.approx(latency_s, rel=0.01)
    one = replace(remote, num_at_once=1, stall_s=0.0)
    assert remote.hole_bytes == pytest.approx(one.hole_bytes, rel=0.01)


@given(
    bytes_per_s=st.floats(1e6, 1e9),
    num_streams=st.integers(2, 4),
    num_bytes=st.integers(10**6, 10**7),
)
def test_concurrent_streams_do_not_change_the_estimated_bandwidth(
    bytes_per_s: float, num_streams: int, num_bytes: int
) -> None:
    """The streams share the line. The first is read at its share of it; by then the others have
    arrived.
    """
    remote = Remote()
    for number in range(num_streams):
        stream_s = num_streams * num_bytes / bytes_per_s if not number else 1e-4
        remote = remote.observed(
            waited_s=0.02 if not number else 1e-4,
            num_bytes=num_bytes,
            later_bytes=num_bytes if not number else num_bytes // 2,
            stream_s=stream_s,
            was_ahead=number > 0,
        )
    if remote.has_bandwidth:
        assert remote.bytes_per_s == pytest.approx(
            bytes_per_s, rel=0.2
        )  # what is older weighs a little less


def test_the_window_is_one_and_a_half_round_trips_of_bytes() -> None:
    assert REMOTES["regional"].window_bytes == 1_500_000
    assert REMOTES["near"].window_bytes == 1 << 20
    assert Remote(latency_s=2, bytes_per_s=1e9, weight_bytes=1e9).window_bytes == 64 << 20


def test_while_the_bandwidth_is_a_guess_the_window_is_one_short_request() -> None:
    assert Remote(latency_s=2).window_bytes == Remote(latency_s=2).request_bytes == 8 << 20


def test_one_bad_moment_does_not_bridge_all_holes_for_ever() -> None:
    """While all holes are bridged no request is sent ahead, so none could show that the line has
    recovered.
    """
    remote = Remote(latency_s=0.0025, bytes_per_s=100e6, weight_bytes=1e9)
    before = remote.hole_bytes
    hit = remote.observed(waited_s=3.0, num_bytes=0, later_bytes=0, stream_s=0, was_ahead=True)
    assert hit.hole_bytes <= 250_000  # what comes in a round trip
    for _ in range(80):
        hit = hit.observed(waited_s=0.0025, num_bytes=0, later_bytes=0, stream_s=0)
    assert hit.hole_bytes == pytest.approx(before, rel=0.1)


def test_short_answers_between_counted_ones_count_too() -> None:
    remote = replace(REMOTES["regional"], last_counted=True, weight_bytes=1e6)
    for size_bytes in (60_000, 480_000, 60_000, 480_000):
        stream_s = size_bytes / 50e6
        remote = remote.observed(
            waited_s=0.004, num_bytes=size_bytes, later_bytes=0, stream_s=stream_s, was_ahead=True
        )
    assert remote.weight_bytes > 2e6
    assert remote.bytes_per_s == pytest.approx(50e6, rel=0.01)
