"""`featstore demo | join-labels | extract | replay | spark ...`: from raw rows to features, here
and on a Spark cluster.
"""

import sys
from typing import Any

import click

from featstore.tools.cli.command import (
    Command,
    CommandGroup,
    json_option,
    load,
    stale_groups_option,
)
from featstore.tools.cli.output import show
from featstore.tools.programs import (
    JOBS,
    extract_options,
    input_option,
    job_path,
    join_options,
    partition_from_path_option,
    partition_option,
    spec_option,
    table_option,
)


@click.command(cls=Command, examples=["featstore demo", "featstore demo --synthetic 1000000"])
@click.option(
    "--directory",
    default="demo",
    show_default=True,
    help="Where to keep the raw log, table, spec and config.",
)
@click.option("--engine", type=click.Choice(["spark", "local"]), default="spark", show_default=True)
@click.option(
    "--synthetic",
    "num_rows",
    type=click.IntRange(min=1),
    metavar="ROWS",
    help="Use a synthetic click log of this size.",
)
def demo(directory: str, engine: str, num_rows: int | None) -> None:
    """Go from a raw log to a trained model, with the flights of 2013 out of New York."""
    run = load("featstore.tools.demo_run")
    if num_rows is None:
        run.run_demo(directory, engine=engine)
    else:
        run.run_synthetic(directory, num_rows, engine=engine)


@click.command(
    cls=Command,
    examples=[
        "featstore extract --spec spec.yaml --input raw/dt=2026-11-01 --table /data/ctr "
        "--partition dt=2026-11-01",
        "featstore extract --spec spec.yaml --input raw --table /data/ctr --partition-from-path dt",
        "featstore extract --spec spec.yaml --input clicks.csv --table /data/ctr",
        "featstore extract --spec spec.yaml --input 'raw/dt={dt}' --table /data/ctr "
        "--days 2026-11-01..2026-11-07",
    ],
)
@spec_option()
@input_option(
    "Raw Parquet, CSV or JSON lines: a file, a directory or a glob; or a table: "
    "delta+URL, iceberg://CATALOG/NAMESPACE.TABLE."
)
@table_option()
@extract_options
@click.option(
    "--register",
    metavar="URL",
    help="Then create or update this Iceberg table, which shows the table: "
    "iceberg://CATALOG/NAMESPACE.TABLE.",
)
@json_option
def extract(
    spec: str, input_url: str, table_url: str, register: str | None, as_json: bool, **options: Any
) -> None:
    """Extract features from raw rows into a table, without Spark.

    An equal run commits nothing: the same spec and input. `output` in the spec, which says how
    files are cut, is not compared; to cut files again, extract into a new table.
    """
    api = load("featstore.api")
    if register is not None:
        api.check_registration(table_url, register)
    with load("featstore.extraction.progress_bar").ProgressBar() as bar:
        report = api.extract(spec, input_url, table_url, progress=bar, **options)
    show(report, as_json=as_json)
    if register is not None:
        show(api.register(table_url, register), err=as_json)


@click.command(
    "join-labels",
    cls=Command,
    examples=[
        "featstore join-labels --output joined --partition dt=2026-11-01 --cut-off "
        "2026-11-02T06:00 --impressions 'from=raw/impressions/dt=2026-11-01 row_id=request_id "
        "event_time=ts' --label 'name=click from=raw/clicks key=request_id event_time=ts window=1h'"
    ],
)
@join_options
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="Join with duckdb, or in a session of Spark.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    help="The engine local: how much duckdb may use, such as 4GB; a quarter of the machine's.",
)
@click.option(
    "--spill",
    metavar="DIRECTORY",
    help="The engine local: where to put what does not fit; the directory of temporary files.",
)
@json_option
def join_labels(
    engine: str, memory: str | None, spill: str | None, as_json: bool, **options: Any
) -> None:
    """Join impressions with labels and looked-up features, into raw Parquet.

    A log is given as KEY=VALUE pairs, quoted if a value holds spaces. Its rows come from one of
    from=URL and, with the engine spark, sql=QUERY and table=NAME.
    """
    join = load("featstore.tools.job_join_labels")
    show(join.run(options, engine, memory, spill), as_json=as_json)


@click.command(
    cls=Command,
    examples=[
        "featstore replay --spec spec.yaml --input raw/dt=2026-11-01 --table /data/ctr "
        "--partition dt=2026-11-01"
    ],
)
@spec_option()
@input_option("The logged raw rows: a file, a directory or a glob.", "--raw")
@table_option("The table extracted from them.")
@partition_option()
@partition_from_path_option
@stale_groups_option
def replay(spec: str, input_url: str, table_url: str, **options: Any) -> None:
    """Recompute raw rows and compare them with the table's, in order.

    The exit code is 1 if any value differs.
    """
    report = load("featstore.explore.replay").replay(spec, input_url, table_url, **options)
    show(report)
    sys.exit(0 if report.ok else 1)


@click.group(cls=CommandGroup, examples=["featstore spark pack --output environment.tar.gz"])
def spark() -> None:
    """Prepare jobs for a Spark cluster."""


@spark.command(examples=["featstore spark job extract", "featstore spark job join-labels"])
@click.argument("name", type=click.Choice(list(JOBS)))
def job(name: str) -> None:
    """Print the path of a job's program: spark-submit $(featstore spark job extract) ..."""
    show(str(job_path(name)))


@spark.command(
    examples=[
        "featstore spark pack --output environment.tar.gz",
        "featstore spark pack --output environment.tar.gz --also my-operators",
    ]
)
@click.option(
    "--output",
    required=True,
    metavar="FILE",
    help="The archive to write, such as environment.tar.gz.",
)
@click.option(
    "--also",
    multiple=True,
    metavar="NAME",
    help="A further installed distribution, and what it needs; may be repeated.",
)
def pack(output: str, also: tuple[str, ...]) -> None:
    """Pack this Python with featstore, for hosts that have neither (spark-submit --archives)."""
    show(load("featstore.tools.pack").pack(output, also))
