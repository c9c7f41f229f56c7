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

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from featstore.extraction.spark.runners import spark_session
from featstore.ingest.join import join_labels
from featstore.ingest.join_inputs import check_found
from featstore.ingest.join_options import (
    Impressions,
    Label,
    LabelJoin,
    Lookup,
    NegativeSampling,
    parse_log,
    parse_time,
)
from featstore.tools.programs import partition_option, run_program, start


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one join and prints its report; returns the exit code."""
    return run_program(
        "join-labels",
        lambda: job.main(arguments, "join-labels", standalone_mode=False),
        is_job=True,
    )


@click.command()
@click.option(
    "--impressions",
    required=True,
    metavar="PAIRS",
    help="row_id=COLUMN,... event_time=COLUMN [log_time=COLUMN] and where from",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    required=True,
    metavar="PAIRS",
    help="name= key=COLUMN,... event_time= window=1h [horizon=2h log_time= "
    "event_id=COLUMN,... value= "
    "kind=any|count|sum|first|last attribution=last|first|all with_time=true] and where from; "
    "repeatable",
)
@click.option(
    "--lookup",
    "lookups",
    multiple=True,
    metavar="PAIRS",
    help="name= key=COLUMN,... event_time= columns=COLUMN,... [log_time= max_age=30d] "
    "and where from; "
    "repeatable",
)
@click.option(
    "--cut-off",
    required=True,
    metavar="TIME",
    help="What was logged at this time or later is not known yet; UTC unless it names a zone.",
)
@click.option(
    "--output",
    "output_url",
    required=True,
    metavar="URL",
    help="The directory that the rows become.",
)
@partition_option("Write to the directory KEY=VALUE/ below the output; repeatable.")
@click.option(
    "--partition-by",
    multiple=True,
    metavar="COLUMN",
    help="Spread the rows over directories by this column; repeatable.",
)
@click.option(
    "--negative-rate",
    type=float,
    metavar="RATE",
    help="Keep this share of negatives; adds sample_weight.",
)
@click.option(
    "--negative-label",
    metavar="NAME",
    help="What a negative is: this label is 0; without it: every label is.",
)
@click.option("--seed", type=int, default=0, help="Of the draw of negatives.")
@click.option(
    "--drop-incomplete", is_flag=True, help="Drop impressions without row id or event time."
)
def job(**options: Any) -> None:
    """Join impressions with labels and looked-up features, into raw Parquet."""
    join = label_join(options)
    check_found(join)  # reports missing logs before Spark starts, which takes seconds
    shown = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    hive = any(source.url is None for source in join.sources)
    with spark_session("featstore join labels", shown, hive=hive) as spark:
        click.echo(join_labels(join, spark))


def label_join(options: Mapping[str, Any]) -> LabelJoin:
    """Builds the join that the options describe.

    Raises:
        ConfigError: The options do not fit each other.
        InputError: A partition value is not valid.
    """
    rate = options["negative_rate"]
    return LabelJoin(
        impressions=parse_log(options["impressions"], Impressions),
        labels=tuple(parse_log(text, Label) for text in options["labels"]),
        lookups=tuple(parse_log(text, Lookup) for text in options["lookups"]),
        cut_off=parse_time(options["cut_off"]),
        negatives=None
        if rate is None
        else NegativeSampling(rate=rate, seed=options["seed"], label=options["negative_label"]),
        output_url=options["output_url"],
        partition=options["partition"],
        partition_by=options["partition_by"],
        drop_incomplete=options["drop_incomplete"],
    )


if __name__ == "__main__":
    start(main)
