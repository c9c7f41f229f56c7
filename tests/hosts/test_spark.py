"""Spark on hosts of its own, with a master, two workers and a driver: labels are joined, and rows
extracted, while one worker's host is cut off for good; and rows are extracted on hosts that have
no featstore.
"""

import datetime
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

import featstore
from featstore.extraction.spark.java import java_environment
from featstore.tools.pack import pack
from tests.hosts.hosts import Host, HostProgram, Network, run
from tests.parquet_files import put_parquet
from tests.spark_homes import make_spark_home

pytestmark = pytest.mark.slow

NUM_ROWS, NUM_FILES = 40_000, 6
PATIENCE_S = 300  # Six JVMs start, beside other tests.
ROOT = Path(__file__).parents[2]
JOB = "import sys; from featstore.tools.{} import main; sys.exit(main(sys.argv[1:]))"
EXEC = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
HIDE = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
SETTINGS = {
    "spark.master": "spark://master:7077",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    # Tasks begin when both workers have executors.
    "spark.cores.max": "4",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.ui.enabled": "false",
    "spark.network.timeout": "25s",
    "spark.network.timeoutInterval": "2s",
    "spark.executor.heartbeatInterval": "2s",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": NUM_FILES,
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
SPEC = """
spec: 1
inputs: {row: long, user: string, click: int}
labels: {click: click}
keep: [row]
output: {rows_per_row_group: 5000, rows_per_file: 5000}
slots:
  - {slot: 1, name: user, op: hash, of: user}
  - {slot: 2, name: slowly, op: "slow_operators:slowly", of: row}
"""
# Says on which host a file's rows are, and whose Python runs there, and takes its time.
SLOW = """
import json, os, socket, sys, time
from pathlib import Path
import numpy, pandas, pyarrow as pa
import featstore

@featstore.operator(inputs=[pa.int64()], result=pa.int64())
def slowly(rows):
    if len(rows):
        files = [module.__file__ for module in (featstore, numpy, pandas, pa)]
        note = Path(os.environ["NOTES"], f"{rows[0]}.{socket.gethostname()}")
        note.write_text(json.dumps([sys.prefix, sys.executable, __file__, *files]))
        time.sleep(2)
    return rows
"""
NOON = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.UTC)


def write_logs(directory: Path) -> None:
    """Impressions, of which every third has a click, with the times at which both were logged."""
    rows = pa.array(range(NUM_ROWS), pa.int64())
    at = pa.array([NOON] * NUM_ROWS, pa.timestamp("us", tz="UTC"))
    columns = {"row": rows, "ts": at, "logged": at}
    user = pa.array([f"u{row % 97}" for row in range(NUM_ROWS)])
    put_parquet(directory / "impressions" / "a.parquet", columns | {"user": user})
    put_parquet(
        directory / "clicks" / "a.parquet", pa.table(columns).take(list(range(0, NUM_ROWS, 3)))
    )


