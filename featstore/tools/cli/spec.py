"""`featstore spec ... | schema ...`: check, show and compare specs; schemas for editors."""

import json
import sys
from typing import Any

import click

from featstore.tools.cli.command import (
    SPEC,
    CommandGroup,
    json_option,
    load,
    stale_groups_option,
    subjects,
)
from featstore.tools.cli.output import show as show_report
from featstore.tools.programs import input_option

_OLD = click.Option(["--old"], metavar="URL", help="The spec as it was.")
_SLOT = click.Option(["--slot"], metavar="SLOT", help="A slot, by name or number.")


@click.group(
    cls=CommandGroup,
    examples=["featstore spec lint --spec spec.yaml", "featstore spec show --spec spec.yaml"],
)
def spec() -> None:
    """Check a spec, show its graph, compare it with another."""


@spec.command(
    examples=[
        "featstore spec lint --spec spec.yaml",
        "featstore spec lint --spec spec.yaml --update-lock",
        "featstore spec lint --spec spec.yaml --input raw",
    ]
)
@subjects(SPEC)
@click.option(
    "--update-lock",
    is_flag=True,
    help="Write the lock file beside the spec: what each slot number means now.",
)
@click.option(
    "--input",
    "--sample",
    "input_url",
    metavar="URL",
    help="Raw Parquet to check that user operators treat each row independently.",
)
@json_option
def lint(spec: str, update_lock: bool, input_url: str | None, as_json: bool) -> None:
    """Print all errors of a spec, and the slots whose meaning differs from the lock file.

    The exit code is 2 if there are any.
    """
    report = load("featstore.spec.lint").lint(spec, update_lock=update_lock)
    if report.ok and input_url is not None:
        report = load("featstore.extraction.sample").lint_sample(report, input_url)
    show_report(report, as_json=as_json, err=not report.ok)
    sys.exit(0 if report.ok else 2)


@spec.command(examples=["featstore spec fit --spec spec.yaml --input raw"])
@subjects(SPEC)
@input_option("Raw Parquet to fit on: a file, a directory or a glob; or an Iceberg table.")
@click.option(
    "--again",
    is_flag=True,
    help="Also fit nodes that have a fit: their slots change values.",
)
def fit(spec: str, input_url: str, again: bool) -> None:
    """Fit operators on raw Parquet, and freeze the result in the lock file beside the spec."""
    show_report(load("featstore.api").fit(spec, input_url, again=again))


@spec.command(
    examples=[
        "featstore spec show --spec spec.yaml",
        "featstore spec show --spec spec.yaml --json | jq '.entries[].name'",
    ]
)
@subjects(SPEC)
@json_option
def show(spec: str, as_json: bool) -> None:
    """Print the graph in order: slots and inner nodes, kinds, shapes, operators, inputs."""
    show_report(load("featstore.spec.show").show(spec), as_json=as_json)


@spec.command(examples=["featstore spec diff --old main/spec.yaml --spec spec.yaml"])
@subjects(_OLD, SPEC)
@json_option
def diff(old: str, spec: str, as_json: bool) -> None:
    """Print the slots of two specs that differ in values, or are added, removed or renamed."""
    show_report(load("featstore.spec.diff").diff(old, spec), as_json=as_json)


@spec.command(
    examples=[
        "featstore spec preview --spec spec.yaml --input raw --slot price_bin",
        "featstore spec preview --spec spec.yaml --input raw --rows 1000 --table /data/ctr",
    ]
)
@subjects(SPEC)
@input_option("Raw Parquet, CSV or JSON lines: a file, a directory or a glob; or an Iceberg table.")
@click.option("--rows", "num_rows", type=click.IntRange(min=1), default=10_000, show_default=True)
@click.option("--slot", metavar="SLOT", help="Only this slot, by name or number.")
@click.option("--table", "table_url", metavar="URL", help="A table whose slots to show beside.")
@stale_groups_option
@click.option(
    "--no-labels", is_flag=True, help="Leave labels out: of raw rows to which they are not joined."
)
@json_option
def preview(spec: str, input_url: str, no_labels: bool, as_json: bool, **options: Any) -> None:
    """Print what the slots hold over raw rows from all over the input, without writing anything.

    That is coverage, the AUC of each slot alone for labels of 0 and 1, and top values with their
    label rates, or quantiles. With --table also of a sample of as many of its rows.
    """
    look = load("featstore.explore.preview").preview
    show_report(look(spec, input_url, with_labels=not no_labels, **options), as_json=as_json)


@spec.command(
    examples=[
        "featstore spec graph --spec spec.yaml --format svg > spec.svg",
        "featstore spec graph --spec spec.yaml --format mermaid --slot user_x_item",
    ]
)
@subjects(SPEC)
@click.option(
    "--format",
    "form",
    type=click.Choice(["svg", "dot", "mermaid"]),
    default="dot",
    show_default=True,
    help="A picture, by Graphviz; the text it is made of; or text for Markdown pages that draw "
    "Mermaid.",
)
@click.option("--slot", metavar="SLOT", help="Only what this node, by name or number, is made of.")
def graph(spec: str, form: str, slot: str | None) -> None:
    """Print the graph as a drawing: raw columns, nodes, slots and labels."""
    show_report(load("featstore.spec.drawing").draw(spec, form=form, slot=slot))


@spec.command(examples=["featstore spec sql --spec spec.yaml --slot user_x_item"])
@subjects(SPEC, _SLOT)
def sql(spec: str, slot: str) -> None:
    """Print the Spark SQL expression over raw columns that computes a slot's stored values."""
    show_report(load("featstore.spec.sql.statement").sql(spec, slot))


@click.group(cls=CommandGroup, examples=["featstore schema spec > spec.schema.json"])
def schema() -> None:
    """Print JSON Schemas, by which editors complete and check specs and training configs."""


@schema.command("spec", examples=["featstore schema spec > spec.schema.json"])
def schema_of_specs() -> None:
    """Print the JSON Schema of specs."""
    show_report(json.dumps(load("featstore.spec.json_schema").spec_schema(), indent=2))


@schema.command("train", examples=["featstore schema train > train.schema.json"])
def schema_of_configs() -> None:
    """Print the JSON Schema of training configs."""
    show_report(json.dumps(load("featstore.loader.config_schema").train_schema(), indent=2))
