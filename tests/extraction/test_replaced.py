"""A run tells what it put in place of what, and warns where rows are lost."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from featstore.extraction.days import extract_days
from featstore.extraction.deletion import delete_rows
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.replaced import Holding, ReplacedPartition, texts_of
from featstore.extraction.rewriting import compact
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.table.delta import history
from featstore.tools.cli.program import cli
from tests.extraction.conftest import raw_rows

DAY = {"dt": "2026-11-01"}


@pytest.fixture
def job(spec: Spec, raw: Path, tmp_path: Path, write_raw: Any) -> ExtractJob:
    """A day of 80 rows in two raw files."""
    for name in ("a", "b"):
        write_raw(f"dt=2026-11-01/{name}.parquet", 40)
    return ExtractJob(
        spec=spec,
        input_url=f"{raw}/dt=2026-11-01",
        table_url=str(tmp_path / "table"),
        partition=DAY,
        run_id="first",
    )


def holding(num_raw_files: int | None, num_files: int, num_rows: int) -> Holding:
    return Holding(num_raw_files=num_raw_files, num_files=num_files, num_rows=num_rows)


def shrunk(job: ExtractJob) -> ExtractJob:
    Path(job.input_url, "b.parquet").unlink()
    return replace(job, run_id="second")


TOLD = "40 rows fewer than before in dt=2026-11-01: 2 -> 1 raw files, 1 -> 1 data files, 80 -> 40"


def test_a_plain_run_over_a_day_that_shrank_warns_and_says_what_was_there(
    job: ExtractJob, caplog: pytest.LogCaptureFixture
) -> None:
    assert extract_files(job).replaced == ()
    with caplog.at_level(logging.INFO, "featstore"):
        report = extract_files(shrunk(job))
    (day,) = report.replaced
    assert (day.partition, day.before, day.now) == (DAY, holding(2, 1, 80), holding(1, 1, 40))
    assert str(report).splitlines()[1] == f"warning: {TOLD} rows"
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == f"{job.table_url}, version 1: {TOLD} rows"
    assert extract_files(shrunk_again(job)).replaced == ()


def shrunk_again(job: ExtractJob) -> ExtractJob:
    return replace(job, run_id="equal to the second")


def test_a_day_that_grew_is_told_without_a_warning(
    job: ExtractJob, write_raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    extract_files(job)
    write_raw("dt=2026-11-01/c.parquet", 10)
    with caplog.at_level(logging.INFO, "featstore"):
        told = str(extract_files(replace(job, run_id="second"))).splitlines()[1]
    assert told == "replaced dt=2026-11-01: 2 -> 3 raw files, 1 -> 1 data files, 80 -> 90 rows"
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_days_that_shrank_are_told_and_a_dry_run_says_what_would_be_replaced(
    job: ExtractJob, raw: Path
) -> None:
    of_days = replace(job, input_url=f"{raw}/dt={{dt}}", partition={})
    days = "2026-11-01"
    extract_days(of_days, days)
    shrunk(job)
    planned = extract_days(replace(of_days, run_id="second"), days, dry_run=True)
    assert str(planned.days[0]) == (
        "dt=2026-11-01: stale input (version 0), 80 rows of 2 raw files to be replaced by those of "
        "1 raw files"
    )
    done = extract_days(replace(of_days, run_id="second"), days)
    assert str(done).splitlines()[1] == f"  warning: {TOLD} rows"
    (day,) = done.as_dict()["days"]
    assert day["held"] == {"num_raw_files": 2, "num_files": 1, "num_rows": 80}
    assert (day["num_raw_files"], day["report"]["replaced"][0]["now"]["num_rows"]) == (1, 40)


def test_a_day_whose_raw_files_are_gone_says_which_rows_stay(job: ExtractJob, raw: Path) -> None:
    extract_files(job)
    for path in Path(job.input_url).iterdir():
        path.unlink()
    of_days = replace(job, input_url=f"{raw}/dt={{dt}}", partition={}, run_id="second")
    report = extract_days(of_days, "2026-11-01", allow_missing=True)
    assert str(report.days[0]) == ("dt=2026-11-01: no input, what the table holds is kept: 80 rows")


def test_each_partition_of_a_run_is_told_also_one_that_is_left_without_rows(
    job: ExtractJob, raw: Path, write_raw: Any, document: dict[str, Any]
) -> None:
    document["inputs"]["clicked"] = {"type": "long", "on_error": "skip"}
    write_raw("dt=2026-11-02/a.parquet", 30)
    both = replace(
        job,
        spec=load_spec(document),
        input_url=str(raw),
        partition={},
        partition_from_path=("dt",),
    )
    extract_files(both)
    malformed = raw_rows(20).set_column(3, "clicked", pa.array(["x"] * 20))
    for name in ("a", "b"):
        pq.write_table(malformed, raw / "dt=2026-11-02" / f"{name}.parquet")
    report = extract_files(replace(both, run_id="second"))
    assert report.num_rows_skipped == 40
    assert [(day.before, day.now) for day in report.replaced] == [
        (holding(2, 1, 80), holding(2, 1, 80)),
        (holding(1, 1, 30), holding(2, 0, 0)),
    ]


def test_raw_files_are_known_after_rows_were_rewritten(
    job: ExtractJob, document: dict[str, Any], raw: Path, write_raw: Any
) -> None:
    write_raw("dt=2026-11-02/a.parquet", 30)
    extract_files(replace(job, input_url=str(raw), partition={}, partition_from_path=("dt",)))
    document["slots"].append({"slot": 104, "name": "again", "op": "hash", "of": "tags"})
    wider = replace(job, spec=load_spec(document), run_id="wider", partition={})
    whole = replace(wider, input_url=str(raw), partition_from_path=("dt",))
    extract_group(GroupJob(job=whole, name="more"))
    compact(job.table_url)
    delete_rows(job.table_url, "user = 'u1' and dt = '2026-11-01'")
    (day,) = extract_files(shrunk(job)).replaced
    assert (day.before.num_raw_files, day.before.num_rows) == (2, 78)


def test_raw_files_of_what_others_wrote_are_unknown(job: ExtractJob) -> None:
    extract_files(job)
    table = DeltaTable(job.table_url)
    table.optimize.compact()
    DeltaTable(job.table_url).delete("user = 'u1'")
    (day,) = extract_files(replace(job, run_id="second", input_url=job.input_url)).replaced
    assert day.before == holding(None, 1, 78)
    assert str(day).startswith("replaced dt=2026-11-01: unknown -> 2 raw files, 1 -> 1 data files")


def test_a_group_that_is_written_again_replaces_no_rows(
    job: ExtractJob, document: dict[str, Any]
) -> None:
    extract_files(job)
    for number in (104, 105):
        document["slots"].append({"slot": number, "name": f"s{number}", "op": "hash", "of": "tags"})
        wider = replace(job, spec=load_spec(document), run_id=f"wider {number}")
        report = extract_group(GroupJob(job=wider, name="more"))
        assert (report.committed, report.replaced) == (True, ())


def test_the_command_tells_it_as_json(job: ExtractJob, tmp_path: Path, document: Any) -> None:
    extract_files(job)
    (tmp_path / "spec.yaml").write_text(json.dumps(document))
    given = ["--spec", str(tmp_path / "spec.yaml"), "--input", shrunk(job).input_url]
    place = ["--table", job.table_url, "--partition", "dt=2026-11-01", "--json"]
    done = CliRunner().invoke(cli, ["extract", *given, *place])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["table"], report["num_rows"]) == (job.table_url, 40)
    assert report["replaced"] == [
        {
            "partition": DAY,
            "before": {"num_raw_files": 2, "num_files": 1, "num_rows": 80},
            "now": {"num_raw_files": 1, "num_files": 1, "num_rows": 40},
        }
    ]


def test_commits_say_how_many_raw_files_each_partition_had(job: ExtractJob) -> None:
    extract_files(job)
    (commit,) = history(job.table_url)
    assert commit.metadata is not None
    assert commit.metadata.num_raw_files == (2,)


def test_of_many_partitions_those_that_lose_rows_come_first() -> None:
    def day(number: int, num_rows: int) -> ReplacedPartition:
        partition: Mapping[str, str] = {"dt": str(number)}
        return ReplacedPartition(
            partition=partition, before=holding(None, 1, 10), now=holding(None, 1, num_rows)
        )

    lines = texts_of([*(day(n, 10) for n in range(11)), day(11, 9), day(12, 8)])
    assert lines[0] == "warning: 1 rows fewer than before in dt=11: 1 -> 1 data files, 10 -> 9 rows"
    assert lines[2] == "replaced dt=0: 1 -> 1 data files, 10 -> 10 rows"
    assert lines[10:] == ["and 3 more replaced, 0 of which lose rows: 30 -> 30 rows"]