class Cluster:
    """A standalone cluster of Spark, each part on a host of its own, until the end of a `with`
    block. Its workers are `spark1` and `spark2`.

    Args:
        network: The network, in which the hosts are made.
        directory: Where everything is written.
        hidden: Directories that are empty on the workers' hosts.
    """

    def __init__(self, network: Network, directory: Path, hidden: Sequence[Path] = ()) -> None:
        self._directory, self._closing = directory, ExitStack()
        self._home = make_spark_home(directory)
        modules = directory / "modules"
        modules.mkdir()
        self.operators = modules / "slow_operators.py"
        self.operators.write_text(SLOW)
        self.notes = directory / "notes"
        self.notes.mkdir()
        settings = SETTINGS | {"spark.executorEnv.NOTES": self.notes}
        lines = [f"{key} {value}\n" for key, value in settings.items()]
        (directory / "spark-defaults.conf").write_text("".join(lines))
        self._variables = {
            **java_environment(os.environ),
            "SPARK_HOME": str(self._home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
            "SPARK_MASTER_OPTS": "-Dspark.worker.timeout=25",
            "PATH": f"{self._home}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{modules}:{ROOT}",
            "PYTHONWARNINGS": "ignore",
        }
        master, self.driver, *self.workers = network.add("master", "driver", "spark1", "spark2")
        self._job = self._variables | {"SPARK_CONF_DIR": str(directory)}
        self._start(master, [], "master.Master", "--port", 7077)
        hiding = [part for place in hidden for part in ("/bin/sh", "-c", HIDE, place)]
        for host in self.workers:
            size = ("--cores", 2, "--memory", "1g", "--work-dir", directory / host.name)
            self._start(host, hiding, "worker.Worker", *size, "spark://master:7077")

    def _start(self, host: Host, within: Sequence[object], name: str, *given: object) -> None:
        spark_class = (self._home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}")
        command = (*within, *spark_class, "--host", host.name, "--webui-port", 0, *given)
        log = self._closing.enter_context((self._directory / f"{host.name}.log").open("w"))
        started = host.start(EXEC, *command, variables=self._variables, stdout=log, stderr=log)
        self._closing.enter_context(started)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    def start(self, job: str, *options: object) -> HostProgram:
        """Starts a job on the driver's host."""
        return self.driver.start(JOB.format(job), *options, variables=self._job)

    def submit(self, command: str) -> HostProgram:
        """Starts a command of a shell on the driver's host, in a directory of its own."""
        place = self._directory / "submitted"
        place.mkdir()
        given = ("/bin/sh", "-c", f"cd {place} && {command}")
        return self.driver.start(EXEC, *given, variables=self._job)

    def places(self) -> dict[str, set[str]]:
        """On which hosts each file was begun that is made of the rows after a number."""
        found: dict[str, set[str]] = {}
        for note in self.notes.iterdir():
            found.setdefault(note.stem, set()).add(note.suffix[1:])
        return found


def test_a_table_is_complete_after_a_workers_host_was_cut_off_while_its_tasks_wrote(
    network: Network, tmp_path: Path
) -> None:
    write_logs(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    with Cluster(network, tmp_path) as cluster:
        times = "event_time=ts log_time=logged"
        join = (
            *("--impressions", f"from={tmp_path}/impressions row_id=row {times}"),
            *("--label", f"name=click from={tmp_path}/clicks key=row {times} window=1h"),
            *("--cut-off", "2026-11-02T00:00:00", "--output", tmp_path / "joined"),
        )
        with cluster.start("job_join_labels", *join) as job:
            job.result(timeout_s=PATIENCE_S)
        given = ("--spec", tmp_path / "spec.yaml", "--input", tmp_path / "joined")
        table = ("--table", tmp_path / "table", "--partition", "dt=2026-11-01")
        with cluster.start("job_extract", *given, *table) as job:
            until = time.monotonic() + PATIENCE_S
            while not any("spark2" in hosts for hosts in cluster.places().values()):
                assert job.poll() is None, job.result()
                assert time.monotonic() < until
                time.sleep(0.05)
            network.hosts["spark2"].cut()
            job.result(timeout_s=PATIENCE_S)
        places = cluster.places()
    assert any(hosts == {"spark1", "spark2"} for hosts in places.values())
    rows = featstore.open_table(tmp_path / "table").to_arrow().sort_by("row")
    assert rows["row"].to_pylist() == list(range(NUM_ROWS))
    assert rows["click"].to_pylist() == [int(row % 3 == 0) for row in range(NUM_ROWS)]


def test_hosts_without_featstore_extract_by_the_archive_that_the_driver_sends(
    network: Network, tmp_path: Path
) -> None:
    """The command is the one that `featstore spark pack` prints; the workers' hosts have neither
    this Python, nor featstore, nor the archive, nor the module of the operator.
    """
    for number in range(4):
        rows = pa.array(range(number * 100, number * 100 + 100), pa.int64())
        columns = {"row": rows, "user": rows.cast(pa.string()), "click": rows.cast(pa.int32())}
        put_parquet(tmp_path / "raw" / f"part={number}" / "a.parquet", columns)
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "packed").mkdir()
    report = pack(tmp_path / "packed" / "environment.tar.gz")
    hidden = [Path(featstore.__file__).parent, tmp_path / "packed", tmp_path / "modules"]
    if sys.base_prefix != "/usr":  # Else Spark's own programs would be hidden as well.
        hidden.append(Path(sys.base_prefix))
    with Cluster(network, tmp_path, hidden=hidden) as cluster:
        (printed,) = (line for line in report.lines if line.startswith("# standalone"))
        urls = f"--spec {tmp_path}/spec.yaml --input {tmp_path}/raw --table {tmp_path}/table"
        command = (
            printed.replace("spark-submit", f"spark-submit --py-files {cluster.operators}")
            .replace("HOST", "master")
            .replace("--spec URL --input URL --table URL ...", f"{urls} --partition-from-path part")
        )
        with cluster.submit(command.partition("\n")[2]) as job:
            said = job.result(timeout_s=PATIENCE_S)
        for host in cluster.workers:
            found = [run([*host.spaces.entered("--mount"), "ls", place]) for place in hidden]
            assert not any(found)
        notes = [(note.suffix[1:], note.read_text()) for note in cluster.notes.iterdir()]
    assert "400 rows in 4 files" in said
    assert {name for name, _ in notes} == {"spark1", "spark2"}
    for name, note in notes:
        prefix, *files = map(Path, json.loads(note))
        assert prefix.is_relative_to(tmp_path / name), prefix
        assert prefix.name == "environment"
        assert all(file.is_relative_to(prefix.parent) for file in files), files
    rows = featstore.open_table(tmp_path / "table").to_arrow()["row"]
    assert sorted(rows.to_pylist()) == list(range(400))
