"""`featstore train ... | stage ...`: training configs, and the caches that they stage to."""

import click

from featstore.tools.cli.command import (
    CONFIG,
    DIRECTORY,
    CommandGroup,
    json_option,
    load,
    subjects,
)
from featstore.tools.cli.output import show, terminal_width


@click.group(cls=CommandGroup, examples=["featstore train check --config train.yaml --head 3"])
def train() -> None:
    """Check a training config."""


@train.command(
    examples=[
        "featstore train check --config train.yaml --head 3",
        "featstore train check train.yaml --table s3://features/ctr --json | jq .num_rows",
    ]
)
@subjects(CONFIG)
@click.option("--table", metavar="URL", help="A table to check instead of the one in the config.")
@click.option(
    "--head",
    type=click.IntRange(min=0),
    default=0,
    metavar="ROWS",
    help="Also read the first rows, and print what a batch holds.",
)
@json_option
def check(config: str, table: str | None, head: int, as_json: bool) -> None:
    """Print what a training config reads: columns, shapes, bytes per row, files and splits.

    Everything is checked that a run checks before its first batch.
    """
    found = load("featstore.loader.train_check").check(config, head=head, table=table)
    show(found, as_json=as_json)


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
        show(load("featstore.samples.sample_dataset").warm_decoded(config, table=table))
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
