"""`featstore spec ...`: check, show and compare specs."""

import json
import sys
from typing import Any

import click

from featstore.tools.cli.command import (
    SPEC,
    CommandGroup,
    json_option,
    load,
    only,
    stale_groups_option,
    subjects,
)
from featstore.tools.cli.output import show as show_report
from featstore.tools.programs import input_option

_OLD = click.Option(["--old"], required=True, metavar="URL", help="The spec as it was.")
_SLOT = click.Option(
    ["--slot"],
    metavar="SLOT",
    help="Only what this node, by name or number, is made of, drawn or as SQL.",
)


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
        "featstore spec show --spec spec.yaml --format svg > spec.svg",
        "featstore spec show --spec spec.yaml --format mermaid --slot user_x_item",
        "featstore spec show --spec spec.yaml --format sql --slot user_x_item",
    ]
)
@subjects(SPEC, _SLOT)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "svg", "dot", "mermaid", "sql"]),
    default="text",
    show_default=True,
    help="A table; a drawing, by Graphviz; the text that it is made of; text for Markdown pages "
    "that draw Mermaid; or the Spark SQL expression over raw columns that computes the stored "
    "values of --slot.",
)
@json_option
def show(spec: str, slot: str | None, form: str, as_json: bool) -> None:
    """Print the graph: raw columns, slots and inner nodes, kinds, shapes, operators, labels."""
    only(form == "text", "with --format text", "--json")
    if form == "text":
        if slot is not None:
            raise click.UsageError("--slot goes with --format svg, dot, mermaid or sql")
        show_report(load("featstore.spec.show").show(spec), as_json=as_json)
    elif form != "sql":
        show_report(load("featstore.spec.drawing").draw(spec, form=form, slot=slot))
    elif slot is None:
        raise click.UsageError("Missing option '--slot'.")
    else:
        show_report(load("featstore.spec.sql.statement").sql(spec, slot))


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


@spec.command(examples=["featstore spec schema > spec.schema.json"])
def schema() -> None:
    """Print the JSON Schema of specs, by which editors complete and check them."""
    show_report(json.dumps(load("featstore.spec.json_schema").spec_schema(), indent=2))
