"""`featstore import ...`: other programs' files to raw Parquet."""

from typing import Any

import click

from featstore.tools.cli.command import CommandGroup, json_option, load
from featstore.tools.cli.output import show
from featstore.tools.programs import input_option, key_values, partition_option, several


@click.group(
    "import",
    cls=CommandGroup,
    examples=[
        "featstore import tfrecord --input s3://logs/examples --output raw",
        "featstore import csv --input clicks.csv.gz --output raw --dry-run",
        "featstore import csv --input day.csv --output delta+s3://lake/log "
        "--partition dt=2026-11-01",
    ],
)
def import_() -> None:
    """Import TFRecord, CSV, JSON lines, libsvm or lines of name:value pairs to raw Parquet, the
    input of an extraction.
    """


_options = several(  # of all formats
    input_option("A file, a directory (all files below it) or a glob; gzip and zstd, too."),
    click.option(
        "--output",
        "output_url",
        required=True,
        metavar="URL",
        help="The directory to write, which appears when it is complete; or delta+URL of a Delta "
        "table, whose partitions are replaced by one commit.",
    ),
    partition_option("A partition value of all rows, KEY=VALUE/ below a directory; repeatable."),
    click.option(
        "--column",
        "columns",
        multiple=True,
        callback=key_values("NAME=TYPE"),
        metavar="NAME=TYPE",
        help="The type of a column, such as item=string, where the inferred one is not meant.",
    ),
    click.option(
        "--max-malformed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="ROWS",
        help="How many rows may be left out because they cannot be read.",
    ),
    click.option(
        "--sample-rows",
        type=click.IntRange(min=1),
        default=2_000,
        show_default=True,
        metavar="ROWS",
        help="How many rows of a file columns are inferred from, in up to eight files.",
    ),
    click.option(
        "--workers",
        "num_workers",
        type=click.IntRange(min=1),
        metavar="NUMBER",
        help="Processes; by default one for each core.",
    ),
    click.option("--dry-run", is_flag=True, help="Only print the columns and their types."),
    json_option,
)


@import_.command(
    examples=[
        "featstore import tfrecord --input s3://logs/examples --output raw",
        "featstore import tfrecord --input 'logs/*.tfrecord.gz' --output raw "
        "--column tags='list<string>' --max-malformed 100",
    ]
)
@_options
def tfrecord(**given: Any) -> None:
    """Import TFRecord files of tf.train.Example or SequenceExample, plain or gzip."""
    _run("tfrecord", **given)


@import_.command(
    examples=[
        "featstore import csv --input clicks.csv --output raw --column item=string",
        "featstore import csv --input 'day_*.gz' --output raw --delimiter '\\t' "
        "--names label,i1,i2,c1 --null NA",
    ]
)
@_options
@click.option(
    "--delimiter", default=",", show_default=True, help=r"Between fields; \t for a tabulator."
)
@click.option("--names", metavar="A,B,...", help="The columns of files that have no row of names.")
@click.option(
    "--null", "nulls", multiple=True, metavar="TEXT", help="A text that means null; repeatable."
)
@click.option("--encoding", default="utf-8", show_default=True, help="Such as latin-1.")
def csv(delimiter: str, names: str | None, **given: Any) -> None:
    """Import CSV files."""
    given["names"] = tuple(names.split(",") if names else ())
    _run("csv", delimiter=delimiter.replace("\\t", "\t"), **given)


@import_.command(
    examples=["featstore import json --input 'events/*.jsonl' --output raw --column user=string"]
)
@_options
def json(**given: Any) -> None:
    """Import JSON lines: an object on each line."""
    _run("json", **given)


@import_.command(examples=["featstore import libsvm --input train.svm --output raw"])
@_options
def libsvm(**given: Any) -> None:
    """Import libsvm files: `label index:value ...` on each line."""
    _run("libsvm", **given)


@import_.command(
    examples=["featstore import pairs --input 'log/*.txt' --output raw --column slot7=string"]
)
@_options
@click.option(
    "--delimiter", default=",", show_default=True, help=r"Between pairs; \t for a tabulator."
)
def pairs(delimiter: str, **given: Any) -> None:
    """Import lines of name:value pairs: `label:1,slot1:17,tags:a,tags:b`."""
    _run("pairs", delimiter=delimiter.replace("\\t", "\t"), **given)


def _run(
    format_name: str, *, as_json: bool, dry_run: bool, num_workers: int | None, **given: Any
) -> None:
    job = load("featstore.ingest.import_job").import_job(format_name, **given)
    run = load("featstore.ingest.import_run")
    if dry_run:
        show(run.find_columns(job), as_json=as_json)
        return
    with load("featstore.extraction.progress_bar").ProgressBar("import") as bar:
        report = run.run_import(
            job,
            num_workers=num_workers or load("featstore.base.host").num_cores(),
            progress=bar,
            on_schema=lambda schema: show(schema, err=as_json),
        )
    show(report, as_json=as_json)
