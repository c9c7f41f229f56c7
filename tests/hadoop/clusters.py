"""A real HDFS with two data nodes on loopback, and faults on demand. Its jars come from Maven:
`make hadoop`.
"""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from tests.programs import free_ports

ROOT = Path(__file__).parents[2]
JARS = ROOT / "build" / "hadoop" / "jars"
USER = "ann"
DIRECTORY = "/home/ann"  # which is hers; all else belongs to whoever runs the tests


@dataclass(kw_only=True)
class HadoopCluster:
    """A running cluster.

    Attributes:
        ports: For each name node the ports for RPC and for HTTP.
        site: The directory with its `hdfs-site.xml`, for HADOOP_CONF_DIR.
    """

    ports: tuple[tuple[int, int], ...]
    site: Path
    process: "subprocess.Popen[str]" = field(repr=False)

    def root(self, scheme: str) -> str:
        """The URL of `DIRECTORY`: `hdfs`, or `webhdfs`."""
        if len(self.ports) > 1:
            return f"{scheme}://prod{DIRECTORY}"
        return f"{scheme}://127.0.0.1:{self.ports[0][scheme == 'webhdfs']}{DIRECTORY}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that its clients need."""
        found = {"HADOOP_USER_NAME": USER}
        return found | ({"HADOOP_CONF_DIR": str(self.site)} if len(self.ports) > 1 else {})

    def do(self, *words: object) -> None:
        """Has a command of `Cluster.java` carried out."""
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)
        self.answer()

    def answer(self) -> None:
        """Reads to the end of an answer. Hadoop may write other lines."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            assert not line.startswith("failed"), line
            if line == "done\n":
                return
        pytest.fail(f"the cluster ended with status {self.process.wait(30)}: see {self.site}/log")


@contextlib.contextmanager
def yarn_cluster(directory: Path, **how: Any) -> Iterator[HadoopCluster]:
    """As `hadoop_cluster`, with a YARN. Its containers have their directories below `directory`."""
    with hadoop_cluster(directory, **how) as cluster:
        cluster.do("chmod", "777", "/")
        cluster.do("yarn", directory)
        yield cluster


@contextlib.contextmanager
def hadoop_cluster(
    directory: Path,
    num_name_nodes: int = 1,
    wrap: Callable[[list[str]], list[str]] = list,
    **properties: object,
) -> Iterator[HadoopCluster]:
    """A running cluster, which ends with the block.

    Args:
        directory: An empty directory of its own.
        num_name_nodes: With two, the name service `prod`, of which the first is active.
        wrap: Makes its command one that runs it elsewhere, such as in namespaces.
        properties: Of Hadoop's configuration, with `_` for `.`.
    """
    java = shutil.which("java")
    if java is None or not JARS.is_dir():
        pytest.skip("no cluster of Hadoop: `make hadoop` brings its jars, and needs Java and Maven")
    numbers = free_ports(2 * num_name_nodes)
    ports = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    _write_site(directory, ports)
    command: list[Any] = [java, "-Xmx1g", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*"]
    command += [Path(__file__).with_name("Cluster.java"), directory / "hdfs", *numbers]
    command += [f"{name.replace('_', '.')}={value}" for name, value in properties.items()]
    with (directory / "log").open("w") as log:
        wrapped = wrap(list(map(str, command)))
        process = subprocess.Popen(wrapped, **_pipes(log), text=True, cwd=directory)
        with process:
            try:
                cluster = HadoopCluster(ports=ports, site=directory, process=process)
                cluster.answer()
                cluster.do("mkdir", DIRECTORY, USER)
                yield cluster
            finally:
                process.kill()


def _pipes(log: IO[str]) -> dict[str, Any]:
    return {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}


def _write_site(directory: Path, ports: tuple[tuple[int, int], ...]) -> None:
    """The configuration of its clients: the name service, as administrators write it."""
    names = [f"nn{number}" for number in range(len(ports))]
    properties = {"dfs.nameservices": "prod", "dfs.ha.namenodes.prod": ", ".join(names)}
    for name, (rpc, http) in zip(names, ports, strict=True):
        properties[f"dfs.namenode.rpc-address.prod.{name}"] = f"127.0.0.1:{rpc}"
        properties[f"dfs.namenode.http-address.prod.{name}"] = f"127.0.0.1:{http}"
    rows = (
        f"<property><name>{k}</name><value>{v}</value></property>" for k, v in properties.items()
    )
    (directory / "hdfs-site.xml").write_text(f"<configuration>{''.join(rows)}</configuration>")
