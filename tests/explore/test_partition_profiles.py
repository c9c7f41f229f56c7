"""Profiles of partitions beside each other: from a table, and their pictures."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from matplotlib import colormaps
from matplotlib.colors import to_hex

import featstore
from featstore.base.errors import InputError, SelectionError
from featstore.base.schema import Slot, SlotKind
from featstore.explore.partition_profiles import PartitionProfiles, partition_profiles
from featstore.explore.profile import Profile
from featstore.explore.profiling import profile_rows
from featstore.explore.table import Table
from featstore.tools.cli.output import to_json
from featstore.tools.cli.program import cli
from tests.explore.plots.rendered import render, same_colour
from tests.parquet_files import put_parquet

SPEC: Any = {
    "spec": 1,
    "inputs": {"user": "string", "price": "double", "clicked": "long"},
    "labels": {"click": "clicked"},
    "slots": [
        {"slot": 101, "name": "user", "op": "hash", "of": "user"},
        {"slot": 102, "name": "price", "op": "identity", "of": "price"},
    ],
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Three days of 40 rows. Users change on the third day; prices are missing in every second row
    of the second.
    """
    for day in range(1, 4):
        rows = range(40)
        columns = {
            "user": [f"{'new' if day == 3 else 'u'}{i % 4}" for i in rows],
            "price": [None if day == 2 and i % 2 else float(i) for i in rows],
            "clicked": [i % 2 for i in rows],
        }
        put_parquet(tmp_path / "raw" / f"dt=2026-11-0{day}" / "log.parquet", columns)
    url = str(tmp_path / "table")
    featstore.extract(SPEC, str(tmp_path / "raw"), url, partition_from_path=["dt"])
    return featstore.open_table(url)


def by_slot(found: PartitionProfiles, column: str) -> dict[str, list[Any]]:
    rows = found.table.to_pylist()
    return {
        slot: [row[column] for row in rows if row["slot"] == slot] for slot in ("user", "price")
    }


@pytest.mark.parametrize("stored", [False, True])
def test_partitions_have_the_figures_of_their_profiles_and_comparisons(
    table: Table, stored: bool
) -> None:
    found = table.profile_partitions(stored=stored)
    assert found.partitions == ("dt=2026-11-01", "dt=2026-11-02", "dt=2026-11-03")
    alone = [table.profile(where=f"dt = '2026-11-0{day}'", stored=stored) for day in (1, 2, 3)]
    for slot in ("user", "price"):
        for column in ("coverage", "distinct", "mean"):
            assert by_slot(found, column)[slot] == [profile[slot][column] for profile in alone]
    changes = [alone[0].compare(alone[1]), alone[1].compare(alone[2])]
    for i, slot in enumerate(("user", "price")):
        for column in ("psi", "psi_error", "psi_method", "jensen_shannon"):
            of_pairs = [change.table[column].to_pylist()[i] for change in changes]
            assert by_slot(found, column)[slot] == [None, *of_pairs]
    assert ("stored statistics" in found.source) == stored


def test_counted_rows_and_stored_statistics_agree_where_both_know_every_id(table: Table) -> None:
    counted, stored = table.profile_partitions(), table.profile_partitions(stored=True)
    for column in ("psi", "psi_error", "psi_method", "jensen_shannon"):
        assert by_slot(counted, column)["user"] == by_slot(stored, column)["user"]


def test_where_and_slots_choose_what_is_profiled(table: Table) -> None:
    found = table.profile_partitions("dt >= '2026-11-02' and click = 1", ["price"])
    assert found.partitions == ("dt=2026-11-02", "dt=2026-11-03")
    assert found.table["slot"].to_pylist() == ["price"] * 2
    assert found.table["num_rows"].to_pylist() == [20, 20]
    # Statistics of whole partitions do not know the rows with clicks.
    stored = table.profile_partitions("dt >= '2026-11-02' and click = 1", ["price"], stored=True)
    assert stored.table == found.table
    with pytest.raises(SelectionError, match="user"):
        table.profile_partitions(slots=["usr"])


@pytest.mark.parametrize(("last", "days"), [(1, [3]), (2, [2, 3]), (9, [1, 2, 3])])
def test_only_the_last_partitions_are_profiled(table: Table, last: int, days: list[int]) -> None:
    found = table.profile_partitions(last=last)
    assert found.partitions == tuple(f"dt=2026-11-0{day}" for day in days)
    assert by_slot(found, "psi")["user"][0] is None
    assert table.profile_partitions("dt = '1999-01-01'", last=last).partitions == ()


def test_a_table_without_partitions_is_refused(tmp_path: Path) -> None:
    put_parquet(tmp_path / "plain" / "a.parquet", {"user": [1, 2]})
    with pytest.raises(InputError, match=r"expected a table with partitions, .* use profile\(\)"):
        featstore.open_table(tmp_path / "plain").profile_partitions()


