"""What charts draw."""

from typing import Any

import numpy as np
import pytest

from featstore.base.schema import Slot, SlotKind
from featstore.explore.report.contents import (
    by_partition,
    columns,
    histogram,
    label_rates,
    top_values,
)
from featstore.explore.report.slot_columns import rounded
from featstore.spec.value_names import ValueNames, ValueText
from featstore.statistics.summary import SlotSummary

NAMES = ValueNames(
    by_slot={"hour": {7: ValueText(text="07:00", rank=7), 3: ValueText(text="03:00", rank=3)}}
)


def of_ids(
    counts: dict[int, float], *, lists_all: bool, error: float = 2.0, distinct: int | None = None
) -> SlotSummary:
    return SlotSummary(
        slot=Slot(name="hour", kind=SlotKind.ID),
        num_rows=100,
        num_present=100,
        num_values=round(sum(counts.values())) if distinct is None else 100,
        distinct=len(counts) if distinct is None else distinct,
        values=np.array(list(counts), np.int64),
        counts=np.array(list(counts.values()), np.float64),
        count_errors=np.full(len(counts), 0.0 if lists_all else error),
        lists_all=lists_all,
    )


TOP = of_ids({7: 50.0, 3: 25.0}, lists_all=False, error=1.0, distinct=5)


def of_floats(values: list[float]) -> SlotSummary:
    points = np.array(values)
    quantiles = np.quantile(points, [0.01, 0.25, 0.5, 0.75, 0.99]).tolist() if values else None
    return SlotSummary(
        slot=Slot(name="x", kind=SlotKind.FLOAT),
        num_rows=100,
        num_present=len(values),
        num_values=len(values),
        distinct=len(values),
        quantiles=quantiles,
        points=(points, np.ones(len(points))),
    )


def test_values_come_in_the_order_of_their_slot_with_their_texts() -> None:
    chart: Any = top_values(TOP, NAMES, None)
    assert [row["text"] for row in chart["rows"]] == ["03:00", "07:00"]
    assert [row["value"] for row in chart["rows"]] == [0.25, 0.5]
    assert [row["figure"] for row in chart["rows"]] == ["25.0% ±1.0%", "50.0% ±1.0%"]
    assert chart["note"] == "3 other values"
    assert not chart["compared"]


@pytest.mark.parametrize(
    ("lists_all", "before"),
    [(True, {"03:00": 0.0, "07:00": 0.4}), (False, {"03:00": None, "07:00": 0.4})],
)
def test_a_value_that_was_not_there_before_had_no_share_if_all_are_known(
    lists_all: bool, before: dict[str, float | None]
) -> None:
    chart: Any = top_values(TOP, NAMES, of_ids({7: 40.0, 9: 60.0}, lists_all=lists_all))
    assert {row["text"]: row["before"] for row in chart["rows"]} == before | {"9": 0.6}
    assert chart["compared"]
    error = "" if lists_all else " ±2.0%"
    assert [row["figure"] for row in chart["rows"]] == [
        f"{'none' if lists_all else 'rare'} → 25.0% ±1.0%",
        f"40.0%{error} → 50.0% ±1.0%",
        f"60.0%{error} → rare",
    ]


def test_a_value_that_vanished_is_drawn_with_its_text() -> None:
    after = of_ids({3: 100.0}, lists_all=True)
    chart: Any = top_values(after, NAMES, of_ids({3: 40.0, 7: 60.0}, lists_all=True))
    assert [(row["text"], row["figure"]) for row in chart["rows"]] == [
        ("03:00", "40.0% → 100.0%"),
        ("07:00", "60.0% → none"),
    ]
    assert [(row["value"], row["before"]) for row in chart["rows"]] == [(1.0, 0.4), (0.0, 0.6)]
    assert chart["note"] == "there are no others"


def test_a_slot_without_values_has_no_chart_of_them() -> None:
    assert top_values(of_ids({}, lists_all=True), NAMES, None) is None
    assert histogram(of_floats([]), of_floats([1.0, 2.0])) is None
    chart: Any = top_values(TOP, NAMES, of_ids({}, lists_all=True))
    assert not chart["compared"]


