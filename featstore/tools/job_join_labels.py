"""Joins impressions with labels and looked-up features, into raw Parquet.

The output is input for the job `extract`.

    spark-submit $(featstore spark job join-labels) --output /data/joined \\
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

from featstore.api import retrying_for
from featstore.base.errors import ConfigError, parse_bytes
from featstore.extraction.spark.runners import spark_session
from featstore.ingest.join import join_labels
from featstore.ingest.join_inputs import check_found
from featstore.ingest.join_local import join_labels_locally
from featstore.ingest.join_options import (
    Impressions,
    Label,
    LabelJoin,
    Lookup,
    NegativeSampling,
    parse_log,
    parse_time,
)
from featstore.ingest.join_output import check_output
from featstore.ingest.join_report import JoinReport, output_url
from featstore.ingest.table_output import joined_table
from featstore.tools.programs import join_options, run_program, start, unwound_by_signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one join and prints its report; returns the exit code."""
    return run_program(
        "join-labels",
        lambda: job.main(arguments, "join-labels", standalone_mode=False),
        is_job=True,
    )


@click.command()
@join_options
def job(**options: Any) -> None:
    """Join impressions with labels and looked-up features, into raw Parquet."""
    click.echo(run(options, "spark"))


def run(
    options: Mapping[str, Any],
    engine: str,
    memory: str | None = None,
    spill: str | None = None,
) -> JoinReport:
    """Runs one join on an engine, `local` or `spark`.

    Raises:
        ConfigError: Options do not fit each other or the engine.
        InputError: The join cannot be made, or not published; as far as it can be seen before
            Spark starts, which takes seconds.
    """
    join = label_join(options)
    with retrying_for(options["retry_s"]):
        return _run(join, engine, memory, spill)


def _run(join: LabelJoin, engine: str, memory: str | None, spill: str | None) -> JoinReport:
    if joined_table(join) is None:
        check_output(output_url(join))
    if engine == "local":
        memory_bytes = None if memory is None else parse_bytes(memory, "--memory")
        with unwound_by_signals():
            return join_labels_locally(join, memory_bytes=memory_bytes, spill=spill)
    if memory is not None or spill is not None:
        raise ConfigError("--memory and --spill are of the engine `local`; Spark has its settings")
    check_found(join)
    shown = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    hive = any(source.url is None for source in join.sources)
    with spark_session("featstore join labels", shown, hive=hive) as spark:
        return join_labels(join, spark)


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
