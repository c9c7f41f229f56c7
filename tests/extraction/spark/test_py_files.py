"""Modules of users on Spark's workers: shipped by `spark-submit --py-files`, and there by no other
way.

The executors are processes of their own with a directory of their own, as on a cluster.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from featstore.ops.hashing import sign, value_hash
from tests.spark_homes import make_spark_home

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "compiled_operator"
ONE_EXECUTOR = {
    "spark.master": "local-cluster[1,1,512]",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
}
MODULE = """
import os
import pyarrow as pa, pyarrow.compute as pc
import featstore

@featstore.operator(inputs=[pa.int64()], result=pa.int64(), params={"by": 10})
def remainder(n, *, by):
    with open(os.environ["FEATSTORE_TEST_LOG"], "a") as log:
        log.write(f"{os.getpid()} {__file__}\\n")
    return pc.subtract(n, pc.multiply(pc.divide(n, by), by))
"""
NUMBERS = {"seen": [1, 2**62, None, -1, 27], "shown": [3, -(2**62), 5, None, 27]}


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    return make_spark_home(tmp_path)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc, to compile the example of an operator in C")
    path = tmp_path / "built" / "libfingerprints.so"
    path.parent.mkdir()
    subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", path, EXAMPLE / "fingerprints.c"], check=True
    )
    return path


@pytest.mark.slow
def test_modules_and_a_compiled_library_reach_the_workers_by_spark_submit(
    tmp_path: Path, spark_home: Path, library: Path
) -> None:
    module, spec, raw, empty = (
        tmp_path / name for name in ("src/shipped_operators.py", "spec.yaml", "a.parquet", "empty")
    )
    for folder in (module.parent, empty):
        folder.mkdir()
    module.write_text(MODULE)
    slots = [
        {"slot": 5, "name": "last_digit", "op": "shipped_operators:remainder", "of": "seen"},
        {"slot": 6, "name": "bits", "op": "fingerprints:differing_bits", "of": ["seen", "shown"]},
    ]
    spec.write_text(
        yaml.safe_dump({"spec": 1, "inputs": {"seen": "long", "shown": "long"}, "slots": slots})
    )
    pq.write_table(pa.table(NUMBERS), raw)
    options = [text for key, value in ONE_EXECUTOR.items() for text in ("--conf", f"{key}={value}")]
    shipped = ["--py-files", f"{module},{EXAMPLE / 'fingerprints.py'}", "--files", str(library)]
    arguments = [
        "--spec",
        str(spec),
        "--input",
        str(raw),
        "--table",
        str(tmp_path / "table"),
        "--partition",
        "day=1",
    ]
    done = subprocess.run(
        [
            spark_home / "bin" / "spark-submit",
            *options,
            *shipped,
            ROOT / "spark_jobs" / "extract_features.py",
            *arguments,
        ],
        env=os.environ
        | {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": str(ROOT),
            "SPARK_HOME": str(spark_home),
        }
        | {"FEATSTORE_TEST_LOG": str(tmp_path / "log")},
        capture_output=True,
        text=True,
        cwd=empty,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    bits = [
        None if None in pair else ((pair[0] ^ pair[1]) % 2**64).bit_count()
        for pair in zip(*NUMBERS.values(), strict=True)
    ]
    stored = polars.read_delta(str(tmp_path / "table"))
    assert (
        stored["last_digit"].to_list()
        == sign(5, value_hash(pa.array([1, 4, None, -1, 7], pa.int64()))).to_pylist()
    )
    assert stored["bits"].to_list() == sign(6, value_hash(pa.array(bits, pa.int64()))).to_pylist()
    ran_from = {Path(line.split()[1]) for line in (tmp_path / "log").read_text().splitlines()}
    assert ran_from
    assert all(spark_home / "work" in path.parents for path in ran_from), (
        f"not the copy that was shipped: {ran_from}"
    )
