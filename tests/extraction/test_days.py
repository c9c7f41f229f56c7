import json
from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import featstore
from featstore.base.errors import CommitConflictError, InputError, SpecError
from featstore.explore.table import open_table
from featstore.extraction.days import (
    Day,
    DayInput,
    DaysReport,
    Held,
    Reason,
    expand,
    extract_days,
    parse_days,
    plan_days,
)
from featstore.extraction.deletion import delete_rows
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.replaced import Holding
from featstore.extraction.rewriting import compact
from featstore.extraction.spark.runners import SparkRunner
from featstore.spec.lint import lint
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.table.delta import history, open_delta, open_delta_or_none
from tests.parquet_files import put_parquet
from tests.programs import Program

DAYS = "2026-11-01..2026-11-03"


@pytest.fixture
def job(spec: Spec, raw: Path, tmp_path: Path, write_raw: Any) -> ExtractJob:
    """Three days of raw files, one file each."""
    for day in (1, 2, 3):
        write_raw(f"dt=2026-11-0{day}/a.parquet", 100 * day)
    return ExtractJob(
        spec=spec,
        input_url=f"{raw}/dt={{dt}}",
        table_url=str(tmp_path / "table"),
        run_id="backfill",
    )


def reasons(job: ExtractJob, days: str = DAYS, **options: Any) -> list[str]:
    return [str(day.reason) for day in extract_days(job, days, **options).days]


def rows_by_day(job: ExtractJob) -> dict[str | None, int]:
    return {file.partition["dt"]: file.num_rows for file in open_delta(job.table_url).data_files}


def test_each_missing_day_is_a_commit_of_its_own_and_a_second_call_does_nothing(
    job: ExtractJob,
) -> None:
    first = extract_days(
        replace(job, spec=replace(job.spec, output=replace(job.spec.output, rows_per_file=1000))),
        DAYS,
    )
    assert rows_by_day(job) == {"2026-11-01": 100, "2026-11-02": 200, "2026-11-03": 300}
    assert [
        commit.metadata.run_id for commit in reversed(history(job.table_url)) if commit.metadata
    ] == [f"backfill/dt=2026-11-0{day}" for day in (1, 2, 3)]
    assert (
        str(first)
        .splitlines()[0]
        .startswith(f"dt=2026-11-01: missing: committed version 0 of {job.table_url}: 100 rows")
    )
    again = extract_days(replace(job, run_id="again"), DAYS)
    assert str(again).splitlines() == [
        "dt=2026-11-01: up to date (version 0)",
        "dt=2026-11-02: up to date (version 1)",
        "dt=2026-11-03: up to date (version 2)",
        f"{job.table_url}: 3 in all, 0 extracted",
    ]
    assert open_delta(job.table_url).version == 2


def test_only_what_is_missing_or_stale_is_extracted(
    job: ExtractJob, write_raw: Any, document: dict[str, Any]
) -> None:
    extract_days(job, "2026-11-01..2026-11-02")
    write_raw("dt=2026-11-02/b.parquet", 10)
    assert reasons(job, dry_run=True) == ["up to date", "stale input", "missing"]
    assert open_delta(job.table_url).version == 1
    assert reasons(replace(job, run_id="r2")) == ["up to date", "stale input", "missing"]
    document["slots"][2]["default"] = 1.0
    changed = replace(job, spec=load_spec(document), run_id="r3")
    extract_days(changed, "2026-11-01")
    write_raw("dt=2026-11-03/b.parquet", 10)
    assert reasons(replace(changed, run_id="r4")) == [
        "up to date",
        "stale spec",
        "stale spec and input",
    ]
    assert reasons(changed) == ["up to date"] * 3


def test_days_that_one_run_wrote_or_others_changed_are_of_unknown_origin(
    job: ExtractJob, raw: Path
) -> None:
    together = replace(job, input_url=str(raw), partition_from_path=("dt",))
    extract_files(together)
    assert reasons(job, dry_run=True) == ["of unknown origin"] * 3
    assert reasons(replace(job, run_id="r2"), "2026-11-01") == ["of unknown origin"]
    assert reasons(job, dry_run=True) == ["up to date", "of unknown origin", "of unknown origin"]


def test_a_day_that_a_plain_run_wrote_is_up_to_date(job: ExtractJob, raw: Path) -> None:
    extract_files(replace(job, input_url=f"{raw}/dt=2026-11-01", partition={"dt": "2026-11-01"}))
    assert reasons(job, "2026-11-01") == ["up to date"]


