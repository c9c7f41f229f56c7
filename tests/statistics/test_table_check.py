"""`Table.check`: checks on what a table holds, from stored statistics or from the rows."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import featstore
from featstore.base.errors import InputError, SelectionError, SpecError
from featstore.explore.table import Table, open_table
from featstore.spec.parse import load_spec
from featstore.statistics.data_checks import Outcome
from featstore.tools.cli.program import cli
from tests.checked_specs import document

RATE = {"check": "label_rate", "of": "click", "at_least": 0.4, "at_most": 0.6}
ROWS = {"check": "rows", "at_least": 10, "severity": "warn"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A table of two days of 100 and 8 rows."""
    for day, num_rows in (("2026-11-01", 100), ("2026-11-02", 8)):
        directory = tmp_path / "raw" / f"dt={day}"
        directory.mkdir(parents=True)
        rows = {
            "user": [f"u{i % 5}" for i in range(num_rows)],
            "price": [float(i) for i in range(num_rows)],
            "clicked": [i % 2 for i in range(num_rows)],
        }
        pq.write_table(pa.table(rows), directory / "a.parquet")
    spec, url = load_spec(document(RATE, ROWS)), str(tmp_path / "table")
    featstore.extract(spec, str(tmp_path / "raw"), url, partition_from_path=["dt"])
    return url


def outcomes(table: Table, **options: Any) -> list[tuple[str, str, str]]:
    return [
        (result.check, str(result.partition["dt"]), str(result.outcome))
        for result in table.check(**options).results
    ]


def test_the_checks_of_the_newest_extraction_are_run_by_default(url: str) -> None:
    assert outcomes(open_table(url)) == [
        ("label_rate", "2026-11-01", "pass"),
        ("rows", "2026-11-01", "pass"),
        ("label_rate", "2026-11-02", "pass"),
        ("rows", "2026-11-02", "warn"),
    ]
    assert open_table(url).check().ok


def test_the_report_is_a_table_with_a_summary(url: str) -> None:
    lines = str(open_table(url).check()).splitlines()
    assert lines[0].split() == [
        "outcome",
        "check",
        "column",
        "partition",
        "value",
        "expected",
        "note",
    ]
    # Lines 0 and 1 are the headers: what did not pass comes first.
    assert lines[2].split() == ["warn", "rows", "dt=2026-11-02", "8", "at", "least", "10"]
    assert lines[-1] == f"{url}: 4 checks: 3 pass, 1 warn"
    assert max(map(len, open_table(url).check().text(60).splitlines()[:-1])) <= 60


def test_only_what_failed_is_kept_beside_the_number_of_all(url: str) -> None:
    report = open_table(url).check().only_failed()
    assert [(r.check, r.outcome) for r in report.results] == [("rows", Outcome.WARN)]
    assert report.table.num_rows == len(report.as_dict()["results"]) == 1
    assert str(report).splitlines()[-1] == f"{url}: 4 checks: 3 pass, 1 warn"
    printed = CliRunner().invoke(cli, ["table", "check", url, "--failed"])
    assert (printed.exit_code, printed.stdout) == (0, f"{report}\n")


def test_the_report_is_a_result_for_notebooks(url: str) -> None:
    report = open_table(url).check()
    assert repr(report) == str(report)
    html = report._repr_html_()
    assert html.startswith("<table>")
    assert html.endswith(" 4 checks: 3 pass, 1 warn</p>")
    frame = report.to_pandas()
    assert frame["outcome"].tolist() == ["pass", "pass", "pass", "warn"]
    assert frame["partition"].iloc[-1] == "dt=2026-11-02"
    assert (frame["value"].iloc[-1], frame["at_least"].iloc[-1]) == (8.0, 10.0)


def test_the_checks_of_another_spec_may_be_run(url: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(document({"check": "coverage", "of": "*", "at_least": 1})))
    report = open_table(url).check(path)
    assert [(r.column, r.value) for r in report.results] == [("user", 1), ("price", 1)] * 2
    strict = load_spec(document({"check": "rows", "at_least": 9}))
    assert not open_table(url).check(strict).ok


