"""A join of logs that Spark reads and no client of this process does, published there: by a mount
table that only the session knows.
"""

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import AccessError, InputError, StoreError
from featstore.files import listings, storage
from featstore.ingest.join import join_labels
from featstore.ingest.join_options import Impressions, Label, LabelJoin, LogSource
from featstore.ingest.session_files import SessionFiles
from tests.parquet_files import put_parquet

ROOT = "viewfs://mounts/logs"
TIME = pa.timestamp("us", tz="UTC")


@pytest.fixture
def logs(spark: Any, tmp_path: Path) -> Iterator[Path]:
    """The local directory of `ROOT`."""
    conf, key = spark._jsc.hadoopConfiguration(), "fs.viewfs.mounttable.mounts.link./logs"
    conf.set(key, f"file://{tmp_path}/logs")
    conf.setBoolean("fs.viewfs.impl.disable.cache", True)
    (tmp_path / "logs").mkdir()
    yield tmp_path / "logs"
    conf.unset(key)


@pytest.fixture
def join(logs: Path) -> LabelJoin:
    ids, times = pa.array(["1", "2"]), pa.array([0, 1_000_000], TIME)
    put_parquet(logs / "shown" / "a.parquet", {"rid": ids, "ts": times})
    put_parquet(logs / "clicks" / "a.parquet", {"rid": ids[:1], "ts": times[1:]})
    source = LogSource(url=f"{ROOT}/shown")
    clicks = LogSource(url=f"{ROOT}/clicks")
    return LabelJoin(
        impressions=Impressions(source=source, row_id=("rid",), event_time="ts"),
        labels=(Label(name="click", source=clicks, key=("rid",), event_time="ts", window_s=60),),
        cut_off=datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC),
        output_url=f"{ROOT}/out",
    )


def test_a_join_where_only_spark_can_read(spark: Any, join: LabelJoin, logs: Path) -> None:
    with pytest.raises((StoreError, ValueError)):
        listings.list_files(f"{ROOT}/shown")
    report = join_labels(join, spark)
    assert report.written
    assert report.document["output"]["num_files"] == len(list((logs / "out").glob("*.parquet")))
    rows = [
        row for path in (logs / "out").glob("*.parquet") for row in pq.read_table(path).to_pylist()
    ]
    assert {row["rid"]: row["click"] for row in rows} == {"1": 1, "2": 0}
    assert not join_labels(join, spark).written  # its inputs are known, and are the same


def test_a_table_that_only_spark_can_read_is_refused_as_any_other(
    spark: Any, join: LabelJoin, logs: Path
) -> None:
    (logs / "clicks" / "_delta_log").mkdir()
    (logs / "clicks" / "_delta_log" / f"{0:020d}.json").write_text("{}")
    with pytest.raises(InputError, match=r"lies in the Delta table viewfs://mounts/logs/clicks"):
        join_labels(join, spark)


def test_files_of_a_session_are_listed_read_at_any_position_and_missed(
    spark: Any, logs: Path
) -> None:
    data = bytes(range(256)) * 5_000
    (logs / "k=a b%20").mkdir()
    (logs / "k=a b%20" / "x.parquet").write_bytes(data)
    with storage.looking_by(SessionFiles(spark)):
        (file,) = listings.list_files(ROOT)
        assert (file.name, file.size_bytes) == ("k=a b%20/x.parquet", len(data))
        with storage.open_read(file.url) as reader:
            reader.seek(len(data) - 10)
            assert reader.read() == data[-10:]
            reader.seek(1_000)
            assert reader.read(300_000) == data[1_000:301_000]
        assert storage.modified_s(file.url) == float(file.version)
        with pytest.raises(FileNotFoundError):
            storage.size_bytes(f"{ROOT}/none")
    with pytest.raises((StoreError, ValueError)):
        storage.size_bytes(file.url)


def test_a_look_that_fails_is_no_absence(spark: Any, logs: Path) -> None:
    conf = spark._jsc.hadoopConfiguration()
    conf.set("fs.viewfs.mounttable.mounts.link./gone", "webhdfs://127.0.0.1:1/x")
    conf.set("dfs.http.client.retry.policy.enabled", "false")
    try:
        with (
            storage.looking_by(SessionFiles(spark)),
            pytest.raises((StoreError, AccessError), match="viewfs://mounts/gone"),
        ):
            listings.list_files("viewfs://mounts/gone")
    finally:
        conf.unset("fs.viewfs.mounttable.mounts.link./gone")
