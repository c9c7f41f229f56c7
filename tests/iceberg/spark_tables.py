"""What Spark 4.1 with Iceberg's runtime reads in tables of featstore, and tables that it writes.

    python tests/iceberg/spark_tables.py DIRECTORY METADATA...

The rows of the metadata file number N are in `DIRECTORY/read/N`. Written tables lie in
`DIRECTORY/lake`; `written.json` has a list of the metadata file, the snapshot and the directory of
the rows, as Spark reads them, of each of their versions.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

OPTIONS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
    "spark.sql.defaultCatalog": "lake",
    "spark.ui.enabled": "false",
}
MERGE_ON_READ = {f"write.{act}.mode": "merge-on-read" for act in ("delete", "update", "merge")}
COLUMNS = "id BIGINT, n INT, x FLOAT, name STRING, tags ARRAY<BIGINT>, day DATE, at TIMESTAMP"
ROWS = (
    "SELECT id, CAST(id AS INT) % 5, CAST(id / 4 AS FLOAT), IF(id % 9 = 8, NULL, 'n' || id % 17), "
    "IF(id % 5 = 2, NULL, sequence(1, id % 3 + 1)), date_add(DATE'2026-11-01', CAST(id / 40 AS INT)), "
    "timestamp_seconds(1700000000 + id * 3600) FROM range({}, {}, 1, 2)"
)


class Lake:
    """Writes tables, and records their versions."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        self.versions = list[dict[str, Any]]()

    def make(self, name: str, version: int, partitioning: str, **properties: str) -> None:
        given = {"format-version": str(version), **MERGE_ON_READ}
        given |= {key.replace("_", "."): value for key, value in properties.items()}
        pairs = ", ".join(f"'{key}'='{value}'" for key, value in given.items())
        self._spark.sql(
            f"CREATE TABLE lake.db.{name} ({COLUMNS}) USING iceberg {partitioning} "
            f"TBLPROPERTIES ({pairs})"
        )

    def do(self, name: str, *statements: str) -> None:
        """Executes statements, in which TABLE_ is the table, and records the version after them."""
        for statement in statements:
            self._spark.sql(statement.replace("TABLE_", f"lake.db.{name}"))
        metadata = self._spark.sql(f"SELECT * FROM lake.db.{name}.metadata_log_entries").collect()
        rows = self._directory / "rows" / str(len(self.versions))
        write(self._spark.table(f"lake.db.{name}"), rows)
        self.versions.append(
            {
                "table": name,
                "metadata": metadata[-1].file,
                "snapshot": metadata[-1].latest_snapshot_id,
                "rows": str(rows),
            }
        )


def write(frame: DataFrame, directory: Path) -> None:
    frame.coalesce(1).write.parquet(str(directory))


def deleted(lake: Lake, name: str, version: int, partitioning: str, **properties: str) -> None:
    """Rows that are deleted by what this version of the format has for it."""
    lake.make(name, version, partitioning, **properties)
    lake.do(name, f"INSERT INTO TABLE_ {ROWS.format(0, 80)}")
    lake.do(name, "DELETE FROM TABLE_ WHERE id % 7 = 3")
    source = "SELECT * FROM VALUES (20L, 1), (200L, 2) AS s(id, n)"
    insert = "WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, s.n)"
    lake.do(
        name,
        "UPDATE TABLE_ SET n = n + 1000 WHERE id IN (11, 50)",
        f"MERGE INTO TABLE_ t USING ({source}) s ON t.id = s.id WHEN MATCHED THEN DELETE {insert}",
    )


def upgraded(lake: Lake, name: str) -> None:
    """Position deletes that deletion vectors replace."""
    lake.make(name, 2, "", write_delete_granularity="partition")
    lake.do(
        name,
        f"INSERT INTO TABLE_ {ROWS.format(0, 40)}",
        f"INSERT INTO TABLE_ {ROWS.format(40, 80)}",
        "DELETE FROM TABLE_ WHERE id % 20 = 3",
        "ALTER TABLE TABLE_ SET TBLPROPERTIES ('format-version'='3')",
        "DELETE FROM TABLE_ WHERE id BETWEEN 30 AND 45",
    )
    lake.do(
        name, "CALL lake.system.rewrite_data_files('TABLE_', options => map('rewrite-all', 'true'))"
    )


def evolved(lake: Lake, name: str) -> None:
    """Columns and partitions that change, and files of each kind of them."""
    lake.make(name, 2, "PARTITIONED BY (day)")
    lake.do(
        name,
        f"INSERT INTO TABLE_ {ROWS.format(0, 80)}",
        "ALTER TABLE TABLE_ RENAME COLUMN x TO price",
        "ALTER TABLE TABLE_ ALTER COLUMN n TYPE BIGINT",
        "ALTER TABLE TABLE_ ADD COLUMN x BIGINT FIRST",
        "ALTER TABLE TABLE_ DROP COLUMN name",
        "ALTER TABLE TABLE_ ADD PARTITION FIELD bucket(3, id)",
        "INSERT INTO TABLE_ VALUES (7, 90, 5000000000, 0.5, array(), DATE'2026-11-02', NULL)",
        "DELETE FROM TABLE_ WHERE id IN (4, 44, 79)",
    )


def main(directory: Path, read: list[str]) -> None:
    builder = SparkSession.builder.config("spark.local.dir", str(directory / "local"))
    builder = builder.config("spark.sql.catalog.lake.warehouse", str(directory / "lake"))
    for option, value in OPTIONS.items():
        builder = builder.config(option, value)
    spark = builder.getOrCreate()
    for number, metadata in enumerate(read):
        write(spark.read.format("iceberg").load(metadata), directory / "read" / str(number))
    lake = Lake(spark, directory)
    deleted(lake, "positions", 2, "")
    deleted(
        lake, "positions_of_many", 2, "PARTITIONED BY (day)", write_delete_granularity="partition"
    )
    deleted(lake, "vectors", 3, "PARTITIONED BY (days(at))")
    upgraded(lake, "upgraded")
    evolved(lake, "evolved")
    (directory / "written.json").write_text(json.dumps(lake.versions))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
