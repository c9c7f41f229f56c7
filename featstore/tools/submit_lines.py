"""How a job is submitted with an archive, for each kind of cluster."""

import shlex
from dataclasses import dataclass

from featstore.tools.interpreter import LAUNCHER

ALIAS = (
    "environment"  # the directory in which Spark unpacks the archive, below the working directory
)
PYTHON = f"./{ALIAS}/{LAUNCHER}"
_JOB = "$(featstore spark-job extract) --spec URL --input URL --table URL ..."


@dataclass(frozen=True, kw_only=True)
class SubmitLine:
    """A command for one kind of cluster.

    Attributes:
        cluster: The kind.
        about: What to know of it, in a line.
        command: What to run, on several lines.
    """

    cluster: str
    about: str
    command: str

    def __str__(self) -> str:
        return f"# {self.cluster}: {self.about}\n{self.command}"


def submit_lines(archive: str, version: str) -> tuple[SubmitLine, ...]:
    """The commands.

    Args:
        archive: The path of the archive.
        version: The version of featstore in it.
    """
    archives = f"--archives {shlex.quote(archive)}#{ALIAS}"
    yarn = _spark_submit(
        "--master yarn --deploy-mode cluster",
        archives,
        f"--conf spark.pyspark.python={PYTHON}",
        _JOB,
    )
    kubernetes = _spark_submit(
        "--master k8s://https://HOST:6443 --deploy-mode cluster",
        "--conf spark.kubernetes.container.image=IMAGE",
        "--conf spark.kubernetes.file.upload.path=s3a://BUCKET/PATH",
        archives,
        f"--conf spark.pyspark.python={PYTHON}",
        _JOB,
    )
    standalone = _spark_submit(
        "--master spark://HOST:7077",
        archives,
        f"--conf spark.pyspark.python={PYTHON}",
        "--conf spark.pyspark.driver.python=$(command -v python)",
        _JOB,
    )
    databricks = (
        f"install the wheel of featstore {version} on the cluster as a library, upload\n"
        "$(featstore spark-job extract), and make a job with a Python script task of that file"
    )
    return (
        SubmitLine(
            cluster="YARN",
            about="driver and executors run the archive's Python; hosts need none",
            command=yarn,
        ),
        SubmitLine(
            cluster="Kubernetes",
            about="an image with Spark 4; archive and job are uploaded to the path",
            command=kubernetes,
        ),
        SubmitLine(
            cluster="standalone",
            about="the driver runs in this environment, executors in the archive's Python",
            command=standalone,
        ),
        SubmitLine(
            cluster="Databricks and others that install packages",
            about="without the archive, and without the extra `spark`",
            command=databricks,
        ),
    )


def _spark_submit(*options: str) -> str:
    return " \\\n    ".join(["spark-submit", *options])