def test_a_histogram_has_all_values_and_its_scale_holds_both_sides() -> None:
    chart: Any = histogram(of_floats([1.0, 2.0, 3.0]), None)
    assert (sum(chart["values"]), chart["before"]) == (pytest.approx(1.0, abs=1e-3), None)
    both: Any = histogram(of_floats([1.0, 2.0, 3.0]), of_floats([10.0, 11.0]))
    assert (both["first"], both["last"]) == ("1.02", "10.99")
    assert sum(both["before"]) == pytest.approx(1.0, abs=1e-3)
    assert len(both["names"]) == len(both["values"]) == len(both["before"])
    assert histogram(of_floats([1.0]), of_floats([])) is not None


def test_rates_show_the_most_frequent_values_and_the_rest_together() -> None:
    def cell(kind: str, value: int | None, rate: float | None) -> dict[str, Any]:
        return {
            "cell": kind,
            "value": value,
            "low": None,
            "high": None,
            "num_values": 10,
            "rate": rate,
            "rate_low": rate,
            "rate_high": rate,
        }

    cells = [cell("value", value, 0.5) for value in range(1, 31)]
    others = [cell("other", None, 0.25), cell("missing", None, None)]
    chart = label_rates("click", {"slot": "hour", "cells": [*cells, *others]}, NAMES, 0.4)
    assert [row["text"] for row in chart["rows"]][:3] == ["03:00", "07:00", "1"]
    assert [row["text"] for row in chart["rows"]][-1] == "(all other values)"
    assert len(chart["rows"]) == 21
    assert "40.0%, the rate of all rows; 10 less frequent values counted" in chart["note"]
    assert (chart["baseline"], chart["least"]) == (0.4, 0.0)
    close = [cell("value", value, 0.5 - value / 100) for value in range(1, 6)]
    chart = label_rates("click", {"slot": "hour", "cells": close}, NAMES, 0.48)
    assert chart["least"] == pytest.approx(0.45 - (0.49 - 0.45) / 4)
    assert chart["note"].endswith("the rate of all rows; the scale begins at 44.0%")


def test_drift_has_a_scale_of_its_own_only_beyond_a_large_one() -> None:
    rows = [
        {"partition": "dt=1", "coverage": 1.0, "psi": None, "psi_method": None},
        {"partition": "dt=3", "coverage": 0.5, "psi": 0.1, "psi_method": "exact"},
    ]
    coverage, psi = by_partition(rows, ["dt=1", "dt=2", "dt=3"])
    assert (coverage["values"], coverage["most"]) == ([1.0, None, 0.5], 1.0)
    assert (psi["values"], psi["most"]) == ([None, None, 0.1], 0.25)
    rows[1]["psi"] = 3.0
    assert by_partition(rows, ["dt=1", "dt=2", "dt=3"])[1]["most"] == 3.0
    assert len(by_partition(rows, ["dt=1"])) == 1
    assert psi["title"] == "Drift from the partition before (PSI)"
    rows[1]["psi_method"] = "at least"
    title = by_partition(rows, ["dt=1", "dt=2", "dt=3"])[1]["title"]
    assert title == "Drift from the partition before (PSI, at least)"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (float("inf"), None),
        (float("nan"), None),
        (1 / 3, 0.3333),
        (123456.0, 123500.0),
        (123456, 123456),
    ],
)
def test_numbers_are_rounded_and_what_json_lacks_is_none(
    value: float | None, expected: float | None
) -> None:
    assert rounded(value) == expected
    assert columns("t", [value], ["a"])["values"] == [expected]


def test_a_scale_begins_where_it_shows_how_values_differ() -> None:
    close = columns("Rows", [100.0, None, 120.0], ["a", "b", "c"], from_zero=False)
    assert (close["least"], close["most"]) == (95.0, None)
    coverage = columns("Coverage", [0.98, 0.99], ["a", "b"], most=1.0, from_zero=False)
    assert coverage["least"] == 0.975
    for values in ([10.0, 120.0], [5.0, 5.0], [None], [0.0, 1.0]):
        assert columns("Rows", values, ["a", "b"], from_zero=False)["least"] == 0.0
    assert columns("Rows", [100.0, 120.0], ["a", "b"])["least"] == 0.0


def test_a_bar_of_equal_shares_says_the_figure_once() -> None:
    chart: Any = top_values(
        of_ids({7: 60.0}, lists_all=True), NAMES, of_ids({7: 60.0}, lists_all=True)
    )
    assert [row["figure"] for row in chart["rows"]] == ["100.0%"]
