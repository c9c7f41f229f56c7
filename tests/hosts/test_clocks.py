"""Hosts whose clocks are hours apart share an epoch, commit to one table and follow it as others do."""

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.raw_users import write_raw
from tests.hosts.crew import Crew
from tests.hosts.elastic import FILE_ROWS, FILES, LOST, Trial, is_bad
from tests.hosts.hosts import Network
from tests.parquet_files import put_row_files
from tests.programs import CLI

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]

HOUR_S = 3600
SOURCE = Path(__file__).with_name("shifted_clock.c")
SPEC = """
spec: 1
inputs: {row: long, user: string}
keep: [row]
slots: [{slot: 1, name: user, op: hash, of: user}]
"""
FOLLOW = """
import json, sys
import featstore
follow = {"until": "dt >= '3'", "every_s": 0.3}
with featstore.FeatureLoader(sys.argv[1], slots=["user"], extras=["row"], batch_size=10, follow=follow) as loader:
    for batch in loader:
        print(json.dumps(batch.extras["row"].to_pylist()), flush=True)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What shifts the clock of a process."""
    made = tmp_path_factory.mktemp("clock") / "shifted_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", SOURCE, "-o", made, "-ldl"], check=True)
    return made


def shifted(library: Path, seconds: int) -> dict[str, str]:
    """The environment of processes whose clock is so far ahead."""
    return {"LD_PRELOAD": str(library), "SHIFT_S": str(seconds)}


def test_an_epoch_is_shared_by_hosts_whose_clocks_are_hours_apart(
    network: Network, tmp_path: Path, library: Path
) -> None:
    clocks = {"w1": 2 * HOUR_S, "w2": -HOUR_S, "w3": 0, "dispatch": HOUR_S}
    variables = {name: shifted(library, seconds) for name, seconds in clocks.items()}
    table = put_row_files(tmp_path / "table", [FILE_ROWS] * FILES, row_group_size=200)
    event = {"kind": LOST, "host": 1, "seconds": 1.0, "after_s": 1.0, "kills": True}
    trial = {"number": 0, "epochs": 1, "shuffles": False, "seed": 0, "events": [event]}
    with Crew(network, tmp_path, len(clocks) - 1, variables) as crew:
        outcome = Trial(trial, crew, table, tmp_path).run()
        ahead = [
            time.time() - min(at for at, _ in w.deliveries()) for w in crew.stations[0].workers
        ]
        status = crew.server.run(
            CLI, "dispatch", "status", crew.url, "--json", variables=shifted(library, -9 * HOUR_S)
        )
    assert max(ahead) < -1.9 * HOUR_S  # The clocks were shifted.
    assert outcome["happened"]
    assert not is_bad(outcome), outcome
    assert outcome["ended"] == []
    (epoch,) = json.loads(status)["epochs"]
    assert epoch["num_rows"] == epoch["num_rows_of_plan"]
    assert (epoch["num_held"], epoch["is_over"]) == (0, True)


def test_a_table_is_written_followed_and_cleaned_by_hosts_whose_clocks_are_hours_apart(
    network: Network, tmp_path: Path, library: Path
) -> None:
    early, late, reader = network.add("early", "late", "reader")
    (tmp_path / "spec.yaml").write_text(SPEC)
    table = tmp_path / "table"

    def extract(day: int, first: int) -> None:
        host, seconds = ((early, -HOUR_S), (late, 2 * HOUR_S))[day % 2]
        rows = write_raw(tmp_path / f"raw{first}", range(first, first + 100))
        given = ("--spec", tmp_path / "spec.yaml", "--input", rows, "--table", table)
        day_option = ("--partition", f"dt={day}")
        host.run(CLI, "extract", *given, *day_option, variables=shifted(library, seconds))

    extract(0, 0)
    with reader.start(FOLLOW, table) as follower:
        assert follower.stdout is not None
        lines = [follower.line()]
        for day in (1, 2, 3):
            extract(day, 100 * day)
        lines += follower.stdout.read().splitlines()
    seen = Counter(row for line in lines for row in json.loads(line))
    assert seen == Counter(range(400))
    extract(3, 1000)  # Its earlier files belong to a version of seconds ago.
    files = set(table.rglob("*.parquet"))
    given = ("--table", table, "--retain-hours", 1, "--grace-hours", 1)
    late.run(CLI, "table", "vacuum", *given, variables=shifted(library, 3 * HOUR_S))
    assert set(table.rglob("*.parquet")) == files
    assert len(files) > 4


def test_the_clock_of_a_process_is_shifted(library: Path) -> None:
    program = "import time, datetime; print(time.time(), datetime.datetime.now().timestamp(), time.monotonic())"
    command = [sys.executable, "-c", program]
    shown = subprocess.run(
        command, env=shifted(library, HOUR_S), check=True, capture_output=True, text=True
    ).stdout
    now, also, monotonic = map(float, shown.split())
    assert abs(now - time.time() - HOUR_S) < 30
    assert abs(also - now) < 1
    assert abs(monotonic - time.monotonic()) < 30
