"""`featstore import`: other programs' files to raw Parquet."""

from typing import Any

import click

from featstore.tools.cli.command import Command, json_option, load, only
from featstore.tools.cli.output import show
from featstore.tools.programs import input_option, key_values, partition_option, retry_option


@click.command(
    "import",
    cls=Command,
    examples=[
        "featstore import --format tfrecord --input s3://logs/examples --output raw",
        "featstore import --format tfrecord --input 'logs/*.tfrecord.gz' --output raw "
        "--column tags='list<string>' --max-malformed 100",
        "featstore import --format csv --input clicks.csv.gz --output raw --dry-run",
        "featstore import --format csv --input 'day_*.gz' --output raw --delimiter '\\t' "
        "--names label,i1,i2,c1 --null NA",
        "featstore import --format json --input 'events/*.jsonl' --output raw --column user=string",
        "featstore import --format libsvm --input train.svm --output raw",
        "featstore import --format pairs --input 'log/*.txt' --output raw --column slot7=string",
        "featstore import --format csv --input day.csv --output delta+s3://lake/log "
        "--partition dt=2026-11-01",
    ],
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["tfrecord", "csv", "json", "libsvm", "pairs"]),
    required=True,
    help="TFRecord of tf.train.Example or SequenceExample; CSV; JSON lines; libsvm: `label "
    "index:value ...`; lines of name:value pairs: `label:1,slot1:17,tags:a,tags:b`.",
)
@input_option("A file, a directory (all files below it) or a glob; gzip and zstd, too.")
@click.option(
    "--output",
    "output_url",
    required=True,
    metavar="URL",
    help="The directory to write, which appears when it is complete; or delta+URL of a Delta "
    "table, whose partitions are replaced by one commit.",
)
@partition_option("A partition value of all rows, KEY=VALUE/ below a directory; repeatable.")
@click.option(
    "--column",
    "columns",
    multiple=True,
    callback=key_values("NAME=TYPE"),
    metavar="NAME=TYPE",
    help="The type of a column, such as item=string, where the inferred one is not meant.",
)
@click.option(
    "--max-malformed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="ROWS",
    help="How many rows may be left out because they cannot be read.",
)
@click.option(
    "--sample-rows",
    type=click.IntRange(min=1),
    default=2_000,
    show_default=True,
    metavar="ROWS",
    help="How many rows of a file columns are inferred from, in up to eight files.",
)
@click.option(
    "--workers",
    "num_workers",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Processes; by default one for each core.",
)
@click.option("--dry-run", is_flag=True, help="Only print the columns and their types.")
@retry_option
@json_option
@click.option(
    "--delimiter",
    metavar="TEXT",
    help=r"csv, pairs: what stands between fields or pairs, a comma if not given; "
    r"\t for a tabulator.",
)
@click.option(
    "--names", metavar="A,B,...", help="csv: the columns of files that have no row of names."
)
@click.option(
    "--null",
    "nulls",
    multiple=True,
    metavar="TEXT",
    help="csv: a text that means null; repeatable.",
)
@click.option("--encoding", metavar="NAME", help="csv: such as latin-1; utf-8 if not given.")
def import_(
    format_name: str,
    as_json: bool,
    dry_run: bool,
    num_workers: int | None,
    retry_s: float,
    delimiter: str | None,
    names: str | None,
    nulls: tuple[str, ...],
    encoding: str | None,
    **given: Any,
) -> None:
    """Import TFRecord, CSV, JSON lines, libsvm or lines of name:value pairs to raw Parquet, the
    input of an extraction.
    """
    only(format_name in ("csv", "pairs"), "with --format csv or pairs", "--delimiter")
    only(format_name == "csv", "with --format csv", "--names", "--null", "--encoding")
    options = {
        "delimiter": delimiter and delimiter.replace("\\t", "\t"),
        "names": names.split(",") if names else None,
        "nulls": nulls or None,
        "encoding": encoding,
    }
    given |= {name: value for name, value in options.items() if value is not None}
    job = load("featstore.ingest.import_job").import_job(format_name, **given)
    run = load("featstore.ingest.import_run")
    with load("featstore.api").retrying_for(retry_s):
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
