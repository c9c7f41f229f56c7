"""A table on moto's S3, over HTTP on loopback: equal rows, safe commits, vacuum, and a store that
is refused.
"""

import datetime
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import featstore
from featstore.base.errors import CommitConflictError, InputError, UnsafeStoreError
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.local import LocalRunner
from featstore.files import storage
from featstore.files.storage import check_store
from featstore.ingest.hive_locations import locations, make_locations
from featstore.ingest.join_local import join_labels_locally
from featstore.ingest.join_options import Impressions, Label, LabelJoin, LogSource
from featstore.spec.parse import load_spec
from featstore.table import delta
from featstore.table.delta import open_delta
from featstore.table.layout import tag_of
from featstore.table.running import marked
from featstore.table.vacuum import vacuum
from tests.interposed import followed, preceded
from tests.parquet_files import put_parquet
from tests.programs import Program, run_python
from tests.store_clients import clients_of
from tests.threads import run_together

SPEC: dict[str, Any] = {
    "spec": 1,
    "inputs": {"id": "string", "user": "string", "price": "double"},
    "keep": ["id"],
    "slots": [
        {"slot": 101, "name": "user", "op": "hash", "of": "user"},
        {"slot": 102, "name": "price", "op": "log1p", "of": "price"},
    ],
}


@dataclass(frozen=True)
class Store:
    """The server, with access to its internals."""

    url: str

    def reset(self, *, careless: bool = False) -> None:
        """Empties it. A careless store overwrites existing objects, whatever the request says."""
        for path in ("/moto-api/reset", "/_careless" if careless else "/_careful"):
            self.post(path)
        urlopen(Request(f"{self.url}/tables", method="PUT"), timeout=60).close()

    def post(self, path: str) -> None:
        urlopen(f"{self.url}{path}", data=b"", timeout=60).close()

    @property
    def paths(self) -> list[str]:
        return re.findall("<Key>(.*?)</Key>", self.read("/tables?list-type=2").decode())

    @property
    def num_refused(self) -> int:
        return int(json.loads(self.read("/_state"))["num_refused"])

    def read(self, path: str) -> bytes:
        with urlopen(f"{self.url}{path}", timeout=60) as answer:
            return bytes(answer.read())


@pytest.fixture(scope="module")
def server() -> Iterator[Store]:
    """One server for all tests of the module, since the clients of a process keep their first
    endpoint.
    """
    with Program(Path(__file__).with_name("s3_server.py")) as process:
        url = f"http://127.0.0.1:{process.line()}"
        variables = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "something",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }
        with clients_of(variables):
            yield Store(url)


@pytest.fixture
def store(server: Store) -> Store:
    server.reset()
    check_store.cache_clear()
    return server


@pytest.fixture
def job(tmp_path: Path) -> ExtractJob:
    write_raw(tmp_path / "raw", 20)
    return job_of(tmp_path / "raw", "s3://tables/clicks", "1", "r1")


def write_raw(directory: Path, num_rows: int) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    ids = [f"{num_rows}-{row}" for row in range(num_rows)]
    users = [None if row % 3 == 0 else f"u{row}" for row in range(num_rows)]
    prices = [None if row % 4 == 0 else float(row) for row in range(num_rows)]
    put_parquet(
        directory / "log.parquet",
        {"id": ids, "user": pa.array(users, pa.string()), "price": prices},
    )


def job_of(raw: Path, url: str, day: str, run_id: str) -> ExtractJob:
    return ExtractJob(
        spec=load_spec(SPEC),
        input_url=str(raw),
        table_url=url,
        partition={"dt": day},
        run_id=run_id,
    )


def rows(table: Any) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: str(row["id"]))


def test_a_table_on_s3_reads_like_one_on_disk_in_every_version(
    store: Store, job: ExtractJob, tmp_path: Path
) -> None:
    for num_rows in (20, 30):
        write_raw(tmp_path / "raw", num_rows)
        for url in ("s3://tables/clicks", str(tmp_path / "table")):
            report = extract_files(job_of(tmp_path / "raw", url, "1", f"r{num_rows}"))
            assert report.committed
    assert any("_delta_log" in path for path in store.paths)
    for version, num_rows in ((0, 20), (1, 30)):
        there = featstore.open_table("s3://tables/clicks", version)
        expected = rows(featstore.open_table(tmp_path / "table", version).to_arrow())
        assert len(expected) == num_rows
        assert rows(there.to_arrow()) == expected
        assert rows(there.duckdb().to_arrow_table()) == expected
        assert rows(there.polars().collect().to_arrow()) == expected


@pytest.mark.parametrize("name", ["cl#1", "cl?x", "a b"])
def test_a_tables_key_on_s3_may_hold_what_splits_a_url(
    store: Store, tmp_path: Path, name: str
) -> None:
    write_raw(tmp_path / "raw", 20)
    url = f"s3://tables/{name}"
    for day in ("1", "2"):
        extract_files(job_of(tmp_path / "raw", url, day, f"r{day}"))
    table = featstore.open_table(url)
    assert len(table.to_arrow()) == 40
    assert url in str(table)


