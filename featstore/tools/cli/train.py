"""`featstore train ...`: training configs."""

import click

from featstore.tools.cli.command import CONFIG, CommandGroup, json_option, load, subjects
from featstore.tools.cli.output import show


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
