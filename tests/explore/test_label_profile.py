"""Label profiles compared with counts of single rows and with pairs of rows."""

import html
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import InputError, SelectionError
from featstore.base.schema import Slot, SlotKind
from featstore.explore.label_profile import LabelProfile, label_rows
from featstore.ops.lists import offsets_from
from featstore.statistics.measures import wilson
from featstore.statistics.sketches import mix

SLOTS = (
    Slot(name="item", kind=SlotKind.ID, number=1),
    Slot(name="tags", kind=SlotKind.ID, shape=(None,), number=2),
    Slot(name="price", kind=SlotKind.FLOAT, number=3),
)
SCHEMA = pa.schema(
    [
        ("item", pa.int64()),
        ("tags", pa.list_(pa.int64())),
        ("price", pa.float32()),
        ("click", pa.int64()),
        ("dt", pa.string()),
    ]
)


def label_profile(
    rows: list[dict[str, Any]], batch_rows: int = 1_000, budget_bytes: int = 1 << 30
) -> LabelProfile:
    batches = pa.Table.from_pylist(rows, SCHEMA).to_batches(max_chunksize=batch_rows)
    return label_rows(batches, SLOTS, "click", ["dt"], budget_bytes=budget_bytes)


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "item": st.none() | st.integers(1, 4),
            "tags": st.none() | st.lists(st.integers(1, 3), max_size=3),
            "price": st.none() | st.sampled_from([0.0, 1.5, 2.5]),
            "click": st.none() | st.integers(0, 1),
            "dt": st.sampled_from(["a", "b"]),
        }
    ),
    max_size=40,
)


@given(ROWS, st.sampled_from([0, 1 << 30]), st.integers(1, 7))
def test_cells_count_the_rows_and_positives_of_their_values(
    rows: list[dict[str, Any]], budget_bytes: int, batch_rows: int
) -> None:
    found = label_profile(rows, batch_rows, budget_bytes)
    known = [row for row in rows if row["click"] is not None]
    assert (found.num_rows, found.num_known) == (len(rows), len(known))
    assert found.num_positive == sum(row["click"] for row in known)
    for name in ("item", "tags"):
        expected: Counter[Any] = Counter()
        positive: Counter[Any] = Counter()
        for row in known:
            values = ["empty"] if row[name] == [] else row[name]
            values = values if isinstance(values, list) else [values]
            expected.update(values)
            positive.update(value for value in values if row["click"])
        cells = {
            "empty" if cell["cell"] == "empty" else cell["value"]: (
                cell["num_values"],
                cell["num_positive"],
            )
            for cell in found[name]["cells"]
        }
        assert cells == {value: (count, positive[value]) for value, count in expected.items()}
    bins = found["price"]["cells"]
    assert sum(cell["num_values"] for cell in bins) == len(known)
    for cell in bins:
        rate = cell["num_positive"] / cell["num_values"]
        low, high = wilson(cell["num_positive"], cell["num_values"])
        assert (cell["rate"], cell["rate_low"], cell["rate_high"]) == (rate, low, high)
        if cell["cell"] == "bin":
            inside = [
                r
                for r in known
                if r["price"] is not None and cell["low"] <= r["price"] <= cell["high"]
            ]
            assert len(inside) == cell["num_values"]
    days = {row["partition"]: row for row in found.partitions.to_pylist()}
    for day in {row["dt"] for row in rows}:
        of_day = [row["click"] for row in rows if row["dt"] == day]
        assert days[f"dt={day}"]["num_rows"] == len(of_day)
        assert days[f"dt={day}"]["num_positive"] == of_day.count(1)
        assert days[f"dt={day}"]["num_known"] == len(of_day) - of_day.count(None)


def frame(item: Any, click: Any, price: Any = None) -> LabelProfile:
    columns = {
        "item": pa.array(item, pa.int64()),
        "tags": pa.nulls(len(item), pa.list_(pa.int64())),
        "price": pa.nulls(len(item), pa.float32())
        if price is None
        else pa.array(price, pa.float32()),
        "click": pa.array(click, pa.int64()),
        "dt": pa.array(["a"] * len(item)),
    }
    return label_rows(pa.table(columns).to_batches(max_chunksize=4_096), SLOTS, "click", ["dt"])


def test_a_slot_that_says_nothing_has_an_auc_of_a_half_however_many_values_it_has() -> None:
    """Rates of the same rows would give such a slot an AUC near 1."""
    draw = np.random.default_rng(6)
    click = draw.integers(0, 2, 20_000)
    found = frame(draw.integers(1, 10_000, 20_000), click, draw.random(20_000))
    assert found["item"]["auc"] == pytest.approx(0.5, abs=0.015)
    assert found["price"]["auc"] == pytest.approx(0.5, abs=0.015)
    assert found["price"]["information_value"] < 0.02


