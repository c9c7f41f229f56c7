"""Slot groups and labels that Spark's tasks write are those that this process writes."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore import api
from featstore.base.errors import InputError
from featstore.explore.table import open_table
from featstore.extraction.job import ExtractJob, extract_files
from featstore.spec.parse import load_spec
from featstore.tools import job_extract as extract_job
from tests.extraction.conftest import run_job
from tests.parquet_files import put_parquet

ROOT = Path(__file__).parents[2]
MORE = [
    {"slot": 104, "name": "user_x_tags", "op": "cross", "of": ["user", "tags"]},
    {"slot": 105, "name": "price_bin", "op": "bucketize", "of": "price", "boundaries": [10, 50]},
]


@pytest.fixture
def document(document: dict[str, Any]) -> dict[str, Any]:
    document["inputs"]["request"] = "string"
    document["keep"] = ["user", "request"]
    return document


@pytest.fixture
def tables(document: dict[str, Any], raw: Path, tmp_path: Path, write_raw: Any) -> list[ExtractJob]:
    """Two equal tables of two months and four files: the jobs that made them."""
    for month in (1, 2):
        for name, num_rows, first in (("a", 320, 0), ("b", 80, 320)):
            path = write_raw(f"month={month}/{name}.parquet", num_rows, first)
            keys = pa.array([f"r{month}-{row:05d}" for row in range(first, first + num_rows)])
            pq.write_table(
                pq.read_table(path, partitioning=None).append_column("request", keys),
                path,
                row_group_size=40,
            )
    jobs = [
        ExtractJob(
            spec=load_spec(document),
            input_url=str(raw),
            table_url=str(tmp_path / name),
            partition_from_path=("month",),
        )
        for name in ("there", "here")
    ]
    for job in jobs:
        extract_files(job)
    return jobs


def group_files(job: ExtractJob) -> list[pa.Table]:
    """What the slot groups' files hold, in order of the base files."""
    files = [group for file in open_table(job.table_url).data_files() for group in file.groups]
    return [pq.read_table(file.url, partitioning=None) for file in files]


def assert_equal(jobs: list[ExtractJob]) -> None:
    there, here = (open_table(job.table_url) for job in jobs)
    assert len(group_files(jobs[0])) == len(here.data_files()) == 4
    assert there.to_arrow().equals(here.to_arrow())
    assert group_files(jobs[0]) == group_files(jobs[1])


def widened(document: dict[str, Any]) -> Any:
    return document | {"slots": [*document["slots"], *MORE]}


def test_slots_are_added_from_the_raw_files_by_sparks_tasks(
    spark: Any, tables: list[ExtractJob], document: Any
) -> None:
    seen: list[tuple[int, int, int]] = []
    for job, session in zip(tables, (spark, None), strict=True):
        report = api.extract(
            widened(document),
            job.input_url,
            job.table_url,
            partition_from_path=["month"],
            group="more",
            spark=session,
            progress=lambda *counts: seen.append(counts),
        )
        assert (report.committed, report.version, report.num_files, report.num_rows) == (
            True,
            1,
            4,
            800,
        )
        assert seen[-1] == (4, 4, 800)
    assert_equal(tables)
    assert open_table(tables[0].table_url).to_arrow()["price_bin"].null_count == 0


def test_slots_are_added_by_key_in_one_spark_task_a_partition(
    spark: Any, tables: list[ExtractJob], document: Any, tmp_path: Path
) -> None:
    """Raw rows in another order, other files, and some besides; and names of files that say that a
    task wrote them.
    """
    for month in (1, 2):
        rows = pa.concat_tables(
            pq.read_table(path, partitioning=None)
            for path in sorted(Path(tables[0].input_url, f"month={month}").iterdir())
        )
        put_parquet(
            tmp_path / "other" / f"month={month}" / "z.parquet",
            rows.sort_by([("price", "descending")]),
            row_group_size=70,
        )
    seen: list[tuple[int, int, int]] = []
    for job, session in zip(tables, (spark, None), strict=True):
        api.extract(
            widened(document),
            tmp_path / "other",
            job.table_url,
            partition_from_path=["month"],
            group="more",
            key="request",
            spark=session,
            progress=lambda *counts: seen.append(counts),
        )
        assert seen[-1] == (4, 4, 800)
    assert_equal(tables)
    names = {
        group.path.rpartition("-")[2]
        for file in open_table(tables[0].table_url).data_files()
        for group in file.groups
    }
    assert names != {"0.parquet"}


def test_a_key_that_names_no_row_is_the_same_error_from_a_spark_task(
    spark: Any, tables: list[ExtractJob], document: Any, tmp_path: Path
) -> None:
    month = Path(tables[0].input_url) / "month=1"
    put_parquet(
        tmp_path / "less" / "a.parquet", pq.read_table(month / "a.parquet", partitioning=None)
    )
    with pytest.raises(
        InputError,
        match=r"80 of 400 rows of the table .* are not among the raw rows, such as request "
        r"'r1-00320'",
    ):
        api.extract(
            widened(document),
            tmp_path / "less",
            tables[0].table_url,
            partition={"month": "1"},
            group="more",
            key="request",
            spark=spark,
        )
    assert not list(Path(tables[0].table_url, "_groups").rglob("*.parquet"))


def arguments_of(job: ExtractJob, *more: str) -> list[str]:
    where = ["--spec", "spec.yaml", "--input", job.input_url, "--table", job.table_url]
    return [*where, "--partition-from-path", "month", *more]


def test_the_script_adds_a_group_and_writes_labels_anew(
    spark: Any, tables: list[ExtractJob], document: Any
) -> None:
    job = tables[0]
    before = sorted(Path(job.table_url).glob("month=*/*.parquet"))
    report = run_job(load_spec(widened(document)), spark, arguments_of(job, "--group", "more"))
    assert (report.committed, report.num_files) == (True, 4)
    ripe = load_spec(
        document | {"labels": {"click": "ripe"}, "inputs": document["inputs"] | {"ripe": "long"}}
    )
    for path in Path(job.input_url).rglob("*.parquet"):
        rows = pq.read_table(path, partitioning=None)
        pq.write_table(rows.append_column("ripe", pa.array([7] * len(rows))), path)
    report = run_job(ripe, spark, arguments_of(job, "--relabel", "--key", "request"))
    assert (report.committed, report.num_files) == (True, 4)
    table = open_table(job.table_url)
    assert set(table.to_arrow()["click"].to_pylist()) == {7}
    assert table.to_arrow()["price_bin"].null_count == 0
    assert sorted(Path(job.table_url).glob("month=*/*.parquet")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--relabel"], "argument --relabel: expected --input and --key with it"),
        (["--relabel", "--key", "request", "--days", "2026-11-01"], "and no --days"),
        (["--relabel", "--key", "request", "--group", "more"], "not allowed with argument"),
        (["--group", "more", "--rejects", "r.jsonl"], "--rejects: not allowed with argument"),
    ],
)
def test_options_that_do_not_go_together_end_with_code_2(
    tables: list[ExtractJob],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert extract_job.main(arguments_of(tables[0], *arguments)) == 2
    assert message in capsys.readouterr().err


def test_a_query_cannot_become_a_group(spark: Any, tables: list[ExtractJob]) -> None:
    query = ["--spec", "s", "--table", tables[0].table_url, "--sql", "select 1 as user"]
    with pytest.raises(InputError, match="a DataFrame has no order"):
        run_job(tables[0].spec, spark, [*query, "--partition", "month=1", "--group", "more"])
