"""Writes the tables of `delta_spark.tar.xz`, in an environment with pyspark 4.2.1 and the jars of
delta-spark_4.2_2.13 4.4.0 (delta-*, unitycatalog-*, RoaringBitmap, shims):

    python tests/table/write_delta_spark.py DIRECTORY JARS

`expected.json` has the rows of each version as Spark reads them. The archive has no checksums
(`*.crc`), nor empty directories of the log.
"""

import json
import sys
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession

VECTORS = {"delta.enableDeletionVectors": "true"}
VERSION_3 = {"delta.minReaderVersion": "3", "delta.minWriterVersion": "7"}
WIDENING = {"delta.enableTypeWidening": "true"}
MAPPED = (
    "x BIGINT, gone BIGINT, price DOUBLE, day STRING, "
    "s STRUCT<a: BIGINT, b: ARRAY<STRUCT<c: STRING>>>, m MAP<STRING, STRUCT<d: BIGINT>>"
)
WIDENED = {
    "b": "INT",
    "i": "BIGINT",
    "f": "DOUBLE",
    "d": "TIMESTAMP_NTZ",
    "e": "DECIMAL(12,4)",
    "l.element": "BIGINT",
    "s.a": "INT",
}


class Writer:
    """Writes tables below a directory."""

    def __init__(self, directory: Path, jars: Path) -> None:
        self._directory = directory
        extensions = "io.delta.sql.DeltaSparkSessionExtension"
        catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        self.spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.jars", ",".join(map(str, sorted(jars.glob("*.jar")))))
            .config("spark.sql.extensions", extensions)
            .config("spark.sql.catalog.spark_catalog", catalog)
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.databricks.delta.snapshotPartitions", "1")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.ui.enabled", "false")
            .getOrCreate()
        )
        self.expected: dict[str, dict[str, list[Any]]] = {}

    def sql(self, name: str, text: str) -> None:
        self.spark.sql(text.replace("TABLE_", f"delta.`{self._directory / name}`"))

    def make(self, name: str, columns: str, properties: dict[str, str], more: str = "") -> None:
        pairs = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        self.sql(
            name, f"CREATE TABLE TABLE_ ({columns}) USING delta {more} TBLPROPERTIES ({pairs})"
        )

    def record(self, name: str, *versions: int) -> None:
        for version in (*versions, None):
            reader = self.spark.read.format("delta")
            if version is not None:
                reader = reader.option("versionAsOf", version)
            rows = reader.load(str(self._directory / name)).collect()
            key = "newest" if version is None else str(version)
            self.expected.setdefault(name, {})[key] = [plain(row) for row in rows]


def plain(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, date | Decimal):
        return str(value)
    if isinstance(value, Row):
        return plain(value.asDict())
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def vectors(to: Writer, name: str, properties: dict[str, str]) -> None:
    columns = "x BIGINT, day STRING, tags ARRAY<BIGINT>"
    to.make(name, columns, VECTORS | properties, "PARTITIONED BY (day)")
    rows = "id, IF(id < 40, 'a', 'b'), array(id, id + 1) FROM range(0, 80, 1, 1)"
    to.sql(name, f"INSERT INTO TABLE_ SELECT {rows}")
    to.sql(name, "DELETE FROM TABLE_ WHERE x % 7 = 3")
    to.sql(name, "UPDATE TABLE_ SET x = x + 1000 WHERE x IN (10, 50)")
    source = "SELECT * FROM VALUES (20, 'a'), (200, 'c') AS s(x, day)"
    insert = "WHEN NOT MATCHED THEN INSERT (x, day, tags) VALUES (s.x, s.day, array())"
    matched = f"WHEN MATCHED THEN DELETE {insert}"
    to.sql(name, f"MERGE INTO TABLE_ t USING ({source}) s ON t.x = s.x {matched}")
    to.sql(name, "DELETE FROM TABLE_ WHERE x BETWEEN 30 AND 39")
    to.record(name, 1, 2, 3, 4)


def restored(to: Writer, name: str) -> None:
    to.make(name, "x BIGINT", VECTORS)
    to.sql(name, "INSERT INTO TABLE_ SELECT id FROM range(0, 20, 1, 1)")
    to.sql(name, "DELETE FROM TABLE_ WHERE x < 5")
    to.sql(name, "RESTORE TABLE TABLE_ TO VERSION AS OF 1")
    to.sql(name, "DELETE FROM TABLE_ WHERE x > 15")
    to.record(name)


