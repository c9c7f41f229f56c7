"""An archive brings all that a host needs: an extraction runs where there is no other Python."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

import featstore
from featstore.base.errors import PackError
from featstore.extraction.spark.java import java_environment
from featstore.tools.pack import PackReport, pack, write_archive
from featstore.tools.programs import job_path
from tests.hadoop.clusters import yarn_cluster
from tests.parquet_files import put_parquet
from tests.programs import to_its_end
from tests.spark_homes import make_spark_home

SPEC = {
    "spec": 1,
    "inputs": {"user": "string", "n": "long"},
    "keep": ["n"],
    "slots": [
        {"slot": 1, "name": "user", "op": "hash", "of": "user"},
        {"slot": 2, "name": "witness", "op": "shipped_witness:witness", "of": "n"},
    ],
}
WITNESS = """
import json, os, sys
import featstore, numpy, pandas, pyarrow as pa

@featstore.operator(inputs=[pa.int64()], result=pa.int64())
def witness(n):
    found = [sys.prefix, sys.executable, featstore.__file__, numpy.__file__, pandas.__file__]
    with open(os.environ["FEATSTORE_TEST_LOG"], "a") as log:
        log.write(json.dumps(found) + "\\n")
    return n
"""
SETTINGS = {
    "spark.executor.instances": "1",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
HIDE = 'mount -t tmpfs tmpfs "$0" && exec "$@"'


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> PackReport:
    return pack(tmp_path_factory.mktemp("packed") / "environment.tar.gz")


@pytest.fixture(scope="module")
def unpacked(report: PackReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("elsewhere")
    with tarfile.open(report.archive) as archive:
        archive.extractall(place, filter="data")
    return place


def without_this_python(command: list[str]) -> list[str]:
    """The command in a mount namespace in which the Python that runs this is not there, if such
    namespaces can be made and it is not the system's.
    """
    if Path(sys.base_prefix) == Path("/usr"):
        return command
    hidden = ["unshare", "--mount", "sh", "-c", HIDE, sys.base_prefix]
    tried = subprocess.run([*hidden, "true"], capture_output=True, check=False)
    return command if tried.returncode else [*hidden, *command]


@pytest.mark.slow
def test_the_packed_python_runs_where_the_one_it_was_made_of_is_not(unpacked: Path) -> None:
    code = "import sys, featstore.api, pandas, requests; print(sys.prefix, featstore.__file__)"
    done = subprocess.run(
        without_this_python([str(unpacked / "bin" / "python"), "-c", code]),
        env={},
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    prefix, package = map(Path, done.stdout.split())
    assert prefix == unpacked
    assert package.is_relative_to(unpacked)


@pytest.mark.slow
def test_a_report_says_what_is_in_it_and_how_to_use_it(report: PackReport) -> None:
    assert report.size_bytes == Path(report.archive).stat().st_size < 300_000_000
    assert "torch" not in report.distributions
    assert report.python == sys.version.split()[0]
    assert f"--archives {report.archive}#environment" in str(report)
    assert "libssl.so" in str(report)


def on_this_host(command: str, place: Path) -> str:
    """The printed command, with a cluster of this host and URLs in the place of the examples."""
    shown = "--master spark://HOST:7077"
    return with_urls(command.replace(shown, "--master local-cluster[1,2,1024]"), place)


def with_urls(command: str, place: Path) -> str:
    urls = f"--spec {place}/spec.yaml --input {place}/raw --table {place}/table"
    return command.replace(
        "--spec URL --input URL --table URL ...", f"{urls} --partition-from-path dt"
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Raw rows, a spec with a shipped operator, an empty directory, Spark's home and its
    settings.
    """
    for name in ("src", "empty", "conf"):
        (tmp_path / name).mkdir()
    make_spark_home(tmp_path)
    (tmp_path / "src" / "shipped_witness.py").write_text(WITNESS)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    settings = SETTINGS | {
        "spark.submit.pyFiles": str(tmp_path / "src" / "shipped_witness.py"),
        "spark.yarn.jars": f"local:{tmp_path}/spark/jars/*",
        "spark.executorEnv.FEATSTORE_TEST_LOG": f"{tmp_path}/log",
    }
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "".join(f"{key} {value}\n" for key, value in settings.items())
    )
    for part in range(3):
        rows = range(part * 100, part * 100 + 100)
        put_parquet(
            tmp_path / "raw" / f"dt={part}" / "a.parquet",
            {"user": [f"u{row % 7}" for row in rows], "n": list(rows)},
        )
    return tmp_path


