"""`featstore train ... | bench | stage ... | dispatch ...`: training configs, how fast their tables
are read, the caches that their runs stage to, and the stores through which their workers share an
epoch.
"""

import contextlib
import json
import sys
from pathlib import Path

import click

from featstore.tools.cli.command import (
    CONFIG,
    DIRECTORY,
    STORE,
    TABLE,
    Command,
    CommandGroup,
    json_option,
    load,
    only,
    slots_option,
    subjects,
)
from featstore.tools.cli.output import show, terminal_width, to_json
from featstore.tools.programs import require_one_of


@click.group(cls=CommandGroup, examples=["featstore train check --config train.yaml --head 3"])
def train() -> None:
    """Check a training config; its JSON Schema."""


@train.command(
    examples=[
        "featstore train check --config train.yaml --head 3",
        "featstore train check train.yaml --table s3://features/ctr --json | jq .num_rows",
    ]
)
@subjects(CONFIG)
@click.option("--table", metavar="URL", help="A table to check instead of the one in the config.")
@click.option(
    "--head",
    type=click.IntRange(min=0),
    default=0,
    metavar="ROWS",
    help="Also read the first rows, and print what a batch holds.",
)
@json_option
def check(config: str, table: str | None, head: int, as_json: bool) -> None:
    """Print what a training config reads: columns, shapes, bytes per row, files and splits.

    Everything is checked that a run checks before its first batch.
    """
    show(
        load("featstore.loader.train_check").check(config, head=head, table=table), as_json=as_json
    )


@train.command(examples=["featstore train schema > train.schema.json"])
def schema() -> None:
    """Print the JSON Schema of training configs, by which editors complete and check them."""
    show(json.dumps(load("featstore.loader.config_schema").train_schema(), indent=2))


@click.command(
    cls=Command,
    examples=[
        "featstore bench s3://features/ctr --config train.yaml --rows-per-s 2e6",
        "featstore bench --table /data/ctr --slots user --slots 'price*' --max-cores 4",
        "featstore bench /data/ctr --config train.yaml --json | jq '.speeds[-1].rows_per_s'",
    ],
)
@subjects(TABLE)
@click.option(
    "--config", metavar="URL", help="A training config; the table is read in place of its own."
)
@slots_option
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="How long each number of cores is measured: whole epochs, at least three.",
)
@click.option(
    "--max-cores",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="The most cores; all that this process may use if not given.",
)
@click.option(
    "--rows-per-s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="ROWS",
    help="What an accelerator takes: also print how many cores it needs.",
)
@json_option
def bench(
    table: str,
    config: str | None,
    slots: tuple[str, ...],
    seconds: float,
    max_cores: int | None,
    rows_per_s: float | None,
    as_json: bool,
) -> None:
    """Measure how many rows a second a training loop gets of a table on this machine, on one core
    to all, beside a bare loop of Arrow and the machine's limit.

    It reads only. What is not local is staged first, as in training.
    """
    require_one_of({"--config": config, "--slots": slots or None})
    found = load("featstore.loader.bench").bench(
        table,
        config=config,
        slots=slots,
        seconds=seconds,
        max_cores=max_cores,
        rows_per_s=rows_per_s,
        tell=_told,
    )
    show(found, as_json=as_json)


def _told(text: str) -> None:
    """Says on standard error what goes on, if that is a terminal."""
    if sys.stderr.isatty():
        click.echo(text, err=True)


@click.group(
    cls=CommandGroup,
    examples=[
        "featstore stage warm --config train.yaml",
        "featstore stage list --directory /ssd/featstore",
    ],
)
def stage() -> None:
    """Fill, list and empty a staging cache: the `staging.directory` of a training config."""


@stage.command(
    examples=[
        "featstore stage warm --config train.yaml",
        "featstore stage warm --config train.yaml --table s3://features/ctr",
        "featstore stage warm --config train.yaml --decoded",
    ]
)
@subjects(CONFIG)
@click.option("--table", metavar="URL", help="A table to stage instead of the one in the config.")
@click.option(
    "--decoded",
    is_flag=True,
    help="Decode the selected columns, for a SampleDataset, and stage no more than that takes.",
)
def warm(config: str, table: str | None, decoded: bool) -> None:
    """Stage the files that a training config reads, so that the run finds them on local disk."""
    if decoded:
        show(load("featstore.samples.sample_dataset").warm_decoded(config, table=table))
    else:
        show(load("featstore.loader.stage").warm(config, table=table))


@stage.command("list", examples=["featstore stage list --directory /ssd/featstore"])
@subjects(DIRECTORY)
def list_(directory: str) -> None:
    """Print the staged files, how much of each is present, and when it was last used."""
    show(load("featstore.loader.stage").list(directory, width=terminal_width()))


@stage.command(examples=["featstore stage clear --directory /ssd/featstore"])
@subjects(DIRECTORY)
def clear(directory: str) -> None:
    """Remove the staged files that no process is reading, and nothing else."""
    show(load("featstore.loader.stage").clear(directory))