def test_the_store_refuses_one_of_two_writers_of_an_empty_day_on_s3(
    store: Store, job: ExtractJob, tmp_path: Path
) -> None:
    extract_files(job)
    outcomes: list[Any] = []

    def write(run_id: str) -> None:
        try:
            report = extract_files(job_of(tmp_path / "raw", job.table_url, "2", run_id))
            outcomes.append(report.version)
        except CommitConflictError as error:
            outcomes.append(str(error))

    refused_before = store.num_refused
    store.post("/_meet")
    run_together(*(partial(write, run_id) for run_id in ("r2", "r3")))
    [version] = [outcome for outcome in outcomes if isinstance(outcome, int)]
    [conflict] = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert version == 1
    assert "another writer committed dt=2" in conflict
    assert store.num_refused > refused_before
    assert open_delta(job.table_url).num_rows == 40


class Working:
    """A runner that must not be started."""

    def __init__(self) -> None:
        self.began = False

    def __call__(self, task: Any, units: Any, progress: Any) -> Any:
        self.began = True
        raise AssertionError


def test_a_store_without_conditional_writes_is_refused_before_any_work_is_done(
    store: Store, job: ExtractJob
) -> None:
    store.reset(careless=True)
    for match in (
        "s3://tables/clicks: the store overwrites an existing object although",
        "set AWS_S3_LOCKING_PROVIDER=dynamodb",
    ):
        runner = Working()
        with pytest.raises(UnsafeStoreError, match=match):
            extract_files(job, runner=runner)
        assert not runner.began
        assert not store.paths


def test_conditional_writes_are_tried_once_per_table(
    store: Store, job: ExtractJob, tmp_path: Path
) -> None:
    extract_files(job)
    assert store.num_refused == 1
    extract_files(job_of(tmp_path / "raw", job.table_url, "2", "r2"))
    assert store.num_refused == 1
    assert not [path for path in store.paths if "_probe" in path]


def object_of(url: str) -> bytes:
    with storage.open_read(url) as file:
        return bytes(file.read())


def test_locations_for_hive_are_copies_within_the_store(store: Store, job: ExtractJob) -> None:
    extract_files(job)
    [location] = locations(open_delta(job.table_url))
    assert location.url.startswith("s3://tables/clicks/_hive/")
    assert [make_locations([location]), make_locations([location])] == [1, 1]
    [copy] = [path for path in store.paths if "/_hive/" in path]
    assert object_of(f"s3://tables/{copy}") == object_of(location.files[0].url)


def below(store: Store) -> set[str]:
    """The data files and marks, without log and statistics."""
    paths = {path.removeprefix("clicks/") for path in store.paths}
    return {path for path in paths if not path.startswith(("_delta_log/", "_stats/"))}


def test_vacuum_on_s3_removes_orphans_and_leaves_what_is_live_or_of_a_running_job(
    store: Store, job: ExtractJob, tmp_path: Path
) -> None:
    extract_files(job)
    write_raw(tmp_path / "raw", 30)
    extract_files(job_of(tmp_path / "raw", job.table_url, "1", "r2"))
    live = {
        file.path for version in (0, 1) for file in open_delta(job.table_url, version).data_files
    }
    assert below(store) == live
    orphan, unfinished = (
        "dt=1/part-00007-0a0a0a0a-1b1b1b1b-0.parquet",
        "dt=1/part-00008-0c0c0c0c-1d1d1d1d-0.parquet",
    )
    for path in (orphan, unfinished, "dt=1/theirs.parquet"):
        with storage.open_write(f"{job.table_url}/{path}") as file:
            file.write(b"x")
    written_s = storage.modified_s(f"{job.table_url}/{unfinished}")
    tag = tag_of(unfinished)
    assert tag is not None
    with marked(job.table_url, tag) as mark:
        while (
            renewed_s := storage.modified_s(mark.url)
        ) <= written_s:  # the store's clock ticks once a second
            mark.renew()
        report = vacuum(job.table_url, grace_s=3600, now_s=renewed_s + 3600)
        assert [(left.path, left.kind) for left in report.removed] == [(orphan, "orphan")]
        assert report.num_running == 1
        assert below(store) == {*live, unfinished, "dt=1/theirs.parquet", f"_runs/{tag}"}
    assert below(store) == {*live, unfinished, "dt=1/theirs.parquet"}
    report = vacuum(job.table_url, retain_s=0, grace_s=3600, now_s=renewed_s + 3600)
    assert {left.kind for left in report.removed} == {"orphan", "replaced", "statistics"}
    assert below(store) == {file.path for file in open_delta(job.table_url).data_files} | {
        "dt=1/theirs.parquet"
    }
    assert featstore.open_table(job.table_url).profile(stored=True).num_rows == 30


def test_a_vacuum_of_s3_by_a_host_whose_clock_is_ahead_takes_nothing_of_a_running_job(
    store: Store, job: ExtractJob
) -> None:
    told: list[str] = []

    script = Path(__file__).with_name("vacuum_ahead.py")
    extract_files(job)
    extract_files(
        replace(job, partition={"dt": "of day 2"}, run_id="r2"),
        runner=followed(
            LocalRunner(), lambda: told.append(run_python(script, job.table_url, 26).stdout)
        ),
    )
    assert "0 files, 0 bytes removed" in told[0]
    assert not [path for path in below(store) if path.startswith("_runs/")]
    assert featstore.open_table(job.table_url).to_arrow().num_rows == 40


