"""Profiles, plots and rows show what signs mean."""

import datetime
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import featstore
from featstore.base.text_table import whole
from featstore.explore.table import Table
from featstore.tools.cli.program import cli
from tests.explore.plots.rendered import render

START = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Rows of hours 3, 1 and 2, the last the most frequent."""
    hours = [3, 1, 2, 2, 2, 1]
    rows = {
        "user": ["ann", "bob", "$x_1$", "ann", None, "ann"],
        "tags": [["a", "b"], [], None, ["a"], ["b"], ["a"]],
        "secret": ["1234567", "2", "3", "4", "5", "6"],
        "ts": pa.array([START + datetime.timedelta(hours=hour) for hour in hours]),
        "clicked": [0, 1, 0, 1, 1, 0],
    }
    pq.write_table(pa.table(rows), tmp_path / "raw.parquet")
    document = {
        "spec": 1,
        "inputs": {
            "user": "string",
            "tags": "list<string>",
            "secret": "string",
            "ts": "timestamp",
            "clicked": "long",
        },
        "labels": {"click": "clicked"},
        "slots": [
            {"slot": 1, "name": "user_slot", "op": "hash", "of": "user"},
            {"slot": 2, "name": "tags_slot", "op": "hash", "of": "tags"},
            {"slot": 3, "name": "hidden", "op": "hash", "of": "secret", "values": "none"},
            {"slot": 4, "name": "hour", "op": "hour", "of": "ts"},
        ],
    }
    url = tmp_path / "table"
    featstore.extract(
        featstore.load_spec(document), tmp_path / "raw.parquet", url, partition={"dt": "1"}
    )
    return featstore.open_table(url)


def test_cells_of_a_label_have_texts_and_frames_keep_their_signs(table: Table) -> None:
    cells = table.label_profile("click").cells
    frame = cells.to_pandas()
    assert str(frame["value"].dtype) == "Int64"
    assert frame["value"].dropna().tolist() == cells["value"].drop_null().to_pylist()
    users = frame[frame["slot"] == "user_slot"].set_index("text")
    assert users.loc["ann", "num_values"] == 3
    assert set(frame[frame["slot"] == "hidden"]["text"]) == {None}


def test_frames_and_files_of_a_profile_have_texts(table: Table) -> None:
    profile = table.profile()
    assert "'text': 'ann'" in profile.to_pandas().to_csv()
    values = profile.values.to_pandas()
    columns = ["slot", "value", "text", "count", "share", "share_error", "rate_click"]
    assert list(values.columns) == columns
    assert len(values) == sum(len(row["top"]) for row in profile.table.to_pylist())
    [ann] = values[(values["slot"] == "user_slot") & (values["text"] == "ann")].to_dict("records")
    assert (ann["count"], ann["share"]) == (3, 0.6)
    assert ann["rate_click"] == pytest.approx(1 / 3)
    assert "user_slot" in profile.values.to_pandas().to_csv()
    # Stored statistics know no rates: a column of them would be null in every row.
    assert table.profile(stored=True).values.column_names == columns[:-1]


@pytest.mark.parametrize("stored", [False, True])
def test_a_profile_shows_texts_and_unknown_signs_short(table: Table, stored: bool) -> None:
    profile = table.profile(stored=stored)
    shown = str(profile)
    assert "ann (60.0%)" in shown
    assert "02:00 (50.0%)" in shown
    assert whole("ann (60.0%)") in profile._repr_html_()
    slots = {slot["slot"]: slot for slot in profile.as_dict()["slots"]}
    assert next(top["text"] for top in slots["hour"]["top"]) == "02:00"
    hidden = slots["hidden"]["top"]
    assert {top["text"] for top in hidden} == {None}
    assert f"{str(hidden[0]['value'])[:6]}…" in shown
    assert str(hidden[0]["value"]) not in shown


def test_plots_name_values_in_the_slots_own_order_and_take_dollars_for_dollars(
    table: Table,
) -> None:
    profile, against = table.profile(), table.label_profile("click")
    for figure in (profile.plot_distribution("hour"), against.plot_rates("hour")):
        ticks = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
        assert ticks == ["01:00", "02:00", "03:00"]
    figure = against.plot_rates("user_slot")
    assert {"ann", "bob", "$x_1$", "(missing)"} <= set(render(figure).texts)


def test_a_label_profile_as_json_has_the_texts_of_its_cells(table: Table) -> None:
    slots = {slot["slot"]: slot for slot in table.label_profile("click").as_dict()["slots"]}
    assert {cell["text"] for cell in slots["hour"]["cells"]} == {"01:00", "02:00", "03:00"}
    assert {cell["text"] for cell in slots["user_slot"]["cells"]} == {"ann", "bob", "$x_1$", None}
    assert {cell["text"] for cell in slots["hidden"]["cells"]} == {None}


def test_rows_are_named_and_keep_missing_values(table: Table) -> None:
    rows = table.named(table.head(3))
    assert rows["user_slot"].to_pylist() == ["ann", "bob", "$x_1$"]
    assert rows["tags_slot"].to_pylist() == [["a", "b"], [], None]
    assert rows["hour"].to_pylist() == ["03:00", "01:00", "02:00"]
    assert rows["hidden"].to_pylist() == [str(sign) for sign in table.head(3)["hidden"].to_pylist()]
    assert rows["click"].to_pylist() == [0, 1, 0]
    assert table.named(table.head(5)).slice(4)["user_slot"].to_pylist() == [None]


def test_head_prints_texts_or_ids(table: Table) -> None:
    def head(*options: str) -> dict[str, object]:
        done = CliRunner().invoke(cli, ["table", "show", table.url, "--rows", "1", *options])
        found = json.loads(done.output)
        assert isinstance(found, dict)
        return found

    assert (head()["user_slot"], head()["tags_slot"]) == ("ann", ["a", "b"])
    assert head("--ids")["user_slot"] == table.head(1)["user_slot"][0].as_py()


def test_tables_without_texts_are_shown_by_signs(tmp_path: Path, table: Table) -> None:
    for path in Path(table.url, "_stats").rglob("*.values"):
        path.unlink()
    assert table.named(table.head(1))["user_slot"][0].as_py() == str(
        table.head(1)["user_slot"][0].as_py()
    )
    assert "…" in str(table.profile())


def test_ids_that_begin_alike_stay_different_in_named_rows(table: Table) -> None:
    """Digits that were cut short once merged rare values in a group by."""
    rows = table.head(2).set_column(
        table.head(2).column_names.index("hidden"),
        "hidden",
        pa.array([5_706_123_456_789_000_001, 5_706_123_456_789_000_002]),
    )
    assert table.named(rows)["hidden"].to_pylist() == [
        "5706123456789000001",
        "5706123456789000002",
    ]