def test_the_auc_is_that_of_the_true_rates() -> None:
    """Of ids with known rates, which the other half of so many rows tells; also if a number's rate
    is highest in the middle.
    """
    draw = np.random.default_rng(7)
    item = draw.integers(1, 30, 40_000)
    rate = item / 40.0
    click = (draw.random(40_000) < rate).astype(int)
    found = frame(item, click, np.abs(draw.permutation(item) - 15))
    up, down = rate[click == 1], np.sort(rate[click == 0])
    ranks = np.searchsorted(down, up, "left") + np.searchsorted(down, up, "right")
    assert found["item"]["auc"] == pytest.approx(ranks.sum() / (2 * len(up) * len(down)), abs=0.005)
    peaked = frame(item, click, item)["price"]
    assert peaked["auc"] == pytest.approx(found["item"]["auc"], abs=0.01)
    assert peaked["mutual_information"] == pytest.approx(
        found["item"]["mutual_information"], rel=0.1
    )


def test_an_empty_list_is_one_more_value_in_all_figures() -> None:
    """Beside missing rows. The halves are those of the profile; all else is counted anew."""
    draw = np.random.default_rng(10)
    num_rows = 3_000
    lengths = draw.integers(0, 4, num_rows)
    tags = [draw.integers(1, 6, length).tolist() for length in lengths]
    tags = [
        None if gone else row for row, gone in zip(tags, draw.random(num_rows) < 0.2, strict=True)
    ]
    rates = [0.5 if row is None else 0.1 if row == [] else 0.1 + row[0] / 20 for row in tags]
    click = (draw.random(num_rows) < rates).astype(int)
    rows = {"tags": pa.array(tags, pa.list_(pa.int64())), "click": click}
    profile = label_rows(pa.table(rows).to_batches(max_chunksize=700), [SLOTS[1]], "click")

    of_row = [["missing"] if row is None else row or ["empty"] for row in tags]
    places = np.repeat(np.arange(num_rows), list(map(len, of_row)))
    names, cell = np.unique([str(one) for row in of_row for one in row], return_inverse=True)
    y = click[places]
    in_first = (mix(np.arange(1, num_rows + 1)) & 1).astype(bool)[places]
    areas = []
    for half in (in_first, ~in_first):
        num, up = (np.bincount(cell[~half], w, len(names)) for w in (None, y[~half]))
        score = ((up + 20 * click.mean()) / (num + 20))[cell[half]]
        above = score[y[half] == 1][:, None] - score[y[half] == 0]
        areas.append(np.mean((above > 0) + (above == 0) / 2))
    up, down = np.bincount(cell, y), np.bincount(cell, 1 - y)
    p, q = (side / side.sum() for side in (up, down))
    joint = np.stack([up, down]) / len(y)
    free = joint.sum(0) * joint.sum(1)[:, None]
    found = profile["tags"]
    assert found["auc"] == pytest.approx(np.mean(areas), abs=1e-12)
    assert found["mutual_information"] == pytest.approx(np.sum(joint * np.log2(joint / free)))
    # The profile adds half a row to each cell.
    assert found["information_value"] == pytest.approx(np.sum((p - q) * np.log(p / q)), rel=0.02)
    assert found["coverage"] == pytest.approx(np.mean([row is not None for row in tags]))
    num_empty = sum(row == [] for row in tags)
    [empty] = [one for one in found["cells"] if one["cell"] == "empty"]
    assert (empty["num_values"], empty["value"], empty["text"]) == (num_empty, None, None)
    assert sum(one["num_values"] for one in found["cells"]) == len(places)
    [line] = [line for line in str(profile).splitlines() if line.startswith("(empty)")]
    assert line.split()[-1] == f"{num_empty:,}"


def test_lists_without_any_known_value_are_empty_and_numbers_without_one_missing() -> None:
    slots = [
        Slot(name="vector", kind=SlotKind.FLOAT, shape=(2,), number=1),
        Slot(name="price", kind=SlotKind.FLOAT, number=2),
    ]
    nan = float("nan")
    rows = {
        "vector": pa.array([[1.0, nan], [nan, nan], None], pa.list_(pa.float32(), 2)),
        "price": pa.array([1.0, nan, None], pa.float32()),
        "click": pa.array([0, 1, 1]),
    }
    found = label_rows(pa.table(rows).to_batches(), slots, "click")
    cells = {
        slot.name: [(c["cell"], c["num_values"]) for c in found[slot.name]["cells"]]
        for slot in slots
    }
    assert cells == {
        "vector": [("bin", 1), ("missing", 1), ("empty", 1)],
        "price": [("bin", 1), ("missing", 2)],
    }


def test_the_error_of_lists_is_that_of_their_rows() -> None:
    draw = np.random.default_rng(8)
    item = draw.integers(1, 10, 2_000)
    rows = {
        "tags": pa.array([[i] * 9 for i in item.tolist()], pa.list_(pa.int64())),
        "item": pa.array(item),
        "click": (draw.random(2_000) < item / 20.0).astype(int),
    }
    found = label_rows(pa.table(rows).to_batches(), [SLOTS[0], SLOTS[1]], "click")
    errors = {row["slot"]: row["auc_standard_error"] for row in found.table.to_pylist()}
    assert errors["tags"] == pytest.approx(errors["item"], rel=0.05)


