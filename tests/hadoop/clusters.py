"""A real HDFS with two data nodes on loopback, and faults on demand. Its jars come from Maven:
`make hadoop`.
"""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from tests.programs import free_ports

ROOT = Path(__file__).parents[2]
JARS = ROOT / "build" / "hadoop" / "jars"
USER = "ann"
DIRECTORY = "/home/ann"  # which is hers; all else belongs to whoever runs the tests
PROTECTION = "dfs.data.transfer.protection"


@dataclass(kw_only=True)
class JavaServer:
    """A program of this directory, which carries out commands.

    Attributes:
        site: The directory with its `log`; of a cluster also its clients' configuration, for
            HADOOP_CONF_DIR.
    """

    site: Path
    process: "subprocess.Popen[str]" = field(repr=False)

    def do(self, *words: object) -> None:
        """Has a command carried out."""
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
        pytest.fail(f"the server ended with status {self.process.wait(120)}: see {self.site}/log")


@dataclass(kw_only=True)
class HadoopCluster(JavaServer):
    """A running cluster.

    Attributes:
        ports: For each name node the ports for RPC and for HTTP.
        kerberos: The directory of its `Kdc.java`; None without one.
    """

    ports: tuple[tuple[int, int], ...]
    kerberos: Path | None = None

    def root(self, scheme: str) -> str:
        """The URL of `DIRECTORY`: `hdfs`, or `webhdfs`."""
        if len(self.ports) > 1:
            return f"{scheme}://prod{DIRECTORY}"
        host = "127.0.0.1" if self.kerberos is None else "localhost"  # which services are named by
        return f"{scheme}://{host}:{self.ports[0][scheme == 'webhdfs']}{DIRECTORY}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that its clients need."""
        found = {"HADOOP_CONF_DIR": str(self.site)}
        if self.kerberos is not None:
            files = {"KRB5_CONFIG": "krb5.conf", "KRB5CCNAME": "ticket"}
            return found | {name: str(self.kerberos / file) for name, file in files.items()}
        return {"HADOOP_USER_NAME": USER} | (found if len(self.ports) > 1 else {})


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
    kerberos: Path | None = None,
    **properties: object,
) -> Iterator[HadoopCluster]:
    """A running cluster, which ends with the block.

    Args:
        directory: An empty directory of its own.
        num_name_nodes: With two, the name service `prod`, of which the first is active.
        wrap: Makes its command one that runs it elsewhere, such as in namespaces.
        kerberos: As of `HadoopCluster`.
        properties: Of Hadoop's configuration, with `_` for `.`.
    """
    numbers = free_ports(2 * num_name_nodes)
    ports = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    write_site(directory / "hdfs-site.xml", _name_nodes(ports))
    options = [] if kerberos is None else [f"-Djava.security.krb5.conf={kerberos / 'krb5.conf'}"]
    arguments = [directory / "hdfs", *numbers]
    arguments += [f"{name.replace('_', '.')}={value}" for name, value in properties.items()]
    with _running("Cluster.java", directory, arguments, options, wrap) as process:
        cluster = HadoopCluster(ports=ports, site=directory, process=process, kerberos=kerberos)
        cluster.answer()
        cluster.do("mkdir", DIRECTORY, USER)
        yield cluster


@contextlib.contextmanager
def secured_cluster(directory: Path) -> Iterator[HadoopCluster]:
    """As `hadoop_cluster`, with Kerberos. Its clients choose how data is protected on its way to
    data nodes, and `USER` has two tickets: `ticket`, and `short`, of ten seconds.
    """
    kerberos = directory / "kerberos"
    kerberos.mkdir()
    with _running("Kdc.java", kerberos, [kerberos, USER]) as process:
        kdc = JavaServer(site=kerberos, process=process)
        kdc.answer()
        kdc.do(kerberos / "short", 10)
        kdc.do(kerberos / "ticket", 3600)
        properties: dict[str, Any] = {
            "hadoop.security.authentication": "kerberos",
            "hadoop.http.authentication.type": "kerberos",
            "dfs.block.access.token.enable": "true",
            "ignore.secure.ports.for.testing": "true",
            PROTECTION: "authentication,integrity,privacy",
        }
        for service in ("namenode", "datanode"):
            properties[f"dfs.{service}.kerberos.principal"] = "hdfs/localhost@EXAMPLE.COM"
            properties[f"dfs.{service}.keytab.file"] = kerberos / "services"
        for web in ("dfs.web", "hadoop.http"):
            properties[f"{web}.authentication.kerberos.principal"] = "HTTP/localhost@EXAMPLE.COM"
            properties[f"{web}.authentication.kerberos.keytab"] = kerberos / "services"
        with hadoop_cluster(directory, kerberos=kerberos, **properties) as cluster:
            yield cluster


@contextlib.contextmanager
def _running(
    source: str,
    directory: Path,
    arguments: Sequence[object],
    options: Sequence[str] = (),
    wrap: Callable[[list[str]], list[str]] = list,
) -> Iterator["subprocess.Popen[str]"]:
    """A program of this directory, which runs in another one, and is killed with the block."""
    java = shutil.which("java")
    if java is None or not any(JARS.glob("hadoop-minikdc-*")):
        pytest.skip("no cluster of Hadoop: `make hadoop` brings its jars, and needs Java and Maven")
    command: list[Any] = [java, "-Xmx1g", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*"]
    command += [*options, Path(__file__).with_name(source), *arguments]
    with (directory / "log").open("w") as log:
        wrapped = wrap(list(map(str, command)))
        process = subprocess.Popen(wrapped, **_pipes(log), text=True, cwd=directory)
        with process:
            try:
                yield process
            finally:
                process.kill()


def _pipes(log: IO[str]) -> dict[str, Any]:
    return {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}


def _name_nodes(ports: tuple[tuple[int, int], ...]) -> dict[str, str]:
    """The name service of a configuration, as administrators write it."""
    names = [f"nn{number}" for number in range(len(ports))]
    properties = {"dfs.nameservices": "prod", "dfs.ha.namenodes.prod": ", ".join(names)}
    for name, (rpc, http) in zip(names, ports, strict=True):
        properties[f"dfs.namenode.rpc-address.prod.{name}"] = f"127.0.0.1:{rpc}"
        properties[f"dfs.namenode.http-address.prod.{name}"] = f"127.0.0.1:{http}"
    return properties


def write_site(file: Path, properties: Mapping[str, str]) -> None:
    """Writes a file of a client's configuration."""
    rows = (
        f"<property><name>{k}</name><value>{v}</value></property>" for k, v in properties.items()
    )
    file.write_text(f"<configuration>{''.join(rows)}</configuration>")
