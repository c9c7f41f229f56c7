"""Drift of slots whose true differences are known, from rows counted and from stored statistics."""

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featstore.base.errors import InputError
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.explore.profiling import profile_rows
from featstore.statistics.column_statistics import StatisticsGatherer, merge_statistics
from featstore.statistics.drift import slot_change
from featstore.statistics.measures import jensen_shannon, psi
from featstore.statistics.sketches import mix
from featstore.statistics.summary import SlotSummary, summarize

ITEM = Slot(name="item", kind=SlotKind.ID, number=1)
PRICE = Slot(name="price", kind=SlotKind.FLOAT, number=2)


def counted(slot: Slot, values: Any) -> SlotSummary:
    """From rows; 0 and NaN are missing."""
    type_ = pa.int64() if slot.kind is SlotKind.ID else pa.float32()
    missing = np.isnan(values) if slot.kind is SlotKind.FLOAT else values == 0
    column = pa.array(values, type_, mask=missing)
    return profile_rows([pa.record_batch({slot.name: column})], [slot]).summaries[slot.name]


def stored(slot: Slot, values: Any, num_files: int = 1) -> SlotSummary:
    """From statistics as extraction gathers them for so many files."""
    type_, parts = pa.int64() if slot.kind is SlotKind.ID else pa.float32(), []
    for of_file in np.array_split(values, num_files):
        gatherer = StatisticsGatherer(SlotSchema(slots=(slot,)))
        gatherer.update(pa.record_batch({slot.name: pa.array(of_file, type_)}))
        parts.append(gatherer.finish())
    return summarize(merge_statistics(parts), [slot])[slot.name]


def change(before: SlotSummary, after: SlotSummary) -> Any:
    """What changed, by name; None where that cannot be told."""
    return defaultdict(lambda: None, slot_change(before, after))


BOTH = pytest.mark.parametrize("summary", [counted, stored])


@BOTH
def test_few_ids_are_compared_value_by_value(summary: Any) -> None:
    before, after = np.array([5, 5, 5, 7, 0, 0]), np.array([5, 9, 9, 0])
    found = change(summary(ITEM, before), summary(ITEM, after))
    # Cells: 5, 7, 9, missing.
    assert found["psi"] == pytest.approx(psi([3, 1, 0, 2], [1, 0, 2, 1]), rel=1e-4)
    assert found["psi_error"] is not None
    assert found["psi"] is not None
    assert found["psi_error"] > found["psi"]  # of ten rows
    assert (found["new_values"], found["vanished_values"], found["values_error"]) == (
        0.5,
        0.5,
        0.0,
    )
    assert found["new_share"] == pytest.approx(2 / 3)
    assert found["vanished_share"] == 0.25


@pytest.mark.parametrize("num_files", [1, 4, 30, 100])
@pytest.mark.parametrize(("num_ids", "exponent"), [(1_500, 0.0), (2_000, 0.7), (5_000, 1.5)])
def test_the_same_rows_stored_and_counted_differ_by_no_more_than_chance(
    num_files: int, num_ids: int, exponent: float
) -> None:
    weights = 1 / np.arange(1, num_ids + 1) ** exponent
    rng = np.random.default_rng(5)
    values = mix(rng.choice(num_ids, num_files * 3_000, p=weights / weights.sum()) + 1)
    sides = stored(ITEM, values, num_files), counted(ITEM, values)
    for before, after in (sides, sides[::-1]):
        found = change(before, after)
        assert found["psi"] is not None
        assert found["psi_error"] is not None
        assert found["psi"] < found["psi_error"] / 2