@pytest.fixture
def wider(job: ExtractJob, document: dict[str, Any]) -> ExtractJob:
    """A job of the three days with a slot more."""
    document["slots"].append({"slot": 104, "name": "tags_again", "op": "hash", "of": "tags"})
    return replace(job, spec=load_spec(document), run_id="wider")


def add_group(job: ExtractJob, dt: str, name: str = "more", key: str | None = None) -> None:
    day = replace(job, input_url=job.input_url.format(dt=dt), partition={"dt": dt})
    extract_group(GroupJob(job=day, name=name, key=key))


def add_groups(job: ExtractJob, days: str, *, dry_run: bool = False) -> DaysReport:
    given = (job.spec, job.input_url, job.table_url)
    return featstore.extract(*given, days=days, group="more", dry_run=dry_run, run_id=job.run_id)


def test_a_day_is_up_to_date_for_a_wider_spec_if_a_group_has_the_slots_beside_it_or_folded_into_it(
    job: ExtractJob, wider: ExtractJob
) -> None:
    extract_days(job, DAYS)
    add_group(wider, "2026-11-02")
    one_of_three = ["stale spec", "up to date", "stale spec"]
    assert reasons(job) == ["up to date"] * 3
    assert reasons(wider, dry_run=True) == one_of_three
    compact(job.table_url)
    assert reasons(job) == ["up to date"] * 3
    assert reasons(wider, dry_run=True) == one_of_three
    add_group(wider, "2026-11-03")
    compact(job.table_url)
    assert reasons(wider, dry_run=True) == ["stale spec", "up to date", "up to date"]


def test_a_slot_group_is_added_to_days_that_lack_its_slots_each_in_a_commit(
    job: ExtractJob, wider: ExtractJob
) -> None:
    extract_days(job, DAYS)
    add_group(wider, "2026-11-02")
    planned = add_groups(wider, DAYS, dry_run=True)
    assert "rows to be replaced" not in str(planned)
    named = [day["slots"] for day in planned.as_dict()["days"]]
    assert named == [["tags_again"], [], ["tags_again"]]
    report = add_groups(wider, DAYS)
    expected = ["stale spec", "up to date", "stale spec"]
    for found in (planned, report):
        assert [str(day.reason) for day in found.days] == expected
    assert report.num_extracted == 2
    assert len(history(job.table_url)) == 3 + 1 + 2
    other = f"{job.table_url}-whole"
    extract_days(replace(wider, table_url=other), DAYS)
    found, made = (open_table(url).to_arrow() for url in (job.table_url, other))
    assert found.select(made.column_names).equals(made)
    assert add_groups(wider, DAYS).num_extracted == 0
    assert reasons(wider) == ["up to date"] * 3


def test_days_that_the_table_lacks_or_whose_raw_files_changed_get_no_slot_group(
    job: ExtractJob, wider: ExtractJob, write_raw: Any
) -> None:
    extract_days(job, "2026-11-01..2026-11-02")
    with pytest.raises(InputError, match="has no dt=2026-11-03; extract these days first"):
        add_groups(wider, DAYS)
    write_raw("dt=2026-11-02/b.parquet", 10)
    with pytest.raises(InputError, match="not the raw files") as raised:
        add_groups(wider, "2026-11-01..2026-11-02")
    assert "dt=2026-11-01 stays committed" in raised.value.__notes__[0]
    write_raw("dt=2026-11-01/b.parquet", 10)
    report = add_groups(wider, "2026-11-01")
    assert str(report.days[0].reason) == "up to date", "it holds the slots, of the rows it holds"


def test_slots_are_added_at_once_to_days_that_were_made_one_by_one(
    job: ExtractJob, wider: ExtractJob, raw: Path, write_raw: Any
) -> None:
    extract_days(job, "2026-11-02")
    together = replace(job, input_url=str(raw), partition_from_path=("dt",), run_id="together")
    held = raw.parent / "held"
    (raw / "dt=2026-11-02").rename(held)
    write_raw("dt=2026-11-03/b.parquet", 50)
    extract_files(together)  # two days in one commit
    held.rename(raw / "dt=2026-11-02")
    at_once = replace(wider, input_url=str(raw), partition_from_path=("dt",))
    report = extract_group(GroupJob(job=at_once, name="more"))
    assert (report.committed, report.num_rows) == (True, 100 + 200 + 300 + 50)
    assert not extract_group(GroupJob(job=at_once, name="more")).committed
    other = replace(at_once, table_url=str(raw.parent / "other"), run_id="whole")
    extract_files(other)
    found, expected = (open_table(url).to_arrow() for url in (job.table_url, other.table_url))
    assert found.select(expected.column_names).equals(expected)
    write_raw("dt=2026-11-03/c.parquet", 10)
    with pytest.raises(InputError, match=r"that made dt=2026-11-01, dt=2026-11-03, so"):
        extract_group(GroupJob(job=replace(at_once, run_id="again"), name="more"))


