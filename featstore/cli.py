"""The command line. Each command parses its options, imports one function of the same name, calls
it, and prints what it returns.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from featstore.errors import FeatstoreError, import_extra

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="featstore", prog_name="featstore")
def cli() -> None:
    """From raw logs to training batches: extract features, inspect tables, run the demo."""


@cli.command()
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
    run = _module("featstore.demo.run")
    if num_rows is None:
        run.run_demo(directory, engine=engine)
    else:
        run.run_synthetic(directory, num_rows, engine=engine)


def _key_values(_: click.Context, option: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    pairs = dict(text.partition("=")[::2] for text in texts)
    if len(pairs) < len(texts) or not all(key and value for key, value in pairs.items()):
        raise click.BadParameter(f"expected KEY=VALUE, each key once, found {', '.join(texts)}")
    return pairs


def _partition_option(text: str) -> Callable[[Command], Command]:
    """The option `--partition` with this help."""
    return click.option(
        "--partition", multiple=True, callback=_key_values, metavar="KEY=VALUE", help=text
    )


_partition_from_path_option = click.option(
    "--partition-from-path",
    "keys",
    multiple=True,
    metavar="KEY",
    help="A key to take from KEY=VALUE directories.",
)
_version_option = click.option(
    "--version", type=int, help="A version of a Delta table; the newest if not given."
)


@cli.command()
@click.option("--spec", required=True, help="The spec, a YAML file.")
@click.option(
    "--input", "input_url", required=True, help="Raw Parquet: a file, a directory or a glob."
)
@click.option(
    "--table", "table_url", required=True, help="The table to write; created if it does not exist."
)
@_partition_option("A partition value for all of the input.")
@_partition_from_path_option
@click.option(
    "--days",
    metavar="FIRST..LAST",
    help="Fill {dt} (and {hour}) in --input. Partitions that are up to date are skipped.",
)
@click.option("--allow-missing", is_flag=True, help="With --days: skip days without raw files.")
@click.option("--dry-run", is_flag=True, help="With --days: only print what would be done.")
@click.option(
    "--group",
    metavar="NAME",
    help="Extract only the slots that the table lacks, into this slot group.",
)
@click.option(
    "--key",
    metavar="COLUMN",
    help="With --group: the kept column that identifies each row, if the raw files changed.",
)
def extract(
    spec: str,
    input_url: str,
    table_url: str,
    partition: dict[str, str],
    keys: Sequence[str],
    **options: Any,
) -> None:
    """Extract features from raw Parquet into a table, without Spark."""
    with _module("featstore.extraction.progress_bar").ProgressBar() as bar:
        report = _module("featstore.api").extract(
            spec,
            input_url,
            table_url,
            partition=partition,
            partition_from_path=keys,
            progress=bar,
            **options,
        )
    click.echo(report)


@cli.command()
@click.option("--spec", "spec_url", required=True, help="The spec, a YAML file.")
@click.option(
    "--raw", required=True, help="The logged raw rows: a Parquet file, a directory or a glob."
)
@click.option("--table", "table_url", required=True, help="The table extracted from them.")
@_partition_option("The partition of all raw rows.")
@_partition_from_path_option
def replay(
    spec_url: str, raw: str, table_url: str, partition: dict[str, str], keys: Sequence[str]
) -> None:
    """Recompute raw rows and compare them with the table's, in order.

    The exit code is 1 if any value differs.
    """
    report = _module("featstore.explore.replay").replay(
        spec_url, raw, table_url, partition=partition, partition_from_path=keys
    )
    click.echo(report)
    sys.exit(0 if report.ok else 1)


@cli.group()
def spec() -> None:
    """Check a spec, show its graph, compare it with another."""


@spec.command()
@click.argument("url", metavar="SPEC")
@click.option(
    "--update-lock",
    is_flag=True,
    help="Write the lock file beside the spec: what each slot number means now.",
)
@click.option(
    "--sample",
    "raw_url",
    metavar="RAW",
    help="Raw Parquet to check that user operators treat each row independently.",
)
def lint(url: str, update_lock: bool, raw_url: str | None) -> None:
    """Print all errors of a spec, and the slots whose meaning differs from the lock file."""
    report = _module("featstore.spec.lint").lint(url, update_lock=update_lock)
    if report.ok and raw_url is not None:
        report = _module("featstore.extraction.sample").lint_sample(report, raw_url)
    click.echo(report, err=not report.ok)
    sys.exit(0 if report.ok else 2)


@spec.command()
@click.argument("url", metavar="SPEC")
@click.option(
    "--input",
    "input_url",
    required=True,
    help="Raw Parquet to fit on: a file, a directory or a glob.",
)
@click.option(
    "--again",
    is_flag=True,
    help="Also fit nodes that have a fit: their slots change values.",
)
def fit(url: str, input_url: str, again: bool) -> None:
    """Fit operators on raw Parquet, and freeze the result in the lock file beside the spec."""
    click.echo(_module("featstore.api").fit(url, input_url, again=again))


@spec.command()
@click.argument("url", metavar="SPEC")
def show(url: str) -> None:
    """Print the graph in order: slots and inner nodes, kinds, shapes, operators, inputs."""
    click.echo(_module("featstore.spec.show").show(url))


@spec.command()
@click.argument("old")
@click.argument("new")
def diff(old: str, new: str) -> None:
    """Print the slots of two specs that differ in values, or are added, removed or renamed."""
    click.echo(_module("featstore.spec.diff").diff(old, new))


@spec.command()
@click.argument("url", metavar="SPEC")
@click.argument("slot")
def sql(url: str, slot: str) -> None:
    """Print the Spark SQL expression over raw columns that computes a slot's stored values.

    SLOT is a name or a number.
    """
    click.echo(_module("featstore.spec.sql.statement").sql(url, slot))


@cli.group()
def table() -> None:
    """Inspect and maintain a table: a Delta table, or a directory or glob of Parquet."""


@table.command()
@click.argument("url")
@_version_option
def inspect(url: str, version: int | None) -> None:
    """Print slots, partitions, rows, bytes, versions and the spec hash."""
    click.echo(_module("featstore.explore.table").open_table(url, version).inspect())


@table.command()
@click.argument("url")
@_version_option
@click.option("--where", help="Only rows that match, such as \"month = '2013-01'\".")
@click.option(
    "--slots",
    multiple=True,
    metavar="NAME",
    help="Only these slots, by name or glob; may be repeated.",
)
@click.option(
    "--exact",
    is_flag=True,
    help="Read the rows even if statistics are stored. Only the rows give label rates.",
)
def profile(
    url: str, version: int | None, where: str | None, slots: Sequence[str], exact: bool
) -> None:
    """Print coverage, distinct values, top values and quantiles per slot.

    They come from stored statistics if possible, otherwise from the rows.
    """
    click.echo(
        _module("featstore.explore.table")
        .open_table(url, version)
        .profile(where, slots or None, stored=not exact)
    )


@table.command()
@click.option(
    "--spec", required=True, help="The spec, a YAML file, whose labels and weight are rewritten."
)
@click.option(
    "--input",
    "input_url",
    required=True,
    help="Raw Parquet with the final labels: a file, a directory or a glob.",
)
@click.option(
    "--table", "table_url", required=True, help="The table. None of its files is changed."
)
@click.option(
    "--key", required=True, metavar="COLUMN", help="The kept column that identifies each row."
)
@_partition_option("The partition of all raw rows.")
@_partition_from_path_option
def relabel(
    spec: str,
    input_url: str,
    table_url: str,
    key: str,
    partition: dict[str, str],
    keys: Sequence[str],
) -> None:
    """Rewrite the labels of partitions, in files beside the table's."""
    with _module("featstore.extraction.progress_bar").ProgressBar() as bar:
        report = _module("featstore.api").relabel(
            spec,
            input_url,
            table_url,
            key=key,
            partition=partition,
            partition_from_path=keys,
            progress=bar,
        )
    click.echo(report)


