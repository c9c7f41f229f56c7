"""Columns and facts of a slot."""

from dataclasses import replace
from typing import Any

import pytest

from featstore.base.text_table import whole
from featstore.explore.report.slot_columns import SlotFigures, facts, slot_columns
from featstore.explore.table import Table
from featstore.spec.value_names import ValueNames, ValueText


def figures(table: Table, slot: str, *, stored: bool) -> SlotFigures:
    profile = table.profile(stored=stored)
    costs = {row["slot"]: row for row in table.reading_costs(decode=False).table.to_pylist()}
    label = table.label_profile("click")[slot]
    first, second = (table.profile(f"dt = '{day}'") for day in ("2026-11-01", "2026-11-02"))
    changes = {row["slot"]: row for row in first.compare(second).table.to_pylist()}
    return SlotFigures(
        profile=profile[slot],
        costs=costs[slot],
        change=changes[slot],
        label=label,
        names=profile.names,
    )


@pytest.mark.parametrize(
    ("compared", "labelled", "days", "more"),
    [
        (False, False, False, []),
        (True, False, False, ["drift"]),
        (True, True, True, ["drift", "AUC", "drifted most"]),
    ],
)
def test_there_are_columns_for_what_was_asked(
    compared: bool, labelled: bool, days: bool, more: list[str]
) -> None:
    wanted = slot_columns(compared=compared, labelled=labelled, by_partition=days)
    titles = [column.title for column in wanted]
    assert titles == ["slot", "kind", "coverage", "distinct", "bytes/row", *more, "values"]


def test_cells_are_texts_with_the_numbers_behind_them(table: Table) -> None:
    user = figures(table, "user", stored=False)
    cells: dict[str, Any] = {
        column.title: column.cell(user) for column in slot_columns(compared=True, labelled=True)
    }
    assert cells["slot"] == ("user", None)
    assert cells["kind"] == ("id", None)
    assert cells["coverage"] == ("100%", 1.0)
    assert cells["distinct"] == ("6", 6)
    assert cells["bytes/row"][1] > 0
    assert cells["AUC"] == ("1.000 ±0", 1.0)
    assert cells["drift"][1] > 1.0
    assert cells["values"][0].count("(25.0%)") == 2
    tags = figures(table, "tags", stored=False)
    assert slot_columns(compared=False, labelled=False)[1].cell(tags) == ("id list", None)


def test_values_that_do_not_fit_are_left_out_whole() -> None:
    ids = range(1, 30)
    texts = {"tags": {i: ValueText(text="long value " * 3 + str(i), rank=i) for i in ids}}
    top = [{"value": i, "share": i / 1000, "share_error": 0.0} for i in ids]
    profile = {"slot": "tags", "kind": "id", "distinct": 29, "distinct_error": 0.0, "top": top}
    names = ValueNames(by_slot=texts)
    slot = SlotFigures(profile=profile, costs={}, change={}, label={}, names=names)
    text, _ = slot_columns(compared=False, labelled=False)[-1].cell(slot)
    whole = [f"{'long value ' * 3}{i} ({i / 1000:.1%})" for i in ids]
    assert text == " ".join([*whole[:3], "…"])


def test_a_figure_that_is_not_known_is_a_dash_without_a_number(table: Table) -> None:
    profile = table.profile()
    costs = table.reading_costs(decode=False).table.to_pylist()[0]
    bare = SlotFigures(
        profile=profile["user"], costs=costs, change={}, label={}, names=profile.names
    )
    cells = {c.title: c.cell(bare) for c in slot_columns(compared=True, labelled=True)}
    assert cells["drift"] == cells["AUC"] == ("-", None)
    assert "drift (PSI)" not in dict(facts(bare))


def test_the_facts_of_ids_numbers_and_lists(table: Table) -> None:
    user, price, tags = (
        dict(facts(figures(table, slot, stored=False))) for slot in ("user", "price", "tags")
    )
    assert user["slot number"] == "101"
    assert user["different values, before → after"] == "4"
    assert user["new values"] == f"50.0%: {whole('u4 (25.0%)')}  {whole('u5 (25.0%)')}"
    assert user["vanished values"].startswith("50.0%: u")
    assert user["AUC of the slot alone (± 95 %)"] == "1.000 ±0"
    assert "mean" not in user
    assert price["rows not missing"] == "64 (80.0%)"
    assert price["least and largest"] == "1, 139"
    assert "new values" not in price
    assert tags["length, mean and largest"] == "0.975, 2"
    assert "rows with a default" not in tags


def test_drift_over_frequent_values_is_called_a_lower_bound(table: Table) -> None:
    user = figures(table, "user", stored=False)
    assert user.change is not None
    least = replace(user, change={**user.change, "psi": 0.5, "psi_method": "at least"})
    cells = {c.title: c.cell(least) for c in slot_columns(compared=True, labelled=True)}
    assert cells["drift"] == ("≥ 0.5", 0.5)
    assert dict(facts(least))["drift (PSI)"].startswith("≥ 0.5, of which chance made at most")
    assert "others may have drifted more" in dict(facts(least))["drift (PSI)"]
    assert "≥" not in dict(facts(user))["drift (PSI)"]


def test_stored_statistics_add_what_the_extraction_counted(table: Table) -> None:
    user, price = (dict(facts(figures(table, slot, stored=True))) for slot in ("user", "price"))
    assert user["rows with a default"] == "0.0%"
    assert user["signs of several values"].startswith("0 of ")
    assert "signs of several values" not in price
    assert "(ranks ±" in price["1, 25, 50, 75, 99 %"] or price["1, 25, 50, 75, 99 %"]
