from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featstore.base.errors import SelectionError
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.base.table_result import two_digits
from featstore.explore.profile import Profile
from featstore.explore.profiling import profile_rows, stored_profile
from featstore.spec.value_names import ValueNames, ValueText
from featstore.statistics.column_statistics import StatisticsGatherer
from featstore.statistics.sketches import mix

ITEM = Slot(name="item", kind=SlotKind.ID, number=1)
PRICE = Slot(name="price", kind=SlotKind.FLOAT, number=2)


def profile_of(columns: dict[str, Any], *slots: Slot) -> Profile:
    num_rows = len(next(iter(columns.values())))
    rows = pa.table({**columns, "click": [1, 0] * (num_rows // 2)})
    return profile_rows(rows.to_batches(), slots, ["click"])


def stored_profile_of(slot: Slot, values: Any) -> Profile:
    """From statistics as extraction stores them."""
    gatherer = StatisticsGatherer(SlotSchema(slots=(slot,)))
    gatherer.update(pa.record_batch({slot.name: pa.array(values, pa.int64())}))
    return stored_profile(gatherer.finish(), None, [slot], [])


@pytest.fixture
def before() -> Profile:
    return profile_of({"item": [5, 5, 7, None], "price": [1.0, 2.0, 3.0, 4.0]}, ITEM, PRICE)


def test_a_comparison_has_a_row_per_slot_with_both_sides(before: Profile) -> None:
    after = profile_of({"item": [5, 9], "price": [1.0, 2.0]}, ITEM, PRICE)
    found = before.compare(after)
    item, price = found.table.to_pylist()
    assert (item["slot"], item["coverage_before"], item["coverage_after"]) == ("item", 0.75, 1.0)
    assert (item["distinct_before"], item["distinct_after"]) == (2, 2)
    assert (item["new_values"], item["vanished_values"], item["values_error"]) == (0.5, 0.5, 0.0)
    assert price["new_values"] is None
    assert price["psi"] > 0.0
    assert found.before.num_rows == 4
    assert found.after.label_rates == {"click": 0.5}


def test_a_comparison_is_indexed_by_slot(before: Profile) -> None:
    found = before.compare(before)
    assert found["item"] == found.table.to_pylist()[0]
    with pytest.raises(SelectionError, match="no slot 'itm' in the comparison; did you mean 'item"):
        found["itm"]


def test_a_renamed_slot_is_matched_by_number_and_others_are_on_one_side(before: Profile) -> None:
    renamed = Slot(name="article", kind=SlotKind.ID, number=1)
    new = Slot(name="new", kind=SlotKind.FLOAT, number=3)
    after = profile_of({"article": [5, 5], "new": [1.0, 1.0]}, renamed, new)
    rows = {row["slot"]: row for row in before.compare(after).table.to_pylist()}
    assert list(rows) == ["article", "new", "price"]
    assert rows["article"]["psi"] is not None
    assert (rows["new"]["coverage_before"], rows["new"]["coverage_after"]) == (None, 1.0)
    assert (rows["price"]["distinct_after"], rows["price"]["psi"]) == (None, None)


def test_the_text_begins_with_the_slots_that_changed_most(before: Profile) -> None:
    after = profile_of({"item": [5, 5, 7, None], "price": [9.0, 9.0, 8.0, 8.0]}, ITEM, PRICE)
    text = str(before.compare(after)).splitlines()
    assert text[:3] == [
        "before: 4 rows, click 0.5",
        "after:  4 rows, click 0.5",
        "(from the rows: exact)",
    ]
    assert [line.split()[0] for line in text[5:-1]] == ["price", "item"]
    assert "rows of one user are not independent" in text[-1]
    assert "  75.0%  " in text[6]
    assert "<table>" in before.compare(after)._repr_html_()


def test_new_and_vanished_values_are_named_with_their_shares() -> None:
    def known(value: int, text: str) -> ValueNames:
        return ValueNames(by_slot={"item": {value: ValueText(text=text)}})

    before = profile_of({"item": [5, 5, 7, 8]}, ITEM)
    after = profile_of({"item": [5, 5, 5, 9]}, ITEM)
    before = replace(before, find_names=lambda _: known(7, "garden"))
    after = replace(after, names=known(9, "audio"))
    found = before.compare(after)
    [row] = found.table.to_pylist()
    assert row["top_new"] == [{"value": 9, "text": "audio", "share": 0.25}]
    assert row["top_vanished"] == [
        {"value": 7, "text": "garden", "share": 0.25},
        {"value": 8, "text": None, "share": 0.25},
    ]
    assert "50.0%: audio (25.0%)" in str(found)
    assert "66.7%: garden (25.0%)  8 (25.0%)" in str(found)


def test_names_of_a_renamed_slot_are_found_by_its_former_name() -> None:
    before = profile_of({"item": [5, 7]}, ITEM)
    asked: list[Any] = []

    def find(wanted: Any) -> ValueNames:
        asked.append(wanted)
        return ValueNames(by_slot={"item": {7: ValueText(text="garden")}})

    after = profile_of({"article": [5, 5]}, Slot(name="article", kind=SlotKind.ID, number=1))
    [row] = replace(before, find_names=find).compare(after).table.to_pylist()
    assert asked == [{"item": {5, 7}}]
    assert row["top_vanished"] == [{"value": 7, "text": "garden", "share": 0.5}]


def test_values_are_not_called_new_or_vanished_where_a_side_lists_only_some() -> None:
    many = profile_of({"item": np.arange(1, 6_001)}, ITEM)
    few = profile_of({"item": [5, 9_000]}, ITEM)
    [grown] = few.compare(many).table.to_pylist()
    [shrunk] = many.compare(few).table.to_pylist()
    assert (grown["top_vanished"], shrunk["top_new"]) == (None, None)
    assert len(grown["top_new"]) == len(shrunk["top_vanished"]) == 10
    [price] = (
        profile_of({"price": [1.0, 2.0]}, PRICE)
        .compare(profile_of({"price": [3.0, 4.0]}, PRICE))
        .table.to_pylist()
    )
    assert (price["top_new"], price["top_vanished"]) == (None, None)


def test_results_become_frames_of_pandas_and_polars(before: Profile) -> None:
    found = before.compare(before)
    assert found.to_pandas()["slot"].tolist() == ["item", "price"]
    assert found.to_polars()["psi"].to_list() == [0.0, 0.0]
    assert before.to_pandas()["distinct"].tolist() == [2, 4]
    assert found.as_dict()["slots"][0]["slot"] == "item"


def test_a_comparison_of_the_same_rows_shows_nothing_new() -> None:
    ids = np.random.default_rng(0).integers(1, 1 << 62, 9_000)
    one = profile_of({"item": ids}, ITEM)
    [row] = one.compare(one).table.to_pylist()
    assert (row["psi"], row["new_values"], row["vanished_values"]) == (0.0, 0.0, 0.0)
    assert row["values_error"] > 0.0


def test_estimates_of_distinct_values_come_with_errors_that_hold_the_true_numbers() -> None:
    held = 0
    for seed in range(20):
        ids = mix(np.arange(1, 20_001, dtype=np.int64) + 1_000_000 * seed)
        old, new = stored_profile_of(ITEM, ids[:15_000]), stored_profile_of(ITEM, ids)
        [row] = old.compare(new).table.to_pylist()
        for side, true in (("before", 15_000), ("after", 20_000)):
            found, error = row[f"distinct_{side}"], row[f"distinct_error_{side}"]
            assert 0.0 < error < 0.1
            assert f"{found:,} ±{error:.1%}" in str(old.compare(new))
            held += abs(found - true) <= error * found
    # An error of 95 %, and the draws are fixed.
    assert held >= 34


def test_counted_distinct_values_and_those_of_a_lacking_slot_have_no_error(before: Profile) -> None:
    after = profile_of({"item": [5, 9]}, ITEM)
    item, price = before.compare(after).table.to_pylist()
    assert (item["distinct_error_before"], item["distinct_error_after"]) == (0.0, 0.0)
    assert (price["distinct_error_before"], price["distinct_error_after"]) == (0.0, None)
    assert "  2   " in str(before.compare(after))
    assert "4 → -" in str(before.compare(after))


def test_drift_over_frequent_values_is_marked_as_a_lower_bound() -> None:
    ids = np.random.default_rng(0).integers(1, 5_000, 40_000)
    old, new = (stored_profile_of(ITEM, mix(part)) for part in (ids[:20_000], ids[20_000:] + 2_000))
    found = old.compare(new)
    [row] = found.table.to_pylist()
    assert row["psi_method"] == "at least"
    assert f"≥ {two_digits(row['psi'])}" in str(found)
    assert f"≥ {two_digits(row['jensen_shannon'])}" in str(found)
    assert str(found).splitlines()[-1].startswith("≥: over the most frequent values")


def test_drift_over_all_values_is_not_marked(before: Profile) -> None:
    found = before.compare(before)
    assert found.table["psi_method"].to_pylist() == ["exact", "bins"]
    assert "≥" not in str(found)


@pytest.mark.parametrize(("num_rows", "estimated"), [(5, False), (20_000, True)])
def test_drift_of_bins_is_marked_as_an_estimate_where_statistics_have_few_quantiles(
    num_rows: int, estimated: bool
) -> None:
    price = Slot(name="price", kind=SlotKind.FLOAT, number=1)
    gatherer = StatisticsGatherer(SlotSchema(slots=(price,)))
    rows = pa.record_batch({"price": np.random.default_rng(1).random(num_rows, np.float32)})
    gatherer.update(rows)
    stored = stored_profile(gatherer.finish(), None, [price], [])
    for other in (stored, profile_rows([rows], [price])):
        found = stored.compare(other)
        assert found["price"]["psi_method"] == ("estimated bins" if estimated else "bins")
        assert ("≈ " in str(found).splitlines()[-3 if estimated else -2]) == estimated
        assert str(found).splitlines()[-1].startswith("≈: estimated") == estimated
