"""Drift of slots whose true differences are known, from rows counted and from stored statistics."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featstore.errors import InputError
from featstore.explore.row_profile import profile_rows
from featstore.schema import Slot, SlotKind, SlotSchema
from featstore.table.statistics.column_statistics import StatisticsGatherer
from featstore.table.statistics.measures import psi
from featstore.table.statistics.sketches import mix
from featstore.table.statistics.slot_change import cells, slot_change
from featstore.table.statistics.summary import SlotSummary, summarize

ITEM = Slot(name="item", kind=SlotKind.ID, number=1)
PRICE = Slot(name="price", kind=SlotKind.FLOAT, number=2)


def counted(slot: Slot, values: Any) -> SlotSummary:
    """From rows; 0 and NaN are missing."""
    type_ = pa.int64() if slot.kind is SlotKind.ID else pa.float32()
    missing = np.isnan(values) if slot.kind is SlotKind.FLOAT else values == 0
    column = pa.array(values, type_, mask=missing)
    return profile_rows([pa.record_batch({slot.name: column})], [slot]).summaries[slot.name]


def stored(slot: Slot, values: Any) -> SlotSummary:
    """From statistics as extraction gathers them."""
    gatherer = StatisticsGatherer(SlotSchema(slots=(slot,)))
    type_ = pa.int64() if slot.kind is SlotKind.ID else pa.float32()
    gatherer.update(pa.record_batch({slot.name: pa.array(values, type_)}))
    return summarize(gatherer.finish(), [slot])[slot.name]


BOTH = pytest.mark.parametrize("summary", [counted, stored])


@BOTH
def test_few_ids_are_compared_value_by_value(summary: Any) -> None:
    before, after = np.array([5, 5, 5, 7, 0, 0]), np.array([5, 9, 9, 0])
    found = slot_change(summary(ITEM, before), summary(ITEM, after))
    # Cells: 5, 7, 9, missing.
    assert found.psi == pytest.approx(psi([3, 1, 0, 2], [1, 0, 2, 1]), rel=1e-4)
    assert found.psi_error is not None
    assert found.psi is not None
    assert found.psi_error > found.psi  # of ten rows
    assert (found.new_values, found.vanished_values, found.values_error) == (0.5, 0.5, 0.0)
    assert found.new_share == pytest.approx(2 / 3)
    assert found.vanished_share == 0.25


@BOTH
def test_equal_rows_have_no_slot_change(summary: Any) -> None:
    ids = np.random.default_rng(0).zipf(1.5, 3_000) % 300
    found = slot_change(summary(ITEM, ids), summary(ITEM, ids))
    assert found.psi == 0.0
    assert found.jensen_shannon == pytest.approx(0.0, abs=1e-12)
    assert (found.new_values, found.vanished_values) == (0.0, 0.0)


@BOTH
def test_shares_of_new_ids_among_many_are_within_their_error(summary: Any) -> None:
    ids = mix(np.arange(1, 150_001, dtype=np.int64))
    found = slot_change(summary(ITEM, ids[:100_000]), summary(ITEM, ids[60_000:]))
    assert found.values_error is not None
    assert 0 < found.values_error < 0.08
    assert found.new_values is not None
    assert found.vanished_values is not None
    # Of the error of 95 % half as much again: a fixed draw of hashes, of which one is tested.
    assert abs(found.new_values - 50 / 90) <= 1.5 * found.values_error
    assert abs(found.vanished_values - 0.6) <= 1.5 * found.values_error
    assert found.new_share is None


def test_bins_of_floats_hold_equally_many_values_before_and_missing_is_a_cell() -> None:
    before = np.append(np.arange(1_000.0), [np.nan] * 50)
    after = np.arange(500.0)
    one, other = cells(counted(PRICE, before), counted(PRICE, after))
    assert one == pytest.approx([100] * 10 + [50], abs=2)
    assert other == pytest.approx([100] * 5 + [0] * 6, abs=2)
    found = slot_change(counted(PRICE, before), counted(PRICE, after))
    assert found.psi is not None
    assert found.psi > 1.0
    assert (found.new_values, found.values_error) == (None, None)


def test_stored_and_counted_floats_agree_within_their_ranks() -> None:
    draw = np.random.default_rng(1)
    before, after = draw.normal(size=50_000), draw.normal(0.3, 1.0, 50_000)
    exact = slot_change(counted(PRICE, before), counted(PRICE, after)).psi
    estimate = slot_change(stored(PRICE, before), stored(PRICE, after)).psi
    mixed = slot_change(stored(PRICE, before), counted(PRICE, after)).psi
    assert exact is not None
    assert exact == pytest.approx(0.09, abs=0.01)  # 0.3^2 of two normal distributions, less bins
    assert estimate == pytest.approx(exact, abs=0.03)
    assert mixed == pytest.approx(exact, abs=0.03)


def test_no_rows_on_a_side_tell_nothing() -> None:
    none = counted(ITEM, np.zeros(0, np.int64))
    found = slot_change(none, counted(ITEM, np.array([3, 4])))
    assert (found.psi, found.jensen_shannon, found.vanished_values) == (None, None, None)
    assert found.new_values == 1.0
    floats = slot_change(counted(PRICE, np.zeros(0)), counted(PRICE, np.ones(3)))
    assert floats.psi is None


def test_ids_and_indices_cannot_be_compared() -> None:
    indices = Slot(name="item", kind=SlotKind.ID, number=1, num_indices=9)
    ids = np.array([1, 2])
    with pytest.raises(InputError, match=r"slot 'item'.*found ids before and indices after"):
        slot_change(counted(ITEM, ids), counted(indices, ids))
