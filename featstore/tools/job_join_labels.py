"""Joins impressions with labels and looked-up features, into raw Parquet.

The output is input for the job `extract`.

    spark-submit $(featstore spark-job join-labels) --output /data/joined \\
        --partition dt=2026-11-01 \\
        --cut-off 2026-11-02T06:00:00 \\
        --impressions 'from=/logs/impressions/dt=2026-11-01 row_id=request_id,item_id
            event_time=ts log_time=logged' \\
        --label 'name=click from=/logs/clicks key=request_id,item_id event_time=ts
            log_time=logged window=1h horizon=2h' \\
        --lookup 'name=user from=/logs/users key=user_id event_time=updated
            columns=age,country max_age=30d'

A log is given as KEY=VALUE pairs, quoted if a value holds spaces. Its rows come from one of
from=URL, sql=QUERY and table=NAME. Exit code 0: done, or nothing to do because an equal join was
written before. Exit code 2: bad input, explained in one line.
"""

import argparse
import sys
from collections.abc import Sequence

from featstore.base.errors import FeatstoreError
from featstore.base.processes import end_with
from featstore.extraction.spark.runners import spark_session
from featstore.extraction.units.raw import check_partition_value
from featstore.ingest.join import join_labels
from featstore.ingest.join_inputs import check_found
from featstore.ingest.join_options import (
    LabelJoin,
    NegativeSampling,
    parse_impressions,
    parse_label,
    parse_lookup,
    parse_time,
)
from featstore.tools.jobs import leave_folder

LABEL = (
    "name= key=COLUMN,... event_time= window=1h [horizon=2h log_time= event_id=COLUMN,... value= "
    "kind=any|count|sum|first|last attribution=last|first|all with_time=true] and where from; "
    "repeatable"
)
LOOKUP = (
    "name= key=COLUMN,... event_time= columns=COLUMN,... [log_time= max_age=30d] and where from; "
    "repeatable"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one join and prints its report; returns the exit code."""
    options = parse_arguments(arguments)
    try:
        join = label_join(options)
        check_found(join)  # reports missing logs before Spark starts, which takes seconds
        shown = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
        spark = spark_session(
            "featstore join labels", shown, hive=any(source.url is None for source in join.sources)
        )
        try:
            report = join_labels(join, spark)
        finally:
            spark.stop()
    except (FeatstoreError, OSError) as error:
        print(
            "\n".join([f"join-labels: error: {error}", *getattr(error, "__notes__", ())]),
            file=sys.stderr,
        )
        return 2
    print(report)
    return 0


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the options; exits with code 2 if they are wrong."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="join-labels", description=description)
    parser.add_argument(
        "--impressions",
        required=True,
        metavar="PAIRS",
        help="row_id=COLUMN,... event_time=COLUMN [log_time=COLUMN] and where from",
    )
    parser.add_argument("--label", action="append", required=True, metavar="PAIRS", help=LABEL)
    parser.add_argument("--lookup", action="append", default=[], metavar="PAIRS", help=LOOKUP)
    parser.add_argument(
        "--cut-off",
        required=True,
        metavar="TIME",
        help="what was logged at this time or later is not known yet; UTC unless it names a zone",
    )
    parser.add_argument(
        "--output", required=True, metavar="URL", help="the directory that the rows become"
    )
    parser.add_argument(
        "--partition",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="write to the directory KEY=VALUE/ below the output; repeatable",
    )
    parser.add_argument(
        "--partition-by",
        action="append",
        default=[],
        metavar="COLUMN",
        help="spread the rows over directories by this column; repeatable",
    )
    parser.add_argument(
        "--negative-rate",
        type=float,
        metavar="RATE",
        help="keep this share of negatives; adds sample_weight",
    )
    parser.add_argument(
        "--negative-label",
        metavar="NAME",
        help="what a negative is: this label is 0; without it: every label is",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draw of negatives")
    parser.add_argument(
        "--drop-incomplete",
        action="store_true",
        help="drop impressions without row id or event time",
    )
    return parser.parse_args(arguments)


def label_join(options: argparse.Namespace) -> LabelJoin:
    """Builds the join that the options describe.

    Raises:
        ConfigError: The options do not fit each other.
        InputError: A partition value is not valid.
    """
    rate, label = options.negative_rate, options.negative_label
    pairs = [text.partition("=") for text in options.partition]
    # Checked here, before Spark starts.
    for key, _, value in pairs:
        check_partition_value(key, value, "--partition")
    return LabelJoin(
        impressions=parse_impressions(options.impressions),
        labels=tuple(map(parse_label, options.label)),
        lookups=tuple(map(parse_lookup, options.lookup)),
        cut_off=parse_time(options.cut_off),
        output_url=options.output,
        partition={key: value for key, _, value in pairs},
        partition_by=tuple(options.partition_by),
        negatives=None
        if rate is None
        else NegativeSampling(rate=rate, seed=options.seed, label=label),
        drop_incomplete=options.drop_incomplete,
    )


if __name__ == "__main__":
    leave_folder()
    end_with(main)
