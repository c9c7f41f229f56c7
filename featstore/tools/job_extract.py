"""Extracts features on Spark, as one commit to a table.

Runs under `spark-submit`, or plain `python` for a local session:

    spark-submit $(featstore spark job extract) --spec flights.spec.yaml \\
        --input raw/month=2013-01 --table /data/flights --partition month=2013-01

Exit code 0: done, or nothing to do because an equal run was committed before. Exit code 2: bad
input, explained in one line. Exit code 3: a check of the spec refused what was to be committed.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from pyspark.sql import SparkSession

from featstore import api
from featstore.extraction.days import DaysReport
from featstore.extraction.job import ExtractReport
from featstore.extraction.progress_bar import ProgressBar
from featstore.extraction.spark.runners import spark_session
from featstore.extraction.spark.spark_errors import query_rows
from featstore.extraction.spark.yarn import is_cluster_driver
from featstore.ingest.hive_registration import register as register_table
from featstore.spec.lint import check_lock
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.tools.programs import (
    extract_options,
    require_one_of,
    run_program,
    spec_option,
    start,
    table_option,
)

_NOT_OF_RELABEL = {"days", "allow_missing", "dry_run", "group", "events", "rejects"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one extraction and prints its report; returns the exit code."""
    return run_program(
        "extract", lambda: job.main(arguments, "extract", standalone_mode=False), is_job=True
    )


@click.command()
@click.option(
    "--input",
    "input_url",
    metavar="URL",
    help="Raw Parquet: a file, a directory or a glob; or an Iceberg table.",
)
@click.option("--sql", metavar="QUERY", help="A Spark SQL query in place of --input.")
@click.option(
    "--hive-table", metavar="NAME", help="A table of the Hive metastore in place of --input."
)
@spec_option()
@table_option()
@extract_options
@click.option(
    "--relabel",
    is_flag=True,
    help="Rewrite only the labels and the weight, in files beside the table's, by --key.",
)
@click.option(
    "--run-id", metavar="ID", help="Names the run: repeated with an equal id, it commits nothing."
)
@click.option(
    "--register",
    metavar="NAME",
    help="Then create or update what shows the table: the external table db.table of a Hive "
    "metastore, or an Iceberg table, iceberg://CATALOG/NAMESPACE.TABLE.",
)
def job(spec: str, register: str | None, **options: Any) -> None:
    """Extract features on Spark, as one commit to a table."""
    check_options(options)
    in_hive = register is not None and "://" not in register
    if register is not None and not in_hive:
        api.check_registration(options["table_url"], register)
    loaded = load_spec(spec)
    check_lock(loaded)  # reports an error in the spec before Spark starts, which takes seconds
    hive = options["input_url"] is None or in_hive
    with contextlib.ExitStack() as stack:

        @functools.cache
        def session() -> SparkSession:
            return stack.enter_context(spark_session("featstore extract", hive=hive))

        # Days that are up to date need no session, but a master on YARN waits for one.
        has_days = options["days"] is not None and options["input_url"] is not None
        waits = has_days and not is_cluster_driver()
        click.echo(extract(loaded, session if waits else session(), **options))
        if register is not None:
            url = options["table_url"]
            click.echo(
                register_table(session(), url, register) if in_hive else api.register(url, register)
            )


def check_options(options: Mapping[str, Any]) -> None:
    """UsageError for options that do not go together. They are checked before Spark starts."""
    source, days, group = options["input_url"], options["days"], options["group"]
    require_one_of(
        {"--input": source, "--sql": options["sql"], "--hive-table": options["hive_table"]}
    )
    if options["relabel"] and group is not None:
        raise click.UsageError("argument --group: not allowed with argument --relabel")
    if options["relabel"] and (options["key"] is None or source is None or days is not None):
        raise click.UsageError(
            "argument --relabel: expected --input and --key with it, and no --days"
        )
    if options["rejects"] is not None and (options["relabel"] or group is not None):
        raise click.UsageError(
            "argument --rejects: not allowed with argument --relabel or --group, which write no "
            "rows"
        )


def extract(
    spec: Spec,
    spark: SparkSession | Callable[[], SparkSession],
    *,
    input_url: str | None,
    sql: str | None,
    hive_table: str | None,
    table_url: str,
    relabel: bool,
    **options: Any,
) -> ExtractReport | DaysReport:
    """Runs what the options describe on this session; with days a function may return it."""
    with ProgressBar() as progress:
        given = {"spark": spark, "progress": progress, **options}
        if relabel:
            kept = {name: given[name] for name in given.keys() - _NOT_OF_RELABEL}
            return api.relabel(spec, str(input_url), table_url, **kept)
        rows = (
            None
            if input_url is not None
            else query_rows(spark() if callable(spark) else spark, sql, hive_table)
        )
        return api.extract(spec, input_url, table_url, dataframe=rows, **given)


if __name__ == "__main__":
    start(main)
