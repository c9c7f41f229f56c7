"""The program `featstore`: its groups of commands, and its exit codes."""

import sys
from typing import NoReturn

import click

from featstore.base.errors import FeatstoreError
from featstore.base.processes import end_with, exit_code
from featstore.tools.cli.command import CommandGroup
from featstore.tools.cli.dispatch import dispatch
from featstore.tools.cli.features import demo, extract, replay
from featstore.tools.cli.importing import import_
from featstore.tools.cli.report import report
from featstore.tools.cli.schema import schema
from featstore.tools.cli.spark import spark, spark_job
from featstore.tools.cli.spec import spec
from featstore.tools.cli.stage import stage
from featstore.tools.cli.table import table
from featstore.tools.cli.train import train
from featstore.tools.cli.whatis import whatis


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    examples=["featstore demo", "featstore extract --help"],
)
@click.version_option(package_name="featstore", prog_name="featstore")
def cli() -> None:
    """From raw logs to training batches: extract features, inspect tables, run the demo."""


commands = (
    *(demo, import_, extract, replay, report, spec, table, whatis, train),
    *(dispatch, stage, schema, spark, spark_job),
)
for command in commands:
    cli.add_command(command)


def console() -> NoReturn:
    """The program `featstore`: runs `main`, and ends the process with its exit code."""
    end_with(main)


def main() -> None:
    """Runs a command.

    Raises:
        SystemExit: The exit code: 1 for the findings of a command that checks something; 2 for bad
            input, with one line on standard error; 3 if checks of a spec refused a commit; 130 if
            interrupted. docs/command_line.md has the table.
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
        sys.exit(exit_code(error))
    except (click.Abort, KeyboardInterrupt):
        click.echo("featstore: interrupted; earlier commits stay as they are", err=True)
        sys.exit(130)
