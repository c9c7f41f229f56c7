"""docs/howto/spark.md: its commands are those of the package."""

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from featstore.tools.cli import cli
from featstore.tools.pack import submit_lines
from featstore.tools.programs import JOBS, job_path

PAGE = (Path(__file__).parents[2] / "docs/howto/spark.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)\n```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_names_each_job_and_runs() -> None:
    lines = [line for line in BLOCKS[0].splitlines() if line.startswith("featstore spark-job")]
    found = [CliRunner().invoke(cli, shlex.split(line)[1:]).output.strip() for line in lines]
    assert found == [str(job_path(name)) for name in JOBS]
    for name in JOBS:
        assert f"| `{name}` |" in PAGE
        assert f"python -m featstore.tools.{job_path(name).stem}`" in PAGE


def test_its_commands_for_clusters_are_those_that_pack_prints() -> None:
    submitted = [block for block in BLOCKS if block.startswith("spark-submit")]
    printed = submit_lines("environment.tar.gz", "VERSION")
    assert submitted == [line.partition("\n")[2] for line in printed if "spark-submit" in line]
    assert "featstore==VERSION" in PAGE


def test_what_was_not_run_is_marked() -> None:
    for cluster in ("Kubernetes", "Databricks"):
        section = re.split(r"^### ", PAGE, flags=re.MULTILINE)
        [text] = [part for part in section if part.startswith(cluster)]
        assert re.search(r"\*Not run", text), cluster