@click.group(
    cls=CommandGroup,
    examples=[
        "featstore dispatch serve --host 0.0.0.0",
        "featstore dispatch status --store sqlite:///runs/ctr.db --watch",
    ],
)
def dispatch() -> None:
    """Serve or inspect the store through which the workers of a run share an epoch."""


@dispatch.command(
    examples=[
        "featstore dispatch serve --host 0.0.0.0 --port 29600",
        "featstore dispatch serve --host 0.0.0.0 --file /data/dispatch.db",
        "featstore dispatch serve --host 0.0.0.0 --certificate tls.crt --key tls.key",
    ]
)
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
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the store in this file: a server that is started again with it goes on.",
)
@click.option(
    "--certificate",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Encrypt all connections (tls://HOST:PORT) with this certificate, a PEM file.",
)
@click.option(
    "--key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The certificate's private key, if it is not in the same file.",
)
def serve(host: str, port: int, **options: Path | None) -> None:
    """Serve a store at tcp://HOST:PORT until SIGTERM or SIGINT.

    Workers must have the same FEATSTORE_DISPATCH_TOKEN as the server, which both may lack. Without
    --certificate nothing is encrypted: use it in trusted networks only. Workers find the
    certificate's authority in the PEM file FEATSTORE_DISPATCH_CA, by default in the system's list.
    """
    load("featstore.dispatch.stores.server").serve_until_signal(host, port, click.echo, **options)


@dispatch.command(
    examples=[
        "featstore dispatch status --store sqlite:///runs/ctr.db",
        "featstore dispatch status --store tcp://trainer-0:29600 --watch --every 10",
    ]
)
@subjects(STORE)
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
@json_option
def status(store: str, watch: bool, every_s: float, last: int, as_json: bool) -> None:
    """Print leases, each worker's progress, stragglers and the expected end.

    Without --watch it looks twice in 2.5 s if a worker holds splits: one look does not show who
    lives.
    """
    module = load("featstore.dispatch.status")
    if not watch:
        show(module.status(store, last=last), as_json=as_json)
        return
    with contextlib.suppress(KeyboardInterrupt):
        for found in module.watch(store, last=last, every_s=every_s):
            if not as_json:
                click.clear()
            show(found, as_json=as_json)


@dispatch.command(
    examples=[
        "featstore dispatch receipt --store sqlite:///runs/ctr.db --run-id ctr-7",
        "featstore dispatch receipt --store sqlite:///runs/ctr.db --run-id ctr-7 --epoch 0 "
        "--save order.json",
        "featstore dispatch receipt --store sqlite:///runs/ctr.db --run-id ctr-7 "
        "--config train.yaml --rows \"user_id = 'u4711'\"",
    ]
)
@subjects(STORE)
@click.option(
    "--run-id", required=True, help="The run: the dispatch.run_id of its training config."
)
@click.option("--epoch", type=click.IntRange(min=0), help="Only this epoch.")
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the epoch's order to this file, for `order: replay`.",
)
@click.option(
    "--rows",
    metavar="SQL",
    help="Instead, what became of the rows that match, by file and row number; needs --config.",
)
@click.option("--config", metavar="URL", help="Of --rows: the training config of the run.")
@click.option(
    "--state",
    metavar="URL",
    help="Of --rows: count what the model of a checkpoint has seen, by the merged state as JSON.",
)
@json_option
def receipt(
    store: str,
    run_id: str,
    epoch: int | None,
    save: Path | None,
    rows: str | None,
    config: str | None,
    state: str | None,
    as_json: bool,
) -> None:
    """Print the rows delivered, delivered twice and missing, by split and worker.

    Twice at most were those delivered that a worker had reserved, and had not acknowledged when it
    lost its lease. The exit code is 1 if rows are missing.
    """
    only(rows is None, "without --rows", "--save")
    if (rows is None) != (config is None) or (rows is None and state is not None):
        raise click.UsageError("--rows and --config go together, and --state with both.")
    if rows is not None:
        of_rows = load("featstore.loader.receipt_rows").receipt_rows
        found = of_rows(config, rows, store=store, run_id=run_id, epoch=epoch, state=state)
        show(found, as_json=as_json)
        return
    receipts = load("featstore.dispatch.receipt").receipts(store, run_id, epoch)
    if save is not None:
        recorded = load("featstore.dispatch.recording").recorded(store, run_id, epoch)
        save.write_text(recorded.encode())
    if as_json:
        epochs = [{"epoch": name, **receipt.as_dict()} for name, receipt in receipts.items()]
        show(to_json({"epochs": epochs}))
    else:
        show("\n\n".join(f"{name}\n{receipt}" for name, receipt in receipts.items()))
    sys.exit(1 if any(receipt.missing for receipt in receipts.values()) else 0)
