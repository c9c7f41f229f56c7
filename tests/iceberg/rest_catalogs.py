"""A real REST catalog of Iceberg on loopback. Its jars come from Maven: `make iceberg`."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.programs import free_ports

JARS = Path(__file__).parents[2] / "build" / "iceberg" / "jars"


@contextlib.contextmanager
def rest_catalog(directory: Path) -> Iterator[dict[str, str]]:
    """A catalog on its way up, which ends with the block; pyiceberg's properties that reach it.

    Args:
        directory: Where its tables and its log are.
    """
    java = shutil.which("java")
    if java is None or not JARS.is_dir():
        pytest.skip("no REST catalog: `make iceberg` brings its jars, and needs Java and Maven")
    [port] = free_ports(1)
    command: list[Any] = [java, "-Xmx300m", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*"]
    command += [Path(__file__).with_name("Rest.java"), f"file://{directory}/lake", port]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, cwd=directory)
    with process:
        try:
            yield {"type": "rest", "uri": f"http://127.0.0.1:{port}"}
            assert process.poll() is None, (directory / "log").read_text()
        finally:
            process.kill()
