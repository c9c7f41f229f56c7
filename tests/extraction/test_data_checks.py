"""Checks before a commit: what passes, what is refused, and that nothing of it is left."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore import api
from featstore.base.errors import CheckFailedError, OperatorError, TableNotFoundError
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.base.table_result import two_digits
from featstore.explore.table import open_table
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.local import LocalRunner
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.raw import Unit
from featstore.extraction.units.unit import Progress, UnitReport, UnitTask
from featstore.extraction.units.unit_statistics import gather_rows
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec, parse_checks
from featstore.statistics.data_checks import (
    CheckResult,
    Outcome,
    days_before,
    run_checks,
    stored_checks,
    stored_warnings,
)
from featstore.statistics.sketches import mix
from featstore.table.delta import history, open_delta
from tests.extraction.conftest import raw_rows

COVERED = {"check": "coverage", "of": "user_id", "at_least": 0.9}
CLICKED = {"check": "label_rate", "of": "click", "at_least": 0.4, "at_most": 0.6}


@pytest.fixture
def job(document: dict[str, Any], raw: Path, tmp_path: Path) -> ExtractJob:
    return ExtractJob(
        spec=load_spec(document | {"checks": [COVERED, CLICKED]}),
        input_url=str(raw),
        table_url=str(tmp_path / "table"),
        partition={"dt": "2026-11-01"},
    )


def with_checks(job: ExtractJob, *checks: dict[str, Any], **keys: Any) -> ExtractJob:
    return replace(job, spec=replace(job.spec, checks=tuple(parse_checks(list(checks)))), **keys)


def files_below(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def outcomes(spec: Spec, rows: pa.Table, *checks: dict[str, Any]) -> list[CheckResult]:
    """The results of checks on rows of one partition."""
    extractor = Extractor(spec)
    batches = [extractor(batch) for batch in rows.to_batches()]
    statistics = gather_rows(extractor.schema, batches)
    parsed = tuple(parse_checks(list(checks)))
    return list(run_checks(parsed, extractor.schema, [{}], [{}], lambda partition: statistics))


def test_each_figure_is_that_of_the_rows(spec: Spec) -> None:
    """Of 110 rows 10 have no user and 9 no tags; half are clicked; 7 tags differ."""
    results = outcomes(
        spec,
        raw_rows(110),
        {"check": "rows", "at_least": 110, "at_most": 110},
        {"check": "coverage", "of": "*", "at_least": 0.5},
        {"check": "label_rate", "of": "click", "at_least": 0.5, "at_most": 0.5},
        {"check": "distinct", "of": "tag_ids", "at_most": 100},
    )
    assert all(result.outcome is Outcome.PASS for result in results)
    assert [(r.check, r.column, r.value) for r in results] == [
        ("rows", None, 110),
        ("coverage", "user_id", pytest.approx(100 / 110)),
        ("coverage", "tag_ids", pytest.approx(101 / 110)),
        ("coverage", "price_log", 1.0),
        ("label_rate", "click", 0.5),
        ("distinct", "tag_ids", 7),
    ]


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ({"check": "rows", "at_least": 111}, "rows: 110, expected at least 111"),
        ({"check": "rows", "at_most": 1_09}, "rows: 110, expected at most 109"),
        (COVERED | {"at_least": 0.95}, "coverage of user_id: 0.91, expected at least 0.95"),
        (
            CLICKED | {"at_most": 0.45},
            "label_rate of click: 0.5, expected at least 0.4, at most 0.45",
        ),
    ],
)
@pytest.mark.parametrize("severity", ["fail", "warn"])
def test_what_is_beyond_a_bound_has_the_outcome_of_its_severity(
    spec: Spec, check: dict[str, Any], said: str, severity: str
) -> None:
    (result,) = outcomes(spec, raw_rows(110), check | {"severity": severity})
    assert (str(result.outcome), str(result)) == (severity, said)


def test_an_estimate_fails_only_beyond_its_error_and_says_that_it_is_one(spec: Spec) -> None:
    users = pa.array([f"user {i}" for i in range(20_000)])
    rows = raw_rows(20_000).set_column(0, "user", users)
    most = {"check": "distinct", "of": "user_id", "at_most": 10**6}
    (found,) = outcomes(spec, rows, most)
    assert found.value is not None
    assert 0 < abs(found.value - 20_000) <= found.error < 1_000
    value, error = int(found.value), math.ceil(found.error)
    within, beyond = (
        outcomes(spec, rows, most | {"at_most": bound})[0]
        for bound in (value - error, value - error - 1)
    )
    assert (within.outcome, beyond.outcome) == (Outcome.PASS, Outcome.FAIL)
    assert within.note == "passed, since the estimate may be off by that much"
    assert f": {value:,} ± {two_digits(found.error)} (estimate)" in str(beyond)


def test_a_label_that_no_row_has_is_skipped_and_a_slot_that_no_row_has_is_not(spec: Spec) -> None:
    results = outcomes(spec, raw_rows(0), CLICKED, COVERED)
    assert [result.outcome for result in results] == [Outcome.SKIP, Outcome.FAIL]
    assert "no row has the label" in str(results[0])


def test_a_partition_without_statistics_is_skipped(spec: Spec) -> None:
    (result,) = run_checks(
        tuple(parse_checks([COVERED])), Extractor(spec).schema, [{}], [{}], lambda partition: None
    )
    assert (result.outcome, result.note) == (Outcome.SKIP, "the partition has no statistics")


@given(st.lists(st.integers(0, 30), unique=True), st.integers(0, 31), st.integers(1, 40))
def test_the_days_before_are_the_last_ones_that_the_table_has(
    known: list[int], own: int, last: int
) -> None:
    every = [{"dt": f"2026-10-{day:02d}", "hour": hour} for day in known for hour in ("00", "01")]
    found = days_before({"dt": f"2026-10-{own:02d}", "hour": "00"}, every, last)
    expected = sorted(day for day in known if day < own)[-last:]
    assert sorted({str(part["dt"]) for part in found}) == [f"2026-10-{day:02d}" for day in expected]
    assert len(found) == 2 * len(expected)


def test_days_that_are_numbers_are_in_the_order_of_numbers() -> None:
    every: list[Mapping[str, str | None]] = [{"day": day} for day in ("8", "9", "10", "11")]
    assert days_before({"day": "11"}, [*every, {"day": None}], 2) == [{"day": "9"}, {"day": "10"}]
    assert days_before({"day": "b"}, [{"day": "a"}, {"day": "c"}], 2) == [{"day": "a"}]
    assert days_before({}, [{}], 3) == []


def test_a_check_that_fails_leaves_no_table_and_no_file(
    job: ExtractJob, write_raw: Any, tmp_path: Path
) -> None:
    write_raw("a.parquet", 500)
    refused = with_checks(job, CLICKED, COVERED | {"at_least": 0.99})
    with pytest.raises(
        CheckFailedError,
        match=r"1 of 2 checks failed: coverage of user_id in dt=2026-11-01: 0.91, expected at "
        r"least 0.99. The table is left as it is; mend",
    ):
        extract_files(refused)
    assert files_below(Path(job.table_url)) == set()
    with pytest.raises(TableNotFoundError):
        open_table(job.table_url)


def test_a_check_that_fails_leaves_the_partition_that_was_there(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("a.parquet", 500)
    extract_files(job)
    before, files = open_table(job.table_url).to_arrow(), files_below(Path(job.table_url))
    write_raw("b.parquet", 500, clicked=0)
    with pytest.raises(CheckFailedError, match=r"label_rate of click .* expected at least 0.4"):
        extract_files(replace(job, run_id="next"))
    assert open_table(job.table_url).to_arrow().equals(before)
    assert (len(history(job.table_url)), files_below(Path(job.table_url))) == (1, files)


def test_of_many_failures_the_first_are_named(job: ExtractJob, write_raw: Any) -> None:
    for day in range(8):
        write_raw(f"dt={day}/a.parquet", 20)
    rows = {"check": "rows", "at_least": 21}
    many = with_checks(job, rows, partition={}, partition_from_path=("dt",))
    with pytest.raises(
        CheckFailedError, match=r"8 of 8 checks failed: .* dt=4: 20, .*; and 3 more"
    ):
        extract_files(many)


def test_a_warning_is_committed_and_shown(
    job: ExtractJob, write_raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    write_raw("a.parquet", 500)
    warns = with_checks(job, COVERED | {"at_least": 0.99, "severity": "warn"}, CLICKED)
    report = extract_files(warns)
    said = "coverage of user_id in dt=2026-11-01: 0.91, expected at least 0.99"
    assert str(report).splitlines()[1] == f"warning: {said}"
    logged = f"{job.table_url}, version 0, a check warns: {said}"
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("WARNING", logged)]
    again = extract_files(warns)
    assert len(caplog.records) == 1  # the commit was alerted of
    assert (again.committed, again.warnings) == (False, report.warnings)
    table = open_table(job.table_url)
    assert str(table.inspect()).splitlines()[-1] == f"warning: {said}"
    commits = history(job.table_url)
    assert stored_checks(commits) == warns.spec.checks
    assert stored_warnings(commits, table.partitions) == report.warnings


def test_a_partition_that_is_written_again_loses_its_warnings_and_others_keep_theirs(
    job: ExtractJob, write_raw: Any
) -> None:
    warns = with_checks(job, CLICKED | {"severity": "warn"})
    for day in ("2026-11-01", "2026-11-02"):
        write_raw(f"dt={day}/a.parquet", 100, clicked=1)
    both = replace(warns, partition={}, partition_from_path=("dt",))
    assert len(extract_files(both).warnings) == 2
    write_raw("dt=2026-11-01/a.parquet", 100)
    day = f"{job.input_url}/dt=2026-11-01"
    extract_files(replace(warns, input_url=day, run_id="again"))
    (left,) = open_table(job.table_url).inspect().warnings
    assert left.partition == {"dt": "2026-11-02"}
    assert len(open_table(job.table_url, 0).inspect().warnings) == 2


def test_drift_is_measured_against_earlier_days_of_the_table_and_of_the_run(
    job: ExtractJob, write_raw: Any
) -> None:
    drift = {"check": "drift", "of": "*", "last": 2, "at_most": 0.2}
    days = with_checks(job, drift, partition={}, partition_from_path=("dt",))
    for day in (1, 2):
        write_raw(f"dt={day}/a.parquet", 1_000)
    extract_files(days)  # day 2 is compared with day 1, and day 1 with none
    write_raw("dt=3/a.parquet", 1_000, first=5_000)  # other prices
    third = f"{job.input_url}/dt=3"
    one = replace(
        days, input_url=third, partition={"dt": "3"}, partition_from_path=(), run_id="next"
    )
    with pytest.raises(CheckFailedError, match=r"1 of 3 checks failed: drift of price_log in dt=3"):
        extract_files(one)
    write_raw("dt=3/a.parquet", 1_000)
    assert extract_files(one).version == 1


@pytest.mark.parametrize(("num_ids", "is_least"), [(900, False), (1_100, True)])
@pytest.mark.parametrize("at_most", [0.0, 100.0])
def test_drift_of_more_values_than_are_listed_says_that_it_is_at_least_so_much(
    num_ids: int, is_least: bool, at_most: float
) -> None:
    schema = SlotSchema(slots=(Slot(name="item", kind=SlotKind.ID, number=1),))
    ids = mix(np.arange(40_000, dtype=np.int64) % num_ids + 1)
    days = {
        day: gather_rows(schema, [pa.record_batch({"item": ids[rows]})])
        for day, rows in (("1", slice(30_000)), ("2", slice(15_000, 40_000)))
    }
    check = {"check": "drift", "of": "item", "last": 1, "at_most": at_most, "severity": "warn"}
    partitions: list[Mapping[str, str | None]] = [{"dt": day} for day in days]
    [result] = run_checks(
        list(parse_checks([check])),
        schema,
        partitions[1:],
        partitions,
        lambda one: days[str(one["dt"])],
    )
    assert result.outcome is Outcome.PASS
    assert result.note.startswith("at least: ") == is_least
    assert ("others may have drifted more" in str(result)) == is_least
    assert ("passed, since the estimate" in result.note) == (at_most == 0.0)


def test_a_run_that_skips_all_rows_of_a_partition_is_checked_for_it(
    job: ExtractJob, document: dict[str, Any], write_raw: Any
) -> None:
    document["inputs"]["clicked"] = {"type": "long", "on_error": "skip"}
    document["checks"] = [{"check": "rows", "at_least": 1}]
    write_raw("dt=1/a.parquet", 20)
    path = write_raw("dt=2/a.parquet", 20)
    rows = raw_rows(20).set_column(3, "clicked", pa.array(["x"] * 20))
    pq.write_table(rows, path)
    skips = replace(job, spec=load_spec(document), partition={}, partition_from_path=("dt",))
    with pytest.raises(CheckFailedError, match="rows in dt=2: 0, expected at least 1"):
        extract_files(skips)


def test_a_slot_group_of_a_spec_with_checks_is_extracted_without_them(
    job: ExtractJob, document: dict[str, Any], write_raw: Any
) -> None:
    write_raw("a.parquet", 100)
    extract_files(job)
    document["slots"].append({"slot": 104, "name": "price_2", "op": "identity", "of": "price"})
    document["checks"] = [{"check": "coverage", "of": "price_2", "at_least": 1}, CLICKED]
    spec = load_spec(document)
    api.extract(spec, job.input_url, job.table_url, partition=job.partition, group="more")
    assert open_delta(job.table_url).group_versions == {"more": 0}
    # The group's columns have no statistics: the rows are checked.
    report = open_table(job.table_url).check(spec)
    assert [(result.column, result.value) for result in report.results] == [
        ("price_2", 1.0),
        ("click", 0.5),
    ]


def test_a_refused_first_extraction_leaves_no_directories(job: ExtractJob, write_raw: Any) -> None:
    write_raw("a.parquet", 20)
    refused = with_checks(job, {"check": "rows", "at_least": 100})
    with pytest.raises(CheckFailedError):
        extract_files(refused)
    assert not Path(job.table_url).exists()
    extract_files(job)
    before = {path.name for path in Path(job.table_url).iterdir()}
    with pytest.raises(CheckFailedError):
        extract_files(replace(refused, partition={"dt": "2026-11-02"}, run_id="second"))
    assert before <= {path.name for path in Path(job.table_url).iterdir()}


def directories_below(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_dir()}


def test_a_refused_extraction_leaves_no_directories_in_an_existing_table(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("a.parquet", 20)
    table, keys = Path(job.table_url), {"dt": "2026-11-01", "hour": "0"}
    extract_files(replace(job, partition=keys))
    before = directories_below(table)
    refused = with_checks(job, {"check": "rows", "at_least": 100}, run_id="second")
    for other in ({"hour": "1"}, {"dt": "2026-11-02"}):
        with pytest.raises(CheckFailedError):
            extract_files(replace(refused, partition=keys | other))
        assert directories_below(table) == before


def test_a_failed_unit_leaves_no_directories_in_an_existing_table(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("a.parquet", 20)
    extract_files(job)
    before = directories_below(Path(job.table_url))

    def fails(task: UnitTask, units: Sequence[Unit], progress: Progress) -> list[UnitReport]:
        LocalRunner()(task, units, progress)
        assert directories_below(Path(job.table_url)) > before
        raise OperatorError("broken")

    with pytest.raises(OperatorError, match="broken"):
        extract_files(replace(job, partition={"dt": "2026-11-02"}, run_id="second"), runner=fails)
    assert directories_below(Path(job.table_url)) == before


def test_a_refused_extraction_leaves_the_directory_that_another_run_writes_into(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("a.parquet", 20)
    extract_files(job)
    other = Path(job.table_url) / "dt=2026-11-02/.part-other.parquet.12345678.partial"

    def beside(task: UnitTask, units: Sequence[Unit], progress: Progress) -> list[UnitReport]:
        reports = LocalRunner()(task, units, progress)
        other.write_bytes(b"rows of another run")
        return reports

    refused = with_checks(job, {"check": "rows", "at_least": 100}, run_id="second")
    with pytest.raises(CheckFailedError):
        extract_files(replace(refused, partition={"dt": "2026-11-02"}), runner=beside)
    assert list(other.parent.iterdir()) == [other]
    assert not (Path(job.table_url) / "_stats/dt=2026-11-02").exists()


def test_a_refused_slot_group_leaves_no_directories(
    job: ExtractJob, document: dict[str, Any], write_raw: Any
) -> None:
    write_raw("a.parquet", 20)
    extract_files(job)
    before = directories_below(Path(job.table_url))
    document["slots"].append({"slot": 104, "name": "price_2", "op": "identity", "of": "price"})

    def fails(task: UnitTask, units: Sequence[Unit], progress: Progress) -> list[UnitReport]:
        LocalRunner()(task, units, progress)
        assert directories_below(Path(job.table_url)) > before
        raise OperatorError("broken")

    more = replace(job, spec=load_spec(document), run_id="second")
    with pytest.raises(OperatorError, match="broken"):
        extract_group(GroupJob(job=more, name="more"), runner=fails)
    assert directories_below(Path(job.table_url)) == before


def test_a_refused_extraction_leaves_a_directory_that_was_there(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("a.parquet", 20)
    Path(job.table_url).mkdir()
    with pytest.raises(CheckFailedError):
        extract_files(with_checks(job, {"check": "rows", "at_least": 100}))
    assert Path(job.table_url).is_dir()


def test_a_day_that_falls_below_its_share_of_what_it_replaces_is_refused(
    job: ExtractJob, write_raw: Any
) -> None:
    """The first run has nothing to compare with; the second one loses 40 of 100 rows."""
    against = {"check": "rows", "against": "replaced", "at_least": 0.9}
    whole = write_raw("a.parquet", 60), write_raw("b.parquet", 40)
    checked = with_checks(job, against, CLICKED)
    assert extract_files(checked).warnings == ()
    before, files = open_table(job.table_url).to_arrow(), files_below(Path(job.table_url))
    whole[1].unlink()
    with pytest.raises(
        CheckFailedError,
        match=r"1 of 2 checks failed: rows against replaced in dt=2026-11-01: 0.6, expected at "
        r"least 0.9; 60 rows, where the partition had 100. The table is left as it is",
    ):
        extract_files(replace(checked, run_id="less"))
    assert open_table(job.table_url).to_arrow().equals(before)
    assert files_below(Path(job.table_url)) == files
    warns = with_checks(job, against | {"severity": "warn"}, run_id="less")
    (warning,) = extract_files(warns).warnings
    assert (warning.value, warning.at_least) == (0.6, 0.9)
    assert stored_checks(history(job.table_url)) == warns.spec.checks


def test_rows_against_what_is_replaced_are_no_check_of_a_table(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("a.parquet", 60)
    extract_files(with_checks(job, {"check": "rows", "against": "replaced", "at_least": 0.9}))
    (result,) = open_table(job.table_url).check().results
    assert (result.outcome, result.value) == (Outcome.SKIP, None)
    assert result.note == "nothing is replaced; a run checks it before its commit"


def test_a_day_of_which_no_row_is_left_has_a_share_of_0(
    job: ExtractJob, document: dict[str, Any], write_raw: Any
) -> None:
    document["inputs"]["clicked"] = {"type": "long", "on_error": "skip"}
    document["checks"] = [{"check": "rows", "against": "replaced", "at_least": 0.5}]
    paths = [write_raw(f"dt={day}/a.parquet", 20) for day in (1, 2)]
    both = replace(job, spec=load_spec(document), partition={}, partition_from_path=("dt",))
    extract_files(both)
    pq.write_table(raw_rows(20).set_column(3, "clicked", pa.array(["x"] * 20)), paths[1])
    with pytest.raises(CheckFailedError, match=r"in dt=2: 0, .* 0 rows, where .* had 20"):
        extract_files(replace(both, run_id="second"))


@given(
    value=st.floats(0.0, 2.0) | st.floats(0.949, 0.951) | st.floats(-1e9, 1e9),
    at_least=st.none() | st.sampled_from([0.0, 0.95, 1.5]),
    at_most=st.none() | st.sampled_from([0.25, 0.9504, 1e6]),
)
def test_the_text_of_a_figure_is_on_the_side_of_the_bounds_that_the_figure_is(
    value: float, at_least: float | None, at_most: float | None
) -> None:
    text = _result(value=value, at_least=at_least, at_most=at_most).value_text
    for bound in (at_least, at_most):
        if bound is not None:
            assert (float(text) < bound, float(text) > bound) == (value < bound, value > bound)
    if at_least is at_most is None:
        assert float(text) == pytest.approx(value, rel=0.05)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"value": 0.9091, "at_least": 0.95}, "0.91"),
        ({"value": 0.94961, "at_least": 0.95}, "0.9496"),
        ({"value": 0.95, "at_least": 0.95}, "0.95"),
        ({"value": 2.265, "error": 0.5357, "at_most": 0.25}, "2.3 ± 0.54 (estimate)"),
        ({"value": 12345, "at_least": 20_000}, "12,345"),
        ({"value": 12345, "error": 67.8, "at_least": 20_000}, "12,345 ± 68 (estimate)"),
        ({"value": 1234.5, "at_most": 1235}, "1234"),
    ],
)
def test_a_figure_has_two_digits_or_as_many_as_tell_it_from_a_bound(
    given: dict[str, float], text: str
) -> None:
    assert _result(**given).value_text == text


def _result(**given: Any) -> CheckResult:
    fixed: dict[str, Any] = {"check": "coverage", "column": "x", "partition": {}}
    return CheckResult(**fixed, outcome=Outcome.PASS, **given)


def test_a_result_is_stored_and_read_back() -> None:
    result = CheckResult(
        check="drift",
        column="user",
        partition={"dt": "2026-11-01"},
        outcome=Outcome.WARN,
        value=0.5,
        error=0.1,
        at_most=0.25,
    )
    assert CheckResult.from_dict(result.as_dict()) == result
