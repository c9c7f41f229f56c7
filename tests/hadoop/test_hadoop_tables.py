"""A table's life on a real HDFS, by both clients."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featstore
from featstore.api import compact, delete_rows
from featstore.base.errors import CommitConflictError
from featstore.files import storage
from featstore.files.listings import list_own
from featstore.ingest.join_local import join_labels_locally
from featstore.ingest.join_options import Impressions, Label, LabelJoin, LogSource
from featstore.table.delta import history, open_delta
from featstore.table.vacuum import vacuum
from tests.hadoop.clusters import HadoopCluster
from tests.parquet_files import put_parquet
from tests.store_clients import clients_of
from tests.threads import run_together

pytestmark = pytest.mark.slow
SPEC: Any = {
    "spec": 1,
    "inputs": {"id": "string", "user": "string", "price": "double"},
    "keep": ["id"],
    "slots": [
        {"slot": 101, "name": "user", "op": "hash", "of": "user"},
        {"slot": 102, "name": "price", "op": "log1p", "of": "price"},
    ],
}


@pytest.fixture(params=["hdfs", "webhdfs"])
def root(request: pytest.FixtureRequest, hadoop_service: HadoopCluster) -> Iterator[str]:
    with clients_of(hadoop_service.environment):
        yield f"{hadoop_service.root(request.param)}/{request.param}"


def put_raw(directory: Path, url: str, num_rows: int) -> None:
    """Raw rows of which the ids begin with their number."""
    ids = [f"{num_rows}-{row}" for row in range(num_rows)]
    prices = pa.array(range(num_rows), pa.float64())
    path = put_parquet(directory / "raw.parquet", {"id": ids, "user": ids, "price": prices})
    with storage.open_write(f"{url}/log.parquet") as file:
        file.write(path.read_bytes())


def num_rows(table: str, directory: Path) -> int:
    """The rows of an epoch from staged files."""
    staging = featstore.Staging(directory=str(directory))
    with featstore.FeatureLoader(table, slots=["user", "price"], staging=staging) as loader:
        return sum(batch.num_rows for batch in loader)


def test_a_table_lives_from_extraction_to_batches_deletion_and_vacuum(
    root: str, tmp_path: Path
) -> None:
    raw, table = f"{root}/raw", f"{root}/life"
    put_raw(tmp_path, raw, 20)
    for day in ("1", "a b/%2F é"):
        featstore.extract(SPEC, raw, table, partition={"day": day})
    assert num_rows(table, tmp_path / "ssd") == 40
    put_raw(tmp_path, raw, 30)
    assert featstore.extract(SPEC, raw, table, partition={"day": "1"}).version == 2
    assert featstore.extract(SPEC, raw, table, partition={"day": "1"}).version == 2  # as before
    assert num_rows(table, tmp_path / "ssd") == 50
    delete_rows(table, "id in ('30-3', '20-4')")
    compact(table)
    assert num_rows(table, tmp_path / "ssd") == 48
    vacuum(table, retain_s=0, now_s=1_900_000_000.0)
    assert num_rows(table, tmp_path / "other") == 48
    assert open_delta(table).num_rows == 48
    assert not [file.name for file in list_own(table) if file.name.endswith(".partial")]


def test_an_import_and_a_join_write_tables_of_which_each_step_reads_the_one_before(
    root: str, tmp_path: Path
) -> None:
    shown, joined, log = f"delta+{root}/shown", f"delta+{root}/joined", tmp_path / "shown.csv"
    log.write_text("id,user,price,at\na,u,1.5,2026-11-01 00:00:00\nb,v,2.5,2026-11-01 00:00:01\n")
    for day in ("1", "2"):
        imported = featstore.import_raw("csv", log, shown, partition={"day": day})
    assert imported.output_url == f"{shown}?version=1"
    source, key = LogSource(url=shown), ("id", "day")
    join = LabelJoin(
        impressions=Impressions(source=source, row_id=key, event_time="at"),
        labels=(Label(name="click", source=source, key=key, event_time="at", window_s=60),),
        cut_off=datetime(2026, 11, 2, tzinfo=UTC),
        output_url=joined,
        partition_by=("day",),
    )
    runs = [join_labels_locally(join, memory_bytes=200_000_000) for _ in range(2)]
    assert [run.written for run in runs] == [True, False]
    featstore.extract(SPEC, joined, f"{root}/of-joined", partition_from_path=["day"])
    assert num_rows(f"{root}/of-joined", tmp_path / "ssd") == 4
    places = [file.name.partition("/")[0] for file in list_own(f"{root}/joined", ".parquet")]
    assert places == ["day=1", "day=2"]  # nothing else is left


def test_of_writers_that_race_each_commits_or_is_told(root: str, tmp_path: Path) -> None:
    raw, table = f"{root}/raced-raw", f"{root}/raced"
    put_raw(tmp_path, raw, 10)
    featstore.extract(SPEC, raw, table, partition={"day": "0"}, run_id="first")
    lost = list[str]()

    def write(run: str, day: str) -> None:
        try:
            featstore.extract(SPEC, raw, table, partition={"day": day}, run_id=run)
        except CommitConflictError:
            lost.append(run)

    runs = {f"r{number}": str(number % 3) for number in range(6)}
    run_together(*(partial(write, run, day) for run, day in runs.items()))
    won = [c.metadata.run_id for c in history(table) if c.metadata is not None]
    assert len(won) == len(set(won))
    assert {runs[run] for run in won if run != "first"} == {"1", "2"}
    assert open_delta(table).num_rows == 30
