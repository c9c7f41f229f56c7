"""An extraction outlasts a store that fails for less than its budget of time, wherever that begins:
in a listing, a read, a write or the commit.
"""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import featstore
from featstore.base.errors import StoreError
from tests.parquet_files import put_parquet
from tests.programs import Program
from tests.store_clients import clients_of
from tests.webhdfs_server import Cluster, RemoteError, hdfs_cluster

SPEC: Any = {
    "spec": 1,
    "inputs": {"id": "string", "user": "string"},
    "keep": ["id"],
    "slots": [{"slot": 101, "name": "user", "op": "hash", "of": "user"}],
}
# The client of HDFS alone, without a budget, tries for 1.5 s.
OUTAGE_S = 3.0


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    ids = [str(row) for row in range(20)]
    return put_parquet(tmp_path / "raw" / "log.parquet", {"id": ids, "user": ids})


@pytest.fixture
def cluster(raw: Path) -> Iterator[Cluster]:
    with hdfs_cluster() as cluster, clients_of({"HADOOP_USER_NAME": "ann"}):
        cluster.put("/raw/log.parquet", raw.read_bytes())
        yield cluster


def extract(cluster: Cluster, **options: Any) -> Any:
    root = f"webhdfs://127.0.0.1:{cluster.name_ports[0]}"
    return featstore.extract(SPEC, f"{root}/raw", f"{root}/table", **options)


def safe_mode(cluster: Cluster, on: bool) -> None:
    cluster.is_in_safe_mode = on


def standby(cluster: Cluster, on: bool) -> None:
    cluster.standby = set(cluster.name_ports) if on else set()


def without_data_nodes(cluster: Cluster, on: bool) -> None:
    def refuse() -> None:
        raise RemoteError(403, "IOException", "Zero blocklocations for /raw/log.parquet")

    for op in ("OPEN", "CREATE"):
        cluster.faults.pop(("name", op), None)
        cluster.fail("name", op, *(1_000 * on * [refuse]))


@contextlib.contextmanager
def gives_up(words: str, retry_s: float, advice: str) -> Iterator[None]:
    """The block ends with an error that has these words, and tells how long it was tried: the
    budget, or longer on a busy machine.
    """
    begun_s = time.monotonic()
    said = rf"{words}; gave up after \d+ attempts in (\d+) s \(retry_s is {retry_s:g}\); {advice}"
    with pytest.raises(StoreError, match=said) as raised:
        yield
    told = re.search(said, str(raised.value))
    assert told is not None
    assert round(retry_s) <= int(told[1]) <= round(time.monotonic() - begun_s)


@pytest.mark.slow
@pytest.mark.parametrize("fails", [safe_mode, standby, without_data_nodes])
def test_an_extraction_outlasts_name_nodes_that_start_or_hand_over(
    cluster: Cluster, fails: Callable[[Cluster, bool], None]
) -> None:
    begun_s = time.monotonic()
    fails(cluster, True)
    end = threading.Timer(6.0, fails, (cluster, False))
    end.start()
    assert extract(cluster).num_rows == 20
    assert time.monotonic() - begun_s >= 6
    end.join()


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        (safe_mode, "the name node is in safe mode"),
        (standby, "no name node is active"),
        (without_data_nodes, "the name node knows no data node for it"),
    ],
)
def test_an_extraction_whose_budget_is_over_tells_how_long_it_tried(
    cluster: Cluster, fails: Callable[[Cluster, bool], None], words: str
) -> None:
    fails(cluster, True)
    with gives_up(f"{words}.*", 0.7, "wait"):
        extract(cluster, retry_s=0.7)


@pytest.mark.slow
def test_an_executor_has_the_budget_of_the_run(cluster: Cluster, spark: Any) -> None:
    ends = list[threading.Timer]()

    def begin() -> None:
        standby(cluster, on=True)
        ends.append(threading.Timer(OUTAGE_S, standby, (cluster, False)))
        ends[0].start()

    # The run's mark is written first, by the driver, and then a data file, by an executor.
    cluster.fail("data", "CREATE", None, begin)
    assert extract(cluster, spark=spark, retry_s=100).num_rows == 20
    ends[0].join()


def test_a_host_without_a_name_is_no_outage(raw: Path, tmp_path: Path) -> None:
    # After an outage it would say here how long it tried.
    match = r"the name of nowhere\.invalid:9870 does not resolve; check"
    with pytest.raises(StoreError, match=match):
        featstore.extract(SPEC, raw, "webhdfs://nowhere.invalid:9870/table")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with Program(Path(__file__).parents[1] / "table" / "s3_server.py") as process:
        url = f"http://127.0.0.1:{process.line()}"
        variables = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "something",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }
        with clients_of(variables):
            urlopen(Request(f"{url}/tables", method="PUT"), timeout=60).close()
            yield url


def post(url: str) -> None:
    urlopen(url, data=b"", timeout=60).close()


@pytest.mark.parametrize("num_served", [0, 8, 16, 24])
def test_an_extraction_outlasts_a_store_that_answers_503(
    s3: str, raw: Path, num_served: int
) -> None:
    post(f"{s3}/_busy?after={num_served}&seconds=4")
    begun_s = time.monotonic()
    report = featstore.extract(SPEC, raw, f"s3://tables/t{num_served}")
    assert time.monotonic() - begun_s >= 4
    assert featstore.open_table(report.table_url).num_rows == 20


@pytest.mark.parametrize("num_served", [0, 8, 24])
def test_an_extraction_whose_store_stays_busy_tells_how_long_it_tried(
    s3: str, raw: Path, num_served: int
) -> None:
    post(f"{s3}/_busy?after={num_served}&seconds=60")
    with gives_up("in trouble .*", 1.0, "try again later"):
        featstore.extract(SPEC, raw, f"s3://tables/u{num_served}", retry_s=1)
    post(f"{s3}/_busy?after=-1&seconds=0")


def test_a_bucket_on_a_host_without_a_name_is_no_outage(raw: Path) -> None:
    variables = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "r"}
    with clients_of(variables | {"AWS_ENDPOINT_URL": "http://nowhere.invalid"}):
        match = r"the name of nowhere\.invalid does not resolve; check"
        with pytest.raises(StoreError, match=match):
            featstore.extract(SPEC, raw, "s3://tables/x")
