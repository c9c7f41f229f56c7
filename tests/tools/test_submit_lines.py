"""The commands that submit a job."""

import shlex

from featstore.tools.pack import submit_lines


def words_of(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "))


def test_each_cluster_that_takes_archives_gets_ours_and_its_python() -> None:
    lines = {line.cluster: line for line in submit_lines("/tmp/env.tar.gz", "1.2.3")}
    assert list(lines)[:3] == ["YARN", "Kubernetes", "standalone"]
    for cluster in ("YARN", "Kubernetes", "standalone"):
        words = words_of(lines[cluster].command)
        assert words[0] == "spark-submit"
        assert words[words.index("--archives") + 1] == "/tmp/env.tar.gz#environment"
        assert "spark.pyspark.python=./environment/bin/python" in words
        assert str(lines[cluster]).startswith(f"# {cluster}: ")


def test_a_path_with_a_space_is_quoted() -> None:
    for line in submit_lines("/my files/env.tar.gz", "1.2.3")[:3]:
        words = words_of(line.command)
        assert words[words.index("--archives") + 1] == "/my files/env.tar.gz#environment"


def test_only_where_the_driver_runs_here_it_has_a_python_of_its_own() -> None:
    yarn, kubernetes, standalone, packages = submit_lines("env.tar.gz", "1.2.3")
    assert "spark.pyspark.driver.python" in standalone.command
    assert "spark.pyspark.driver.python" not in yarn.command + kubernetes.command
    assert "featstore 1.2.3" in packages.command
