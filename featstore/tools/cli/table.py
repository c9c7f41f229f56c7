"""`featstore table ... | whatis`: inspect and maintain tables; the values behind signs."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from featstore.tools.cli.command import (
    DELTA_TABLE,
    TABLE,
    Command,
    CommandGroup,
    json_option,
    load,
    only,
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
        "featstore table inspect --table /data/ctr --history --last 10",
    ]
)
@subjects(TABLE)
@version_option
@click.option(
    "--history",
    is_flag=True,
    help="Print the commits of a Delta table instead, newest first: when, what, which partitions, "
    "how much, by which spec. --version NUMBER reads the table as it was after one.",
)
@click.option(
    "--last", type=click.IntRange(min=1), help="With --history: only the newest so many commits."
)
@json_option
def inspect(
    table: str, version: int | None, history: bool, last: int | None, as_json: bool
) -> None:
    """Print slots, partitions, rows, bytes, versions and the spec hash; or the commits."""
    only(history, "with --history", "--last")
    only(not history, "without --history", "--version")
    if history:
        found = load("featstore.explore.description").table_history(table, last)
    else:
        found = load("featstore.explore.table").open_table(table, version).inspect()
    show(found, as_json=as_json)


@table.command(
    examples=[
        "featstore table profile --table /data/ctr",
        "featstore table profile --table /data/ctr --slots 'price*' --where \"dt >= '2026-11-01'\"",
        "featstore table profile --table /data/ctr --label click",
        "featstore table profile --table /data/ctr --label click --slots category",
        "featstore table profile --table /data/ctr --days 2026-11-01 2026-11-02",
        "featstore table profile --table /data/ctr --days 2026-11-01..2026-11-07 "
        "2026-11-08..2026-11-14",
        "featstore table profile --table /data/ctr --by-day",
        "featstore table profile --table /data/ctr --compare /data/ctr --compare-version 7",
        "featstore table profile /data/ctr -o report.html --label click",
    ]
)
@subjects(TABLE)
@click.option(
    "--output",
    "-o",
    metavar="URL",
    help="Write a report instead: one HTML page with charts of each slot, which needs no network. "
    "It answers --label and --compare or --days together.",
)
@version_option
@where_option
@slots_option
@stale_groups_option
@click.option("--exact", is_flag=True, help="Count the rows exactly even if statistics are stored.")
@click.option(
    "--label",
    metavar="NAME",
    help="Count the rows against this label, of 0 and 1: its rate by partition and what each slot "
    "alone says of it; with --slots of three or fewer also its rate by value or bin, which --json "
    "has for all slots.",
)
@click.option("--compare", metavar="URL", help="Compare with this table, which came before.")
@click.option(
    "--compare-version",
    type=int,
    metavar="NUMBER",
    help="Compare with this version, of the table of --compare or of the table itself.",
)
@click.option(
    "--days",
    nargs=2,
    metavar="A B",
    help="Compare two values of the first partition key, or two ranges FIRST..LAST: what changed "
    "from A to B.",
)
@click.option(
    "--by-day",
    is_flag=True,
    help="Print how each partition, such as a day, drifted from those before it, the most first.",
)
@json_option
def profile(
    table: str,
    output: str | None,
    version: int | None,
    stale_groups: str,
    by_day: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Print coverage, distinct values, top values and quantiles per slot.

    They come from stored statistics if possible, otherwise from the rows. Figures that are
    estimates show their error after ±. With --exact, --json has the label rates of top values.
    With --label, --compare, --days or --by-day, print slots against a label, or what changed.
    """
    only(output is None, "without --output", "--by-day", "--json")
    if output is not None:
        found = load("featstore.explore.report.report").report(
            table, output, version=version, stale_groups=stale_groups, **options
        )
    else:
        question = load("featstore.explore.questions").Question(by_day=by_day, **options)
        open_table = load("featstore.explore.table").open_table
        found = question.answer(open_table(table, version, stale_groups=stale_groups))
    show(found, as_json=as_json)