def test_a_deletion_that_folds_a_group_leaves_the_day_up_to_date_for_the_wider_spec(
    job: ExtractJob, wider: ExtractJob
) -> None:
    extract_days(job, DAYS)
    for dt in ("2026-11-01", "2026-11-02", "2026-11-03"):
        add_group(wider, dt)
    assert reasons(wider) == ["up to date"] * 3
    deleted = delete_rows(job.table_url, "dt != '2026-11-03' and click = 1 and price_log < 1.0")
    assert deleted.num_partitions == 2
    assert reasons(wider) == ["up to date"] * 3
    assert open_delta(job.table_url).num_rows == 600 - deleted.num_rows < 600


def test_groups_of_two_wider_specs_one_by_key_are_up_to_date_for_the_widest(
    job: ExtractJob, document: dict[str, Any]
) -> None:
    document["keep"] = ["price"]

    def with_slot(slot: int) -> ExtractJob:
        document["slots"].append({"slot": slot, "name": f"tags_{slot}", "op": "hash", "of": "tags"})
        return replace(job, spec=load_spec(document), run_id=f"with {slot}")

    extract_days(replace(job, spec=load_spec(document)), "2026-11-01")
    wider = with_slot(104)
    add_group(wider, "2026-11-01")
    widest = with_slot(105)
    assert reasons(widest, "2026-11-01", dry_run=True) == ["stale spec"]
    add_group(widest, "2026-11-01", "keyed", key="price")
    assert reasons(widest, "2026-11-01") == reasons(wider, "2026-11-01") == ["up to date"]
    compact(job.table_url)
    assert reasons(widest, "2026-11-01") == ["up to date"]


def test_a_slot_that_brings_its_vocabulary_is_up_to_date_where_a_group_has_it(
    job: ExtractJob, document: dict[str, Any], tmp_path: Path
) -> None:
    extract_days(job, "2026-11-01")
    (tmp_path / "tags.txt").write_text("t1\nt2\n")
    slot = {"slot": 104, "name": "tag", "op": "vocabulary", "of": "tags", "file": "tags.txt"}
    path = tmp_path / "wider.yaml"
    path.write_text(json.dumps({**document, "slots": [*document["slots"], slot]}))
    assert lint(str(path), update_lock=True).ok
    wider = replace(job, spec=load_spec(str(path)), run_id="wider")
    assert reasons(wider, "2026-11-01", dry_run=True) == ["stale spec"]
    add_group(wider, "2026-11-01")
    assert reasons(wider, "2026-11-01") == ["up to date"]


def test_a_group_of_another_meaning_and_a_changed_slot_beside_a_group_are_stale(
    job: ExtractJob, wider: ExtractJob, document: dict[str, Any]
) -> None:
    extract_days(job, "2026-11-01")
    add_group(wider, "2026-11-01")
    other = load_spec(
        {**document, "slots": [*document["slots"][:-1], {**document["slots"][-1], "max_len": 1}]}
    )
    assert reasons(replace(wider, spec=other), "2026-11-01", dry_run=True) == ["stale spec"]
    document["slots"][2]["default"] = 1.0
    changed = replace(wider, spec=load_spec(document))
    assert reasons(changed, "2026-11-01", dry_run=True) == ["stale spec"]
    assert reasons(changed, "2026-11-01") == ["stale spec"]
    assert reasons(changed, "2026-11-01") == ["up to date"]  # from the files alone


