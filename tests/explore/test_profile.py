"""Profiles compared with a row-at-a-time count of the same rows."""

import collections
import math
import statistics
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from featstore.base.errors import SelectionError
from featstore.base.schema import Slot, SlotKind
from featstore.explore.profile import Profile, shown_top
from featstore.explore.profiling import profile_rows
from featstore.spec.value_names import ValueNames, ValueText
from tests.programs import run_python

SLOTS = (
    Slot(name="item", kind=SlotKind.ID, number=1, op="hash"),
    Slot(name="tags", kind=SlotKind.ID, shape=(None,), number=2, op="hash"),
    Slot(name="price", kind=SlotKind.FLOAT, number=3, op="log1p"),
    Slot(name="delays", kind=SlotKind.FLOAT, shape=(None,), number=4),
    Slot(name="pair", kind=SlotKind.ID, shape=(2,)),
)
SCHEMA = pa.schema(
    [
        ("item", pa.int64()),
        ("tags", pa.list_(pa.int64())),
        ("price", pa.float32()),
        ("delays", pa.list_(pa.float32())),
        ("pair", pa.list_(pa.int64(), 2)),
        ("click", pa.int64()),
    ]
)


def make_rows(num_rows: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(7)
    return [
        {
            "item": None if i % 10 == 0 else 2**53 + 1 + int(rng.zipf(1.5)) % 5,
            "tags": None if i % 7 == 0 else [int(v) for v in rng.integers(1, 4, i % 3)],
            "price": None if i % 4 == 0 else float(i),
            "delays": None if i % 5 == 0 else [1.0, None][: i % 3],
            "pair": None if i % 2 else [i % 3 + 1, 9],
            "click": i % 3 == 0,
        }
        for i in range(num_rows)
    ]


def profile_of(
    rows: list[dict[str, object]], labels: tuple[str, ...] = ("click",), batch_rows: int = 97
) -> Profile:
    table = pa.Table.from_pylist(
        [{**row, "click": int(bool(row["click"]))} for row in rows], SCHEMA
    )
    return profile_rows(table.to_batches(max_chunksize=batch_rows), SLOTS, labels)


def test_coverage_is_the_share_of_rows_that_are_not_missing() -> None:
    rows = make_rows(1000)
    result = profile_of(rows)
    assert result.num_rows == 1000
    for slot in SLOTS:
        present = sum(row[slot.name] is not None for row in rows)
        assert (result[slot.name]["num_present"], result[slot.name]["coverage"]) == (
            present,
            present / 1000,
        )


def test_top_values_and_their_label_rates_are_exact() -> None:
    rows = make_rows(1000)
    counts = collections.Counter(row["item"] for row in rows if row["item"] is not None)
    clicks = collections.Counter(
        row["item"] for row in rows if row["item"] is not None and row["click"]
    )
    found = {
        top["value"]: (top["count"], top["label_rates"]["click"])
        for top in profile_of(rows)["item"]["top"]
    }
    assert found == {
        value: (count, pytest.approx(clicks[value] / count)) for value, count in counts.items()
    }


def test_a_list_slot_counts_values_lengths_and_labels_of_its_elements() -> None:
    rows = make_rows(1000)
    lists = [(row["tags"], row["click"]) for row in rows if row["tags"] is not None]
    values = [value for tags, _ in lists for value in tags]  # type: ignore[attr-defined]
    row = profile_of(rows)["tags"]
    assert row["num_values"] == len(values)
    assert row["length_mean"] == pytest.approx(statistics.mean(len(tags) for tags, _ in lists))  # type: ignore[arg-type]
    assert row["length_max"] == 2
    assert {top["value"]: top["count"] for top in row["top"]} == collections.Counter(values)
    assert sum(top["share"] for top in row["top"]) == pytest.approx(1.0)


def test_quantiles_and_extremes_of_a_float_slot_are_exact() -> None:
    row = profile_of(make_rows(4000))["price"]
    assert (row["min"], row["max"]) == (1.0, 3999.0)
    numbers = [float(i) for i in range(4000) if i % 4]
    expected = [numbers[math.ceil(q * len(numbers)) - 1] for q in (0.01, 0.25, 0.5, 0.75, 0.99)]
    assert row["quantiles"] == expected
    assert (row["rank_error"], row["top"]) == (0.0, [])


def test_nan_and_null_elements_are_no_values() -> None:
    table = pa.table({"price": pa.array([1.0, math.nan, None], pa.float32())})
    row = profile_rows(table.to_batches(), [Slot(name="price", kind=SlotKind.FLOAT)])["price"]
    assert (row["num_values"], row["num_present"], row["mean"]) == (1, 1, 1.0)
    assert profile_of(make_rows(30))["delays"]["num_values"] == sum(
        1 for i in range(30) if i % 5 and i % 3
    )


@pytest.mark.parametrize("budget_bytes", [1 << 14, 1 << 30])
def test_a_hundred_thousand_distinct_values_are_counted_exactly(budget_bytes: int) -> None:
    values = np.random.default_rng(1).permutation(np.arange(100_000)) * 92_821 + 1
    table = pa.table({"item": np.concatenate([values, values, values[:3]])})
    item = profile_rows(
        table.to_batches(max_chunksize=30_000),
        [Slot(name="item", kind=SlotKind.ID)],
        budget_bytes=budget_bytes,
    )["item"]
    assert (item["distinct"], item["distinct_error"]) == (100_000, 0.0)
    top = [(value["value"], value["count"]) for value in item["top"]]
    assert top[:3] == [(value, 3) for value in sorted(values[:3].tolist())]
    assert top[3:] == [(value, 2) for value in sorted(set(values.tolist()) - set(values[:3]))[:7]]


def test_null_is_no_value() -> None:
    """`approx_count_distinct` of duckdb once counted 17 airlines of 16."""
    names = [3 * i + 1 for i in range(16)]
    table = pa.table({"airline": pa.array([*names, None, None, *names], pa.int64())})
    airline = profile_rows(table.to_batches(), [Slot(name="airline", kind=SlotKind.ID)])["airline"]
    assert (airline["distinct"], airline["num_values"]) == (16, 32)


def test_two_profiles_of_the_same_rows_are_equal_in_any_order_and_memory() -> None:
    """Ties are in the order of the values, so nothing depends on batches, order or spilling."""
    draw = np.random.default_rng(3)
    values = draw.zipf(1.1, 30_000) % 5_000 + 1
    slots = [Slot(name="item", kind=SlotKind.ID)]

    def found(rows: np.ndarray, batch_rows: int, budget_bytes: int) -> Profile:
        batches = pa.table({"item": rows}).to_batches(max_chunksize=batch_rows)
        return profile_rows(batches, slots, budget_bytes=budget_bytes)

    first = found(values, 30_000, 1 << 30).table
    assert found(values, 7_001, 1 << 30).table == first
    assert found(draw.permutation(values), 1_000, 1 << 12).table == first


def test_batch_size_changes_no_exact_statistic() -> None:
    rows = make_rows(500)
    exact = ["slot", "num_present", "coverage", "num_values", "min", "max", "length_max", "top"]
    assert profile_of(rows, batch_rows=17).table.select(exact) == profile_of(
        rows, batch_rows=500
    ).table.select(exact)


def test_no_rows_and_no_labels_give_a_profile_of_zeros() -> None:
    result = profile_of([], labels=())
    assert (
        result.num_rows,
        result.label_rates,
        result["item"]["coverage"],
        result["item"]["top"],
    ) == (0, {}, 0.0, [])


def test_label_rates_of_all_rows_are_their_means_without_nulls() -> None:
    table = pa.table({"item": pa.array([1, 2, 3, 4]), "click": pa.array([True, False, None, True])})
    result = profile_rows(table.to_batches(), [Slot(name="item", kind=SlotKind.ID)], ["click"])
    assert result.label_rates == {"click": pytest.approx(2 / 3)}


def test_an_unknown_slot_answers_with_the_nearest_name() -> None:
    with pytest.raises(SelectionError, match="no slot 'itm' in the profile; did you mean 'item'"):
        profile_of(make_rows(10))["itm"]


def test_text_and_html_show_one_line_per_slot_and_escape_names() -> None:
    slot = Slot(name="a<b", kind=SlotKind.ID)
    result = profile_rows(pa.table({"a<b": [5, 5, 6]}).to_batches(), [slot])
    assert "a<b" in str(result)
    assert "5 (66.7%)" in str(result)
    assert "a&lt;b" in result._repr_html_()
    assert len(str(profile_of(make_rows(20))).splitlines()) == 3 + len(SLOTS)


PEAK_MEMORY = """
import pathlib, re, sys
import numpy as np, pyarrow as pa
from featstore.explore.profiling import profile_rows
from featstore.base.schema import Slot, SlotKind

def read():
    for seed in range(int(sys.argv[1])):
        draw = np.random.default_rng(seed)
        ids = draw.integers(1, 1 << 62, 50_000)
        yield pa.record_batch({"item": ids, "click": draw.integers(0, 2, 50_000)})

slots = [Slot(name="item", kind=SlotKind.ID)]
found = profile_rows(read(), slots, ["click"], budget_bytes=16 << 20)
assert found["item"]["distinct"] == int(sys.argv[1]) * 50_000
status = pathlib.Path("/proc/self/status").read_text()
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) >> 10)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_does_not_grow_with_the_distinct_values() -> None:
    """The counts of each of the 90 further batches take 1.6 MB, and all values are different."""
    few, many = (int(run_python(PEAK_MEMORY, num).stdout) for num in ("10", "100"))
    assert many < few + 60


_HOURS = ValueNames(
    by_slot={
        "hour": {sign: ValueText(text=f"{sign - 1:02}:00", rank=sign) for sign in range(1, 25)}
    }
)


def _row_of_hours(signs: list[int], **differs: object) -> dict[str, object]:
    """The row of a profile's table, with the signs as the most frequent ones, in this order."""
    top = [{"value": sign, "share": 0.1} for sign in signs]
    return {
        "slot": "hour",
        "top": top,
        "distinct": len(signs),
        "distinct_error": 0.0,
    } | differs


def test_all_values_of_an_ordered_slot_are_shown_in_their_order() -> None:
    row = _row_of_hours(list(range(24, 0, -1)))
    assert [top["value"] for top in shown_top(row, _HOURS, 3)] == list(range(1, 25))


@pytest.mark.parametrize(
    "differs", [{"distinct": 25}, {"distinct_error": 0.01}, {"slot": "another"}]
)
def test_the_most_frequent_values_are_shown_where_not_all_are_known_or_ordered(
    differs: dict[str, object],
) -> None:
    row = _row_of_hours([5, 3, 4, 1], **differs)
    assert [top["value"] for top in shown_top(row, _HOURS, 3)] == [5, 3, 4]
