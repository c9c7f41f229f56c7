"""Files to import, and what became of them. Locations are tested on the tables of `tests/table`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from featstore.ingest import join as join_on_spark
from featstore.ingest.join_local import join_labels_locally, write_parquet
from featstore.ingest.join_options import LabelJoin
from featstore.ingest.join_output import HadoopFiles, JoinOutput, LocalFiles
from featstore.ingest.join_report import JoinReport
from tests.extraction.conftest import document as document
from tests.extraction.conftest import raw as raw
from tests.extraction.conftest import spec as spec
from tests.extraction.conftest import write_raw as write_raw
from tests.table.conftest import schema as schema

Then = Callable[[str], None]


class SparkEngine:
    """Joins on the session of the tests."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    def join(
        self, join: LabelJoin, *, lost: str = "", doubled: str = "", then: Then | None = None
    ) -> JoinReport:
        """Runs the join; its writer loses or doubles a row of this `rid`, and calls `then` with the
        path of what it wrote.
        """

        def write(rows: Any, url: str, partition_by: tuple[str, ...]) -> None:
            rows = rows.where(f"rid != '{lost}'") if lost else rows
            rows = rows.union(rows.where(f"rid = '{doubled}'")) if doubled else rows
            join_on_spark.write_parquet(rows, url, partition_by)
            if then is not None:
                then(url.removeprefix("file://"))

        return join_on_spark.join_labels(join, self.spark, write=write)

    def output(self, url: str) -> JoinOutput:
        return JoinOutput(HadoopFiles(self.spark, url), url)


class LocalEngine:
    """Joins without Spark, in little memory."""

    def join(
        self, join: LabelJoin, *, lost: str = "", doubled: str = "", then: Then | None = None
    ) -> JoinReport:
        def write(rows: pa.RecordBatchReader, url: str, partition_by: tuple[str, ...]) -> None:
            if lost or doubled:
                table = rows.read_all()
                table = table.filter(pc.field("rid") != lost)
                table = pa.concat_tables([table, table.filter(pc.field("rid") == doubled)])
                rows = table.to_reader()
            write_parquet(rows, url, partition_by)
            if then is not None:
                then(url)

        return join_labels_locally(join, memory_bytes=200_000_000, write=write)

    def output(self, url: str) -> JoinOutput:
        return JoinOutput(LocalFiles(), url)


Engine = SparkEngine | LocalEngine


@pytest.fixture(params=[pytest.param("spark", marks=pytest.mark.slow), "local"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """What a join runs on."""
    if request.param == "spark":
        return SparkEngine(request.getfixturevalue("spark"))
    return LocalEngine()


Rows = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A directory of three CSV files in two partitions."""
    for name, text in {
        "dt=1/a.csv": "user,price\nu1,1.5\nu2,2.5\n",
        "dt=1/b.csv": "price,user\n3.5,u3\n",
        "dt=2/c.csv": "user,price\nu4,4.5\n",
    }.items():
        path = tmp_path / "log" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "log"


@pytest.fixture
def rows() -> Rows:
    """Reads the rows of a directory, file after file."""

    def read(directory: Path) -> list[dict[str, Any]]:
        paths = sorted(path for path in directory.rglob("*.parquet"))
        return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]

    return read