@pytest.mark.parametrize("what", ["dt=2/part-", "_runs/"])
def test_a_job_on_s3_whose_mark_or_file_is_gone_commits_nothing(
    store: Store, job: ExtractJob, what: str
) -> None:
    gone: list[str] = []

    def lose() -> None:
        gone.extend(path for path in below(store) if path.startswith(what))
        storage.delete(f"{job.table_url}/{gone[0]}")

    extract_files(job)
    with pytest.raises(
        CommitConflictError,
        match=r"s3://tables/clicks: expected the mark and .* gone.*nothing is committed",
    ):
        extract_files(
            replace(job, partition={"dt": "2"}, run_id="r2"), runner=followed(LocalRunner(), lose)
        )
    assert len(gone) == 1
    assert open_delta(job.table_url).version == 0
    assert below(store) == {file.path for file in open_delta(job.table_url).data_files}


def test_a_raw_object_that_is_replaced_while_it_is_read_is_named_and_nothing_is_committed(
    store: Store, job: ExtractJob, tmp_path: Path
) -> None:
    """Its ETag differs, its size does not."""
    raw = "s3://tables/raw/log.parquet"

    def put(prices: list[float]) -> int:
        rows = pa.table(
            {"id": [str(row) for row in range(200)], "user": ["u"] * 200, "price": prices}
        )
        with storage.open_write(raw) as file:
            pq.write_table(rows, file, row_group_size=100, use_dictionary=False, compression="none")
        return storage.size_bytes(raw)

    sizes = [put([1.0] * 200)]

    def replace_it(num_files: int, num_files_total: int, num_rows: int) -> None:
        if num_rows == 100 and len(sizes) == 1:
            sizes.append(put([2.0] * 200))

    spec = load_spec(SPEC | {"output": {"rows_per_file": 100, "rows_per_row_group": 100}})
    job = replace(job, spec=spec, input_url="s3://tables/raw")
    with pytest.raises(
        InputError,
        match=r"^s3://tables/raw/log\.parquet changed while it was read: expected [\d,]+ bytes, "
        r"version .* found",
    ):
        extract_files(job, runner=LocalRunner(1), progress=replace_it)
    assert len(sizes) == 2
    assert sizes[0] == sizes[1]
    assert below(store) == {"raw/log.parquet"}
    assert extract_files(job).num_rows == 200


def test_a_run_on_s3_has_its_mark_while_it_works_and_none_after_it(
    store: Store, job: ExtractJob
) -> None:
    seen: list[set[str]] = []

    def look() -> None:
        seen.append({path for path in below(store) if path.startswith("_runs/")})

    extract_files(job, commit=preceded(delta.commit, look))
    assert [len(marks) for marks in seen] == [1]
    assert not [path for path in below(store) if path.startswith("_runs/")]


def test_a_join_is_one_commit_which_an_extraction_reads(store: Store, tmp_path: Path) -> None:
    times = pa.array([0, 1_000_000], pa.timestamp("us", "UTC"))
    put_parquet(tmp_path / "shown" / "a.parquet", {"id": ["a", "b"], "at": times})
    put_parquet(tmp_path / "clicks" / "a.parquet", {"id": ["b"], "at": times.slice(1)})
    shown, clicks = (LogSource(url=str(tmp_path / name)) for name in ("shown", "clicks"))
    label = Label(name="click", source=clicks, key=("id",), event_time="at", window_s=60)
    join = LabelJoin(
        impressions=Impressions(source=shown, row_id=("id",), event_time="at"),
        labels=(label,),
        cut_off=datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC),
        output_url="delta+s3://tables/joined",
        partition={"dt": "1"},
    )

    def overtaken(url: str, change: delta.Change) -> int:
        assert not [path for path in store.paths if "_delta_log" in path]
        assert join_labels_locally(join).url == "delta+s3://tables/joined?version=0"
        return delta.commit(url, change)

    with pytest.raises(CommitConflictError, match="another writer committed dt=1"):
        join_labels_locally(join, commit=overtaken)
    data, log = sorted(path for path in store.paths if path.startswith("joined/"))[::-1]
    assert (data.rpartition("/")[0], log) == ("joined/dt=1", f"joined/_delta_log/{0:020}.json")
    assert not join_labels_locally(join).written
    spec = SPEC | {
        "inputs": {"id": "string", "click": "int"},
        "labels": {"click": "click"},
        "slots": [{"slot": 101, "name": "user", "op": "hash", "of": "id"}],
    }
    url, features = f"{join.output_url}?version=0&dt=1", str(tmp_path / "features")
    featstore.extract(load_spec(spec), url, features, partition={"dt": "1"}, spark=None)
    found = featstore.open_table(features).to_arrow().to_pydict()
    assert (found["id"], found["click"]) == (["a", "b"], [0, 1])
