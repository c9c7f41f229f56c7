"""A table's life in metastores that are servers of their own, as jobs see it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hive.metastores import client, metastore
from tests.programs import free_ports, run_python

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
START = """
import json, runpy, sys
import featstore
from deltalake import DeltaTable
from featstore.ingest.hive_registration import register
from featstore.extraction.spark.runners import spark_session

jobs, raw, newer, table, name = sys.argv[1:]
extract, show = (runpy.run_path(f"{jobs}/{job}.py")["main"] for job in ("extract_features", "register_table"))
target = ["--spec", "spec.yaml", "--input", raw, "--table", table, "--partition", "dt=1"]
"""
# Three sessions, one after the other: what they know of each other they have from the server.
LIFE = (
    START
    + """
assert extract([*target, "--register", name]) == 0
spark = spark_session("another session", hive=True)
def rows(what):
    return sorted(spark.sql(f"SELECT dt, count(*) FROM {what} GROUP BY dt").collect())
def missing(what):
    return spark.sql(f"SELECT count(*) - count(user_id) FROM {what}").first()[0]
def noted(day):
    described = spark.sql(f"DESCRIBE EXTENDED {name} PARTITION (dt='{day}')").collect()
    return {row["col_name"]: row["data_type"] for row in described}.get("Partition Statistics", "")
for day, of in (("2", raw), ("3", raw)):
    featstore.extract("spec.yaml", of, table, partition={"dt": day})
reports = [register(spark, table, name)]
for day in "12":
    spark.sql(f"ANALYZE TABLE {name} PARTITION (dt='{day}') COMPUTE STATISTICS")
before = [rows(name), noted("1"), noted("2")]
featstore.extract("spec.yaml", newer, table, partition={"dt": "1"})
DeltaTable(table).delete("dt = '3'")
reports.append(register(spark, table, name))
after = [rows(name), noted("1"), noted("2")]
spark.conf.set("spark.sql.hive.convertMetastoreParquet", "false")
by_hive = rows(name)
nulls = [missing(name), missing(f"{name}_with_nulls"), rows(f"{name}_with_nulls")]
spark.stop()
counts = [[report.num_added, report.num_switched, report.num_dropped] for report in reports]
print(json.dumps([counts, before, after, by_hive, nulls]))
sys.exit(show(["--table", table, "--name", name]))
"""
)


@pytest.fixture
def files(tmp_path: Path, write_raw: Any, raw: Path, document: Any) -> list[object]:
    """The arguments of the programs."""
    write_raw("old/a.parquet", 110)
    write_raw("new/a.parquet", 121, 11)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(document))
    urls = [raw / "old", raw / "new", tmp_path / "table"]
    return [ROOT / "spark_jobs", *urls, "default.clicks"]


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The variables by which programs have these settings of Spark."""
    conf = {
        **settings,
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    arguments = " ".join(f"--conf {key}={value}" for key, value in conf.items())
    return {"PYSPARK_SUBMIT_ARGS": f"{arguments} pyspark-shell", "PYTHONPATH": str(ROOT)}


@pytest.fixture(params=["3.1.3", "4.0.1"], scope="module")
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with metastore(tmp_path_factory.mktemp("metastore"), version) as settings:
        yield settings


def test_days_are_added_switched_and_dropped(
    version: str, server: Mapping[str, str], files: list[object], tmp_path: Path
) -> None:
    # Spark's own client is of Hive 2, and speaks to metastores of Hive 3.
    settings = {**server, **(client(version) if version[0] == "4" else {})}
    done = run_python(LIFE, *files, cwd=tmp_path, variables=environment(settings))
    assert "default.clicks made; it shows version 0 of " in done.stdout
    assert "default.clicks_with_nulls shows missing values as null" in done.stdout
    *_, shown, again = done.stdout.splitlines()
    counts, before, after, by_hive, nulls = json.loads(shown)
    assert counts == [[2, 0, 0], [0, 1, 1]]
    assert before[0] == [["1", 110], ["2", 110], ["3", 110]]
    assert after[0] == by_hive == [["1", 121], ["2", 110]]
    assert all("110 rows" in statistics for statistics in [*before[1:], after[2]])
    assert "rows" not in after[1], "those of former files"
    assert nulls == [0, 21, after[0]]
    assert again.startswith("nothing to do: default.clicks already shows what version 4 of ")


@pytest.mark.parametrize("version", ["4.0.1"], scope="module")
def test_a_metastore_of_hive_4_without_its_client_is_told_in_one_line(
    server: Mapping[str, str], files: list[object], tmp_path: Path
) -> None:
    program = START + "sys.exit(extract([*target, '--register', name]))"
    done = run_python(program, *files, cwd=tmp_path, status=2, variables=environment(server))
    [line] = [line for line in done.stderr.splitlines() if line.startswith("extract: error: ")]
    assert "Spark cannot register default.clicks: " in line
    assert "Invalid method name: 'get_table'" in line
    assert "set spark.sql.hive.metastore.version to its version" in line
    assert "Traceback" not in done.stderr


def test_a_metastore_that_is_down_may_be_up_in_the_next_attempt(
    files: list[object], tmp_path: Path
) -> None:
    program = START + (
        "from featstore.base.errors import StoreError\n"
        "try: register(spark_session('down', hive=True), table, name)\n"
        "except StoreError as error: print(error.may_pass, error)\n"
    )
    [port] = free_ports(1)
    settings = {
        "spark.hadoop.hive.metastore.uris": f"thrift://127.0.0.1:{port}",
        "spark.hadoop.hive.metastore.connect.retries": "1",
    }
    done = run_python(program, *files, cwd=tmp_path, variables=environment(settings))
    [line] = done.stdout.splitlines()
    assert line.startswith("True Spark cannot register default.clicks, its Hive metastore fails")
    assert "HiveException: " in line
