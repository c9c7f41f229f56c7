"""The commands that submit a job."""

import shlex

from featstore.tools.pack import submit_lines


def words_of(line: str) -> list[str]:
    _, _, command = line.partition("\n")  # below the comment
    return shlex.split(command.replace("\\\n", " "))


def test_each_cluster_that_takes_archives_gets_ours_and_its_python() -> None:
    lines = submit_lines("/tmp/env.tar.gz", "1.2.3")[:3]
    for cluster, line in zip(("YARN", "Kubernetes", "standalone"), lines, strict=True):
        words = words_of(line)
        assert words[0] == "spark-submit"
        assert words[words.index("--archives") + 1] == "/tmp/env.tar.gz#environment"
        assert "spark.pyspark.python=./environment/bin/python" in words
        assert line.startswith(f"# {cluster}: ")


def test_a_path_with_a_space_is_quoted() -> None:
    for line in submit_lines("/my files/env.tar.gz", "1.2.3")[:3]:
        words = words_of(line)
        assert words[words.index("--archives") + 1] == "/my files/env.tar.gz#environment"


def test_only_where_the_driver_runs_here_it_has_a_python_of_its_own() -> None:
    yarn, kubernetes, standalone, packages = submit_lines("env.tar.gz", "1.2.3")
    assert "spark.pyspark.driver.python" in standalone
    assert "spark.pyspark.driver.python" not in yarn + kubernetes
    assert "featstore 1.2.3" in packages