def submit(command: list[str], place: Path, programs: str) -> str:
    """Runs a command in an empty directory, with few variables; its output."""
    given = {key: os.environ[key] for key in ("JAVA_HOME", "HADOOP_CONF_DIR") if key in os.environ}
    given |= {
        "PATH": f"{place}/spark/bin:{programs}:/usr/bin:/bin",
        "SPARK_HOME": f"{place}/spark",
        "SPARK_CONF_DIR": f"{place}/conf",
        "FEATSTORE_TEST_LOG": f"{place}/log",
    }
    environment = given | java_environment(given)
    done = to_its_end(command, env=environment, cwd=place / "empty")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def assert_extracted_by_the_archive(
    place: Path, hosts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executors ran in the copies that they unpacked below `hosts`, and gave the values of this
    process.
    """
    lines = (place / "log").read_text().splitlines()
    for prefix, *files in {tuple(map(Path, json.loads(line))) for line in lines}:
        assert prefix.is_relative_to(hosts), prefix
        assert all(file.is_relative_to(prefix) for file in files), files
    assert len(lines) >= 3
    monkeypatch.syspath_prepend(str(place / "src"))
    monkeypatch.setenv("FEATSTORE_TEST_LOG", os.devnull)
    featstore.extract(
        str(place / "spec.yaml"), place / "raw", place / "here", partition_from_path=["dt"]
    )
    there, here = (
        featstore.open_table(place / name).to_arrow().sort_by("n") for name in ("table", "here")
    )
    assert there.equals(here)


@pytest.mark.slow
def test_the_command_for_yarn_runs_where_hosts_have_no_python(
    report: PackReport, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python of this test is hidden from YARN and from `spark-submit`, and nothing of its
    environment is on the path but Spark.
    """
    (place / "yarn").mkdir()
    with yarn_cluster(place / "yarn", wrap=without_this_python) as yarn:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.site))
        program = shutil.copy(job_path("extract"), place / "src")
        command = report.lines[0].replace("$(featstore spark job extract)", str(program))
        command = with_urls(command, place)
        submit(without_this_python(["sh", "-c", command]), place, programs="/usr/bin")
    assert_extracted_by_the_archive(place, yarn.site, monkeypatch)


@pytest.mark.slow
def test_the_command_for_a_standalone_cluster_runs_with_a_driver_in_this_environment(
    report: PackReport, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["sh", "-c", on_this_host(report.lines[2], place)]
    said = submit(command, place, programs=str(Path(sys.executable).parent))
    assert "300 rows in 3 files" in said
    assert_extracted_by_the_archive(place, place / "spark" / "work", monkeypatch)


def tree(root: Path) -> Path:
    for name, mode in (
        ("bin/python", 0o700),
        ("lib/a.py", 0o640),
        ("lib/__pycache__/a.pyc", 0o644),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
        (root / name).chmod(mode)
    return root


def test_equal_files_give_an_equal_archive_without_bytecode(tmp_path: Path) -> None:
    archives: list[Path] = []
    for name in ("one", "two"):
        root = tree(tmp_path / name)
        os.utime(root / "lib" / "a.py", (len(archives), len(archives)))
        archives.append(tmp_path / f"{name}.tar.gz")
        write_archive(root, archives[-1])
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as archive:
        modes = {member.name: member.mode for member in archive}
    assert modes == {"bin/python": 0o755, "lib/a.py": 0o644}


def test_an_archive_that_cannot_be_written_leaves_the_one_that_is_there(
    tmp_path: Path, small_disk: Path
) -> None:
    root = tree(tmp_path / "tree")
    write_archive(root, small_disk / "a.tar.gz")
    before = (small_disk / "a.tar.gz").read_bytes()
    (root / "lib" / "big").write_bytes(os.urandom(4_000_000))
    with pytest.raises(OSError, match="No space left"):
        write_archive(root, small_disk / "a.tar.gz")
    assert [path.name for path in small_disk.iterdir()] == ["a.tar.gz"]
    assert (small_disk / "a.tar.gz").read_bytes() == before


@pytest.mark.parametrize("name", ["environment", "environment.zip", "environment.tar"])
def test_an_archive_has_a_name_by_which_spark_unpacks_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(PackError, match=r"expected a name that ends with \.tar\.gz or \.tgz"):
        pack(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a,b.tar.gz", "a#b.tar.gz"])
def test_an_archive_has_no_name_that_spark_takes_apart(tmp_path: Path, name: str) -> None:
    with pytest.raises(PackError, match=f"expected a path without '{name[1]}'"):
        pack(tmp_path / name)


def test_a_missing_directory_is_an_error_before_anything_is_packed(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"there is no directory .*/missing; make it first"):
        pack(tmp_path / "missing" / "environment.tar.gz")


def test_a_package_that_is_not_there_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="my-operators is not installed in this environment"):
        pack(tmp_path / "environment.tar.gz", ["my-operators"])
    assert not list(tmp_path.iterdir())
