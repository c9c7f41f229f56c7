"""The page of all commands, from the tree of the command line."""

import inspect
from collections.abc import Iterator

import click

from featstore.tools.cli.command import Command
from featstore.tools.cli.program import cli
from website.reference.markdown import code, table


def commands_page() -> str:
    """Every command with what it does, its options and examples."""
    parts = [
        "# Commands\n",
        "Made from the parser of `featstore`, as `--help` is. "
        "[The command line](../command_line.md) describes the grammar that all commands share.\n",
    ]
    return "\n".join([*parts, *(_section(context) for context in contexts())])


def contexts(parent: click.Context | None = None) -> Iterator[click.Context]:
    """The context of each command that is no group, in the order of the help."""
    context = parent or click.Context(cli, info_name="featstore")
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from contexts(inner)
        elif not command.hidden:
            yield inner


def _section(context: click.Context) -> str:
    command = context.command
    assert isinstance(command, Command)
    usage = command.get_usage(context).removeprefix("Usage: ")
    help_text = inspect.cleandoc(command.help or "").replace("\b", "")
    rows = [
        (code(record[0]), record[1])
        for option in command.get_params(context)
        if (record := option.get_help_record(context))
    ]
    examples = "\n".join(command.examples)
    return (
        f"## {context.command_path}\n\n{help_text}\n\n```\n{usage}\n```\n\n"
        f"{table(('option', 'what it does'), rows)}\n```\n{examples}\n```\n"
    )
