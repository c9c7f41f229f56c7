"""Raw rows in an Iceberg table are extracted as those of files are."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featstore
from featstore.base.errors import InputError
from featstore.explore.preview import preview
from featstore.extraction.days import extract_days
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.spark.runners import SparkRunner
from featstore.extraction.units.raw import find_raw_files, open_range, plan_units
from featstore.spec.model import Spec
from featstore.table import row_masks
from tests.extraction.conftest import raw_rows
from tests.iceberg_tables import catalog_at, commit_deletes, position_deletes
from tests.parquet_files import put_parquet

pytest.importorskip("pyiceberg")
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

URL = "iceberg://test/db.raw"
DAYS = ("2026-11-01", "2026-11-02")


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with catalog_at(tmp_path, monkeypatch) as catalog:
        yield catalog


@pytest.fixture
def table(catalog: Any) -> Any:
    """Raw rows of two days in a snapshot each, the first written under other names and types."""
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import LongType

    day = pa.array([DAYS[0]] * 300)
    first = raw_rows(300).append_column("dt", day)
    first = first.set_column(3, "was_clicked", first.column("clicked").cast(pa.int32()))
    table = catalog.create_table("db.raw", first.schema)
    with table.update_spec() as update:
        update.add_field("dt", IdentityTransform(), "dt")
    table.append(first)
    with table.update_schema() as update:
        update.update_column("was_clicked", LongType())
        update.rename_column("was_clicked", "clicked")
        update.move_first("price")
    second = raw_rows(200, 300).append_column("dt", pa.array([DAYS[1]] * 200))
    table.append(second.select(table.schema().as_arrow().names))
    return table


def job_of(spec: Spec, root: Path, url: str = URL, **options: Any) -> ExtractJob:
    return ExtractJob(spec=spec, input_url=url, table_url=str(root / "table"), **options)


def extracted(job: ExtractJob) -> pa.Table:
    rows = featstore.open_table(job.table_url).to_arrow()
    return rows.sort_by([(name, "ascending") for name in ("dt", "price_log", "user")])


@pytest.fixture
def expected(spec: Spec, tmp_path: Path) -> pa.Table:
    """The same rows from files of their own."""
    for day, rows in zip(DAYS, (raw_rows(300), raw_rows(200, 300)), strict=True):
        put_parquet(tmp_path / "raw" / f"dt={day}" / "a.parquet", rows)
    job = ExtractJob(
        spec=spec,
        input_url=str(tmp_path / "raw"),
        table_url=str(tmp_path / "expected"),
        partition_from_path=("dt",),
    )
    extract_files(job)
    return extracted(job)


def test_a_snapshot_is_extracted_as_files_are(
    spec: Spec, table: Any, expected: pa.Table, tmp_path: Path
) -> None:
    job = job_of(spec, tmp_path, partition_from_path=("dt",))
    extract_files(job)
    assert extracted(job).equals(expected)
    assert not extract_files(job).committed
    with pytest.raises(InputError, match="expected a partition, found none"):
        extract_files(replace(job, partition_from_path=()))
    with pytest.raises(
        InputError, match="expected the table to be partitioned by the values of 'month'"
    ):
        extract_files(replace(job, partition_from_path=("month",)))


def test_spark_extracts_the_same(
    spark: Any, spec: Spec, table: Any, expected: pa.Table, tmp_path: Path
) -> None:
    job = job_of(spec, tmp_path, partition_from_path=("dt",))
    extract_files(job, runner=SparkRunner(spark))
    assert extracted(job).equals(expected)


def test_days_are_partitions_of_the_table(
    spec: Spec, table: Any, expected: pa.Table, tmp_path: Path
) -> None:
    job = job_of(spec, tmp_path, f"{URL}?dt={{dt}}", run_id="a")
    days = "2026-11-01..2026-11-02"
    extract_days(job, days)
    assert extracted(job).equals(expected)
    again = extract_days(replace(job, run_id="b"), days)
    assert [str(day.reason) for day in again.days] == ["up to date", "up to date"]
    later = raw_rows(10, 500).append_column("dt", pa.array([DAYS[1]] * 10))
    table.append(later.select(table.schema().as_arrow().names))
    again = extract_days(replace(job, run_id="c"), days, dry_run=True)
    assert [str(day.reason) for day in again.days] == ["up to date", "stale input"]


def test_a_table_is_opened_once_for_all_days(
    spec: Spec, table: Any, expected: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = list[str]()
    load_table = SqlCatalog.load_table

    def load_noted(catalog: SqlCatalog, name: str) -> Any:
        loaded.append(name)
        return load_table(catalog, name)

    monkeypatch.setattr(SqlCatalog, "load_table", load_noted)
    job = job_of(spec, tmp_path, f"{URL}?dt={{dt}}")
    extract_days(job, "2026-11-01..2026-11-02")
    assert extracted(job).equals(expected)
    assert loaded == ["db.raw"]


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize(
    ("query", "may_pass"),
    [
        ("?dt=2026-11-02", True),
        ("?version=main", True),
        ("?version=audit&dt=2026-11-02", True),
        ("?version=monday", False),
        ("?version={id}", False),
        ("?after=monday&version=main", False),
        (None, False),  # a metadata file
    ],
)
def test_a_file_that_goes_may_be_replaced_where_a_branch_is_read(
    table: Any, query: str | None, *, may_pass: bool, is_open: bool
) -> None:
    [first, second] = (each.snapshot_id for each in table.history())
    refs = table.manage_snapshots().create_branch(second, "audit")
    tag = first if query and "after" in query else second
    refs.create_tag(tag, "monday").commit()
    metadata = table.metadata_location.removeprefix("file://")
    url = f"iceberg+file:{metadata}" if query is None else URL + query.format(id=second)
    [unit, *_] = plan_units(find_raw_files(url, {}, ()), 1_000)
    of_file = unit.ranges[0]
    Path(of_file.url.removeprefix("file://")).unlink()
    with (
        pytest.raises(InputError, match=r"expected a \w+ file, found none: ") as error,
        open_range(of_file) if is_open else nullcontext(),
    ):
        find_raw_files(url, {}, ())
    assert error.value.may_pass == may_pass


def test_a_range_of_snapshots_is_extracted(
    spec: Spec, table: Any, expected: pa.Table, tmp_path: Path
) -> None:
    first = table.history()[0].snapshot_id
    job = job_of(spec, tmp_path, f"{URL}?after={first}", partition_from_path=("dt",))
    extract_files(job)
    assert extracted(job).equals(expected.filter(pa.compute.equal(expected["dt"], DAYS[1])))


def test_deleted_rows_are_not_extracted(spec: Spec, catalog: Any, tmp_path: Path) -> None:
    rows = raw_rows(300)
    table = catalog.create_table("db.raw", rows.schema)
    for first in (0, 200):
        table.append(rows.slice(first, 200))
    [path] = [
        path
        for path, count in zip(
            *table.inspect.files().select(["file_path", "record_count"]).to_pydict().values(),
            strict=True,
        )
        if count == 200
    ]
    deletes = position_deletes(tmp_path, [(path, at) for at in (0, 7, 199)])
    url = commit_deletes(table, tmp_path, [deletes])
    job = job_of(spec, tmp_path, partition={"dt": DAYS[0]})
    assert extract_files(job).committed
    job = replace(job, input_url=url, run_id="b")
    assert extract_files(job).committed  # The same files, with fewer rows
    found = featstore.open_table(job.table_url).to_arrow().sort_by("price_log")
    kept = [at for at in range(300) if at not in (0, 7, 199)]
    assert found["user"].to_pylist() == rows["user"].take(kept).to_pylist()
    Path(deletes.file_path.removeprefix("file://")).unlink()
    row_masks.deleted_rows.cache_clear()
    with pytest.raises(InputError, match=r"its deleted rows in \S+, found none: was its snapshot"):
        extract_files(replace(job, run_id="c", partition={"dt": DAYS[1]}))


def test_a_spec_is_previewed_on_a_table(spec: Spec, table: Any) -> None:
    assert "500" in str(preview(spec, URL))


def test_another_column_of_the_same_name_is_another_input(
    spec: Spec, catalog: Any, tmp_path: Path
) -> None:
    rows = raw_rows(300).append_column("dt", pa.array([DAYS[0]] * 300))
    other = pa.compute.subtract(pa.scalar(1), rows["clicked"])
    table = catalog.create_table("db.raw", rows.append_column("converted", other).schema)
    with table.update_spec() as update:
        update.add_field("dt", IdentityTransform(), "dt")
    table.append(rows.append_column("converted", other))
    job = job_of(spec, tmp_path, partition_from_path=("dt",))
    daily = replace(job, input_url=f"{URL}?dt={{dt}}", partition_from_path=(), run_id="daily")
    daily = replace(daily, table_url=str(tmp_path / "daily"))
    extract_files(job)
    extract_days(daily, DAYS[0])
    clicks = extracted(job)["click"].to_pylist()
    with table.update_schema() as update:  # Of no column that the spec reads
        update.add_column("note", StringType())
        update.rename_column("converted", "bought")
    assert not extract_files(replace(job, run_id="a")).committed
    with table.update_schema() as update:
        update.delete_column("clicked")
    with table.update_schema() as update:
        update.rename_column("bought", "clicked")
    [day] = extract_days(daily, DAYS[0], dry_run=True).days
    assert str(day.reason) == "stale input"
    assert extract_files(replace(job, run_id="b")).committed
    assert extracted(job)["click"].to_pylist() == [1 - click for click in clicks]


def test_values_are_compared_in_the_type_of_the_key(
    spec: Spec, catalog: Any, tmp_path: Path
) -> None:
    def rows_at(hour: int, *, is_new: bool) -> pa.Table:
        rows = raw_rows(10, 100 * hour).append_column("dt", pa.array([DAYS[0]] * 10))
        rows = rows.append_column("hour", pa.array([hour] * 10, pa.int32()))
        return rows.append_column("is_new", pa.array([is_new] * 10))

    table = catalog.create_table("db.raw", rows_at(0, is_new=True).schema)
    with table.update_spec() as update:
        for key in ("dt", "hour", "is_new"):
            update.add_field(key, IdentityTransform(), key)
    for hour, is_new in ((0, True), (5, True), (5, False), (13, True)):
        table.append(rows_at(hour, is_new=is_new))
    job = job_of(spec, tmp_path, f"{URL}?dt={{dt}}&hour={{hour}}&is_new=true")
    done = extract_days(job, DAYS[0], allow_missing=True)
    made = {day.day.partition["hour"]: day.report for day in done.days if day.report}
    assert {hour: report.num_rows for hour, report in made.items()} == {
        "00": 10,
        "05": 10,
        "13": 10,
    }
    with pytest.raises(InputError, match=r"of the partition key 'hour' \(int32\), found 'noon'"):
        extract_files(replace(job, input_url=f"{URL}?hour=noon"))