DRIVER = """
import json, sys
from featstore.extraction.days import extract_days
from featstore.extraction.job import ExtractJob
from featstore.extraction.local import LocalRunner
from featstore.spec.parse import load_spec
document, raw, table = json.loads(sys.argv[1]), *sys.argv[2:]

def run(task, units, progress):
    reports = LocalRunner()(task, units, progress)
    if units[0].partition["dt"] == "2026-11-02":
        print("there", flush=True)
        sys.stdin.read()
    return reports

job = ExtractJob(spec=load_spec(document), input_url=raw, table_url=table, run_id="backfill")
extract_days(job, "2026-11-01..2026-11-03", runner=run)
"""


def test_a_backfill_that_is_killed_keeps_whole_days_and_the_same_call_goes_on(
    job: ExtractJob, document: dict[str, Any]
) -> None:
    with Program(DRIVER, json.dumps(document), job.input_url, job.table_url) as driver:
        assert driver.line() == "there"
        driver.die()
    assert rows_by_day(job) == {"2026-11-01": 100}
    assert reasons(job) == ["up to date", "missing", "missing"]
    assert {day: rows for day, rows in rows_by_day(job).items() if day != "2026-11-03"} == {
        "2026-11-01": 100,
        "2026-11-02": 200,
    }
    assert open_delta(job.table_url).num_rows == 600


def test_a_day_without_input_is_named_before_any_work_or_left_out(job: ExtractJob) -> None:
    message = (
        r"no raw files for dt=2026-10-31 \(at .*dt=2026-10-31\); nothing was extracted: add them"
    )
    with pytest.raises(InputError, match=message):
        extract_days(job, "2026-10-31..2026-11-01")
    assert open_delta_or_none(job.table_url) is None
    with pytest.raises(
        InputError, match=r"dt=2026-10-03 \(.*\) and 25 more; nothing was extracted"
    ):
        extract_days(job, "2026-10-01..2026-10-28")
    assert reasons(job, "2026-10-31..2026-11-01", dry_run=True) == ["no input", "missing"]
    assert reasons(job, "2026-10-31..2026-11-01", allow_missing=True) == ["no input", "missing"]


def test_a_day_whose_input_is_gone_is_kept(job: ExtractJob, raw: Path) -> None:
    extract_days(job, DAYS)
    (raw / "dt=2026-11-02" / "a.parquet").unlink()
    done = extract_days(replace(job, run_id="r2"), DAYS, allow_missing=True)
    assert str(done.days[1]) == "dt=2026-11-02: no input, what the table holds is kept: 200 rows"
    assert open_delta(job.table_url).num_rows == 600


def test_a_day_whose_files_hold_no_rows_is_an_error_or_left_out(
    job: ExtractJob, write_raw: Any
) -> None:
    write_raw("dt=2026-11-02/a.parquet", 0)
    with pytest.raises(InputError, match=r"dt=2026-11-02 holds no rows"):
        extract_days(job, DAYS)
    assert reasons(replace(job, run_id="r2"), allow_missing=True) == [
        "up to date",
        "no input",
        "missing",
    ]


def test_a_day_that_fails_leaves_those_before_it_and_says_where_to_go_on(
    job: ExtractJob, raw: Path
) -> None:
    broken = raw / "dt=2026-11-03" / "a.parquet"
    whole = broken.read_bytes()
    broken.write_bytes(b"no Parquet")
    with pytest.raises(InputError, match=r"a\.parquet") as raised:
        extract_days(job, DAYS)
    assert raised.value.__notes__ == [
        "This happened in dt=2026-11-03 (missing); dt=2026-11-01, dt=2026-11-02 stay committed. "
        "The same call resumes with dt=2026-11-03."
    ]
    assert set(rows_by_day(job)) == {"2026-11-01", "2026-11-02"}
    broken.write_bytes(whole)
    assert reasons(job) == ["up to date", "up to date", "missing"]


def test_another_writer_of_a_day_is_a_conflict_and_the_days_before_stay(
    job: ExtractJob, raw: Path
) -> None:
    """The other one commits while the second day is at work."""

    def runner(task: Any, units: Any, progress: Any) -> Any:
        if units[0].partition["dt"] == "2026-11-02" and not overtaken:
            overtaken.append(extract_files(other).version)
        return featstore.extraction.local.LocalRunner()(task, units, progress)  # type: ignore[attr-defined]

    overtaken: list[int] = []
    day = {"dt": "2026-11-02"}
    other = replace(job, input_url=f"{raw}/dt=2026-11-01", partition=day, run_id="other")
    with pytest.raises(
        CommitConflictError, match="another writer committed dt=2026-11-02 while this run"
    ) as raised:
        extract_days(job, DAYS, runner=runner)
    assert "dt=2026-11-01 stays committed" in raised.value.__notes__[0]
    assert overtaken == [1]
    assert sum(file.num_rows for file in open_delta(job.table_url).in_partitions([day])) == 100
    assert reasons(replace(job, run_id="r2")) == ["up to date", "stale input", "missing"]


