"""A preview of slots: readable values, beside those of a table, and nothing is written."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import featstore
from featstore import api
from featstore.base.errors import InputError, SpecError
from featstore.base.table_result import number_text, share_text, two_digits
from featstore.explore.preview import Preview, preview

SPEC = """
spec: 1
inputs: {user: string, price: double, clicked: long, at: timestamp}
labels: {click: clicked}
slots:
  - {slot: 101, name: who, op: hash, of: user}
  - {slot: 102, name: cost, op: identity, of: price}
"""
MORE = """  - {slot: 103, name: hour, op: hour, of: at, tz: UTC}
  - {slot: 104, name: who_x_hour, op: cross, of: [user, hour]}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Raw rows of two days, a spec, one with two more slots, and a table of the first."""
    monkeypatch.chdir(tmp_path)
    for day in (1, 2):
        directory = Path(f"raw/dt={day}")
        directory.mkdir(parents=True)
        rows = {
            "user": pa.array(
                [None if i % 10 == 0 else "ann" if i % 3 else "bob" for i in range(60)]
            ),
            "price": [float(i) for i in range(60)],
            "clicked": [int(i % 3 > 0) for i in range(60)],
            "bought": pa.nulls(60, pa.int64()),
            "at": pa.array([i % 2 * 3600 for i in range(60)], pa.timestamp("s", tz="UTC")),
        }
        pq.write_table(pa.table(rows), directory / "a.parquet")
    Path("spec.yaml").write_text(SPEC)
    Path("new.yaml").write_text(SPEC + MORE)
    featstore.extract("spec.yaml", "raw", "table", partition_from_path=["dt"])
    return tmp_path


def lines(found: Preview) -> list[str]:
    return [" ".join(line.split()) for line in str(found).splitlines()]


@pytest.mark.usefixtures("here")
def test_a_slot_is_shown_with_its_values_and_their_label_rates() -> None:
    found = preview("new.yaml", "raw", slot="who_x_hour")
    assert lines(found) == [
        "all 120 rows of raw, click 0.667",
        *lines(found)[1:4],
        "who_x_hour preview id scalar 90.0% 4 "
        + " ".join(lines(found)[4].split()[6:8])
        + " ann & 01:00 (37.0%, click 1) ann & 00:00 (29.6%, click "
        "1) bob & 01:00 (18.5%, click 0) bob & 00:00 (14.8%, click 0)",
    ]


@pytest.mark.usefixtures("here")
def test_texts_that_extraction_would_not_keep_are_not_shown() -> None:
    text = (SPEC + MORE).replace("of: user}", "of: user, values: none}")
    assert "ann" in str(preview("new.yaml", "raw", slot="who"))
    Path("none.yaml").write_text(text)
    shown = str(preview("none.yaml", "raw"))
    assert "who_x_hour" in shown
    assert not any(name in shown for name in ("ann", "bob"))


@pytest.mark.usefixtures("here")
def test_slots_are_ranked_by_the_first_label_that_has_an_auc() -> None:
    text = SPEC.replace("{click:", "{buy: bought, click:").replace("at:", "bought: long, at:")
    Path("buy.yaml").write_text(text + "  - {slot: 105, name: leak, op: hash, of: clicked}")
    found = preview("buy.yaml", "raw", slot="105", table_url="table")
    assert [slot.statistics["slot"] for slot in found.slots] == ["leak", "who", "cost"]
    assert found.slots[0].auc["buy"] is None
    assert "of 3 slots by the auc of click: leak is number 1" in lines(found)


@pytest.mark.usefixtures("here")
def test_slots_stand_beside_those_of_the_table() -> None:
    found = preview("new.yaml", "raw", num_rows=90, slot="103", table_url="table")
    shown = [(slot.source, slot.statistics["slot"]) for slot in found.slots]
    assert shown == [("table", "who"), ("table", "cost"), ("preview", "hour")]
    assert lines(found)[2] == "of 3 slots by the auc of click: hour is number 3"
    assert "who table id scalar " in " ".join(lines(found))
    every = preview("new.yaml", "raw", table_url="table")
    assert [(slot.source, slot.statistics["slot"]) for slot in every.slots] == [
        ("table", "who"),
        ("preview", "who"),
        ("preview", "who_x_hour"),
        ("preview", "hour"),
        ("table", "cost"),
        ("preview", "cost"),
    ]
    aucs = [slot.auc["click"] or 0.0 for slot in every.slots if slot.source == "preview"]
    assert aucs == sorted(aucs, reverse=True)
    of_table, of_preview = every.slots[4].statistics, every.slots[5].statistics
    assert "who is number 1, who_x_hour is number 2, hour is number 3" in lines(every)[2]
    assert every.rows.num_rows == 120
    assert every.table_rows is not None
    assert every.table_rows.num_rows == 120
    assert lines(every)[:2] == [
        "all 120 rows of raw, click 0.667",
        "table: all 120 rows of table, click 0.667",
    ]
    assert "click 1" in " ".join(lines(every))
    assert every.slots[0].auc == {"click": pytest.approx(every.slots[1].auc["click"], abs=0.05)}
    for key in ("coverage", "min", "max", "mean"):
        assert of_preview[key] == of_table[key]


@pytest.mark.parametrize(
    ("op", "texts"),
    [
        ("op: bucketize, of: price, boundaries: [10, 30]", [">= 30", "[10, 30)", "< 10"]),
        ("op: vocabulary, of: user, file: users.txt", ["ann", "bob"]),
    ],
)
def test_indices_are_named_by_the_spec(here: Path, op: str, texts: list[str]) -> None:
    (here / "users.txt").write_text("\n".join(["bob", "ann", *map(str, range(20_000))]))
    slot = f"  - {{slot: 105, name: new, {op}, encode: index}}\n"
    (here / "index.yaml").write_text(SPEC + MORE + slot)
    api.fit("index.yaml", "raw")
    [new] = preview("index.yaml", "raw", slot="new").slots
    shown = sorted(new.statistics["top"], key=lambda top: -top["count"])
    assert [top["text"] for top in shown] == texts


@pytest.mark.parametrize(("num_rows", "expected"), [(1, 1), (60, 60), (61, 61), (1_000, 120)])
@pytest.mark.usefixtures("here")
def test_as_many_rows_are_read_as_are_asked_for(num_rows: int, expected: int) -> None:
    assert preview("spec.yaml", "raw", num_rows=num_rows).rows.num_rows == expected


def test_rows_come_from_all_days_and_of_short_files_all(here: Path) -> None:
    rows = pq.ParquetFile(here / "raw/dt=1/a.parquet").read()
    for day, num_rows in enumerate([3, 60, 60], 3):
        (here / f"raw/dt={day}").mkdir()
        seen = rows.slice(0, num_rows).set_column(0, "user", pa.array([f"day{day}"] * num_rows))
        pq.write_table(seen, here / f"raw/dt={day}/a.parquet")
    found = preview("spec.yaml", "raw", num_rows=100, slot="who")
    (who,) = found.slots
    counts = {top["text"]: top["count"] for top in who.statistics["top"]}
    assert found.rows.num_rows == 100
    assert (counts["day3"], counts["day4"], counts["day5"]) == (3, 29, 28)
    assert found.rows.num_all == 243


@pytest.mark.usefixtures("here")
def test_of_some_rows_it_is_said_which_and_how_far_off_their_figures_may_be() -> None:
    found = preview("new.yaml", "raw", num_rows=60, slot="who", table_url="table")
    raw, table = lines(found)[:2]
    error = found.rows.label_errors["click"]
    assert 0.0 < error < 0.5
    assert raw.startswith(
        "60 of 120 rows of raw (random ones of 2 of 2 row groups or text files; ± is their error, "
        f"95 %), click {number_text(found.rows.label_rates['click'], 3)} ±{two_digits(error)}"
    )
    assert "60 of 120 rows of table (random ones of 2 of 2 data files;" in table
    [place] = [i for i, slot in enumerate(found.slots) if slot.source == "preview"]
    who = found.slots[place].statistics
    assert share_text(who["coverage"], who["coverage_error"]) in " ".join(lines(found))
    assert found.to_pandas()["coverage_error"].tolist()[place] == who["coverage_error"] > 0.0
    assert found.as_dict()["label_errors"] == {"click": error}
    every = preview("new.yaml", "raw")
    assert every.rows.label_errors == {"click": 0.0}
    assert {slot.statistics["coverage_error"] for slot in every.slots} == {0.0}
    assert "±" not in str(every).splitlines()[0]


def test_errors_hold_the_rates_of_all_rows_where_rows_near_each_other_are_alike(here: Path) -> None:
    """24 files of 3,000 rows, with runs of 100 alike ones: of ten inputs at most one is missed."""
    held = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        files = rng.beta(2.0, 6.0, 24)
        clicks = [np.repeat(rng.random(30) < rate, 100).astype(np.int64) for rate in files]
        directory = here / f"more{seed}"
        directory.mkdir()
        for i, clicked in enumerate(clicks):
            rows = {"user": ["ann"] * 3_000, "price": [0.0] * 3_000, "clicked": clicked}
            pq.write_table(pa.table(rows), directory / f"{i:02}.parquet")
        found = preview("spec.yaml", str(directory), num_rows=1_600).rows
        rate, error = found.label_rates["click"], found.label_errors["click"]
        assert rate is not None
        assert error < 0.15
        held += abs(rate - float(np.concatenate(clicks).mean())) <= error
    assert held >= 9


def test_the_result_is_a_frame_with_an_auc_for_labels_of_0_and_1(here: Path) -> None:
    for path in here.glob("raw/*/*.parquet"):
        rows = pq.ParquetFile(path).read()
        pq.write_table(rows.append_column("dwell", pa.array([i % 5 for i in range(60)])), path)
    spec = SPEC.replace("clicked: long", "clicked: long, dwell: long")
    Path("two.yaml").write_text(spec.replace("{click: clicked}", "{click: clicked, dwell: dwell}"))
    found = api.preview("two.yaml", "raw", table_url="table")
    frame = found.to_pandas()
    assert frame["from"].tolist() == ["table", "preview"] * 2
    assert frame["auc_standard_error_click"].notna().all()
    assert frame["auc_click"].notna().all()
    assert "auc_dwell" not in frame
    assert "<table>" in found._repr_html_()
    assert found.as_dict()["slots"][0]["auc"] == {"click": frame["auc_click"][0]}
    assert found.slots[0].auc_standard_error == {"click": frame["auc_standard_error_click"][0]}


def test_nothing_is_written(here: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*")}
    preview("new.yaml", "raw", table_url="table")
    assert {path: path.stat().st_mtime_ns for path in here.rglob("*")} == before


@pytest.mark.usefixtures("here")
def test_json_has_the_texts_of_top_values() -> None:
    (who,) = preview("spec.yaml", "raw", slot="who").as_dict()["slots"]
    assert [top["text"] for top in who["top"]] == ["ann", "bob"]
    assert (who["from"], who["distinct"]) == ("preview", 2)


def test_what_is_not_there_is_named(here: Path) -> None:
    with pytest.raises(SpecError, match="expected a slot named 'houer', found none; did you mean"):
        preview("new.yaml", "raw", slot="houer")
    for path in here.glob("raw/*/*.parquet"):
        pq.write_table(pq.ParquetFile(path).read().slice(0, 0), path)
    with pytest.raises(InputError, match="expected raw rows to preview, found none"):
        preview("new.yaml", "raw")


@pytest.mark.usefixtures("here")
def test_raw_rows_are_previewed_before_their_labels_are_joined() -> None:
    rows = pq.read_table("raw/dt=1/a.parquet").drop_columns(["clicked"])
    pq.write_table(rows, "unlabelled.parquet")
    with pytest.raises(InputError, match="clicked"):
        preview("spec.yaml", "unlabelled.parquet")
    Path("checked.yaml").write_text(
        f"{SPEC}weight: clicked\nchecks: [{{check: label_rate, of: click, at_most: 0.5}}]\n"
    )
    for spec in ("spec.yaml", "checked.yaml"):
        found = preview(spec, "unlabelled.parquet", with_labels=False)
        assert found.labels == []
        assert lines(found)[0] == "all 60 rows of unlabelled.parquet"
        assert found.table["slot"].to_pylist() == ["who", "cost"]
