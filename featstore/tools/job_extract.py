"""Extracts features on Spark, as one commit to a table.

Runs under `spark-submit`, or plain `python` for a local session:

    spark-submit $(featstore spark-job extract) --spec flights.spec.yaml \\
        --input raw/month=2013-01 --table /data/flights --partition month=2013-01

Exit code 0: done, or nothing to do because an equal run was committed before. Exit code 2: bad
input, explained in one line. Exit code 3: a check of the spec refused what was to be committed.
"""

import argparse
import sys
from collections.abc import Sequence

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession

from featstore import api
from featstore.base.errors import FeatstoreError, InputError
from featstore.base.processes import end_with, exit_code
from featstore.base.redaction import redact_text
from featstore.extraction.days import DaysReport
from featstore.extraction.job import ExtractReport
from featstore.extraction.progress_bar import ProgressBar
from featstore.extraction.spark.runners import spark_session
from featstore.ingest.hive_registration import register
from featstore.spec.lint import check_lock
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.tools.jobs import leave_folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one extraction and prints its report; returns the exit code."""
    options = parse_arguments(arguments)
    try:
        spec = load_spec(options.spec)
        check_lock(spec)  # reports an error in the spec before Spark starts, which takes seconds
        spark = spark_session(
            "featstore extract", hive=options.input is None or options.register is not None
        )
        try:
            print(extract(options, spec, spark))
            if options.register is not None:
                print(register(spark, options.table, options.register))
        finally:
            spark.stop()
    except (FeatstoreError, OSError) as error:
        print(
            "\n".join([f"extract: error: {error}", *getattr(error, "__notes__", ())]),
            file=sys.stderr,
        )
        return exit_code(error)
    return 0


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the options; exits with code 2 if they are wrong."""
    parser = argparse.ArgumentParser(prog="extract", description=(__doc__ or "").partition("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--input", metavar="URL", help="raw Parquet: a file, a directory or a glob")
    source.add_argument("--sql", metavar="QUERY", help="a Spark SQL query instead of files")
    source.add_argument(
        "--hive-table", metavar="NAME", help="a table of the Hive metastore instead of files"
    )
    parser.add_argument(
        "--spec", required=True, metavar="URL", help="the spec: what the features are"
    )
    parser.add_argument(
        "--table", required=True, metavar="URL", help="the table to write; made where there is none"
    )
    parser.add_argument(
        "--partition",
        action="append",
        default=[],
        type=key_value,
        metavar="KEY=VALUE",
        help="the partition that all of the input belongs to, which the run replaces; repeatable",
    )
    parser.add_argument(
        "--partition-from-path",
        action="append",
        default=[],
        metavar="KEY",
        help="take this key from the input's KEY=VALUE directories instead; repeatable",
    )
    parser.add_argument(
        "--no-partition",
        action="store_true",
        help="a table without partitions, although the input has KEY=VALUE directories",
    )
    parser.add_argument(
        "--days",
        metavar="FIRST..LAST",
        help="fill {dt} (and {hour}) in --input; what is up to date is left alone",
    )
    parser.add_argument(
        "--allow-missing", action="store_true", help="with --days: leave out days without raw files"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="with --days: only print what would be done"
    )
    beside = parser.add_mutually_exclusive_group()
    beside.add_argument(
        "--group",
        metavar="NAME",
        help="only the slots that the table lacks, into this slot group beside it",
    )
    beside.add_argument(
        "--relabel",
        action="store_true",
        help="only the labels and the weight anew, beside the table; by --key",
    )
    parser.add_argument(
        "--key",
        metavar="COLUMN",
        help="the kept column that names each row, where raw files are other ones",
    )
    parser.add_argument(
        "--run-id",
        metavar="ID",
        help="names the run: repeated with an equal id, it commits nothing",
    )
    parser.add_argument(
        "--retry-s",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="how long a request to a store is made again after failures that may pass",
    )
    parser.add_argument(
        "--register",
        metavar="DB.TABLE",
        help="then make or update this external table of a Hive metastore",
    )
    options = parser.parse_args(arguments)
    if len(dict(options.partition)) < len(options.partition):
        parser.error(
            f"argument --partition: expected each key once, found "
            f"{', '.join(map('='.join, options.partition))}"
        )
    if options.relabel and (
        options.key is None or options.input is None or options.days is not None
    ):
        parser.error("argument --relabel: expected --input and --key with it, and no --days")
    # Checked here too, before Spark starts.
    if options.group is not None and options.days is not None:
        parser.error(
            "argument --group: expected it without --days, found both; extract the slot group day "
            "by day, with --input and --partition of each (docs/howto/add_slots.md has a loop)"
        )
    return options


def key_value(text: str) -> tuple[str, str]:
    """Parses `month=2013-01` into a pair."""
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, found {text!r}")
    return key, value


def extract(
    options: argparse.Namespace, spec: Spec, spark: SparkSession
) -> ExtractReport | DaysReport:
    """Runs what the options describe on this session."""
    where = {
        "partition": dict(options.partition),
        "partition_from_path": options.partition_from_path,
        "no_partition": options.no_partition,
    }
    how = {
        "spark": spark,
        "run_id": options.run_id,
        "key": options.key,
        "retry_s": options.retry_s,
    }
    of_days = {
        "days": options.days,
        "allow_missing": options.allow_missing,
        "dry_run": options.dry_run,
    }
    with ProgressBar() as progress:
        if options.relabel:
            return api.relabel(
                spec, options.input, options.table, **where, **how, progress=progress
            )
        rows = dataframe(options, spark)
        return api.extract(
            spec,
            options.input,
            options.table,
            **where,
            **of_days,
            **how,
            group=options.group,
            dataframe=rows,
            progress=progress,
        )


def dataframe(options: argparse.Namespace, spark: SparkSession) -> DataFrame | None:
    """Returns the rows of the query or table, None for file input.

    Raises:
        InputError: Spark cannot read the query or table.
    """
    try:
        if options.sql is not None:
            return spark.sql(options.sql)
        return None if options.hive_table is None else spark.table(options.hive_table)
    except (AnalysisException, ParseException) as error:
        said = redact_text(str(error).strip().splitlines()[0])
        raise InputError(f"Spark cannot run the query: {said}") from None


if __name__ == "__main__":
    leave_folder()
    end_with(main)
