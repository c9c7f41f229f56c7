"""Profiles computed on Spark, compared with those computed by duckdb in this process."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featstore
from featstore.base.errors import InputError, SelectionError, StaleGroupError
from featstore.explore.profile import NUM_TOP, Profile
from featstore.explore.spark_profile import profile_dataframe, profile_table
from featstore.explore.table import Table
from featstore.spec.parse import load_spec
from featstore.statistics.summary import QUANTILES
from featstore.tools import job_profile_slots as profile_slots
from tests.parquet_files import put_parquet
from tests.stale_tables import make, rewrite

EXACT = [
    "slot",
    "number",
    "kind",
    "shape",
    "num_present",
    "coverage",
    "num_values",
    "length_mean",
    "length_max",
]
SPEC: dict[str, Any] = {
    "spec": 1,
    "inputs": {"user": "string", "tags": "list<string>", "price": "double", "clicked": "long"},
    "labels": {"click": "clicked"},
    "keep": ["user"],
    "slots": [
        {"slot": 101, "name": "user_id", "op": "hash", "of": "user", "default": "nobody"},
        {"slot": 102, "name": "tag_ids", "op": "hash", "of": "tags"},
        {"slot": 103, "name": "price_log", "op": "log1p", "of": "price"},
    ],
    "output": {"rows_per_row_group": 100, "rows_per_file": 200},
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Two days, of five and of two data files. The second day was replaced once."""
    home = tmp_path_factory.mktemp("profiling")
    for day, first, num_rows in (("1", 0, 1000), ("2", 0, 500), ("2", 50, 300)):
        rows = range(first, first + num_rows)
        put_parquet(
            home / "raw" / "a.parquet",
            {
                "user": [None if row % 11 == 0 else f"u{row % 50}" for row in rows],
                "tags": [None if row % 13 == 0 else [f"t{row % 7}"] * (row % 5) for row in rows],
                "price": [None if row % 4 == 0 else row / 3 for row in rows],
                "clicked": [row % 2 for row in rows],
            },
            row_group_size=100,
        )
        featstore.extract(load_spec(SPEC), home / "raw", home / "table", partition={"dt": day})
    return featstore.open_table(home / "table")


def assert_of(
    found: Profile, table: Table, where: str | None = None, slots: list[str] | None = None
) -> None:
    """Checks a profile against the table's rows."""
    expected, rows = table.profile(where, slots), table.to_arrow(slots, where)
    assert found.num_rows == expected.num_rows
    assert found.label_rates == pytest.approx(expected.label_rates)
    assert found.table.select(EXACT) == expected.table.select(EXACT)
    for name in expected.slots:
        assert found[name]["distinct"] == pytest.approx(
            expected[name]["distinct"], rel=max(found[name]["distinct_error"], 1e-9) * 1.5
        )
        assert found[name]["mean"] == pytest.approx(expected[name]["mean"])
        if expected[name]["kind"] == "float":
            numbers = np.array(rows[name].drop_null())
            ranks = [float((numbers <= quantile).mean()) for quantile in found[name]["quantiles"]]
            assert ranks == pytest.approx(QUANTILES, abs=0.02)
        if expected[name]["kind"] == "id":
            values = rows[name].drop_null().to_pylist()
            counts = Counter(
                value for row in values for value in (row if isinstance(row, list) else [row])
            )
            top = {one["value"]: one["count"] for one in found[name]["top"]}
            # A file in which most values occur once does not list all of those.
            num_files = len(table.data_files(where))
            assert all(counts[value] - num_files <= top[value] <= counts[value] for value in top)
            most = sorted(counts.values())[-NUM_TOP:]
            assert sorted(top.values()) == pytest.approx(most, abs=num_files)


def test_the_profile_of_a_table_on_spark_is_that_of_its_rows_in_every_version(
    spark: Any, table: Table
) -> None:
    assert_of(profile_table(spark, table), table)
    then = featstore.open_table(table.url, 1)
    assert then.num_rows == 1500
    assert_of(profile_table(spark, then), then)


def test_only_the_slots_and_rows_that_are_asked_for_are_profiled(spark: Any, table: Table) -> None:
    found = profile_table(spark, table, "dt = '1' and click = 1", ["*_id*"])
    assert found.slots == ("user_id", "tag_ids")
    assert_of(found, table, "dt = '1' and click = 1", ["*_id*"])
    assert profile_table(spark, table, "dt = '9'").num_rows == 0
    with pytest.raises(SelectionError, match="user_idd"):
        profile_table(spark, table, slots=["user_idd"])


def test_counts_of_extraction_are_unknown_from_rows(spark: Any, table: Table) -> None:
    found = profile_table(spark, table)
    assert found["user_id"]["default_rate"] is None
    assert table.profile(stored=True)["user_id"]["default_rate"] > 0
    assert "from the rows, on Spark" in str(found).splitlines()[0]
    assert "collisions" not in str(found)


def test_a_query_is_profiled_by_its_types(spark: Any, table: Table) -> None:
    files = [file.url for file in table.data_files()]
    spark.read.parquet(*files).createOrReplaceTempView("clicks")
    found = profile_dataframe(
        spark.sql(
            "SELECT nullif(user_id, 0) AS user_id, nullif(tag_ids, array(0)) AS tag_ids, price_log, "
            "click, user, cast(null AS bigint) AS nothing, 0 AS zero FROM clicks"
        ),
        ["click"],
    )
    assert found.slots == ("user_id", "tag_ids", "price_log", "nothing", "zero")
    exact = [name for name in EXACT if name != "number"]
    rows = found.table.slice(0, 3)
    assert rows.select(exact) == table.profile().table.select(exact)
    assert found.label_rates == pytest.approx(table.profile().label_rates)
    assert (found["nothing"]["coverage"], found["zero"]["coverage"]) == (0.0, 1.0)
    with pytest.raises(InputError, match="no label 'clik' among the columns; did you mean 'click'"):
        profile_dataframe(spark.sql("SELECT click FROM clicks"), ["clik"])
    with pytest.raises(
        InputError, match="no column of integers, floats or lists of them to profile; found user"
    ):
        profile_dataframe(spark.sql("SELECT user FROM clicks"))


def test_the_job_profiles_what_its_options_say(
    spark: Any, table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def profiled(*arguments: str) -> Profile:
        found = profile_slots.profile(profile_slots.parse_arguments(arguments), spark)
        assert isinstance(found, Profile)
        return found

    then = featstore.open_table(table.url, 0)
    assert_of(
        profiled("--table", table.url, "--version", "0", "--slots", "user_id"),
        then,
        None,
        ["user_id"],
    )
    assert profiled("--sql", "SELECT 1 AS a, 2.0D AS b").slots == ("a", "b")
    rewrite(stale := make(tmp_path), "delete")
    with pytest.raises(StaleGroupError, match="so x would be missing there"):
        profiled("--table", stale)
    assert profiled("--table", stale, "--stale-groups", "missing")["x"]["coverage"] < 1
    with pytest.raises(InputError, match="Spark cannot run the query: "):
        profiled("--hive-table", "nowhere.nothing")
    for wrong in (
        ["--sql", "SELECT 1", "--where", "a = 1"],
        ["--table", "x", "--labels", "click"],
        [],
    ):
        with pytest.raises(SystemExit, match="2"):
            profile_slots.parse_arguments(wrong)
    assert "--labels goes with --sql or --hive-table" in capsys.readouterr().err
