"""Profiles the slots of a table, or the columns of a query, on Spark.

Prints the same profile as `featstore table profile`.

    spark-submit $(featstore spark job profile-slots) --table /data/flights \\
        --where "month >= '2013-06'" --slots "carrier*"
    spark-submit $(featstore spark job profile-slots) --hive-table features.flights --labels late

Exit code 0: done. Exit code 2: bad input, explained in one line.
"""

import argparse
from collections.abc import Sequence

from pyspark.sql import SparkSession

from featstore.explore.profile import Profile
from featstore.explore.spark_profile import profile_dataframe, profile_table
from featstore.explore.table import open_table
from featstore.extraction.spark.runners import spark_session
from featstore.extraction.spark.spark_errors import query_rows
from featstore.statistics.stale_groups import ERROR, MISSING
from featstore.tools.programs import run_program, start


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one profile and prints it; returns the exit code."""
    return run_program("profile-slots", lambda: _run(parse_arguments(arguments)), is_job=True)


def _run(options: argparse.Namespace) -> None:
    with spark_session("featstore profile", hive=options.table is None) as spark:
        print(profile(options, spark))


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the options; exits with code 2 if they are wrong."""
    parser = argparse.ArgumentParser(
        prog="profile-slots", description=(__doc__ or "").partition("\n")[0]
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--table", metavar="URL", help="a table: Delta, or a directory or glob of Parquet"
    )
    source.add_argument(
        "--sql", metavar="QUERY", help="a Spark SQL query; integers are ids, floats are floats"
    )
    source.add_argument("--hive-table", metavar="NAME", help="a table of the Hive metastore")
    parser.add_argument("--version", type=int, help="with --table: a version of a Delta table")
    parser.add_argument("--where", help="with --table: only rows that match")
    parser.add_argument(
        "--slots", nargs="+", metavar="NAME", help="with --table: only these slots, by name or glob"
    )
    parser.add_argument(
        "--labels", nargs="+", default=[], metavar="NAME", help="columns of a query that are labels"
    )
    parser.add_argument(
        "--stale-groups",
        choices=(ERROR, MISSING),
        default=ERROR,
        help="with --table, where a slot group is stale: refuse, or read its slots as missing",
    )
    options = parser.parse_args(arguments)
    if options.table is None and (options.version is not None or options.where or options.slots):
        parser.error("--version, --where and --slots go with --table; a query says so itself")
    if options.table is not None and options.labels:
        parser.error("--labels goes with --sql or --hive-table; a table knows its labels")
    return options


def profile(options: argparse.Namespace, spark: SparkSession) -> Profile:
    """Computes the profile that the options describe.

    Raises:
        InputError: Spark cannot read the query or table.
    """
    if options.table is not None:
        table = open_table(options.table, options.version, stale_groups=options.stale_groups)
        return profile_table(spark, table, options.where, options.slots)
    frame = query_rows(spark, options.sql, options.hive_table)
    return profile_dataframe(frame, options.labels)


if __name__ == "__main__":
    start(main)
