"""`featstore schema spec | train`: JSON Schemas for editors."""

import json

import click

from featstore.tools.cli.command import CommandGroup, load
from featstore.tools.cli.output import show


@click.group(cls=CommandGroup, examples=["featstore schema spec > spec.schema.json"])
def schema() -> None:
    """Print JSON Schemas, by which editors complete and check specs and training configs."""


@schema.command(examples=["featstore schema spec > spec.schema.json"])
def spec() -> None:
    """Print the JSON Schema of specs."""
    show(json.dumps(load("featstore.spec.json_schema").spec_schema(), indent=2))


@schema.command(examples=["featstore schema train > train.schema.json"])
def train() -> None:
    """Print the JSON Schema of training configs."""
    show(json.dumps(load("featstore.loader.config_schema").train_schema(), indent=2))
