"""An epoch and an extraction outlast what happens to a real HDFS, by both clients: for seconds, or
in the campaign for minutes.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import featstore
from featstore.files import storage
from tests.hadoop.clusters import HadoopCluster
from tests.hadoop.test_hadoop_tables import SPEC
from tests.parquet_files import put_parquet, put_row_files
from tests.store_clients import clients_of

pytestmark = pytest.mark.slow
NUM_FILES, FILE_ROWS = 16, 200


@dataclass(frozen=True)
class Fault:
    """`is_total`: while it lasts, nothing can be read. `is_long`: for extractions, only in the
    campaign.
    """

    begin: Callable[[HadoopCluster], object]
    end: Callable[[HadoopCluster], object]
    is_total: bool = True
    is_long: bool = False


def _do(*commands: str) -> Callable[[HadoopCluster], None]:
    def act(cluster: HadoopCluster) -> None:
        for command in commands:
            cluster.do(command)

    return act


FAULTS = {
    "a data node is gone": Fault(
        _do("stop-data 0"), _do("start-data"), is_total=False, is_long=True
    ),
    "all data nodes are gone": Fault(
        _do("stop-data 0", "stop-data 0"), _do("start-data", "start-data")
    ),
    "name nodes hand over": Fault(_do("standby 0"), _do("active 1", "standby 1", "active 0")),
    "the active name node is restarted": Fault(
        _do("stop-name 0"), _do("start-name 0", "active 0"), is_long=True
    ),
    "all are stopped in silence": Fault(
        lambda cluster: cluster.process.send_signal(signal.SIGSTOP),
        lambda cluster: cluster.process.send_signal(signal.SIGCONT),
    ),
}


@pytest.fixture
def outage_s(is_campaign: bool) -> float:
    return 60.0 if is_campaign else 3.0


@pytest.fixture(params=["hdfs", "webhdfs"])
def root(request: pytest.FixtureRequest, hadoop_service: HadoopCluster) -> Iterator[str]:
    with clients_of(hadoop_service.environment):
        yield f"{hadoop_service.root(request.param)}/{request.param}"


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest) -> Fault:
    return FAULTS[request.param]


@dataclass
class Outage:
    """A fault from `begin` until a while later."""

    cluster: HadoopCluster
    fault: Fault
    length_s: float

    def begin(self) -> None:
        self.fault.begin(self.cluster)
        self._begun_s = time.monotonic()
        self._end = threading.Timer(self.length_s, self.fault.end, (self.cluster,))
        self._end.start()

    def check(self) -> None:
        """Checks, when all is read, that nothing could be read before the end; and waits for it."""
        lasted_s = time.monotonic() - self._begun_s
        self._end.join()
        assert not self.fault.is_total or lasted_s >= self.length_s


def test_an_epoch_outlasts_it_with_every_row_once(
    hadoop_service: HadoopCluster, root: str, fault: Fault, outage_s: float, tmp_path: Path
) -> None:
    put_row_files(tmp_path / "files", NUM_FILES * [FILE_ROWS])
    for path in (tmp_path / "files").iterdir():
        with storage.open_write(f"{root}/epoch/{path.name}") as file:
            file.write(path.read_bytes())
    outage, seen = Outage(hadoop_service, fault, outage_s), list[int]()
    staging = {"directory": str(tmp_path / "ssd"), "mode": "whole", "ahead_files": 2}
    with featstore.FeatureLoader(
        f"{root}/epoch", slots=["row"], labels=[], batch_size=FILE_ROWS, staging=staging
    ) as loader:
        for number, batch in enumerate(loader):
            seen += np.asarray(batch["row"]).tolist()
            if number == 2:
                outage.begin()
    outage.check()
    assert sorted(seen) == list(range(NUM_FILES * FILE_ROWS))


def put_raw_files(directory: Path, url: str) -> None:
    """Raw files of a row group each. Of all rows no two have one user."""
    for number in range(NUM_FILES):
        users = [f"{number}-{row}" for row in range(FILE_ROWS)]
        prices = pa.array(range(FILE_ROWS), pa.float64())
        path = put_parquet(directory / "raw", {"id": users, "user": users, "price": prices})
        with storage.open_write(f"{url}/{number}.parquet") as file:
            file.write(path.read_bytes())


@pytest.mark.parametrize("after_files", [0, 3], ids=["from its start", "in its middle"])
def test_an_extraction_outlasts_it_with_every_row_once(
    hadoop_service: HadoopCluster,
    root: str,
    fault: Fault,
    outage_s: float,
    is_campaign: bool,
    tmp_path: Path,
    after_files: int,
) -> None:
    if (fault.is_long or after_files) and not is_campaign:
        pytest.skip("only in the campaign of make faults: the epoch has outlasted it")
    raw, table = (f"{root}/{tmp_path.name}/{name}" for name in ("raw", "table"))
    put_raw_files(tmp_path, raw)
    outage, begins = Outage(hadoop_service, fault, outage_s), iter([True])

    def begin_after(num_files: int, *_: int) -> None:
        if num_files >= after_files and next(begins, False):
            outage.begin()

    begin_after(0)
    spec = SPEC | {"output": {"rows_per_row_group": FILE_ROWS, "rows_per_file": FILE_ROWS}}
    report = featstore.extract(spec, raw, table, partition={"day": "1"}, progress=begin_after)
    outage.check()
    assert report.num_rows == NUM_FILES * FILE_ROWS
    with featstore.FeatureLoader(table, slots=["user"]) as loader:
        users = [user for batch in loader for user in np.asarray(batch["user"]).tolist()]
    assert len(users) == len(set(users)) == NUM_FILES * FILE_ROWS