def uneven(draw: np.random.Generator) -> tuple[Any, Any]:
    """Lists of one value each, of very different lengths."""
    lengths = np.minimum(np.exp(draw.normal(1, 1.5, 1_000)), 200).astype(int)
    return lengths, np.repeat(draw.integers(1, 10, 1_000), lengths)


def mixed(draw: np.random.Generator) -> tuple[Any, Any]:
    """Lists of values that differ within a row, of which some are alike."""
    lengths = draw.integers(0, 9, 1_000)
    of_row = np.repeat(draw.integers(1, 10, 1_000), lengths)
    return lengths, np.where(draw.random(len(of_row)) < 0.5, of_row, draw.integers(1, 10))


def independent(draw: np.random.Generator) -> tuple[Any, Any]:
    """Lists of values that say nothing of each other."""
    lengths = draw.integers(0, 9, 1_000)
    return lengths, draw.integers(1, 10, lengths.sum())


@pytest.mark.parametrize("slope", [0.0, 0.03])
@pytest.mark.parametrize("lists", [uneven, mixed, independent])
def test_the_error_of_lists_is_how_much_their_auc_varies(lists: Any, slope: float) -> None:
    """Whether the values of a row are alike or not, and whether they say something or nothing."""
    draw, found = np.random.default_rng(8), list[dict[str, Any]]()
    for _ in range(80):
        lengths, tags = lists(draw)
        offsets = offsets_from(lengths)
        first = np.append(tags, 0)[offsets[:-1]]
        rows = {
            "tags": pa.ListArray.from_arrays(offsets.astype(np.int32), tags),
            "click": (draw.random(1_000) < 0.3 + slope * first).astype(int),
        }
        profile = label_rows(pa.table(rows).to_batches(), [SLOTS[1]], "click")
        found += profile.table.to_pylist()
    spread = np.std([row["auc"] for row in found], ddof=1)
    error = np.mean([row["auc_standard_error"] for row in found])
    assert error == pytest.approx(spread, rel=0.25)  # three standard errors of 80 draws


def test_a_slot_that_says_nearly_all_of_the_label_is_remarked() -> None:
    click = np.random.default_rng(9).integers(0, 2, 4_000)
    leak = frame(np.where(click == 1, 7, 8), click, np.arange(4_000.0))
    assert leak.remark.startswith("nearly all of click is said by ['item'], each alone")
    assert leak.remark in str(leak)
    assert leak.remark in html.unescape(leak._repr_html_())
    assert not frame(click + (np.arange(4_000) % 3 == 0), click).remark


def test_the_most_frequent_ids_are_cells_and_the_others_one() -> None:
    item = np.concatenate([np.repeat(np.arange(1, 101), 3), np.arange(1_000, 1_050)])
    cells = frame(item, np.arange(len(item)) % 2)["item"]["cells"]
    assert [cell["value"] for cell in cells[:-1]] == list(range(1, 101))
    assert (cells[-1]["cell"], cells[-1]["num_values"]) == ("other", 50)


def test_the_text_of_few_slots_has_the_rates_by_value_and_bin() -> None:
    item = np.repeat(np.arange(1, 31), 40)
    lines = str(frame(item, np.arange(len(item)) % 2, item)).splitlines()
    place = lines.index("item")
    assert lines[place + 1].split("  ")[0] == "value"
    assert lines[place + 3].split()[:2] == ["1", "0.5"]
    assert lines[place + 3].split()[-1] == "40"
    # 30 values, of which 20 are shown, and no missing rows.
    assert lines[place + 23] == "(10 more values counted: `cells`, --json)"
    assert lines[lines.index("price") + 3].split()[-1] in ("40", "80")
    assert lines[lines.index("tags") + 3].startswith("(missing)")


def test_the_text_of_many_slots_has_no_rates_by_value() -> None:
    slots = [Slot(name=f"item{i}", kind=SlotKind.ID, number=i) for i in range(1, 5)]
    rows = pa.table({**{slot.name: [5, 7] for slot in slots}, "click": [0, 1]})
    text = str(label_rows(rows.to_batches(), slots, "click"))
    assert "interval of 95 %" not in text
    assert "interval of 95 %" in str(label_rows(rows.to_batches(), slots[:3], "click"))


def test_values_that_are_neither_0_nor_1_are_refused() -> None:
    with pytest.raises(InputError, match="label 'click': expected 0 and 1, found 3"):
        frame([1, 2], [1, 3])


def test_the_text_begins_with_the_slot_that_says_most_and_has_the_days_below() -> None:
    text = str(frame([1, 1, 2, 2] * 50, [1, 1, 0, 0] * 50)).splitlines()
    assert text[0] == "200 rows, click 0.5 (from the rows: exact)"
    assert text[1].startswith("nearly all of click")
    assert text[4].split()[:2] == ["item", "id"]
    assert text[text.index("") - 1].startswith("dt=a: 200 rows, click 0.5 (0.43")
    with pytest.raises(SelectionError, match="no slot 'itm' in the profile; did you mean 'item'"):
        frame([1], [1])["itm"]