def test_the_picture_of_coverage_has_the_colours_of_the_table(table: Table) -> None:
    figure = table.profile_partitions().plot_coverage()
    picture, axes = render(figure), figure.axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["user", "price"]
    for column, share in enumerate([1.0, 0.5, 1.0]):
        expected = to_hex(colormaps["viridis"](share))
        assert same_colour(picture.colour(axes, column - 0.4, 1), expected)
    assert {"dt=2026-11-01", "100%", "50.0%", "Coverage of 2 slots in 3 partitions"} <= set(
        picture.texts
    )


def test_the_picture_of_drift_begins_with_the_slot_that_changed_most(table: Table) -> None:
    found = table.profile_partitions()
    figure = found.plot_drift()
    picture, axes = render(figure), figure.axes[0]
    slots = [text.get_text() for text in axes.get_yticklabels()]
    drifts = {
        slot: list(zip(psi[1:], by_slot(found, "psi_error")[slot][1:], strict=True))
        for slot, psi in by_slot(found, "psi").items()
    }
    certain = {slot: max(p if p > e else 0.0 for p, e in drifts[slot]) for slot in drifts}
    assert slots == sorted(drifts, key=lambda slot: (-certain[slot], -max(drifts[slot])[0]))
    for row, slot in enumerate(slots):
        assert same_colour(picture.colour(axes, -0.4, row), "lightgrey")
        errors = by_slot(found, "psi_error")[slot]
        for column, psi in enumerate(by_slot(found, "psi")[slot][1:], 1):
            share = min(psi / 0.25, 1.0) if psi > errors[column] else 0.0
            expected = to_hex(colormaps["Reds"](share))
            assert same_colour(picture.colour(axes, column - 0.4, row), expected)
            assert f"{psi:.2f}" in picture.texts


def test_a_slot_of_chance_alone_comes_after_one_that_drifted_less_but_surely() -> None:
    noisy, moved = (Slot(name=name, kind=SlotKind.ID, number=i) for i, name in enumerate("nm"))

    def profile(first: int, share: int) -> Profile:
        rows = range(400)
        ids = {"n": [first + i for i in rows], "m": [1 + (i % 10 < share) for i in rows]}
        return profile_rows(pa.table(ids).to_batches(), [noisy, moved])

    found = partition_profiles([("day=1", profile(1, 2)), ("day=2", profile(1_000, 5))])
    psi, error = (
        {row["slot"]: row[name] for row in found.table.to_pylist()[2:]}
        for name in ("psi", "psi_error")
    )
    assert psi["n"] > psi["m"] > error["m"]
    assert error["n"] > psi["n"]
    axes = found.plot_drift().axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["m", "n"]


def test_drift_that_chance_may_have_made_is_pale() -> None:
    user = Slot(name="user", kind=SlotKind.ID, number=1)

    def profile(ids: range) -> Profile:
        return profile_rows(pa.table({"user": [i % 7 + 1 for i in ids]}).to_batches(), [user])

    found = partition_profiles([("day=1", profile(range(30))), ("day=2", profile(range(4, 31)))])
    [psi, error] = (found.table[name].to_pylist()[1] for name in ("psi", "psi_error"))
    assert 0.0 < psi < error
    figure = found.plot_drift()
    picture = render(figure)
    assert same_colour(picture.colour(figure.axes[0], 0.6, 0), to_hex(colormaps["Reds"](0.0)))
    assert "chance may have made all of it" in " ".join(picture.texts)


def test_the_drift_of_one_partition_is_refused(table: Table) -> None:
    with pytest.raises(InputError, match="drift: expected two partitions or more, found 1"):
        table.profile_partitions("dt = '2026-11-01'").plot_drift()


@pytest.mark.parametrize("broken", range(1, 6))
def test_a_broken_day_drifts_and_not_the_day_after_it(broken: int) -> None:
    page = Slot(name="page", kind=SlotKind.ID, number=1)

    def profile(day: int) -> Profile:
        # The broken day lacks most pages: those which vanish weigh less than those that appear.
        ids = [1 + i % (2 if day == broken else 20 + day) for i in range(4_000)]
        return profile_rows(pa.table({"page": ids}).to_batches(), [page])

    found = partition_profiles([(f"day={day}", profile(day)) for day in range(6)])
    drifts = found.table["drift"].to_pylist()
    assert drifts[0] is None
    assert all(drift < drifts[broken] / 5 for drift in drifts[broken + 1 :])
    assert max(range(1, 6), key=drifts.__getitem__) == broken
    assert found.largest_drifts()["page"]["partition"] == f"day={broken}"
    assert str(found).splitlines()[3].split()[0] == f"day={broken}"


