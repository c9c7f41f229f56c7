"""What all commands share: examples in their help, the grammar of their subjects, and options."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import click
from click.core import ParameterSource

from featstore.base.errors import import_extra
from featstore.tools.programs import Function, several


class Command(click.Command):
    """A command whose help ends with examples.

    Args:
        examples: Whole command lines, of which there is at least one.
    """

    def __init__(self, *arguments: Any, examples: Sequence[str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.examples = tuple(examples)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments. click would take the last of two values; they are refused."""
        given = self.make_parser(ctx).parse_args(list(args))[2]
        for option in given:
            takes_one = isinstance(option, click.Option) and not (option.multiple or option.is_flag)
            if takes_one and given.count(option) > 1:
                raise click.UsageError(
                    f"{option.opts[0]}: expected once, found {given.count(option)} times", ctx
                )
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the examples as they are, without wrapping lines."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{' ' * formatter.current_indent}{example}\n")


class CommandGroup(Command, click.Group):
    """A group of commands, with examples too."""

    command_class = Command
    group_class = type


# What commands are about, such as a table.
SPEC = click.Option(["--spec"], required=True, metavar="URL", help="The spec, a YAML file.")
TABLE = click.Option(
    ["--table"],
    required=True,
    metavar="URL",
    help="A Delta table, or a directory or glob of Parquet.",
)
DELTA_TABLE = click.Option(["--table"], required=True, metavar="URL", help="A Delta table.")
CONFIG = click.Option(
    ["--config"], required=True, metavar="URL", help="The training config, a YAML file."
)
STORE = click.Option(
    ["--store"],
    required=True,
    metavar="URL",
    help="The dispatch store: sqlite:///path, tcp://host:port or tls://host:port.",
)
DIRECTORY = click.Option(
    ["--directory"],
    required=True,
    metavar="DIRECTORY",
    help="The cache: the `staging.directory` of a training config.",
)


def subjects(*wanted: click.Option) -> Callable[[Function], Function]:
    """The options of what a command is about.

    In short, their values may be given in this order without the options' names: `table inspect
    URL` is `table inspect --table URL`.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def command(arguments: Sequence[str], **given: Any) -> Any:
            return function(**given | named(wanted, arguments, given))

        # For the test that parses the examples.
        command.subjects = wanted  # type: ignore[attr-defined]
        short = " ".join(f"[{subject.opts[0].removeprefix('--').upper()}]" for subject in wanted)
        named_options = (
            click.option(*subject.opts, metavar=subject.metavar, help=subject.help)
            for subject in wanted
        )
        return cast(
            Function,
            several(*named_options, click.argument("arguments", nargs=-1, metavar=short))(command),
        )

    return decorate


def named(
    wanted: Sequence[click.Option], arguments: Sequence[str], given: dict[str, Any]
) -> dict[str, str | None]:
    """The value of each subject by name, from options and, in order, from plain arguments.

    Raises:
        click.UsageError: A required subject is missing, or an argument is left over.
    """
    rest, found = list(arguments), {}
    for subject in wanted:
        value = given[str(subject.name)]
        value = rest.pop(0) if value is None and rest else value
        if value is None and subject.required:
            raise click.UsageError(
                f"Missing option '{subject.opts[0]}'.", ctx=click.get_current_context()
            )
        found[str(subject.name)] = value
    if rest:
        raise click.UsageError(
            f"Got unexpected extra argument ({rest[0]}).", ctx=click.get_current_context()
        )
    return found


def only(fits: bool, when: str, *options: str) -> None:
    """UsageError if one of these options is given although it does not fit."""
    context = click.get_current_context()
    for option in () if fits else context.command.params:
        given = context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
        if given and option.opts[0] in options:
            raise click.UsageError(f"{option.opts[0]} goes {when}", ctx=context)


version_option = click.option(
    "--version",
    type=int,
    metavar="NUMBER",
    help="A version of a Delta table, or the id of an Iceberg snapshot; the newest if not given.",
)
where_option = click.option(
    "--where", metavar="SQL", help="Only rows that match, such as \"month = '2013-01'\"."
)
slots_option = click.option(
    "--slots",
    multiple=True,
    metavar="NAME",
    help="Only these slots, by name or glob; may be repeated.",
)
stale_groups_option = click.option(
    "--stale-groups",
    type=click.Choice(["error", "missing"]),
    default="error",
    show_default=True,
    help="Where a slot group is stale: refuse, or read its slots as missing.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")


def load(module: str) -> Any:
    """Imports a module when a command needs it."""
    return import_extra(module, "this command")
