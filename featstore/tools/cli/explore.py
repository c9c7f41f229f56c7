"""`featstore report | whatis`: a table as one page for a browser, and the values behind signs."""

import sys
from typing import Any

import click

from featstore.tools.cli.command import (
    TABLE,
    Command,
    compare_days_option,
    compare_option,
    compare_version_option,
    exact_option,
    json_option,
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


@click.command(
    cls=Command,
    examples=[
        "featstore whatis 4020641234567890123 --table /data/ctr",
        "featstore whatis 402064… --table /data/ctr",
        "featstore whatis 4020641234567890123 --spec spec.yaml --slot hour",
        "featstore whatis --text sports --table /data/ctr --slot category",
    ],
)
@click.argument("sign", required=False)
@click.option("--text", metavar="VALUE", help="Find the signs of this value, in place of SIGN.")
@click.option("--table", metavar="URL", help="The table that has the sign.")
@version_option
@click.option(
    "--spec", metavar="URL", help="A spec, which names hours, days, buckets and vocabularies."
)
@click.option("--slot", metavar="NAME", help="The slot of the sign; any slot if not given.")
@json_option
def whatis(
    sign: str | None,
    text: str | None,
    table: str | None,
    version: int | None,
    spec: str | None,
    slot: str | None,
    as_json: bool,
) -> None:
    """Print which value of which slot a sign (or an index) stands for.

    SIGN may be short, as profiles print it: 402064… (or 402064...) lists all known signs that
    begin with these digits. Digits alone are a whole sign or index; only if that is not known, they
    are the first digits of others.

    Texts are those that extraction kept beside the table. The exit code is 1 if none is known.
    """
    find = load("featstore.explore.whatis").whatis
    found = find(sign, text=text, table_url=table, version=version, spec_url=spec, slot=slot)
    show(found, as_json=as_json)
    sys.exit(0 if found.values else 1)
