"""Loaders whose dispatch store does not answer, or loses replies."""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from featstore.base.errors import DispatchError, StateError
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.iteration.batch_iterator import BatchIterator
from tests.dispatch.stores.forwarder import Forwarder
from tests.dispatch.stores.served import KINDS, ServerProcess
from tests.loader.conftest import rows_of
from tests.parquet_files import put_row_files
from tests.process import our_threads
from tests.programs import Program
from tests.threads import beside

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
LEASE_S, NUM_FILES, FILE_ROWS = 8.0, 12, 40
# What closing takes at most where the store does not answer: one attempt, and room on a busy host.
CLOSES_IN_S = LEASE_S / 4 + 10


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    with ServerProcess(request.param) as started:
        yield started


@pytest.fixture
def table(tmp_path: Path) -> Path:
    put_row_files(tmp_path / "table", [FILE_ROWS] * NUM_FILES, row_group_size=10)
    return tmp_path / "table"


def loader_of(table: Path, url: str, **options: Any) -> FeatureLoader:
    dispatch = {"store": url, "run_id": "run", "lease_s": LEASE_S} | options
    return FeatureLoader(str(table), slots=["row"], batch_size=8, dispatch=dispatch)


def test_a_loader_closes_within_seconds_where_its_store_does_not_answer(
    server: ServerProcess, table: Path
) -> None:
    before = our_threads()
    loader = loader_of(table, server.url)
    batches = iter(loader)
    next(batches)
    server.stop()
    start = time.monotonic()
    loader.close()
    assert time.monotonic() - start < CLOSES_IN_S
    server.kill()
    for thread in our_threads() - before:  # Those that waited for the server.
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("begin", [str, BatchIterator.begin, next], ids=["new", "begun", "read"])
def test_a_loop_that_waits_for_its_store_ends_within_seconds_once_the_loader_is_closed(
    server: ServerProcess, table: Path, begin: Callable[[Any], object]
) -> None:
    """Also one that waits to begin its iteration, or an epoch."""
    loader = loader_of(table, server.url)
    batches, ended = iter(loader), threading.Event()
    begin(batches)
    server.stop()

    def read() -> None:
        # It ends by the first, or by the second as one that was closed.
        with suppress(DispatchError, StateError):
            for _ in batches:
                pass
        ended.set()

    with beside(read):
        assert not ended.wait(LEASE_S / 2)
        start = time.monotonic()
        with suppress(DispatchError):  # What was acknowledged is not told.
            loader.close()
        assert ended.wait(CLOSES_IN_S)
        assert time.monotonic() - start < CLOSES_IN_S


def test_all_is_closed_though_the_store_is_not_told_what_was_acknowledged_last(
    server: ServerProcess, table: Path
) -> None:
    """Nothing is told in between. torch's store keeps the connections for a later iteration."""
    before = our_threads()
    loader = loader_of(table, server.url, lease_s=60.0, reserve_s=1000.0)
    batches = iter(loader)
    next(batches)
    loader.ack()
    server.kill()
    with pytest.raises(DispatchError, match="is lost"):
        loader.close()
    for thread in our_threads() - before:
        thread.join(60)
        assert not thread.is_alive()


WORKER = """
import signal, sys
import featstore
from featstore.base.errors import DispatchError

table, url, lease_s = sys.argv[1:]
options = {"store": url, "run_id": "run", "lease_s": float(lease_s)}
stops = []
signal.signal(signal.SIGTERM, lambda *_: stops.append(True))
with featstore.FeatureLoader(table, slots=["row"], batch_size=8, dispatch=options) as loader:
    for batch in loader:
        print("read", flush=True)
        sys.stdin.readline()
        if stops:
            break
sys.exit(143)
"""


def test_a_worker_that_is_preempted_ends_within_seconds_where_its_store_does_not_answer(
    server: ServerProcess, table: Path
) -> None:
    with Program(WORKER, table, server.url, LEASE_S) as worker:
        assert worker.line() == "read"
        server.stop()
        worker.send_signal(signal.SIGTERM)
        start = time.monotonic()
        worker.result("\n", status=143)
        assert time.monotonic() - start < CLOSES_IN_S + 10  # The end of the process, too.


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_row_comes_once_in_each_epoch_though_replies_are_lost(
    server: ServerProcess, table: Path, num_workers: int
) -> None:
    """The requests whose replies are lost are done twice by torch's store."""
    draw = random.Random(0)
    with (
        Forwarder(server.url, lambda: draw.random() < 0.05) as between,
        loader_of(table, between.url, reserve_s=0.1) as loader,
    ):
        for _ in range(3):
            batches = DataLoader(loader, batch_size=None, num_workers=num_workers)
            counts = Counter(rows_of(batches))
            assert counts == Counter(range(NUM_FILES * FILE_ROWS))
        assert between.num_lost > 10
