"""An epoch that is staged from an object store on another host, behind a slow link: the store is cut
off in the middle of a file, and moves to another address.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.hosts.hosts import Host, HostProgram, Network
from tests.parquet_files import put_parquet

pytestmark = pytest.mark.slow
pytest.importorskip("moto")

FILES, FILE_ROWS, NOISE = 4, 20_000, 10
SERVE = "from moto.server import main; main(['-H', '0.0.0.0', '-p', '9000'])"
KEYS = {
    "AWS_ENDPOINT_URL": "http://store:9000",
    "AWS_ACCESS_KEY_ID": "someone",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
# Fills the store that the host itself serves.
FILL = """
import http.client, sys, time
from pathlib import Path
from featstore.files import storage
until = time.monotonic() + 3000
while True:
    try:
        connection = http.client.HTTPConnection("localhost", 9000)
        connection.request("PUT", "/bucket")
        assert connection.getresponse().status == 200
        break
    except ConnectionRefusedError:
        assert time.monotonic() < until
        time.sleep(0.1)
for path in sorted(Path(sys.argv[1]).iterdir()):
    with storage.open_write(f"s3://bucket/t/{path.name}") as file:
        file.write(path.read_bytes())
"""
READ = """
import json, sys
import featstore
staging = {"directory": sys.argv[1], "mode": "whole"}
with featstore.FeatureLoader("s3://bucket/t", slots=["row", "noise*"], batch_size=1000, staging=staging) as loader:
    for batch in loader:
        print(json.dumps(batch["row"].tolist()), flush=True)
"""


@pytest.fixture
def serve(network: Network, tmp_path: Path) -> Iterator[Callable[[str], tuple[Host, HostProgram]]]:
    """Starts a store with the table on a host of its own, behind a link of 1 MB/s."""
    draw = np.random.default_rng(1)
    for number in range(FILES):
        first = number * FILE_ROWS
        noise = draw.integers(0, 1 << 60, (NOISE, FILE_ROWS))
        columns = {"row": pa.array(range(first, first + FILE_ROWS), pa.int64())}
        columns |= {f"noise{place}": pa.array(values) for place, values in enumerate(noise)}
        put_parquet(tmp_path / "files" / f"{number}.parquet", columns)
    with ExitStack() as stack:

        def start(name: str) -> tuple[Host, HostProgram]:
            (host,) = network.add(name)
            log = stack.enter_context((tmp_path / f"{name}.log").open("w"))
            server = stack.enter_context(host.start(SERVE, stdout=log, stderr=log))
            here = KEYS | {"AWS_ENDPOINT_URL": "http://localhost:9000"}
            host.run(FILL, tmp_path / "files", variables=here)
            host.slow_down(1_000_000)
            return host, server

        yield start


class Reader:
    """A loader on a host of its own that has delivered the first rows, and downloads a file."""

    def __init__(self, network: Network, directory: Path) -> None:
        (host,) = network.add("reader")
        self._cache = directory / "cache"
        self.program = host.start(READ, self._cache, variables=KEYS)
        self._rows: Counter[int] = Counter()

    def __enter__(self) -> "Reader":
        first = self.program.line()
        assert first, self.program.communicate()[1]
        self._rows.update(json.loads(first))
        until = time.monotonic() + 300
        while not any(_num_bytes(path) > 200_000 for path in self._cache.rglob("*.part")):
            assert time.monotonic() < until
            time.sleep(0.01)
        return self

    def __exit__(self, *error: object) -> None:
        self.program.__exit__(None, None, None)

    def rest(self) -> Counter[int]:
        """How often each row came in the end."""
        assert self.program.stdout is not None
        for line in self.program.stdout:
            self._rows.update(json.loads(line))
        assert self.program.wait(300) == 0
        return self._rows


def _num_bytes(path: Path) -> int:
    """How much of a download there is; 0 if it has just ended."""
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


EVERY_ROW = Counter(range(FILES * FILE_ROWS))


def test_an_epoch_goes_on_when_a_store_is_back_that_was_cut_off_in_the_middle_of_a_file(
    network: Network, tmp_path: Path, serve: Callable[[str], tuple[Host, HostProgram]]
) -> None:
    host, _ = serve("store")
    with Reader(network, tmp_path) as reader:
        host.cut()
        time.sleep(5)
        host.restore()
        assert reader.rest() == EVERY_ROW


@pytest.mark.parametrize("vanishes", [False, True], ids=["its server ends", "its host vanishes"])
def test_an_epoch_goes_on_when_the_store_moves_to_another_address(
    network: Network,
    tmp_path: Path,
    serve: Callable[[str], tuple[Host, HostProgram]],
    is_campaign: bool,
    vanishes: bool,
) -> None:
    if vanishes and not is_campaign:
        pytest.skip("only in the campaign of make faults: it takes a minute")
    (first, server), (second, _) = serve("first"), serve("second")
    network.call("store", first)
    with Reader(network, tmp_path) as reader:
        if vanishes:
            first.vanish()
        else:
            server.kill()
        time.sleep(1)
        network.call("store", second)
        assert reader.rest() == EVERY_ROW
    assert "GET /bucket/t/" in (tmp_path / "second.log").read_text()
