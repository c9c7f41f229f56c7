"""Jobs on a real YARN, whose driver runs there (cluster mode)."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

import featstore
from featstore.extraction.spark.java import java_environment
from featstore.tools.programs import job_path
from tests.hadoop.clusters import ROOT, HadoopCluster, yarn_cluster
from tests.hadoop.test_hadoop_tables import SPEC, put_raw
from tests.programs import LIMIT_S
from tests.spark_homes import make_spark_home

pytestmark = pytest.mark.slow
# YARN checks once a second what has changed.
SETTINGS = {
    "spark.yarn.report.interval": "200ms",
    "spark.ui.enabled": "false",
    "spark.executor.instances": "1",
    "spark.driver.memory": "600m",
    "spark.executor.memory": "600m",
}


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HadoopCluster]:
    with yarn_cluster(tmp_path_factory.mktemp("yarn")) as cluster:
        yield cluster


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A spec, raw rows, and Spark's home."""
    make_spark_home(tmp_path)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    (tmp_path / "raw").mkdir()
    put_raw(tmp_path, f"{tmp_path}/raw", 20)
    return tmp_path


@contextmanager
def submitted(
    yarn: HadoopCluster, place: Path, raw: str, mode: str = "cluster"
) -> Iterator["subprocess.Popen[str]"]:
    """An extraction that is under way, as `spark-submit` shows it."""
    settings = SETTINGS | {
        "spark.yarn.jars": f"local:{place}/spark/jars/*",
        "spark.pyspark.python": sys.executable,
    }
    for who in ("spark.yarn.appMasterEnv", "spark.executorEnv"):
        settings |= {f"{who}.PYTHONPATH": str(ROOT), f"{who}.TMPDIR": str(place)}
    command = [f"{place}/spark/bin/spark-submit", "--master", "yarn", "--deploy-mode", mode]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    command += [str(job_path("extract")), "--spec", f"{place}/spec.yaml"]
    command += ["--input", f"{place}/{raw}", "--table", f"{place}/table"]
    given = dict(os.environ) | {
        "PYTHONPATH": str(ROOT),
        "SPARK_HOME": f"{place}/spark",
        "HADOOP_CONF_DIR": str(yarn.site),
    }
    process = subprocess.Popen(
        command,
        env=given | java_environment(given),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def attempts(yarn: HadoopCluster, said: str) -> set[str]:
    """The numbers of the attempts of the application, which stand in names of its containers."""
    application = re.findall(r"application(_\d+_\d+)", said)[0]
    containers = yarn.site.glob(f"**/container{application}_*")
    return {path.name.split("_")[3] for path in containers if path.is_dir()}


def driver(yarn: HadoopCluster) -> int:
    """The process of the driver's Python, once it runs."""
    until = time.monotonic() + 600
    while time.monotonic() < until:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
                where = (process / "cwd").readlink()
            except OSError:  # It has ended.
                continue
            if (
                words[1:2]
                and words[1].endswith(b"job_extract.py")
                and where.is_relative_to(yarn.site)
            ):
                return int(process.name)
        time.sleep(0.02)
    pytest.fail("no driver")


def test_a_run_that_is_refused_is_not_repeated_and_its_reason_is_told(
    yarn: HadoopCluster, place: Path
) -> None:
    with submitted(yarn, place, "none") as submit:
        said, _ = submit.communicate(timeout=LIMIT_S)
    assert submit.returncode == 1, said
    assert f"extract: error: no raw files at {place}/none" in said
    assert attempts(yarn, said) == {"01"}


def test_a_run_whose_driver_is_killed_is_repeated(
    yarn: HadoopCluster, place: Path, is_campaign: bool
) -> None:
    if not is_campaign:
        pytest.skip("only in the campaign of make faults: two minutes of several JVMs")
    with submitted(yarn, place, "raw") as submit:
        os.kill(driver(yarn), signal.SIGKILL)
        said, _ = submit.communicate(timeout=LIMIT_S)
    assert submit.returncode == 0, said[-3000:]
    assert attempts(yarn, said) == {"01", "02"}
    assert featstore.open_table(place / "table").num_rows == 20


def test_in_client_mode_the_driver_runs_here_and_its_code_is_that_of_the_job(
    yarn: HadoopCluster, place: Path, is_campaign: bool
) -> None:
    if not is_campaign:
        pytest.skip("only in the campaign of make faults: several JVMs")
    for raw, status in (("none", 2), ("raw", 0)):
        with submitted(yarn, place, raw, "client") as submit:
            said, _ = submit.communicate(timeout=LIMIT_S)
        assert submit.returncode == status, said[-3000:]
    assert featstore.open_table(place / "table").num_rows == 20