def test_a_lasting_change_is_of_the_day_on_which_it_begins() -> None:
    page = Slot(name="page", kind=SlotKind.ID, number=1)

    def profile(day: int) -> Profile:
        ids = [1 + i % 5 + 5 * (day >= 3) for i in range(4_000)]
        return profile_rows(pa.table({"page": ids}).to_batches(), [page])

    found = partition_profiles([(f"day={day}", profile(day)) for day in range(6)])
    drifts = found.table["drift"].to_pylist()
    assert [drift is not None and drift > 0.25 for drift in drifts] == [False] * 3 + [True] + [
        False
    ] * 2


def test_a_slot_that_some_partitions_lack_is_grey_there() -> None:
    def profile(slots: list[str]) -> Profile:
        made = [Slot(name=name, kind=SlotKind.ID, number=ord(name)) for name in slots]
        rows = pa.table({name: [1, 2] for name in slots})
        return profile_rows(rows.to_batches(), made)

    found = partition_profiles([("day=1", profile(["a"])), ("day=2", profile(["a", "b"]))])
    figure = found.plot_coverage()
    assert same_colour(render(figure).colour(figure.axes[0], -0.4, 1), "lightgrey")


def test_slots_of_more_values_than_are_listed_are_marked_in_picture_and_text() -> None:
    few, many = (Slot(name=name, kind=SlotKind.ID, number=i) for i, name in enumerate("ab"))

    def profile(first: int) -> Profile:
        ids = range(first, first + 5_000)
        rows = pa.table({"a": [i % 9 + 1 for i in ids], "b": list(ids)})
        return profile_rows(rows.to_batches(), [few, many])

    found = partition_profiles([("day=1", profile(1)), ("day=2", profile(9_001))])
    assert found.table["psi_method"].to_pylist() == [None, None, "exact", "at least"]
    axes = found.plot_drift().axes[0]
    assert {text.get_text() for text in axes.get_yticklabels()} == {"a", "≥ b"}
    assert "may have drifted more" in " ".join(render(found.plot_drift()).texts)
    assert [text.get_text() for text in found.plot_coverage().axes[0].get_yticklabels()] == [*"ab"]
    lines = str(found).splitlines()
    assert [line.split()[2:] for line in lines[3:5]] == [["-"], ["≥", "0"]]
    assert lines[-1].startswith("≥: over the most frequent values")


def test_the_text_begins_with_the_partition_that_drifted_most(table: Table) -> None:
    found = table.profile_partitions()
    lines = str(found).splitlines()
    assert lines[0] == "3 partitions (from the rows: exact)"
    assert lines[3].split()[:4:3] == ["dt=2026-11-03", "user"]
    assert {line.split()[0]: line.split()[2] for line in lines[4:6]} == {
        "dt=2026-11-01": "-",
        "dt=2026-11-02": "0",  # no more than chance may do to 40 rows
    }
    assert "rows of one user are not independent" in lines[-1]
    as_json = json.loads(json.dumps(found.as_dict()))
    slots = [partition.pop("slots") for partition in as_json["partitions"]]
    assert [row for rows in slots for row in rows] == as_json["slots"] == found.table.to_pylist()
    assert as_json["partitions"] == found.most_drifted.to_pylist()


def test_all_slots_that_drifted_and_those_whose_coverage_moved_are_named(table: Table) -> None:
    lines = str(table.profile_partitions()).splitlines()
    assert "coverage that moved" in lines[1]
    moved = {line.split()[0]: line.split("  ")[-1] for line in lines[3:6]}
    assert moved["dt=2026-11-02"] == "price 100.0% → 50.0%"
    assert moved["dt=2026-11-03"] == "price 50.0% → 100.0%"
    slots = [Slot(name=f"slot_{i}", kind=SlotKind.ID, number=i) for i in range(1, 9)]

    def profile(value: int) -> Profile:
        rows = {slot.name: [value] * 1_000 for slot in slots}
        return profile_rows(pa.table(rows).to_batches(), slots)

    text = str(partition_profiles([("day=1", profile(1)), ("day=2", profile(2))]))
    assert "…" not in text
    assert all(slot.name in text for slot in slots)


def test_drift_is_what_chance_did_not_make_and_sorts_the_days(table: Table) -> None:
    found = table.profile_partitions()
    rows = found.table.to_pylist()
    assert [row["drift"] for row in rows[:2]] == [None, None]
    for row in rows[2:]:
        assert row["drift"] == max(row["psi"] - row["psi_error"], 0.0)
    days = found.most_drifted.to_pandas().sort_values("drift", ascending=False)
    assert days.iloc[0]["partition"] == "dt=2026-11-03"
    assert days.iloc[0]["slot"] == "user"
    assert days.iloc[0]["drift"] == max(row["drift"] or 0.0 for row in rows)
    command = ["table", "profile", table.url, "--by-day", "--json"]
    printed = json.loads(CliRunner().invoke(cli, command).stdout)
    assert printed == json.loads(to_json(table.profile_partitions(stored=True).as_dict()))