def test_hours_are_partitions_of_two_keys(job: ExtractJob, write_raw: Any, raw: Path) -> None:
    for hour in ("00", "13"):
        write_raw(f"logs/2026-11-01/{hour}/a.parquet", 100)
    hourly = replace(job, input_url=f"{raw}/logs/{{dt}}/{{hour}}", partition={"country": "us"})
    done = extract_days(hourly, "2026-11-01", allow_missing=True)
    assert (len(done.days), done.num_extracted) == (24, 2)
    assert [dict(partition) for partition in open_delta(job.table_url).partitions] == [
        {"dt": "2026-11-01", "hour": "00", "country": "us"},
        {"dt": "2026-11-01", "hour": "13", "country": "us"},
    ]
    assert reasons(hourly, "2026-11-01", allow_missing=True).count("up to date") == 2


def test_days_run_on_spark_too(spark: Any, job: ExtractJob) -> None:
    runner = SparkRunner(spark)
    extract_days(job, "2026-11-01", runner=runner)
    done = extract_days(replace(job, run_id="r2"), "2026-11-01..2026-11-02", runner=runner)
    assert [day.report is not None for day in done.days] == [False, True]
    assert rows_by_day(job)["2026-11-01"] == 100


def test_the_public_function_takes_days(job: ExtractJob) -> None:
    done = featstore.extract(job.spec, job.input_url, job.table_url, days="2026-11-01..2026-11-02")
    assert (done.num_extracted, len(done.days)) == (2, 2)
    with pytest.raises(InputError, match="allow_missing and dry_run go with days"):
        featstore.extract(job.spec, job.input_url, job.table_url, dry_run=True)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("days", "changed", "message"),
    [
        ("november", {}, r"days: expected FIRST\.\.LAST, such as .* found 'november'"),
        ("2026-11-01..", {}, r"days: expected FIRST\.\.LAST"),
        ("2026-11-31", {}, r"days: 2026-11-31 is not a valid day \(.*\), in '2026-11-31'"),
        (
            "2026-11-02..2026-11-01",
            {},
            "expected the first day before the last, at most 10,000 in all",
        ),
        ("2026-11-01..20261102", {}, "expected both ends written alike"),
        (
            DAYS,
            {"input_url": "raw"},
            r"expected \{dt\} in the input, and at most \{hour\} besides, found raw",
        ),
        (DAYS, {"input_url": "raw/{hour}"}, r"expected \{dt\} in the input"),
        (DAYS, {"input_url": "raw/{dt}/{minute}"}, r"and at most \{hour\} besides"),
        (
            DAYS,
            {"partition": {"dt": "1"}},
            "partition key 'dt' is given as '1' and is also taken from the days",
        ),
        (
            DAYS,
            {"partition_from_path": ("country",)},
            "partition_from_path and days cannot be combined",
        ),
        (DAYS, {"no_partition": True}, "no_partition and days cannot be combined"),
    ],
)
def test_days_that_cannot_be_are_refused(
    job: ExtractJob, days: str, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        extract_days(replace(job, **changed), days)


def test_days_are_written_as_their_ends_are() -> None:
    assert parse_days("20261130..20261201") == ("20261130", "20261201")
    assert parse_days("2028-02-28..2028-03-01") == ("2028-02-28", "2028-02-29", "2028-03-01")


@pytest.mark.parametrize("allow_missing", [False, True])
def test_raw_files_with_rows_none_of_which_arrives_are_no_empty_day(
    job: ExtractJob, allow_missing: bool
) -> None:
    with pytest.raises(InputError, match="the raw files hold rows, and none of them arrived"):
        extract_days(
            job,
            "2026-11-01",
            allow_missing=allow_missing,
            runner=lambda task, units, progress: [],
        )
    assert open_delta_or_none(job.table_url) is None


@given(st.dates(date(1900, 1, 1), date(2100, 1, 1)), st.integers(0, 400))
def test_days_are_each_day_once_in_order(first: date, num_more: int) -> None:
    found = parse_days(f"{first}..{first + timedelta(num_more)}")
    assert [date.fromisoformat(day) for day in found] == [
        first + timedelta(n) for n in range(num_more + 1)
    ]


holdings = st.builds(
    Holding, num_raw_files=st.none() | st.integers(1, 3), num_files=st.just(1), num_rows=st.just(2)
)
held = (
    st.none()
    | st.builds(Held, holding=holdings)
    | st.builds(
        Held,
        holding=holdings,
        version=st.integers(0, 9),
        spec_hash=st.sampled_from("st"),
        input_digest=st.sampled_from(["i", "j", None]),
    )
)
inputs = st.none() | st.builds(DayInput, digest=st.sampled_from("ij"), num_files=st.integers(1, 3))


@given(st.lists(st.tuples(held, inputs), max_size=5))
def test_a_day_is_left_alone_only_if_nothing_is_to_be_done_or_can_be(
    known: list[tuple[Held | None, DayInput | None]],
) -> None:
    days = [Day(partition={"dt": str(n)}, input_url="") for n in range(len(known))]
    actions = plan_days(days, [one[0] for one in known], [one[1] for one in known], "s")
    assert [action.day for action in actions] == days
    for action, (there, found) in zip(actions, known, strict=True):
        digest = None if found is None else found.digest
        assert action.num_raw_files == (0 if found is None else found.num_files)
        made = None if there is None or there.version is None else there
        same = made is not None and (made.spec_hash, made.input_digest) == ("s", digest)
        assert action.reason.extracts == (digest is not None and not same)
        assert (action.reason is Reason.UP_TO_DATE) == (same and digest is not None)
        assert action.held == (None if there is None else there.holding)


def test_hours_of_days_are_24_each() -> None:
    days = expand(DAYS, "raw/{dt}/{hour}/x-{dt}", {})
    assert len(days) == 72
    assert (str(days[25]), days[25].input_url) == (
        "dt=2026-11-02/hour=01",
        "raw/2026-11-02/01/x-2026-11-02",
    )


def test_a_copied_spec_in_which_a_number_means_something_else_is_refused_by_what_the_table_holds(
    tmp_path: Path,
) -> None:
    text = (
        "{spec: 1, inputs: {price: double}, slots: ["
        "{slot: 104, name: log_price, op: log1p, of: price},"
        "{slot: 109, name: pos, op: bucketize, of: price, boundaries: [2, 4]}]}"
    )
    put_parquet(tmp_path / "dt=2026-11-01" / "a.parquet", {"price": [1.0, 3.0]})
    (tmp_path / "spec.yaml").write_text(text)
    run = partial(
        featstore.extract, input_url=f"{tmp_path}/dt={{dt}}", table_url=f"{tmp_path}/table"
    )
    day = "2026-11-01"
    run(f"{tmp_path}/spec.yaml", days=day)
    wider = text.replace("]}]}", "]}, {slot: 110, name: paid, op: identity, of: price}]}")
    (tmp_path / "copy.yaml").write_text(wider.replace("log1p", "identity").replace("2, 4", "3, 4"))
    message = r"copy\.yaml: .*another meaning of 104 \('log_price'\), 109 \('pos'\), and no lock"
    one = {"input_url": f"{tmp_path}/dt={day}", "partition": {"dt": day}}
    for options in ({"days": day}, {"days": day, "dry_run": True}, one, {**one, "group": "more"}):
        with pytest.raises(SpecError, match=message):
            run(f"{tmp_path}/copy.yaml", **options)
    assert open_delta(f"{tmp_path}/table").version == 0
    # More slots of one meaning are taken, also beside a deletion or a compaction.
    (tmp_path / "wider.yaml").write_text(wider)
    run(f"{tmp_path}/wider.yaml", **one, group="more")
    compact(f"{tmp_path}/table")
    delete_rows(f"{tmp_path}/table", "log_price < 1")
    with pytest.raises(SpecError, match=message):
        run(f"{tmp_path}/copy.yaml", days=day)
    # A lock file that accepts the change is the way to make it.
    lint(f"{tmp_path}/copy.yaml", update_lock=True)
    run(f"{tmp_path}/copy.yaml", days=day)
    assert open_delta(f"{tmp_path}/table").spec_hash == load_spec(tmp_path / "copy.yaml").hash
    with pytest.raises(SpecError, match="wider"):
        run(f"{tmp_path}/wider.yaml", days=day)
