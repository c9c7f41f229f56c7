"""Draws of items: pure functions of the pool, the seed, the epoch and the row."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import ConfigError, SelectionError
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.base.splitmix import CumulativeWeights
from featstore.loader.request.candidates import Candidates, ItemSampler, row_keys
from featstore.loader.request.options import SlotRequest, requested_slots

POPULARITY = st.lists(st.integers(0, 5) | st.floats(0, 1e20), min_size=2, max_size=60).filter(
    lambda found: (
        np.count_nonzero(np.diff(CumulativeWeights(found).sums, prepend=0) > 1e-9) > 1
        if any(found)
        else False
    )
)


@given(popularity=POPULARITY, seed=st.integers(0, 1 << 70), data=st.data())
def test_a_row_gets_what_has_popularity_and_is_not_its_own(
    popularity: list[float], seed: int, data: Any
) -> None:
    ids = np.array(data.draw(st.permutations(range(1, len(popularity) + 1))))
    sampler = ItemSampler.of(ids, np.array(popularity))
    own = np.array([*ids, 0, len(ids) + 7])
    keys = row_keys("a.parquet", np.arange(len(own)))
    items, log_q = sampler.draw(keys, own, 20, seed=seed, epoch=1)
    assert (np.array(popularity)[items] > 0).all()
    assert not (ids[items] == own[:, None]).any()
    assert (log_q <= 0).all()
    again, _ = sampler.draw(keys[3:], own[3:], 8, seed=seed, epoch=1)
    assert (again == items[3:, :8]).all()  # Of each row alone; fewer are the first of more.


def test_the_numbers_of_all_items_are_all_numbers() -> None:
    weights = CumulativeWeights([0, 1e-9, 3, 0, 2**40, 1 / 3, 0])
    firsts, ends = weights.intervals(np.arange(7))
    assert (firsts[0], ends[-1]) == (0, 1 << 53)
    assert (firsts[1:] == ends[:-1]).all()
    has_some = firsts < ends
    for numbers in (firsts[has_some], ends[has_some] - 1):
        assert weights.rows_of(numbers.astype(np.uint64)).tolist() == [1, 2, 4, 5]


def test_log_q_makes_sums_of_draws_estimates_of_sums_over_all_other_items() -> None:
    """As in Y. Bengio and J.-S. Senecal's estimate of a softmax's denominator."""
    ids, popularity = np.arange(1, 31), np.arange(1.0, 31)
    sampler, scores = ItemSampler.of(ids, popularity), np.cos(ids)
    own = np.array([0, 30, 5])
    keys = row_keys("a.parquet", np.arange(3))
    found = [sampler.draw(keys, own, 500, seed=0, epoch=epoch) for epoch in range(40)]
    terms = np.concatenate([np.exp(scores[items] - log_q) for items, log_q in found], axis=1)
    expected = [np.exp(scores[ids != of_row]).sum() for of_row in own]
    deviations = terms.std(axis=1) / np.sqrt(terms.shape[1])
    assert (np.abs(terms.mean(axis=1) - expected) < 4 * deviations).all()


def test_the_counts_of_draws_are_those_of_log_q() -> None:
    sampler = ItemSampler.of(np.arange(1, 9), np.array([1, 2, 4, 8, 1, 2, 4, 8]))
    keys = row_keys("a.parquet", np.arange(20_000))
    items, log_q = sampler.draw(keys, np.full(20_000, 4), 5, seed=9, epoch=0)
    counts = np.bincount(items.ravel(), minlength=8)
    expected = np.array([1, 2, 4, 0, 1, 2, 4, 8]) / 22 * items.size
    assert counts[3] == 0
    others = expected > 0
    # 6 degrees of freedom: above 22.5 for one of a thousand seeds.
    assert ((counts - expected)[others] ** 2 / expected[others]).sum() < 22.5
    np.testing.assert_allclose(log_q, np.log(expected[items] / items.size), atol=1e-6)


def test_candidates_of_a_version_are_those_of_the_next() -> None:
    """A resumed epoch continues with what it would have drawn."""
    sampler = ItemSampler.of(np.array([30, 10, 20, 50]), np.array([1.0, 2, 3, 4]))
    keys = row_keys("dt=2026-11-01/part.parquet", np.array([0, 1, 1 << 40]))
    assert keys.tolist() == [-789254722445708305, 109078610690079757, 8742260487676155328]
    items, _ = sampler.draw(keys, np.array([10, 0, 50]), 6, seed=7, epoch=2)
    assert items.tolist() == [[3, 2, 2, 2, 3, 2], [2, 3, 3, 1, 1, 2], [2, 1, 1, 2, 1, 2]]


def item_slot(**fields: Any) -> Slot:
    return Slot(**{"name": "item_id", "kind": SlotKind.ID, **fields})


def test_one_item_has_one_id_in_both_tables() -> None:
    options = Candidates(pool="items", per_row=1)
    rows = SlotSchema(slots=(item_slot(number=7),))
    for same in (item_slot(number=7), item_slot(number=9, share_slot=7)):
        found = options.own_item(rows, SlotSchema(slots=(same,)))
        assert found == (rows["item_id"], same)
    for other, text in (
        (item_slot(number=8), "signs of slot 8"),
        (item_slot(number=7, num_indices=50), "indices below 50"),
        (item_slot(), "numbers"),
    ):
        with pytest.raises(ConfigError, match=f"signs of slot 7 in the table and {text} in the p"):
            options.own_item(rows, SlotSchema(slots=(other,)))
    items = SlotSchema(slots=(item_slot(name="item"),))
    with pytest.raises(SelectionError, match=r"candidates.id: .* of the pool .*; did you mean 'it"):
        options.own_item(rows, items)
    with pytest.raises(SelectionError, match=r"of the table .* 'item_id', which it does not have"):
        options.own_item(items, rows)


def test_slots_without_options_have_those_of_the_rows_slots() -> None:
    tags, price = item_slot(name="tags", shape=(None,)), item_slot(name="price")
    schema = SlotSchema(slots=(item_slot(number=7), tags, price))
    options = [{"name": "item_id", "buckets": 9}, {"name": "tags", "pad": 3}]
    rows = requested_slots(schema, options)
    other = item_slot(name="other_id", number=8, share_slot=7)
    pool = SlotSchema(slots=(item_slot(number=7), tags, price, other))
    found = Candidates(pool="items", per_row=1).slots_as(
        rows,
        requested_slots(pool, ["item_id", {"name": "tags", "max_len": 1}, "price"]),
    )
    assert found == (rows[0], SlotRequest(slot=tags, max_len=1), SlotRequest(slot=price))
    with pytest.raises(ConfigError, match="'item_id' and 'other_id' share their signs"):
        Candidates(pool="items", per_row=1).slots_as(rows, requested_slots(pool, ["*"]))
