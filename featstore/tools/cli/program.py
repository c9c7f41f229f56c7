"""The program `featstore`: its groups of commands, and its exit codes."""

import sys
from typing import NoReturn

import click

from featstore.base.processes import end_with
from featstore.tools.cli.command import CommandGroup
from featstore.tools.cli.features import demo, extract, join_labels, replay, spark
from featstore.tools.cli.importing import import_
from featstore.tools.cli.spec import spec
from featstore.tools.cli.table import table, whatis
from featstore.tools.cli.train import bench, dispatch, stage, train
from featstore.tools.programs import run_program

# Older names of commands, which are in no help, and what they stand for: an option here is left out
# if the line has its own.
OLDER = {
    "import csv": "import --format csv",
    "import json": "import --format json",
    "import libsvm": "import --format libsvm",
    "import pairs": "import --format pairs",
    "import tfrecord": "import --format tfrecord",
    "report": "table profile",
    "schema spec": "spec schema",
    "schema train": "train schema",
    "spark-job": "spark job",
    "spec graph": "spec show --format dot",
    "spec sql": "spec show --format sql",
    "table head": "table show --rows 10",
    "table history": "table inspect --history",
    "table lint": "table check --layout",
}


class Program(CommandGroup):
    """The program, whose commands have older names too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts today's name in place of an older one."""
        for length in (1, 2):
            newer, rest = OLDER.get(" ".join(args[:length])), args[length:]
            if newer is not None:
                name, _, option = newer.partition(" --")
                own = f"--{option.partition(' ')[0]}="
                has_own = bool(option) and any(f"{given}=".startswith(own) for given in rest)
                args = [*(name if has_own else newer).split(), *rest]
        return super().parse_args(ctx, args)


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    examples=["featstore demo", "featstore extract --help"],
)
@click.version_option(package_name="featstore-pipeline", prog_name="featstore")
def cli() -> None:
    """From raw logs to training batches: extract features, inspect tables, run the demo."""


for command in (
    *(demo, import_, join_labels, extract, replay, spec, table, whatis, train),
    *(bench, dispatch, stage, spark),
):
    cli.add_command(command)


def console() -> NoReturn:
    """The program `featstore`: runs `main`, and ends the process with its exit code."""
    end_with(main)


def main() -> None:
    """Runs a command.

    Raises:
        SystemExit: The exit code: 1 for the findings of a command that checks something; 2 for bad
            input, with one line on standard error; 3 if checks of a spec refused a commit; 75 if
            the same command may succeed later; 130 if interrupted. docs/command_line.md has the
            table.
    """
    code = run_program("featstore", lambda: cli(standalone_mode=False))
    if code:
        sys.exit(code)
