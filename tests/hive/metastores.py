"""Real Hive metastores on loopback, with Derby. Their jars come from Maven: `make hive`."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.programs import free_ports

JARS = Path(__file__).parents[2] / "build" / "hive"
_SERVER = "org.apache.hadoop.hive.metastore"
_PACKAGES = ("java.lang", "java.net", "java.util", "java.util.concurrent")


@contextlib.contextmanager
def metastore(
    directory: Path, version: str, more: Mapping[str, str] | None = None
) -> Iterator[dict[str, str]]:
    """A metastore on its way up, which ends with the block; Spark's settings that reach it.

    Args:
        directory: Where its database and its log are.
        version: Of Hive, a profile of `pom.xml`.
        more: Properties of its configuration.
    """
    java, jars = shutil.which("java"), JARS / version
    if java is None or not jars.is_dir():
        pytest.skip("no metastore of Hive: `make hive` brings its jars, and needs Java and Maven")
    [port] = free_ports(1)
    database = f"jdbc:derby:;databaseName={directory}/db;create=true"
    options = {
        "javax.jdo.option.ConnectionURL": database,
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": f"{directory}/warehouse",
        # Hive has others for these, which its metastore alone does not bring.
        "metastore.expression.proxy": f"{_SERVER}.DefaultPartitionExpressionProxy",
        "metastore.task.threads.always": f"{_SERVER}.events.EventCleanerTask",
        **(more or {}),
    }
    command: list[Any] = [java, "-Xmx300m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
    command += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _PACKAGES]
    if version[0] == "3":
        command += [Path(__file__).with_name("Metastore.java"), database]
    else:
        command += [f"{_SERVER}.HiveMetaStore"]
    command += ["-p", port]
    command += [f"--hiveconf={key}={value}" for key, value in options.items()]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, cwd=directory)
    with process:
        try:
            yield {
                "spark.hadoop.hive.metastore.uris": f"thrift://127.0.0.1:{port}",
                # a second apart: the server may still be on its way up
                "spark.hadoop.hive.metastore.connect.retries": "300",
                "spark.sql.warehouse.dir": f"{directory}/warehouse",
            }
            assert process.poll() is None, (directory / "log").read_text()
        finally:
            process.kill()


def client(version: str) -> dict[str, str]:
    """Spark's settings for the client of a version, whose jars are those of the metastore."""
    return {
        "spark.sql.hive.metastore.version": version,
        "spark.sql.hive.metastore.jars": "path",
        "spark.sql.hive.metastore.jars.path": f"{JARS / version}/*.jar",
    }
