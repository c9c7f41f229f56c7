"""What is said of an epoch."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.loader.batches.stats import EpochReading, EpochTimes, Stats, padding_note, verdict

SECONDS = st.floats(0, 1e6)


@pytest.mark.parametrize(
    ("waited_s", "decode_s", "staging_wait_s", "assemble_s", "first_wait_s", "expected"),
    [
        (0.1, 9.0, 0.0, 0.0, 0.1, "the model is the bottleneck"),
        (0.1, 1.0, 9.0, 0.0, 0.1, "the model is the bottleneck"),
        (5.0, 2.0, 8.0, 1.0, 5.0, "the remote store is the bottleneck"),
        (5.0, 9.0, 0.5, 1.0, 0.2, "decoding is the bottleneck"),
        (3.2, 1.7, 0.0, 4.0, 0.4, "assembling is the bottleneck"),
        (1.2, 0.6, 0.0, 0.9, 1.2, "the model is the bottleneck after the start"),
        (1.2, 0.6, 0.0, 0.9, 0.1, "no stage was busy"),
        (6.0, 0.6, 0.0, 0.9, 6.0, "the start of the epoch is the bottleneck"),
        (2.3, 1.0, 0.0, 0.5, 0.2, "no stage was busy"),
        (5.0, 0.0, 0.0, 0.0, 0.0, "no stage was busy"),
    ],
)
def test_the_slowest_part_is_named_with_what_would_help(
    waited_s: float,
    decode_s: float,
    staging_wait_s: float,
    assemble_s: float,
    first_wait_s: float,
    expected: str,
) -> None:
    times = EpochTimes(
        total_s=10.0,
        data_wait_s=waited_s,
        decode_s=decode_s,
        staging_wait_s=staging_wait_s,
        assemble_s=assemble_s,
        first_wait_s=first_wait_s,
    )
    text = verdict(times, 7)
    assert expected in text
    assert text.endswith("would help")
    assert f"waited {waited_s / 10:.0%} for data" in text


def test_a_store_that_waits_for_room_is_not_the_bottleneck() -> None:
    times = EpochTimes(
        total_s=10.0, data_wait_s=5.0, decode_s=2.0, staging_wait_s=4.0, staging_room_s=2.0
    )
    assert ": staging.budget_bytes is the bottleneck: files" in verdict(times, 7)
    assert ": the remote store is the bo" in verdict(replace(times, staging_room_s=1.9), 7)


def test_waiting_for_other_workers_is_not_the_models_time() -> None:
    times = EpochTimes(
        total_s=10.0, data_wait_s=9.1, decode_s=0.3, staging_wait_s=0.0, others_wait_s=9.0
    )
    text = verdict(times, 7, EpochReading(awaited={"host-2": 4096, "host-1": 10}))
    assert (
        "for 9.0 s nothing was left to claim, and other workers had rows to deliver (at last "
        "host-2 4,096, host-1 10); a smaller dispatch.reserve_s"
    ) in text
    assert "waited 91% for data" in text
    assert text.endswith("would help")


@pytest.mark.parametrize(
    ("reading", "expected", "refused"),
    [
        ({}, "assembling is the bottleneck", "order"),
        ({"is_dynamic": False}, "fewer slots, order dynamic, more cores", "memory_budget"),
        ({"wanted_budget_bytes": 1000}, "small pieces; 1000 or more, fewer slots", "assembling is"),
    ],
    ids=str,
)
def test_what_would_help_depends_on_how_it_was_read(
    reading: dict[str, Any], expected: str, refused: str
) -> None:
    times = EpochTimes(
        total_s=10.0, data_wait_s=8.0, decode_s=1.0, staging_wait_s=0.0, assemble_s=8.0
    )
    text = verdict(times, 7, EpochReading(**reading))
    assert expected in text
    assert refused not in text.split("and makes batches")[-1].split(": ")[-1]
    assert text.endswith("would help")


def test_the_budget_is_named_only_if_most_rows_came_in_pieces() -> None:
    stats = Stats()
    assert stats.note_pieces(60, 1000)
    assert not stats.note_pieces(60, 1250)
    assert stats.counts["rows_in_pieces"] == 120
    assert stats.budget_wanted({"rows_in_pieces": 60, "rows": 100}) == 1250
    assert stats.budget_wanted({"rows_in_pieces": 60, "rows": 100, "rows_filtered": 40}) == 0
    assert stats.budget_wanted({"rows": 100}) == 0
    assert stats.note_pieces(60, 1251)  # What was said does not hold these.
    assert stats.wanted_budget_bytes == 1563


@given(total_s=SECONDS, data_wait_s=SECONDS, decode_s=SECONDS, staging_wait_s=SECONDS)
def test_whatever_the_clocks_say_it_is_one_line(**seconds: Any) -> None:
    assert "\n" not in verdict(EpochTimes(**seconds), 1)


def test_a_worker_that_got_nothing_has_no_bottleneck() -> None:
    times = EpochTimes(total_s=0.25, data_wait_s=0.01, decode_s=0.0, staging_wait_s=0.0)
    assert verdict(times, 0) == (
        "0.2 s without a batch: others read the rows, no row was selected, or fewer were left than "
        "a batch has (drop_last)"
    )


def test_times_are_those_since_the_epoch_began() -> None:
    before = EpochTimes(total_s=1.0, data_wait_s=2.0, decode_s=3.0, staging_wait_s=4.0)
    after = EpochTimes(total_s=2.0, data_wait_s=4.0, decode_s=6.0, staging_wait_s=8.0)
    assert after.since(before) == before


def test_padding_is_named_where_it_is_more_than_a_tenth_of_the_steps() -> None:
    assert padding_note(0, 0) == padding_note(0, 20) == padding_note(2, 20) == ""
    assert padding_note(3, 20) == (
        "3 of 20 steps were padding, since other ranks had more rows: more splits (a smaller "
        "dispatch.split_rows) or order static would help"
    )
