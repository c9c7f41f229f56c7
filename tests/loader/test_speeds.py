"""Speeds by numbers of cores: medians, shares, cores that are needed, and what is said of noise."""

from dataclasses import replace

import pytest

from featstore.loader.speeds import Bench, Epoch, Speed, cores_needed


def speed(number: int, rows_per_s: float) -> Speed:
    seconds = 1_000 / rows_per_s
    return Speed.of(number, 1_000, [Epoch(seconds, number * seconds)], floor_s=1.0, limit_s=0.5)


def test_a_speed_is_of_the_median_epoch_and_shares_are_of_as_many_cores() -> None:
    epochs = [Epoch(2.0, 2.0), Epoch(1.0, 2.0), Epoch(3.0, 2.0)]
    found = Speed.of(2, 600, epochs, floor_s=6.0, limit_s=1.0)
    assert found.rows_per_s == 300
    assert (found.least_rows_per_s, found.most_rows_per_s) == (200, 600)
    assert (found.num_epochs, found.cpu_share) == (3, 0.5)
    assert (found.share_of_floor, found.share_of_limit) == (1.5, 0.25)


@pytest.mark.parametrize(
    ("rows_per_s", "needed"),
    [
        *[(1, 1), (100, 1), (101, 2), (180, 2), (181, 3), (240, 3), (250, 4), (300, 4), (301, 5)],
        (3_000, 40),
    ],
)
def test_cores_are_counted_between_and_beyond_those_measured(
    rows_per_s: float, needed: int
) -> None:
    measured = [speed(1, 100), speed(2, 180), speed(4, 300)]
    assert cores_needed(measured, rows_per_s) == needed


def test_a_slower_measurement_of_more_cores_takes_none_back() -> None:
    assert cores_needed([speed(1, 100), speed(2, 90)], 95) == 1
    assert cores_needed([speed(1, 100), speed(2, 90)], 135) == 3


QUIET = Bench(
    table="table",
    num_files=1,
    num_all_files=1,
    num_rows=100,
    batch_size=10,
    is_shuffled=False,
    has_histories=False,
    limit_rows_per_s=1_000.0,
    floor=speed(1, 100),
    speeds=(speed(1, 100),),
    wanted_rows_per_s=50.0,
    num_cores_needed=1,
)


def test_what_the_floor_is_is_told_of_histories() -> None:
    told = "The floor reads the lists of histories once"
    assert told in str(replace(QUIET, has_histories=True))
    assert told not in str(QUIET)


def test_noise_is_told() -> None:
    slow = [Epoch(1.0, 2.0), Epoch(2.0, 2.0)]
    noisy = replace(QUIET, speeds=(Speed.of(2, 100, slow, floor_s=1.0, limit_s=1.0),))
    starved = replace(QUIET, floor=replace(QUIET.floor, cpu_share=0.25))
    assert str(QUIET).endswith("50 rows/s need 1 core.")
    assert "Epochs differ" not in str(QUIET)
    assert "Epochs differ by 100%, and the floor got 100% of its core" in str(noisy)
    assert "Epochs differ by 0%, and the floor got 25% of its core" in str(starved)
