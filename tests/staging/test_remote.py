from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.staging.cost import (
    DIRECT,
    RANGES,
    WHOLE,
    Demand,
    Remote,
    choose,
    costs,
    needs_no_footer,
)
from featstore.staging.ranges import coalesce, num_bytes

REMOTES = {
    "near": Remote(latency_s=0.001, bytes_per_s=200e6, weight_bytes=1e9),
    "regional": Remote(latency_s=0.02, bytes_per_s=50e6, weight_bytes=1e9),
    "disk-like": Remote(latency_s=0.01, bytes_per_s=40e6, weight_bytes=1e9),
}
SIZE_BYTES, NUM_SLOTS, NUM_ROW_GROUPS, TAIL_BYTES = 145_000_000, 200, 8, 400_000


def _chunks(share: Any) -> Any:
    """Column chunks of every 1/share-th of 200 slots in 8 row groups."""
    chunk_bytes = (SIZE_BYTES - TAIL_BYTES) // (NUM_SLOTS * NUM_ROW_GROUPS)
    chosen = [slot for slot in range(NUM_SLOTS) if int((slot + 1) * share) > int(slot * share)]
    places = [group * NUM_SLOTS + slot for group in range(NUM_ROW_GROUPS) for slot in chosen]
    return [(place * chunk_bytes, (place + 1) * chunk_bytes) for place in places]


def _demand(chunks: Any, remote: Any, held_bytes: Any = TAIL_BYTES) -> Demand:
    requests = coalesce(chunks, hole_bytes=remote.hole_bytes, request_bytes=remote.request_bytes)
    return Demand(
        whole_bytes=SIZE_BYTES - held_bytes,
        range_bytes=num_bytes(requests),
        num_requests=len(requests),
        direct_bytes=num_bytes(chunks),
        num_direct_requests=2 * len(chunks),
    )


@pytest.mark.parametrize("name", REMOTES)
@pytest.mark.parametrize("share", [0.05, 0.2, 0.6, 1.0])
def test_auto_takes_at_most_a_tenth_longer_than_the_best_mode_on_the_remotes_of_the_benchmark(
    name: Any, share: float
) -> None:
    remote = REMOTES[name]
    demand = _demand(_chunks(share), remote)
    seconds = costs(demand, remote)
    footer_s = remote.seconds(1, TAIL_BYTES)
    best = min(seconds[WHOLE], footer_s + seconds[RANGES], seconds[DIRECT])
    assert footer_s + seconds[choose(demand, remote)] <= 1.1 * best


@pytest.mark.parametrize(("share", "mode"), [(0.05, RANGES), (1.0, RANGES)])
def test_a_few_slots_are_staged_by_ranges(share: float, mode: Any) -> None:
    assert choose(_demand(_chunks(share), REMOTES["regional"]), REMOTES["regional"]) == mode


def test_scattered_small_spans_are_taken_whole_and_a_single_tiny_one_is_read_in_place() -> None:
    slow = Remote(latency_s=0.1, bytes_per_s=100e6, settle_s=0.5)
    scattered = Demand(
        whole_bytes=1_000_000,
        range_bytes=500_000,
        num_requests=50,
        direct_bytes=500_000,
        num_direct_requests=1000,
    )
    assert choose(scattered, slow) == WHOLE
    tiny = Demand(
        whole_bytes=10**9,
        range_bytes=1000,
        num_requests=1,
        direct_bytes=1000,
        num_direct_requests=2,
    )
    assert choose(tiny, Remote(latency_s=0.001, settle_s=0.5)) == DIRECT
    assert choose(tiny, Remote(latency_s=0.02, settle_s=0.01)) == RANGES


COUNTS = st.integers(0, 10**6)


@given(
    latency_s=st.floats(1e-4, 1),
    bytes_per_s=st.floats(1e5, 1e10),
    settle_s=st.floats(0, 1),
    whole_bytes=st.integers(0, 10**10),
    range_bytes=st.integers(0, 10**10),
    num_requests=COUNTS,
    num_chunks=COUNTS,
)
def test_the_choice_is_the_cheapest_mode(
    latency_s: float,
    bytes_per_s: float,
    settle_s: float,
    whole_bytes: int,
    range_bytes: int,
    num_requests: Any,
    num_chunks: Any,
) -> None:
    remote = Remote(latency_s=latency_s, bytes_per_s=bytes_per_s, settle_s=settle_s)
    demand = Demand(
        whole_bytes=whole_bytes,
        range_bytes=range_bytes,
        num_requests=num_requests,
        direct_bytes=range_bytes,
        num_direct_requests=2 * num_chunks,
    )
    seconds = costs(demand, remote)
    assert seconds[choose(demand, remote)] == min(seconds.values())


