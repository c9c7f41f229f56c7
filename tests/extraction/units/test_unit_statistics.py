from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

import featstore
from featstore.base.errors import InputError
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.spark.runners import SparkRunner, extract_dataframe
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.statistics.summary import QUANTILES
from tests.damaged_files import overwrite

EXACT = ["slot", "num_present", "coverage", "num_values", "length_mean", "length_max"]


@pytest.fixture
def job(spec: Spec, raw: Path, tmp_path: Path, write_raw: Any) -> ExtractJob:
    """Two days, of three and of two data files."""
    write_raw("dt=1/a.parquet", 533)
    write_raw("dt=2/a.parquet", 300, 533)
    return ExtractJob(
        spec=spec,
        input_url=str(raw),
        table_url=str(tmp_path / "table"),
        partition_from_path=("dt",),
    )


def statistics_files(job: ExtractJob) -> list[str]:
    below = Path(job.table_url) / "_stats"
    return sorted(str(path.relative_to(below).parent) for path in below.rglob("*.statistics"))


def counts_of(table: Any, name: str, where: str | None) -> Counter[int]:
    values = table.to_arrow([name], where)[name].drop_null().to_pylist()
    return Counter(value for row in values for value in (row if isinstance(row, list) else [row]))


def assert_stored_as_scanned(job: ExtractJob, where: str | None = None) -> None:
    table = featstore.open_table(job.table_url)
    stored, scanned = table.profile(where, stored=True), table.profile(where)
    assert stored.source.startswith("from stored statistics")
    assert scanned.source == "from the rows: exact"
    assert stored.num_rows == scanned.num_rows
    assert stored.label_rates == scanned.label_rates
    assert stored.table.select(EXACT) == scanned.table.select(EXACT)
    for name in stored.slots:
        assert stored[name]["distinct"] == pytest.approx(scanned[name]["distinct"], rel=0.1)
        assert stored[name]["mean"] == pytest.approx(scanned[name]["mean"])
        top = {value["value"]: value["count"] for value in stored[name]["top"]}
        # A file in which most values occur once does not list all of those.
        num_files, counts = len(table.data_files(where)), counts_of(table, name, where)
        assert all(counts[value] - num_files <= top[value] <= counts[value] for value in top)
        most = sorted(counts.values())[-len(top) :] if top else []
        assert sorted(top.values()) == pytest.approx(most, abs=num_files)
        if stored[name]["quantiles"]:
            values = np.array(table.to_arrow([name], where)[name].drop_null())
            ranks = [float((values <= quantile).mean()) for quantile in stored[name]["quantiles"]]
            assert ranks == pytest.approx(QUANTILES, abs=0.02)


def test_each_partition_has_its_statistics_which_say_what_its_rows_do(job: ExtractJob) -> None:
    extract_files(job)
    assert statistics_files(job) == ["dt=1", "dt=2"]
    assert_stored_as_scanned(job)
    assert_stored_as_scanned(job, "dt = '2'")
    text = str(featstore.open_table(job.table_url).profile(stored=True))
    assert text.startswith("833 rows, click 0.499")
    assert (
        "from stored statistics: exact where no ± (95 %), ≈ or ≥ is shown" in text.splitlines()[0]
    )


def test_what_was_dropped_or_replaced_is_told_by_partition(job: ExtractJob, raw: Path) -> None:
    path = raw / "dt=2" / "a.parquet"
    table = pq.read_table(path, partitioning=None)
    prices = [float("nan"), *table["price"].to_pylist()[1:]]
    pq.write_table(table.set_column(2, "price", [prices]), path)
    extract_files(job)
    opened = featstore.open_table(job.table_url)
    assert opened.profile("dt = '2'", stored=True).counts == {"price: nan": 1}
    assert opened.profile("dt = '1'", stored=True).counts == {}
    assert str(opened.profile(stored=True)).endswith("price: nan: 1")


def test_rows_are_read_where_statistics_do_not_cover_the_request(
    job: ExtractJob, raw: Path
) -> None:
    extract_files(job)
    table = featstore.open_table(job.table_url)
    assert table.profile("click = 1", stored=True).source == "from the rows: exact"
    without = replace(job.spec, output=replace(job.spec.output, statistics=False))
    extract_files(
        replace(
            job,
            spec=without,
            input_url=f"{raw}/dt=1",
            partition={"dt": "3"},
            partition_from_path=(),
            run_id="r2",
        )
    )
    table = featstore.open_table(job.table_url)
    assert table.profile(stored=True).source == "from the rows: exact"
    assert table.profile("dt < '3'", stored=True).num_rows == 833
    assert statistics_files(job) == ["dt=1", "dt=2"]


def test_an_old_version_has_the_statistics_of_its_time(job: ExtractJob, write_raw: Any) -> None:
    extract_files(job)
    write_raw("dt=2/b.parquet", 100, 900)
    extract_files(replace(job, run_id="r2"))
    counts = [
        featstore.open_table(job.table_url, version).profile(stored=True).num_rows
        for version in (0, 1)
    ]
    assert counts == [833, 933]


def test_spark_stores_the_same_statistics(spark: Any, job: ExtractJob) -> None:
    extract_files(job, runner=SparkRunner(spark))
    extract_files(replace(job, table_url=f"{job.table_url}2"))
    found = [
        featstore.open_table(url).profile(stored=True)
        for url in (job.table_url, f"{job.table_url}2")
    ]
    assert found[0].table == found[1].table


def test_a_dataframe_has_statistics_too(
    spark: Any, job: ExtractJob, document: dict[str, Any]
) -> None:
    frame = spark.read.parquet(job.input_url).drop("dt")
    extract_dataframe(
        replace(job, partition={"dt": "1"}, partition_from_path=(), spec=load_spec(document)), frame
    )
    assert_stored_as_scanned(job)


def test_other_engines_do_not_take_statistics_for_data(job: ExtractJob) -> None:
    extract_files(job)
    found = duckdb.sql(
        f"SELECT count(*) FROM read_parquet('{job.table_url}/**/*.parquet')"
    ).fetchall()
    assert found == [(833,)]


def test_a_run_that_fails_leaves_no_statistics(job: ExtractJob, raw: Path) -> None:
    path = raw / "dt=2" / "a.parquet"
    overwrite(path, pq.read_metadata(path).row_group(0).column(0).data_page_offset)
    with pytest.raises(InputError, match="cannot be read"):
        extract_files(job)
    assert statistics_files(job) == []
