"""How fast files are staged beside `hdfs dfs -get` of the same files, on a cluster of this machine:

    python -m tests.hadoop.staged_files [ROUNDS]

The sides take turns. Hadoop's own client runs in the process of the cluster, whose Java is warm, so
the CPU of both processes counts: each side has that of the servers in it.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from featstore.files import storage
from featstore.staging import StageItem, Stager, Staging
from tests.hadoop.clusters import DIRECTORY, HadoopCluster, hadoop_cluster
from tests.store_clients import clients_of

NUM_FILES, FILE_BYTES = 8, 64 << 20
Side = Callable[[Path], None]


def get(cluster: HadoopCluster, directory: Path) -> None:
    """Copies the files by Hadoop's own client, one after another."""
    for number in range(NUM_FILES):
        cluster.do("get", f"{DIRECTORY}/{number}", directory / str(number))


def stage(url: str, directory: Path) -> None:
    """Stages the files as an epoch does."""
    items = [
        StageItem(key=number, url=f"{url}/{number}", size_bytes=FILE_BYTES)
        for number in range(NUM_FILES)
    ]
    with Stager(Staging(mode="whole", directory=str(directory))) as stager:
        for staged in stager.stage(items):
            with staged:
                pass


def spent(act: Side, cluster: HadoopCluster, root: Path) -> tuple[float, float]:
    """The seconds by the clock, and of CPU in both processes."""
    with tempfile.TemporaryDirectory(dir=root) as directory:
        clock_s, cpu_s = time.perf_counter(), _cpu_s(cluster.process.pid)
        act(Path(directory))
        return time.perf_counter() - clock_s, _cpu_s(cluster.process.pid) - cpu_s


def _cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def main(rounds: int) -> None:
    """Prints how many times as fast as Hadoop's own client each of ours is: medians of pairs."""
    root = Path(tempfile.mkdtemp())
    with hadoop_cluster(root) as cluster, clients_of(cluster.environment):
        for number in range(NUM_FILES):
            with storage.open_write(f"{cluster.root('hdfs')}/{number}") as file:
                file.write(os.urandom(FILE_BYTES))
        sides: dict[str, Side] = {"get": partial(get, cluster)}
        sides |= {kind: partial(stage, cluster.root(kind)) for kind in ("hdfs", "webhdfs")}
        found = [
            {name: spent(side, cluster, root) for name, side in sides.items()}
            for _ in range(rounds + 1)
        ][1:]  # the first one warms up
    shutil.rmtree(root)
    for kind in ("hdfs", "webhdfs"):
        clock, cpu = (
            statistics.median(pair["get"][which] / pair[kind][which] for pair in found)
            for which in (0, 1)
        )
        sys.stdout.write(f"{kind}: clock {clock:.2f}, CPU {cpu:.2f}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