def mapped(to: Writer, name: str, mode: str) -> None:
    properties = VECTORS | VERSION_3 | {"delta.columnMapping.mode": mode}
    to.make(name, MAPPED, properties, "PARTITIONED BY (day)")
    nested = (
        "named_struct('a', id, 'b', array(named_struct('c', cast(id as string)))), "
        "map('k', named_struct('d', id))"
    )
    to.sql(name, f"INSERT INTO TABLE_ SELECT id, -id, id / 2, 'a', {nested} FROM range(0, 8, 1, 1)")
    to.sql(name, "ALTER TABLE TABLE_ RENAME COLUMN price TO cost")
    to.sql(name, "ALTER TABLE TABLE_ DROP COLUMN gone")
    to.sql(name, "ALTER TABLE TABLE_ ADD COLUMN (gone BIGINT)")
    to.sql(name, "ALTER TABLE TABLE_ RENAME COLUMN day TO dt")
    to.sql(name, "ALTER TABLE TABLE_ RENAME COLUMN s.a TO z")
    to.sql(
        name,
        "INSERT INTO TABLE_ (x, cost, dt, s, m, gone) SELECT id, id / 4, 'b', "
        "named_struct('z', id, 'b', array()), map(), id FROM range(8, 12, 1, 1)",
    )
    to.sql(name, "DELETE FROM TABLE_ WHERE x IN (2, 9)")
    to.record(name)


def mapped_later(to: Writer, name: str) -> None:
    to.make(name, "x BIGINT, y BIGINT", {"delta.enableDeletionVectors": "false"})
    to.sql(name, "INSERT INTO TABLE_ SELECT id, id + 100 FROM range(0, 6, 1, 1)")
    properties = (
        "'delta.columnMapping.mode'='name', 'delta.minReaderVersion'='2', "
        "'delta.minWriterVersion'='5'"
    )
    to.sql(name, f"ALTER TABLE TABLE_ SET TBLPROPERTIES ({properties})")
    for before, after in ("xt", "yx", "ty"):
        to.sql(name, f"ALTER TABLE TABLE_ RENAME COLUMN {before} TO {after}")
    to.sql(name, "INSERT INTO TABLE_ (x, y) VALUES (7, 8)")
    to.record(name)


def widened(to: Writer, name: str) -> None:
    columns = (
        "b TINYINT, i INT, f FLOAT, d DATE, e DECIMAL(5,2), l ARRAY<INT>, s STRUCT<a: SMALLINT>"
    )
    to.make(name, columns, WIDENING | {"delta.feature.timestampNtz": "supported"})
    row = "1, 2, 0.5, DATE'2026-11-01', 1.25, array(1, 2), named_struct('a', 3S)"
    to.sql(name, f"INSERT INTO TABLE_ VALUES ({row}), ({', '.join(['NULL'] * 7)})")
    for column, type_ in WIDENED.items():
        to.sql(name, f"ALTER TABLE TABLE_ ALTER COLUMN {column} TYPE {type_}")
    row = (
        "100000, 5000000000, 0.1, TIMESTAMP_NTZ'2026-11-02 03:04:05.678901', 12345678.1234, "
        "array(5000000000), named_struct('a', 100000)"
    )
    to.sql(name, f"INSERT INTO TABLE_ VALUES ({row})")
    to.record(name)


def widened_to_double(to: Writer, name: str) -> None:
    to.make(name, "i INT, j SMALLINT, k BIGINT", WIDENING)
    to.sql(name, "INSERT INTO TABLE_ VALUES (2, 3, 4), (NULL, NULL, NULL)")
    for column in "ij":
        to.sql(name, f"ALTER TABLE TABLE_ ALTER COLUMN {column} TYPE DOUBLE")
    to.sql(name, "INSERT INTO TABLE_ VALUES (0.5, 1.5, 7)")
    to.record(name)


def times(to: Writer, name: str) -> None:
    to.make(name, "t TIMESTAMP, u TIMESTAMP_NTZ, d DATE", {"a": "b"})
    first = (
        "TIMESTAMP'2026-11-02 03:04:05.678901Z', "
        "TIMESTAMP_NTZ'1960-01-01 00:00:00.000001', DATE'1969-12-31'"
    )
    to.sql(name, f"INSERT INTO TABLE_ VALUES ({first}), (NULL, NULL, NULL)")
    for type_, time in (
        ("INT96", "1900-11-02 03:04:05.678901Z"),
        ("TIMESTAMP_MILLIS", "2026-11-02 03:04:05.678Z"),
    ):
        to.spark.conf.set("spark.sql.parquet.outputTimestampType", type_)
        to.sql(name, f"INSERT INTO TABLE_ VALUES (TIMESTAMP'{time}', NULL, NULL)")
    to.record(name)


def main(directory: Path, jars: Path) -> None:
    to = Writer(directory, jars)
    vectors(to, "vectors", {})
    checkpoints = {"delta.checkpointInterval": "2"}
    vectors(to, "vectors_checkpointed", checkpoints)
    vectors(to, "vectors_checkpoint_v2", {**checkpoints, "delta.checkpointPolicy": "v2"})
    restored(to, "restored")
    for mode in ("name", "id"):
        mapped(to, f"mapped_{mode}", mode)
    mapped_later(to, "mapped_later")
    widened(to, "widened")
    widened_to_double(to, "widened_to_double")
    times(to, "times")
    (directory / "expected.json").write_text(json.dumps(to.expected, separators=(",", ":")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