@given(
    latency_s=st.floats(1e-4, 0.5),
    bytes_per_s=st.floats(1e6, 1e9),
    size_bytes=st.integers(1, 10**10),
    share=st.floats(0.0, 1.0),
)
def test_a_file_taken_without_a_look_at_its_footer_costs_at_most_a_tenth_more(
    latency_s: float, bytes_per_s: float, size_bytes: int, share: float
) -> None:
    """Compared with ranges of the same file, which take at least a request for the footer and one
    for the selected bytes.
    """
    remote = Remote(latency_s=latency_s, bytes_per_s=bytes_per_s, settle_s=0.0)
    if needs_no_footer(size_bytes, None, remote):
        whole_s, ranges_s = (
            remote.seconds(1, size_bytes),
            remote.seconds_in_turn(2, int(share * size_bytes)),
        )
        assert whole_s <= 1.1 * ranges_s


def test_once_a_footer_was_seen_files_that_are_wanted_whole_are_taken_without_one() -> None:
    remote = REMOTES["regional"]
    everything = _demand(_chunks(1.0), remote, held_bytes=0)
    assert not needs_no_footer(SIZE_BYTES, None, remote)
    small = SIZE_BYTES // 30
    assert needs_no_footer(small, everything, remote)
    assert not needs_no_footer(small, _demand(_chunks(0.05), remote, held_bytes=0), remote)


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
    assert remote.is_measured


def test_short_answers_do_not_change_the_bandwidth() -> None:
    assert (
        Remote().observed(waited_s=0.5, num_bytes=1000, later_bytes=1000, stream_s=1e-9).bytes_per_s
        == Remote().bytes_per_s
    )
    assert (
        Remote().observed(waited_s=0.5, num_bytes=1000, later_bytes=1000, stream_s=1e-9).latency_s
        == 0.5
    )
    assert Remote().settled(0.11).settle_s == pytest.approx(0.04)


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


def test_fetching_the_rest_of_a_file_costs_a_request_for_each_gap() -> None:
    remote = REMOTES["regional"]
    begun = Demand(
        whole_bytes=10**6,
        range_bytes=9 * 10**5,
        num_requests=20,
        direct_bytes=10**6,
        num_direct_requests=40,
    )
    assert choose(begun, remote) == WHOLE
    assert choose(replace(begun, num_whole_requests=25), remote) == RANGES


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


COUNT = st.integers(1, 1000)
FAST = st.floats(1e6, 1e10)


@given(
    latency_s=st.floats(1e-4, 1),
    bytes_per_s=FAST,
    num_requests=COUNT,
    num_bytes=st.integers(0, 10**10),
)
def test_several_requests_at_once_hide_round_trips_but_never_bandwidth(
    latency_s: float, bytes_per_s: Any, num_requests: Any, num_bytes: int
) -> None:
    several = Remote(latency_s=latency_s, bytes_per_s=bytes_per_s)
    one = replace(several, num_at_once=1)
    in_turn_s = several.seconds_in_turn(num_requests, num_bytes)
    assert one.seconds(num_requests, num_bytes) == pytest.approx(in_turn_s)
    assert latency_s + num_bytes / bytes_per_s <= several.seconds(num_requests, num_bytes) * (
        1 + 1e-9
    )
    assert several.seconds(num_requests, num_bytes) <= in_turn_s * (1 + 1e-9)
    assert several.seconds(0, 0) == 0


@given(
    latency_s=st.floats(1e-3, 0.5),
    bytes_per_s=FAST,
    num_requests=COUNT,
    num_bytes=st.integers(0, 10**10),
)
def test_at_a_store_with_one_request_at_a_time_each_costs_a_round_trip(
    latency_s: float, bytes_per_s: Any, num_requests: Any, num_bytes: int
) -> None:
    remote = Remote(latency_s=latency_s, bytes_per_s=bytes_per_s)
    for _ in range(60):
        remote = remote.observed(
            waited_s=latency_s, num_bytes=0, later_bytes=0, stream_s=0, was_ahead=True
        )
    assert remote.latency_s == latency_s
    assert remote.stall_s == pytest.approx(latency_s, rel=0.01)
    expected_s = remote.seconds_in_turn(num_requests, num_bytes)
    assert remote.seconds(num_requests, num_bytes) == pytest.approx(expected_s, rel=0.01)
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
