"""The Spark jobs come with the package."""

import importlib.metadata
import json
import os
import signal
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import featstore
from featstore.base.errors import InputError
from featstore.ingest.join_output import check_output
from featstore.tools import job_extract as extract
from featstore.tools import job_join_labels as join_labels
from featstore.tools.cli import cli
from featstore.tools.programs import JOBS, job_path
from tests.parquet_files import put_parquet
from tests.programs import run_python

SCRIPTS = Path(__file__).parents[2] / "spark_jobs"


def test_each_module_of_a_job_has_a_name() -> None:
    files = {path.name for path in job_path("extract").parent.glob("job_*.py")}
    assert set(JOBS.values()) == files


def test_no_job_is_named_like_a_library() -> None:
    """Spark puts their folder on Python's path, before the libraries."""
    names = {path.stem for path in job_path("extract").parent.iterdir()} - {"__init__"}
    assert {"cli", "job_extract", "pack"} <= names
    assert not names & (sys.stdlib_module_names | set(importlib.metadata.packages_distributions()))


@pytest.mark.parametrize("name", JOBS)
def test_a_job_leaves_its_folder_to_users_modules(name: str, tmp_path: Path) -> None:
    (tmp_path / "pack.py").write_text("")
    program = f"""
import runpy, sys
from featstore.base import processes
processes.end_with = print  # which would end the process
sys.path[:0] = [{str(job_path(name).parent)!r}, {str(tmp_path)!r}]
runpy.run_path({str(job_path(name))!r}, run_name="__main__")
import pack
print(pack.__file__)
"""
    assert run_python(program).stdout.splitlines()[-1] == str(tmp_path / "pack.py")


@pytest.mark.parametrize("name", JOBS)
def test_the_command_prints_the_path_of_a_program_that_also_runs_as_a_module(name: str) -> None:
    path = Path(CliRunner().invoke(cli, ["spark", "job", name]).output.strip())
    as_file = run_python(path, "--help")
    usage = "usage" if name == "profile-slots" else "Usage"  # of argparse and of click
    assert as_file.stdout.startswith(f"{usage}: {name} ")
    module = f"featstore.tools.{path.stem}"
    code = f"import runpy; runpy.run_module({module!r}, run_name='__main__')"
    assert run_python(code, "--help").stdout == as_file.stdout


def test_an_unknown_job_is_answered_with_the_known_ones() -> None:
    done = CliRunner().invoke(cli, ["spark", "job", "extrakt"])
    assert done.exit_code == 2
    assert all(f"'{name}'" in done.output for name in JOBS)


def test_days_that_are_up_to_date_are_found_so_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, table = tmp_path / "spec.json", tmp_path / "table"
    slots = [{"slot": 1, "name": "f", "op": "hash", "of": "user"}]
    spec.write_text(json.dumps({"spec": 1, "inputs": {"user": "string"}, "slots": slots}))
    put_parquet(tmp_path / "raw" / "dt=2026-11-01" / "a.parquet", {"user": ["a"]})
    raw = str(tmp_path / "raw" / "dt={dt}")
    featstore.extract(spec, raw, table, days="2026-11-01")
    monkeypatch.setattr(extract, "spark_session", None)  # a call would be a TypeError
    given = ["--spec", str(spec), "--input", raw, "--table", str(table), "--days"]
    assert extract.main([*given, "2026-11-01"]) == 0
    assert "1 in all, 0 extracted" in capsys.readouterr().out
    assert extract.main([*given, "2026-11-01..2026-11-02"]) == 2
    assert "no raw files for dt=2026-11-02" in capsys.readouterr().err
    put_parquet(tmp_path / "raw" / "dt=2026-11-02" / "a.parquet", {"user": ["a"]})
    with pytest.raises(TypeError, match="NoneType"):
        extract.main([*given, "2026-11-01..2026-11-02"])
    monkeypatch.setenv("CONTAINER_ID", "1")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(TypeError, match="NoneType"):  # YARN fails an application without a context
        extract.main([*given, "2026-11-01"])


def test_logs_that_are_not_parquet_are_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("id,ts\n")
    monkeypatch.setattr(join_labels, "spark_session", None)  # a call would be a TypeError
    given = [
        *("--output", str(tmp_path / "out"), "--cut-off", "2026-11-02"),
        *("--impressions", f"from={tmp_path} row_id=id event_time=ts"),
        *("--label", f"name=click from={tmp_path} key=id event_time=ts window=1h"),
    ]
    assert join_labels.main(given) == 2
    assert "a.csv: import text to Parquet first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("full", "full exists, and is not the output of a join"),
        ("full/a.txt", "a.txt exists, and is not the output of a join"),
        ("full/a.txt/out", "expected a directory to write to, found the file"),
        ("s3://bucket/out", "s3:// cannot do in one step"),
    ],
)
@pytest.mark.parametrize("command", ["job", "local", "spark"])
def test_an_output_that_cannot_be_published_is_refused_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    output: str,
    message: str,
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.txt").write_text("")
    for started in ("spark_session", "join_labels_locally"):
        monkeypatch.setattr(join_labels, started, None)  # a call would be a TypeError
    given = [
        *("--output", output if ":" in output else str(tmp_path / output)),
        *("--cut-off", "2026-11-02"),
        *("--impressions", f"from={tmp_path}/i row_id=id event_time=ts"),
        *("--label", f"name=click from={tmp_path}/c key=id event_time=ts window=1h"),
    ]
    if command == "job":
        assert join_labels.main(given) == 2
        assert message in capsys.readouterr().err
    else:
        done = CliRunner().invoke(cli, ["join-labels", *given, "--engine", command])
        assert message in str(done.exception)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("number", "message"), [(signal.SIGTERM, "SystemExit(143)"), (signal.SIGINT, "Abort()")]
)
def test_signals_unwind_a_local_join(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, message: str
) -> None:
    """Duckdb makes an error of its own of what a handler raises."""

    def interrupted(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), number)
        except (SystemExit, KeyboardInterrupt):
            raise RuntimeError("Query interrupted") from None

    monkeypatch.setattr(join_labels, "join_labels_locally", interrupted)
    before = signal.getsignal(number)
    given = [
        *("--output", str(tmp_path / "out"), "--cut-off", "2026-11-02"),
        *("--impressions", "from=i row_id=id event_time=ts"),
        *("--label", "name=click from=c key=id event_time=ts window=1h"),
    ]
    with pytest.raises((SystemExit, click.Abort)) as ended:
        cli.main(["join-labels", *given], standalone_mode=False)
    assert repr(ended.value) == message
    assert signal.getsignal(number) is before


def test_a_directory_without_permission_to_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere, so the system's answer is replaced."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(InputError, match="is not writable: choose another output"):
        check_output(str(tmp_path / "deep" / "out"))


def test_scripts_of_a_clone_run_the_same_jobs() -> None:
    for script in SCRIPTS.glob("*.py"):
        done = run_python(script, "--help")
        assert done.stdout.startswith(("Usage: ", "usage: "))
    assert len(list(SCRIPTS.glob("*.py"))) == len(JOBS)