@table.command()
@click.argument("url")
def compact(url: str) -> None:
    """Merge slot groups into the base files, in one commit."""
    click.echo(_module("featstore.api").compact(url))


@table.command("lint")
@click.argument("url")
@_version_option
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=8192,
    show_default=True,
    help="The batch size, in rows, of the jobs that read the table.",
)
def lint_table(url: str, version: int | None, batch_size: int) -> None:
    """Print what makes the table slow to read, from the footers of its files.

    The exit code is 1 if there are findings.
    """
    report = _module("featstore.table.statistics.table_lint").lint(
        url, version, batch_size=batch_size
    )
    click.echo(report)
    sys.exit(0 if report.ok else 1)


@table.command()
@click.argument("url")
@click.option(
    "--retain-hours",
    type=click.FloatRange(min=0),
    default=168,
    show_default=True,
    help="Keep versions up to this age.",
)
@click.option(
    "--grace-hours",
    type=click.FloatRange(min=1),
    default=24,
    show_default=True,
    help="Keep files younger than this.",
)
@click.option(
    "--keep-version",
    "keep_versions",
    type=int,
    multiple=True,
    help="Keep this version too; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
def vacuum(
    url: str, retain_hours: float, grace_hours: float, keep_versions: Sequence[int], dry_run: bool
) -> None:
    """Remove files that no retained version references.

    These are replaced files and the leftovers of failed jobs. Files of running jobs are kept.
    """
    times = {"retain_s": retain_hours * 3600, "grace_s": grace_hours * 3600}
    click.echo(
        _module("featstore.table.vacuum").vacuum(
            url, **times, keep_versions=keep_versions, dry_run=dry_run
        )
    )


@table.command()
@click.argument("url")
@click.option("--rows", "num_rows", type=click.IntRange(min=1), default=10, show_default=True)
def head(url: str, num_rows: int) -> None:
    """Print the first rows as JSON lines, missing values as null."""
    rows = _module("featstore.explore.table").open_table(url).head(num_rows)
    for row in rows.to_pylist():
        click.echo(json.dumps(row, default=str))


@cli.group()
def dispatch() -> None:
    """Serve or inspect the store through which the workers of a run share an epoch."""


@dispatch.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; 0.0.0.0 for all interfaces.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=29600,
    show_default=True,
    help="The port; 0 for any free one.",
)
def serve(host: str, port: int) -> None:
    """Serve a store at tcp://HOST:PORT until SIGTERM or SIGINT.

    There is no authentication: use it in trusted networks only.
    """
    _module("featstore.dispatch.stores.tcp").serve(host, port, click.echo)