def test_partitions_are_chosen_by_their_keys_alone(url: str) -> None:
    found = outcomes(open_table(url), where="dt > '2026-11-01'")
    assert [day for _, day, _ in found] == ["2026-11-02"] * 2
    with pytest.raises(
        SelectionError, match=r"expected partition keys alone \(dt\), .* found price"
    ):
        open_table(url).check(where="dt > '2026-11-01' and price > 1")


def test_rows_are_read_where_there_are_no_statistics(url: str, tmp_path: Path) -> None:
    checks = load_spec(
        document(
            RATE,
            {"check": "coverage", "of": "price", "at_least": 1},
            {"check": "distinct", "of": "user", "at_least": 5, "at_most": 5},
            {"check": "drift", "of": "user", "last": 1, "at_most": 0.1},
        )
    )
    stored = open_table(url).check(checks)
    for path in Path(url).rglob("*.statistics"):
        path.unlink()
    read = open_table(url).check(checks)
    assert read.results == stored.results
    shutil.rmtree(f"{url}/_delta_log")
    plain = open_table(url).check(checks)
    assert [(r.check, r.value) for r in plain.results] == [
        (r.check, r.value) for r in stored.results
    ]


def test_a_slot_that_a_partition_lacks_is_missing_in_all_of_its_rows(
    url: str, tmp_path: Path
) -> None:
    document_ = document(
        {"check": "coverage", "of": "new", "at_least": 0.5},
        {"check": "drift", "of": "new", "last": 1, "at_most": 0.1},
    )
    document_["slots"].append({"slot": 103, "name": "new", "op": "identity", "of": "clicked"})
    spec, day = load_spec(document_), {"dt": "2026-11-03"}
    raw = tmp_path / "raw" / "dt=2026-11-01"
    featstore.extract(spec, str(raw), url, partition=day)
    found = [(r.check, str(r.outcome), r.value) for r in open_table(url).check().results]
    assert found == [
        ("coverage", "fail", 0.0),
        ("drift", "skip", None),
        ("coverage", "fail", 0.0),
        ("drift", "skip", None),
        ("coverage", "pass", 1.0),
        ("drift", "skip", None),
    ]


def test_an_older_version_is_checked_by_its_own_checks(url: str, tmp_path: Path) -> None:
    spec = load_spec(document({"check": "coverage", "of": "user", "at_least": 0.5}))
    raw = str(tmp_path / "raw" / "dt=2026-11-01")
    featstore.extract(spec, raw, url, partition={"dt": "2026-11-03"})
    assert {check for check, _, _ in outcomes(open_table(url))} == {"coverage"}
    assert {check for check, _, _ in outcomes(open_table(url, 0))} == {"label_rate", "rows"}


def test_without_checks_there_is_nothing_to_run(url: str, tmp_path: Path) -> None:
    raw = str(tmp_path / "raw" / "dt=2026-11-01")
    featstore.extract(load_spec(document()), raw, url, partition={"dt": "2026-11-03"})
    with pytest.raises(
        InputError, match=r"the spec that the table was made with has no `checks`; n"
    ):
        open_table(url).check()
    (tmp_path / "bare.yaml").write_text(json.dumps(document()))
    with pytest.raises(
        InputError,
        match=r"bare\.yaml: expected `checks`, found none: add some to it, or give no sp",
    ):
        open_table(url).check(tmp_path / "bare.yaml")


def test_a_check_of_a_slot_that_the_table_lacks_is_refused(url: str) -> None:
    checks = document({"check": "coverage", "of": "usr", "at_least": 1})
    spec = load_spec(checks)
    expected = (
        r"table lacks what a check is about \(leave out the check, or .*--group .*\): "
        r"checks\[0\].of: expected a slot, .* did you mean 'user'"
    )
    with pytest.raises(SpecError, match=expected):
        open_table(url).check(spec)


def test_a_failure_on_a_table_does_not_hide_other_results(url: str) -> None:
    spec = load_spec(document({"check": "rows", "at_least": 50}, RATE))
    report = open_table(url).check(spec)
    assert [result.outcome for result in report.results] == [
        Outcome.PASS,
        Outcome.PASS,
        Outcome.FAIL,
        Outcome.PASS,
    ]
