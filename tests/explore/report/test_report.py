"""A report is gathered from a table and written whole, or not at all."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import featstore
from featstore.base.errors import InputError, SelectionError, TableNotFoundError
from featstore.explore.table import Table
from featstore.files import storage
from featstore.spec.parse import load_spec
from featstore.tools.cli.program import cli
from tests.explore.report.conftest import DAYS
from tests.parquet_files import put_parquet


def shown(path: Path) -> dict[str, Any]:
    """The figures of a page."""
    [data] = re.findall(
        r'<script type="application/json" id="data">(.*)</script>', path.read_text()
    )
    found = json.loads(data)
    assert isinstance(found, dict)
    return found


def test_a_report_says_what_it_wrote(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    written = featstore.report(table.url, path)
    assert (written.url, written.num_slots) == (str(path), 5)
    assert written.size_bytes == path.stat().st_size
    assert str(written) == f"{path}: 5 slots, {written.size_bytes:,} bytes"
    about = dict(shown(path)["about"])
    assert (about["table"], about["version"], about["rows"]) == (table.url, "0", "80")
    assert about["figures"].startswith("from stored statistics")


def test_equal_tables_give_equal_files(table: Table, tmp_path: Path) -> None:
    options: Any = {"label": "click", "days": DAYS}
    for name in ("a", "b"):
        featstore.report(table.url, tmp_path / name, **options)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_was_malformed_is_told(tmp_path: Path) -> None:
    put_parquet(tmp_path / "raw.parquet", {"price": ["1.5", "x"]})
    spec = load_spec(
        {
            "spec": 1,
            "inputs": {"price": {"type": "double", "text": True, "on_error": "skip"}},
            "slots": [{"slot": 1, "name": "price", "op": "identity", "of": "price"}],
        }
    )
    table = tmp_path / "table"
    featstore.extract(spec, tmp_path / "raw.parquet", table, partition={"dt": "1"})
    featstore.report(table, path := tmp_path / "report.html")
    said = dict(shown(path)["about"])["malformed"]
    assert said == "dt=1: 1 rows skipped; dt=1: price: not a number: 1"


def test_slots_rows_and_their_label_are_chosen(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    featstore.report(
        table.url, path, slots=["user", "*price"], where="click = 1", exact=True, label="click"
    )
    found = shown(path)
    about = dict(found["about"])
    assert (about["where"], about["rows"], about["mean of click"]) == ("click = 1", "40", "1")
    assert about["figures"].startswith("from the rows")
    assert [slot["cells"][0][0] for slot in found["slots"]] == ["user", "price", "log_price"]


@pytest.mark.parametrize("label", [None, "click"])
def test_two_days_are_compared_and_all_partitions_shown(
    table: Table, tmp_path: Path, label: str | None
) -> None:
    path = tmp_path / "report.html"
    featstore.report(table.url, path, days=DAYS, label=label)
    found = shown(path)
    about = dict(found["about"])
    assert (about["days"], about["rows"]) == ("2026-11-01 → 2026-11-02", "40")
    assert about["figures"].startswith("from stored statistics")
    assert about.get("AUC and rates of click") == (label and "from the rows: exact")
    assert found["partitions"] == [f"dt={day}" for day in DAYS]


def test_a_table_is_compared_with_another_one(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    featstore.report(table.url, path, compare=table.url, compare_version=0)
    found = shown(path)
    assert dict(found["about"])["compared with"] == f"{table.url}, version 0"
    drift = [column["title"] for column in found["columns"]].index("drift")
    assert {slot["cells"][drift][1] for slot in found["slots"]} == {0.0}
    featstore.report(table.url, path, compare=table.url)
    assert dict(shown(path)["about"])["compared with"] == f"{table.url}, version newest"


def test_only_the_last_partitions_are_shown(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("featstore.explore.report.report.MOST_PARTITIONS", 1)
    featstore.report(table.url, tmp_path / "report.html")
    assert shown(tmp_path / "report.html")["partitions"] == [f"dt={DAYS[1]}"]


def test_files_of_others_have_a_report_too(tmp_path: Path) -> None:
    rows = {"a": [1, 2, 2], "x": [0.5, float("inf"), None], "none": [0.0, None, float("nan")]}
    put_parquet(tmp_path / "plain" / "rows.parquet", rows)
    path = tmp_path / "report.html"
    assert featstore.report(tmp_path / "plain", path).num_slots == 3
    found = shown(path)
    assert found["partitions"] == []
    assert dict(found["slots"][0]["facts"])["slot number"] == "-"


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"days": ("2026-11-01", "2026-11-09")}, InputError, "no partition dt=2026-11-09"),
        ({"days": DAYS, "compare": "t"}, InputError, "--compare and --days: expected one of them"),
        ({"compare_version": 9}, TableNotFoundError, "no version 9"),
        ({"label": "clik"}, SelectionError, "no label 'clik'"),
        ({"slots": ["usr"]}, SelectionError, "usr"),
        ({"version": 7}, TableNotFoundError, "7"),
    ],
)
def test_what_is_asked_wrongly_leaves_the_file_that_is_there(
    table: Table, tmp_path: Path, options: Any, error: type[Exception], said: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text("earlier")
    with pytest.raises(error, match=said):
        featstore.report(table.url, path, **options)
    assert path.read_text() == "earlier"
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_secrets_of_urls_are_not_shown(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    [file] = [one for one in table.data_files() if one.partition["dt"] == DAYS[0]]
    secret = "memory://user:Sk3yPass@host/reported"
    with storage.open_write(f"{secret}/rows.parquet") as copy:
        copy.write(Path(file.url).read_bytes())
    where = f"request != '{secret}?sig=Sk3yPass'"
    featstore.report(secret, path, compare=secret, where=where)
    text = path.read_text()
    assert "Sk3yPass" not in text
    assert dict(shown(path)["about"])["compared with"] == "memory://host/reported, version newest"
    written = featstore.report(table.url, f"{secret}.html")
    assert "Sk3yPass" not in f"{written} {written!r}"


def test_the_command_writes_a_report(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    arguments = ["table", "profile", table.url, "-o", str(path), "--days", *DAYS, "--slots", "user"]
    done = CliRunner().invoke(cli, arguments)
    assert (done.exit_code, done.output) == (0, f"{path}: 1 slots, {path.stat().st_size:,} bytes\n")