@dispatch.command()
@click.argument("store", metavar="STORE")
@click.option("--watch", is_flag=True, help="Refresh until interrupted.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="The interval of --watch.",
)
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="The number of epochs, the newest ones.",
)
def status(store: str, watch: bool, every_s: float, last: int) -> None:
    """Print leases, each worker's progress, stragglers and the expected end.

    STORE is sqlite:///path or tcp://host:port.
    """
    if not watch:
        click.echo(_module("featstore.dispatch.accounts.status").status(store, last=last))
        return
    with contextlib.suppress(KeyboardInterrupt):
        for text in _module("featstore.dispatch.accounts.status").watch(
            store, last=last, every_s=every_s
        ):
            click.clear()
            click.echo(text)


@dispatch.command()
@click.argument("store", metavar="STORE")
@click.option(
    "--run-id", required=True, help="The run: the dispatch.run_id of its training config."
)
@click.option("--epoch", type=click.IntRange(min=0), help="Only this epoch.")
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the epoch's order to this file, for `order: replay`.",
)
def receipt(store: str, run_id: str, epoch: int | None, save: Path | None) -> None:
    """Print the rows delivered, delivered twice and missing, by split and worker.

    The exit code is 1 if rows are missing.
    """
    receipts = _module("featstore.dispatch.accounts.receipt").receipts(store, run_id, epoch)
    if save is not None:
        save.write_text(
            _module("featstore.dispatch.accounts.recording").recorded(store, run_id, epoch).encode()
        )
    click.echo("\n\n".join(f"{name}\n{receipt}" for name, receipt in receipts.items()))
    sys.exit(1 if any(receipt.missing for receipt in receipts.values()) else 0)


@cli.group()
def stage() -> None:
    """Fill, list and empty a staging cache: the `staging.directory` of a training config."""


@stage.command()
@click.argument("config", metavar="CONFIG")
@click.option("--table", help="A table to stage instead of the one in the config.")
def warm(config: str, table: str | None) -> None:
    """Stage the files that a training config reads, so that the run finds them on local disk."""
    click.echo(_module("featstore.loader.stage").warm(config, table=table))


@stage.command(name="list")
@click.argument("directory")
def list_(directory: str) -> None:
    """Print the staged files, how much of each is present, and when it was last used."""
    click.echo(_module("featstore.loader.stage").list(directory))


@stage.command()
@click.argument("directory")
def clear(directory: str) -> None:
    """Remove the staged files that no process is reading, and nothing else."""
    click.echo(_module("featstore.loader.stage").clear(directory))


def _module(module: str) -> Any:
    """Imports a module when a command needs it, so that `--help` loads no heavy library."""
    return import_extra(module, "this command")


def main() -> None:
    """Runs a command.

    Exit codes: 2 for bad input, with one line on standard error; 130 if interrupted; 1 for the
    findings of a command that checks something.
    """
    try:
        cli(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    # Errors of featstore are about the input. Others are bugs, and keep their traceback.
    except (FeatstoreError, OSError) as error:
        click.echo(
            "\n".join([f"featstore: error: {error}", *getattr(error, "__notes__", ())]), err=True
        )
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("featstore: interrupted; earlier commits stay as they are", err=True)
        sys.exit(130)
