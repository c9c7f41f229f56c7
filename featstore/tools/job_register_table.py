"""Creates or updates the external table of a Hive metastore that shows a featstore table.

Engines that read Hive tables and Parquet can then query it.

    spark-submit $(featstore spark job register-table) --table /data/flights --name features.flights

Exit code 0: done, or nothing to do. Exit code 2: bad input, explained in one line.
"""

from collections.abc import Sequence

import click

from featstore.extraction.spark.runners import spark_session
from featstore.ingest.hive_registration import register
from featstore.tools.programs import run_program, start, table_option


def main(arguments: Sequence[str] | None = None) -> int:
    """Registers one table and prints what that changed; returns the exit code."""
    return run_program(
        "register-table",
        lambda: job.main(arguments, "register-table", standalone_mode=False),
        is_job=True,
    )


@click.command()
@table_option("The table to show.")
@click.option("--name", required=True, metavar="DB.TABLE", help="Its name in the metastore.")
def job(table_url: str, name: str) -> None:
    """Create or update the external table of a Hive metastore that shows a featstore table."""
    with spark_session("featstore register", hive=True) as spark:
        click.echo(register(spark, table_url, name))


if __name__ == "__main__":
    start(main)
