"""`featstore stage ...`: fill, list and empty staging caches."""

import click

from featstore.tools.cli.command import CONFIG, DIRECTORY, CommandGroup, load, subjects
from featstore.tools.cli.output import show, terminal_width


@click.group(
    cls=CommandGroup,
    examples=[
        "featstore stage warm --config train.yaml",
        "featstore stage list --directory /ssd/featstore",
    ],
)
def stage() -> None:
    """Fill, list and empty a staging cache: the `staging.directory` of a training config."""


@stage.command(
    examples=[
        "featstore stage warm --config train.yaml",
        "featstore stage warm --config train.yaml --table s3://features/ctr",
        "featstore stage warm --config train.yaml --decoded",
    ]
)
@subjects(CONFIG)
@click.option("--table", metavar="URL", help="A table to stage instead of the one in the config.")
@click.option(
    "--decoded",
    is_flag=True,
    help="Decode the selected columns, for a SampleDataset, and stage no more than that takes.",
)
def warm(config: str, table: str | None, decoded: bool) -> None:
    """Stage the files that a training config reads, so that the run finds them on local disk."""
    if decoded:
        show(load("featstore.samples.warming").warm_decoded(config, table=table))
    else:
        show(load("featstore.loader.stage").warm(config, table=table))


@stage.command("list", examples=["featstore stage list --directory /ssd/featstore"])
@subjects(DIRECTORY)
def list_(directory: str) -> None:
    """Print the staged files, how much of each is present, and when it was last used."""
    show(load("featstore.loader.stage").list(directory, width=terminal_width()))


@stage.command(examples=["featstore stage clear --directory /ssd/featstore"])
@subjects(DIRECTORY)
def clear(directory: str) -> None:
    """Remove the staged files that no process is reading, and nothing else."""
    show(load("featstore.loader.stage").clear(directory))
