"""`featstore spark-job NAME` and `featstore spark pack`: what a Spark cluster needs."""

import click

from featstore.tools.cli.command import Command, CommandGroup, load
from featstore.tools.cli.output import show
from featstore.tools.jobs import JOBS, job_path


@click.command(
    "spark-job",
    cls=Command,
    examples=["featstore spark-job extract", "featstore spark-job join-labels"],
)
@click.argument("name", type=click.Choice(list(JOBS)))
def spark_job(name: str) -> None:
    """Print the path of a job's program: spark-submit $(featstore spark-job extract) ..."""
    show(str(job_path(name)))


@click.group(cls=CommandGroup, examples=["featstore spark pack --output environment.tar.gz"])
def spark() -> None:
    """Prepare jobs for a Spark cluster."""


@spark.command(
    examples=[
        "featstore spark pack --output environment.tar.gz",
        "featstore spark pack --output environment.tar.gz --also my-operators",
    ]
)
@click.option(
    "--output",
    required=True,
    metavar="FILE",
    help="The archive to write, such as environment.tar.gz.",
)
@click.option(
    "--also",
    multiple=True,
    metavar="NAME",
    help="A further installed distribution, and what it needs; may be repeated.",
)
def pack(output: str, also: tuple[str, ...]) -> None:
    """Pack this Python with featstore, for hosts that have neither (spark-submit --archives)."""
    show(load("featstore.tools.pack").pack(output, also))