@table.command(
    "show",
    examples=[
        "featstore table show --table /data/ctr --where \"request_id = 'r-17'\"",
        "featstore table show --table /data/ctr --slots 'price*' --where 'click = 1'",
        "featstore table show --table /data/ctr --rows 3",
        "featstore table show --table /data/ctr --rows 3 --slots user --where 'click = 1' --ids",
    ],
)
@subjects(TABLE)
@version_option
@click.option(
    "--where", metavar="SQL", help="Which row; the first that matches. With --rows: which rows."
)
@slots_option
@stale_groups_option
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Print the first rows instead, as JSON lines, missing values as null.",
)
@click.option(
    "--ids", is_flag=True, help="With --rows: print signs and indices as they are stored."
)
@json_option
def show_rows(
    table: str,
    version: int | None,
    where: str | None,
    slots: Sequence[str],
    stale_groups: str,
    rows: int | None,
    ids: bool,
    as_json: bool,
) -> None:
    """Print one row whole, a line for each column; or the first rows.

    Signs are printed with the texts that extraction kept of frequent values. In rows they are
    printed as these texts, others as their digits.
    """
    only(rows is not None, "with --rows", "--ids")
    only(rows is None, "without --rows, which prints JSON lines", "--json")
    if rows is None and where is None:
        raise click.UsageError("Missing option '--where' (one row) or '--rows' (the first ones).")
    opened = load("featstore.explore.table").open_table(table, version, stale_groups=stale_groups)
    if rows is None:
        show_row = load("featstore.explore.row_view").show_row
        show(show_row(opened, where, slots or None), as_json=as_json)
    else:
        found = opened.head(rows, slots or None, where)
        for row in (found if ids else opened.named(found)).to_pylist():
            show(to_json(row))


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


@table.command(
    examples=[
        "featstore table restore --table /data/ctr --version 7 --dry-run",
        "featstore table restore --table /data/ctr --version 7",
    ]
)
@subjects(DELTA_TABLE)
@click.option("--version", type=int, required=True, metavar="NUMBER", help="The version.")
@click.option("--dry-run", is_flag=True, help="Only look whether it is possible.")
def restore(table: str, version: int, dry_run: bool) -> None:
    """Go back to an earlier version: commit its files, columns and slot groups as a new one.

    Refused while a vacuum runs. Runs that write to the table meanwhile end in a conflict.
    """
    show(load("featstore.api").restore(table, version, dry_run=dry_run))


@table.command(
    examples=[
        "featstore table check --table /data/ctr",
        "featstore table check --table /data/ctr --spec spec.yaml --where \"dt >= '2026-11-01'\"",
        "featstore table check --table /data/ctr --failed",
        "featstore table check --table /data/ctr --layout --batch-size 4096",
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
@click.option("--failed", is_flag=True, help="Print only the checks that failed or warn.")
@click.option(
    "--layout",
    is_flag=True,
    help="Instead print what makes the table slow to read, from the footers of its files.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=8192,
    show_default=True,
    help="With --layout: the batch size, in rows, of the jobs that read the table.",
)
@json_option
def check(
    table: str,
    version: int | None,
    where: str | None,
    spec: str | None,
    stale_groups: str,
    failed: bool,
    layout: bool,
    batch_size: int,
    as_json: bool,
) -> None:
    """Run the checks of the newest extraction, or of another spec, on each partition; or find what
    makes the table slow to read.

    The exit code is 1 if a check of severity `fail` fails, or if something is slow to read.
    """
    only(layout, "with --layout", "--batch-size")
    only(not layout, "without --layout", "--where", "--spec", "--stale-groups", "--failed")
    if layout:
        report = load("featstore.statistics.table_lint").lint(table, version, batch_size=batch_size)
    else:
        open_table = load("featstore.explore.table").open_table
        found = open_table(table, version, stale_groups=stale_groups).check(spec, where)
        report = found.only_failed() if failed else found
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
