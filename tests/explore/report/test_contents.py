"""All that a report says, from results."""

from dataclasses import replace
from typing import Any

import pyarrow as pa

from featstore.explore.report.contents import ReportFigures, contents
from featstore.explore.table import Table
from tests.explore.report.conftest import DAYS


def findings(table: Table, **more: Any) -> ReportFigures:
    costs = table.reading_costs(decode=False)
    return ReportFigures(
        about=[("table", "t")], **{"profile": table.profile(), "costs": costs, **more}
    )


def days(table: Table) -> dict[str, Any]:
    before, after = (table.profile(f"dt = '{day}'") for day in DAYS)
    return {"before": before, "profile": after}


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {slot["cells"][0][0]: slot for slot in found["slots"]}


def titles(slot: dict[str, Any]) -> list[str]:
    return [chart["title"] for chart in slot["charts"]]


def test_a_profile_alone_has_slots_in_the_order_of_the_table(table: Table) -> None:
    found = contents(findings(table))
    assert [slot["cells"][0][0] for slot in found["slots"]] == [slot.name for slot in table.slots]
    assert (found["order"], found["partitions"], found["charts"]) == (None, [], [])
    assert dict(found["about"]) == {
        "table": "t",
        "rows": "80",
        "mean of click": "0.5",
        "figures": table.profile().source,
    }
    slots = by_name(found)
    assert titles(slots["user"]) == ["Most frequent values, share of all values"]
    assert titles(slots["price"]) == ["Distribution, share of values"]
    assert slots["user"]["sparks"] == [100, 100, 50, 50, 50, 50]
    assert max(slots["price"]["sparks"]) == 100


def test_a_comparison_sorts_by_drift_and_names_slots_that_are_gone(table: Table) -> None:
    found = contents(findings(table, **days(table)))
    assert found["columns"][found["order"]]["title"] == "drift"
    [chart] = by_name(found)["user"]["charts"]
    assert chart["compared"]
    assert {row["before"] for row in chart["rows"]} == {0.0, 0.25}
    about = dict(found["about"])
    assert (about["before: rows"], about["before: mean of click"]) == ("40", "0.5")
    assert "slots only before" not in dict(found["about"])

    only = table.profile(f"dt = '{DAYS[1]}'", ["user"])
    gone = contents(findings(table, **{**days(table), "profile": only}))
    assert dict(gone["about"])["slots only before"] == "price, tags, hour, log_price"


def test_many_slots_that_are_gone_are_counted(table: Table, monkeypatch: Any) -> None:
    monkeypatch.setattr("featstore.explore.report.contents._MOST_NAMED", 2)
    only = table.profile(f"dt = '{DAYS[1]}'", ["user"])
    gone = contents(findings(table, **{**days(table), "profile": only}))
    assert dict(gone["about"])["slots only before"] == "price, tags and 2 more"


def test_a_label_and_partitions_add_charts(table: Table) -> None:
    found = contents(
        findings(table, label=table.label_profile("click"), partitions=table.profile_partitions())
    )
    assert found["columns"][found["order"]]["title"] == "AUC"
    assert found["partitions"] == [f"dt={day}" for day in DAYS]
    rows, rates, drifts = found["charts"]
    assert (rows["values"], rates["values"]) == ([40.0, 40.0], [0.5, 0.5])
    assert drifts["values"] == [None, None]  # no more than chance may do to 40 rows
    assert titles(by_name(found)["user"]) == [
        "Most frequent values, share of all values",
        "Rate of click",
        "Coverage by partition",
        "Drift from the partition before (PSI)",
    ]
    one_day = table.label_profile("click", f"dt = '{DAYS[1]}'")
    few = contents(findings(table, label=one_day, partitions=table.profile_partitions()))
    assert [chart["title"][:4] for chart in few["charts"]] == ["Rows", "Larg"]


def test_a_label_that_is_known_in_no_row_has_no_rates(table: Table) -> None:
    nothing = table.label_profile("click", "dt = '1999-01-01'")
    found = contents(findings(table, label=nothing))
    assert titles(by_name(found)["user"]) == ["Most frequent values, share of all values"]


def test_a_table_without_rows_is_shown(table: Table) -> None:
    found = contents(findings(table, profile=table.profile("dt = '1999-01-01'")))
    assert {len(slot["charts"]) for slot in found["slots"]} == {0}
    assert {tuple(slot["sparks"]) for slot in found["slots"]} == {()}


def test_a_column_tells_in_which_partition_a_slot_drifted_most(table: Table) -> None:
    days = table.profile_partitions()
    place = days.table.column_names.index("drift")
    drifts = pa.array([None if row["psi"] is None else 0.5 for row in days.table.to_pylist()])
    drifted = replace(days, table=days.table.set_column(place, "drift", drifts))
    found = contents(findings(table, partitions=drifted))
    column = [one["title"] for one in found["columns"]].index("drifted most")
    assert by_name(found)["price"]["cells"][column] == (f"0.5 in {DAYS[1]}", 0.5)
    assert dict(by_name(found)["price"]["facts"])["drifted most"] == f"0.5 in {DAYS[1]}"
    assert found["charts"][-1]["values"] == [None, 0.5]
    assert found["charts"][-1]["names"] == [f"dt={DAYS[0]}", f"dt={DAYS[1]} user"]