def skewed(rng: np.random.Generator, num_ids: int, num_rows: int) -> Any:
    """Rows of so many ids, of which a third have other shares each time."""
    weights = 1 / np.arange(1, num_ids + 1) ** 0.7
    weights[rng.choice(num_ids, num_ids // 3)] *= rng.gamma(1.0, 1.0)
    return mix(rng.choice(num_ids, num_rows, p=weights / weights.sum()) + 1)


def measures_of_all_values(before: Any, after: Any) -> tuple[float, float]:
    """PSI and Jensen-Shannon over every value, by their definitions."""
    values, cells = np.unique(np.concatenate([before, after]), return_inverse=True)
    old = np.bincount(cells[: len(before)], minlength=len(values))
    new = np.bincount(cells[len(before) :], minlength=len(values))
    e, a = ((side + 0.5) / (side + 0.5).sum() for side in (old, new))
    p, q = old / old.sum(), new / new.sum()
    middle = (p + q) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        halves = [np.nansum(side * np.log2(side / middle)) / 2 for side in (p, q)]
    return float(np.sum((a - e) * np.log(a / e))), float(sum(halves))


@pytest.mark.parametrize("num_ids", [50, 1_000, 4_000])
@pytest.mark.parametrize("seed", range(3))
def test_counted_ids_give_the_measures_over_all_values(num_ids: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    before, after = (skewed(rng, num_ids, num_rows) for num_rows in (30_000, 20_000))
    found = change(counted(ITEM, before), counted(ITEM, after))
    index, divergence = measures_of_all_values(before, after)
    assert found["psi_method"] == "exact"
    assert found["psi"] == pytest.approx(index, rel=0.01)
    assert found["jensen_shannon"] == pytest.approx(divergence, abs=1e-9)


@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_of_more_ids_than_are_listed_they_are_lower_bounds(summary: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    before, after = (skewed(rng, 12_000, 60_000) for _ in range(2))
    found = change(summary(ITEM, before), summary(ITEM, after))
    index, divergence = measures_of_all_values(before, after)
    assert found["psi_method"] == "at least"
    assert found["psi"] is not None
    assert found["psi_error"] is not None
    assert found["psi"] - found["psi_error"] <= index
    assert found["jensen_shannon"] is not None
    assert 0.0 < found["jensen_shannon"] < divergence


def test_counted_ids_beside_a_sample_are_as_many_as_it_can_tell() -> None:
    rng = np.random.default_rng(0)
    rows = skewed(rng, 12_000, 120_000)
    mixed = change(counted(ITEM, rows[:60_000]), stored(ITEM, rows[60_000:]))
    assert mixed["psi_method"] == "at least"
    assert mixed["psi"] is not None
    assert mixed["psi_error"] is not None
    assert mixed["psi"] <= mixed["psi_error"] < 0.5


@BOTH
def test_equal_rows_have_no_slot_change(summary: Any) -> None:
    ids = np.random.default_rng(0).zipf(1.5, 3_000) % 300
    found = change(summary(ITEM, ids), summary(ITEM, ids))
    assert found["psi"] == 0.0
    assert found["jensen_shannon"] == pytest.approx(0.0, abs=1e-12)
    assert (found["new_values"], found["vanished_values"]) == (0.0, 0.0)


@BOTH
def test_shares_of_new_ids_among_many_are_within_their_error(summary: Any) -> None:
    ids = mix(np.arange(1, 150_001, dtype=np.int64))
    found = change(summary(ITEM, ids[:100_000]), summary(ITEM, ids[60_000:]))
    assert found["values_error"] is not None
    assert 0 < found["values_error"] < 0.08
    assert found["new_values"] is not None
    assert found["vanished_values"] is not None
    # Of the error of 95 % half as much again: a fixed draw of hashes, of which one is tested.
    assert abs(found["new_values"] - 50 / 90) <= 1.5 * found["values_error"]
    assert abs(found["vanished_values"] - 0.6) <= 1.5 * found["values_error"]
    assert found["new_share"] is None


def test_bins_of_floats_hold_equally_many_values_before_and_missing_is_a_cell() -> None:
    before = np.append(np.arange(1_000.0), [np.nan] * 50)
    after = np.arange(500.0)
    found = change(counted(PRICE, before), counted(PRICE, after))
    cells = [100] * 10 + [50], [100] * 5 + [0] * 6
    assert found["psi"] == pytest.approx(psi(*cells), rel=0.1)
    assert found["jensen_shannon"] == pytest.approx(jensen_shannon(*cells), abs=0.01)
    assert found["psi_method"] == "bins"
    assert (found["new_values"], found["values_error"]) == (None, None)


def test_stored_and_counted_floats_agree_within_their_ranks() -> None:
    draw = np.random.default_rng(1)
    before, after = draw.normal(size=50_000), draw.normal(0.3, 1.0, 50_000)
    exact = change(counted(PRICE, before), counted(PRICE, after))["psi"]
    estimate = change(stored(PRICE, before), stored(PRICE, after))["psi"]
    mixed = change(stored(PRICE, before), counted(PRICE, after))["psi"]
    assert exact is not None
    assert exact == pytest.approx(0.09, abs=0.01)  # 0.3^2 of two normal distributions, less bins
    assert estimate == pytest.approx(exact, abs=0.03)
    assert mixed == pytest.approx(exact, abs=0.03)


def test_no_rows_on_a_side_tell_nothing() -> None:
    none = counted(ITEM, np.zeros(0, np.int64))
    found = change(none, counted(ITEM, np.array([3, 4])))
    assert (found["psi"], found["jensen_shannon"], found["vanished_values"]) == (
        None,
        None,
        None,
    )
    assert found["new_values"] == 1.0
    floats = change(counted(PRICE, np.zeros(0)), counted(PRICE, np.ones(3)))
    assert floats["psi"] is None


def test_ids_and_indices_cannot_be_compared() -> None:
    indices = Slot(name="item", kind=SlotKind.ID, number=1, num_indices=9)
    ids = np.array([1, 2])
    with pytest.raises(InputError, match=r"slot 'item'.*found ids before and indices after"):
        change(counted(ITEM, ids), counted(indices, ids))
