"""`featstore table ... | report | whatis`: inspect and maintain tables; a table as one page for a
browser, and the values behind signs.
"""

import sys
from collections.abc import Sequence
from typing import Any

import click

from featstore.tools.cli.command import (
    DELTA_TABLE,
    TABLE,
    Command,
    CommandGroup,
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
from featstore.tools.cli.output import show, to_json
from featstore.tools.programs import (
    input_option,
    partition_options,
    retry_option,
    spec_option,
    table_option,
)


@click.group(
    cls=CommandGroup,
    examples=["featstore table inspect --table /data/ctr", "featstore table inspect /data/ctr"],
)
def table() -> None:
    """Inspect and maintain a table: a Delta table, or a directory or glob of Parquet."""


@table.command(
    examples=[
        "featstore table inspect --table /data/ctr",
        "featstore table inspect --table /data/ctr --json | jq .num_rows",
    ]
)
@subjects(TABLE)
@version_option
@json_option
def inspect(table: str, version: int | None, as_json: bool) -> None:
    """Print slots, partitions, rows, bytes, versions and the spec hash."""
    opened = load("featstore.explore.table").open_table(table, version)
    show(opened.inspect(), as_json=as_json)


@table.command(
    examples=[
        "featstore table history --table /data/ctr",
        "featstore table history --table /data/ctr --last 10",
    ]
)
@subjects(DELTA_TABLE)
@click.option("--last", type=click.IntRange(min=1), help="Only the newest so many commits.")
@json_option
def history(table: str, last: int | None, as_json: bool) -> None:
    """Print the commits, newest first: when, what, which partitions, how much, by which spec.

    --version NUMBER of the other commands reads the table as it was after one.
    """
    show(load("featstore.explore.description").table_history(table, last), as_json=as_json)


@table.command(
    examples=[
        "featstore table profile --table /data/ctr",
        "featstore table profile --table /data/ctr --slots 'price*' --where \"dt >= '2026-11-01'\"",
        "featstore table profile --table /data/ctr --label click",
        "featstore table profile --table /data/ctr --label click --slots category",
        "featstore table profile --table /data/ctr --days 2026-11-01 2026-11-02",
        "featstore table profile --table /data/ctr --by-day",
        "featstore table profile --table /data/ctr --compare /data/ctr --compare-version 7",
    ]
)
@subjects(TABLE)
@version_option
@where_option
@slots_option
@stale_groups_option
@exact_option
@click.option(
    "--label",
    metavar="NAME",
    help="Count the rows against this label, of 0 and 1: its rate by partition and what each slot "
    "alone says of it; with --slots of three or fewer also its rate by value or bin, which --json "
    "has for all slots.",
)
@compare_option
@compare_version_option
@compare_days_option
@click.option(
    "--by-day",
    is_flag=True,
    help="Print how each partition, such as a day, drifted from the one before, the most first.",
)
@json_option
def profile(
    table: str, version: int | None, stale_groups: str, as_json: bool, **options: Any
) -> None:
    """Print coverage, distinct values, top values and quantiles per slot.

    They come from stored statistics if possible, otherwise from the rows. Figures that are
    estimates show their error after ±. With --exact, --json has the label rates of top values.
    With --label, --compare, --days or --by-day, print slots against a label, or what changed.
    """
    question = load("featstore.explore.questions").Question(**options)
    opened = load("featstore.explore.table").open_table(table, version, stale_groups=stale_groups)
    show(question.answer(opened), as_json=as_json)


@table.command(
    examples=[
        "featstore table head --table /data/ctr --rows 3",
        "featstore table head --table /data/ctr --slots user --slots 'price*' --where 'click = 1'",
    ]
)
@subjects(TABLE)
@version_option
@where_option
@slots_option
@stale_groups_option
@click.option("--rows", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--ids", is_flag=True, help="Print signs and indices as they are stored.")
def head(
    table: str,
    version: int | None,
    where: str | None,
    slots: Sequence[str],
    stale_groups: str,
    rows: int,
    ids: bool,
) -> None:
    """Print the first rows as JSON lines, missing values as null.

    Signs are printed as the texts that extraction kept of frequent values, others as their digits.
    """
    opened = load("featstore.explore.table").open_table(table, version, stale_groups=stale_groups)
    found = opened.head(rows, slots or None, where)
    for row in (found if ids else opened.named(found)).to_pylist():
        show(to_json(row))


@table.command(
    "show",
    examples=[
        "featstore table show --table /data/ctr --where \"request_id = 'r-17'\"",
        "featstore table show --table /data/ctr --slots 'price*' --where 'click = 1'",
    ],
)
@subjects(TABLE)
@version_option
@click.option("--where", required=True, metavar="SQL", help="Which row; the first that matches.")
@slots_option
@stale_groups_option
@json_option
def show_row(
    table: str,
    version: int | None,
    where: str,
    slots: Sequence[str],
    stale_groups: str,
    as_json: bool,
) -> None:
    """Print one row whole, a line for each column, with the texts of its signs."""
    opened = load("featstore.explore.table").open_table(table, version, stale_groups=stale_groups)
    found = load("featstore.explore.row_view").show_row(opened, where, slots or None)
    show(found, as_json=as_json)


@table.command(
    examples=[
        "featstore table relabel --spec spec.yaml --input ripe/dt=2026-11-01 --table /data/ctr "
        "--partition dt=2026-11-01 --key request_id"
    ]
)
@spec_option("The spec, a YAML file, whose labels and weight are rewritten.")
@input_option(
    "Raw Parquet with the final labels: a file, a directory or a glob; or an Iceberg table."
)
@table_option("The table. None of its files is changed.")
@click.option(
    "--key", required=True, metavar="COLUMN", help="The kept column that identifies each row."
)
@partition_options
@retry_option
def relabel(spec: str, input_url: str, table_url: str, **options: Any) -> None:
    """Rewrite the labels of partitions, in files beside the table's."""
    with load("featstore.extraction.progress_bar").ProgressBar() as bar:
        report = load("featstore.api").relabel(spec, input_url, table_url, progress=bar, **options)
    show(report)


@table.command(
    examples=[
        "featstore table compact --table /data/ctr",
        "featstore table compact --table /data/ctr --field-ids",
    ]
)
@subjects(DELTA_TABLE)
@click.option(
    "--field-ids",
    is_flag=True,
    help="Also write data files of earlier versions again, whose columns have no permanent ids.",
)
def compact(table: str, field_ids: bool) -> None:
    """Merge slot groups into the base files, in one commit."""
    show(load("featstore.api").compact(table, field_ids=field_ids))


@table.command(
    examples=["featstore table register --table /data/ctr --name iceberg://prod/features.ctr"]
)
@subjects(DELTA_TABLE)
@click.option(
    "--name",
    required=True,
    metavar="URL",
    help="The Iceberg table: iceberg://CATALOG/NAMESPACE.TABLE.",
)
def register(table: str, name: str) -> None:
    """Create or update an Iceberg table that shows the newest version.

    Later commits of featstore update it, too.
    """
    show(load("featstore.api").register(table, name))


@table.command(
    examples=[
        "featstore table delete --table /data/ctr --where \"user in ('u1', 'u2')\" --dry-run",
        "featstore table delete --table /data/ctr --where \"user in ('u1', 'u2')\"",
    ]
)
@subjects(DELTA_TABLE)
@click.option(
    "--where",
    required=True,
    metavar="SQL",
    help="Which rows: a predicate over partition keys, slots, labels and kept columns.",
)
@click.option("--dry-run", is_flag=True, help="Only count the rows.")
def delete(table: str, where: str, dry_run: bool) -> None:
    """Remove rows from data files, slot groups, statistics and texts, in one commit.

    Earlier versions hold them until a vacuum removes their files.
    """
    show(load("featstore.api").delete_rows(table, where, dry_run=dry_run))


@table.command(examples=["featstore table lint --table /data/ctr --batch-size 4096"])
@subjects(TABLE)
@version_option
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=8192,
    show_default=True,
    help="The batch size, in rows, of the jobs that read the table.",
)
@json_option
def lint(table: str, version: int | None, batch_size: int, as_json: bool) -> None:
    """Print what makes the table slow to read, from the footers of its files.

    The exit code is 1 if there are findings.
    """
    lint_table = load("featstore.statistics.table_lint").lint
    report = lint_table(table, version, batch_size=batch_size)
    show(report, as_json=as_json)
    sys.exit(0 if report.ok else 1)


@table.command(
    examples=[
        "featstore table check --table /data/ctr",
        "featstore table check --table /data/ctr --spec spec.yaml --where \"dt >= '2026-11-01'\"",
    ]
)
@subjects(TABLE)
@version_option
@click.option(
    "--where",
    metavar="SQL",
    help="Only partitions that match, such as \"dt >= '2026-11-01'\": over partition keys alone.",
)
@click.option("--spec", metavar="URL", help="The spec whose `checks` to run.")
@stale_groups_option
@json_option
def check(
    table: str,
    version: int | None,
    where: str | None,
    spec: str | None,
    stale_groups: str,
    as_json: bool,
) -> None:
    """Run the checks of the newest extraction, or of another spec, on each partition.

    The exit code is 1 if one of severity `fail` fails.
    """
    opened = load("featstore.explore.table").open_table(table, version, stale_groups=stale_groups)
    report = opened.check(spec, where)
    show(report, as_json=as_json)
    sys.exit(0 if report.ok else 1)


@table.command(
    examples=[
        "featstore table vacuum --table /data/ctr --dry-run",
        "featstore table vacuum --table /data/ctr --retain-hours 24 --keep-version 7",
    ]
)
@subjects(DELTA_TABLE)
@click.option(
    "--retain-hours",
    type=click.FloatRange(min=0),
    default=168,
    show_default=True,
    help="Keep versions up to this age.",
)
@click.option(
    "--grace-hours",
    type=click.FloatRange(min=1),
    default=24,
    show_default=True,
    help="Keep files younger than this.",
)
@click.option(
    "--keep-version",
    "keep_versions",
    type=int,
    multiple=True,
    help="Keep this version too; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
def vacuum(table: str, retain_hours: float, grace_hours: float, **options: Any) -> None:
    """Remove files that no retained version references.

    These are replaced files and the leftovers of failed jobs. Files of running jobs are kept. In
    Iceberg tables that show the table, snapshots that name such a file are expired first.
    """
    times = {"retain_s": retain_hours * 3600, "grace_s": grace_hours * 3600}
    show(load("featstore.table.vacuum").vacuum(table, **times, **options))


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
