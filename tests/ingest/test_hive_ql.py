"""What Hive's own driver sees of a registered table: that of Hive 2.3, as it is in Spark's client."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.ingest.hive_locations import view_query
from tests.extraction.conftest import DOCUMENT, raw_rows
from tests.hive.metastores import JARS
from tests.parquet_files import put_parquet
from tests.programs import run_python

pytestmark = pytest.mark.slow

SCHEMA = SlotSchema(
    slots=(
        Slot(number=1, name="user", kind=SlotKind.ID),
        Slot(number=2, name="tags", kind=SlotKind.ID, shape=(None,)),
        Slot(number=3, name="pair", kind=SlotKind.ID, shape=(2,)),
        Slot(number=4, name="price", kind=SlotKind.FLOAT),
        Slot(number=5, name="prices", kind=SlotKind.FLOAT, shape=(None,)),
        Slot(number=6, name="place", kind=SlotKind.FLOAT, shape=(2,)),
    ),
    labels=(pa.field("score", pa.float64()),),
    kept=(pa.field("row", pa.int32()),),
)
NAN, INF = "float('NaN')", "float('Infinity')"
# By column: values that are missing, the last of which is null, and values that are not.
VALUES = {
    "user": (["0L", "null"], ["7L", "-1L", "9223372036854775807L"]),
    "tags": (["array(0L)", "null"], ["array(0L, 0L)", "array()", "array(7L)"]),
    "pair": (["array(0L, 0L)", "null"], ["array(0L, 7L)", "array(7L, 0L)", "array(-1L, 0L)"]),
    "price": ([NAN, "null"], [INF, f"-{INF}", "float(0)"]),
    "prices": ([f"array({NAN})", "null"], [f"array({NAN}, {NAN})", "array()", f"array({INF})"]),
    "place": (
        [f"array({NAN}, {NAN})", "null"],
        [f"array({NAN}, float(1))", f"array({INF}, {NAN})", "array(float(0), float(0))"],
    ),
    "score": (["double('NaN')", "null"], ["double('Infinity')", "-0.0D", "0.5D"]),
}
IS_MISSING = [True, True, False, False, False]


MARKS = (
    "CREATE TABLE default.marks STORED AS PARQUET AS SELECT * FROM VALUES "
    + ", ".join(
        f"({row}, {', '.join(values)})"
        for row, values in enumerate(
            zip(*(missing + others for missing, others in VALUES.values()), strict=True)
        )
    )
    + f" AS marks(row, {', '.join(VALUES)})"
)
PROGRAM = """
import json, sys
import featstore
from featstore.ingest.hive_registration import register
from featstore.extraction.spark.runners import spark_session
from featstore.table.delta import open_delta

marks, query, nulls = sys.argv[1:]
spark = spark_session("Hive's driver", hive=True)
client = spark._jsparkSession.sharedState().externalCatalog().unwrapped().client()
client.state().getConf().set("hive.exec.scratchdir", "scratch")
spark._jvm.org.apache.hadoop.hive.ql.session.SessionState.start(client.state())
def hive(statement):
    to_java = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava
    return [line.replace(" ", "") for line in to_java(client.runSqlHive(statement))]
hive("set hive.cbo.enable=false")  # its library is not in Spark
def rows(what):
    return [[str(value) for value in row] for row in spark.sql(what).orderBy("row").collect()]

spark.sql(marks)
views = [rows("SELECT * FROM default.marks"), rows(query), hive(f"SELECT `row`, {nulls} FROM ({query}) shown")]
tables = []
for table, partition, what in (("days", {"dt": "1"}, "PARTITION (dt='1')"), ("flat", {}, "")):
    def extract(raw):
        featstore.extract("spec.yaml", raw, table, partition=partition)
        register(spark, table, f"default.{table}")
    extract("raw/old")
    hive(f"ANALYZE TABLE default.{table} {what} COMPUTE STATISTICS")
    found = [hive(f"DESCRIBE FORMATTED default.{table} {what}"), hive(f"SELECT count(*) FROM default.{table}")]
    extract("raw/new")
    found += [hive(f"DESCRIBE FORMATTED default.{table} {what}"), hive(f"SELECT click FROM default.{table}")]
    missing = f"SELECT `user` FROM default.{table}_with_nulls WHERE user_id IS NULL"
    sizes = [file.size_bytes for file in open_delta(table).data_files]
    tables.append([*found, hive(missing), [f"\\tnumFiles\\t{len(sizes)}", f"\\ttotalSize\\t{sum(sizes)}"]])
spark.stop()
print(json.dumps([views, tables]))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the program prints."""
    library = JARS / "3.1.3" / "hive-llap-common-2.3.10.jar"
    if not library.is_file():
        pytest.skip("no driver of Hive: `make hive` brings what Spark's client lacks of it")
    home = tmp_path_factory.mktemp("hive")
    (home / "spec.yaml").write_text(yaml.safe_dump(DOCUMENT))
    for name, num_rows, first in (("old", 110, 0), ("new", 121, 11)):
        put_parquet(home / "raw" / name / "a.parquet", raw_rows(num_rows, first))
    conf = {
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.driver.extraClassPath": library,
        "spark.driver.extraJavaOptions": "'-XX:TieredStopAtLevel=1 -Dspark.testing=true'",
        "spark.sql.warehouse.dir": home / "warehouse",
    }
    arguments = " ".join(f"--conf {key}={value}" for key, value in conf.items())
    variables = {
        "PYSPARK_SUBMIT_ARGS": f"{arguments} pyspark-shell",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    nulls = ", ".join(f"`{name}` IS NULL" for name in VALUES)
    given = [MARKS, view_query(SCHEMA, "default.marks"), nulls]
    done = run_python(PROGRAM, *given, cwd=home, variables=variables)
    return json.loads(done.stdout.splitlines()[-1])


def test_missing_values_are_null_for_both_engines_and_others_are_as_they_were(seen: Any) -> None:
    stored, by_spark, by_hive = seen[0]
    assert "nan" in stored[0]
    for row, is_missing in enumerate(IS_MISSING):
        expected = ["None"] * len(VALUES) if is_missing else stored[row][1:]
        assert by_spark[row] == [*expected, str(row)]
    assert sorted(by_hive) == [
        "\t".join([str(row), *[str(is_missing).lower()] * len(VALUES)])
        for row, is_missing in enumerate(IS_MISSING)
    ]


@pytest.mark.parametrize("partitioned", [True, False])
def test_statistics_of_former_files_are_gone(seen: Any, partitioned: bool) -> None:
    before, counted, after, rows, nulls, files = seen[1][0 if partitioned else 1]
    accurate = '\tCOLUMN_STATS_ACCURATE\t{\\"BASIC_STATS\\":\\"true\\"}'
    assert {accurate, "\tnumRows\t110"} <= {*before}
    assert counted == ["110"], "by the statistics"
    noted = [line for line in after if line.startswith(("\tCOLUMN_STATS", "\tnumRows"))]
    assert noted == ([] if partitioned else ["\tnumRows\t-1"])
    assert {*files} <= {*after}
    assert not {*files} <= {*before}
    assert len(rows) == 121
    assert nulls == ["NULL"] * 11
