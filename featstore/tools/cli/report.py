"""`featstore report`: a table as one page for a browser."""

from typing import Any

import click

from featstore.tools.cli.command import (
    TABLE,
    Command,
    compare_days_option,
    compare_option,
    compare_version_option,
    exact_option,
    load,
    slots_option,
    stale_groups_option,
    subjects,
    version_option,
    where_option,
)
from featstore.tools.cli.output import show


@click.command(
    cls=Command,
    examples=[
        "featstore report --table /data/ctr --output report.html",
        "featstore report /data/ctr -o report.html --label click",
        "featstore report /data/ctr -o report.html --days 2026-11-01 2026-11-02",
        "featstore report /data/ctr -o report.html --compare /data/ctr --compare-version 7",
    ],
)
@subjects(TABLE)
@click.option("--output", "-o", required=True, metavar="URL", help="The HTML file to write.")
@version_option
@where_option
@slots_option
@stale_groups_option
@exact_option
@click.option(
    "--label",
    metavar="NAME",
    help="Show the rate of this label, of 0 and 1, and the AUC of each slot; reads the rows.",
)
@compare_option
@compare_version_option
@compare_days_option
def report(table: str, output: str, **options: Any) -> None:
    """Write a page that shows each slot: one HTML file, which needs no network.

    Figures come from stored statistics if possible, otherwise from the rows.
    """
    show(load("featstore.explore.report.report").report(table, output, **options))
