"""What all commands share: examples in their help, the grammar of their subjects, and options."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import click

from featstore.base.errors import import_extra

Function = TypeVar("Function", bound=Callable[..., Any])


class Command(click.Command):
    """A command whose help ends with examples.

    Args:
        examples: Whole command lines, of which there is at least one.
    """

    def __init__(self, *arguments: Any, examples: Sequence[str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the examples as they are, without wrapping lines."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{' ' * formatter.current_indent}{example}\n")


class CommandGroup(Command, click.Group):
    """A group of commands, with examples too."""

    command_class = Command
    group_class = type


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a command is about, such as a table.

    Attributes:
        option: The option that names it, or several: the others are its older names.
        name: The parameter of the command's function.
        metavar: What its value is called.
        help: Its line in the help.
    """

    option: tuple[str, ...]
    name: str
    metavar: str
    help: str


SPEC = Subject(option=("--spec",), name="spec", metavar="URL", help="The spec, a YAML file.")
TABLE = Subject(
    option=("--table",),
    name="table",
    metavar="URL",
    help="A Delta table, or a directory or glob of Parquet.",
)
DELTA_TABLE = Subject(option=("--table",), name="table", metavar="URL", help="A Delta table.")
CONFIG = Subject(
    option=("--config",), name="config", metavar="URL", help="The training config, a YAML file."
)
STORE = Subject(
    option=("--store",),
    name="store",
    metavar="URL",
    help="The dispatch store: sqlite:///path or tcp://host:port.",
)
DIRECTORY = Subject(
    option=("--directory",),
    name="directory",
    metavar="DIRECTORY",
    help="The cache: the `staging.directory` of a training config.",
)


def subjects(*wanted: Subject) -> Callable[[Function], Function]:
    """The options of what a command is about, all of them required.

    In short, their values may be given in this order without the options' names: `table inspect
    URL` is `table inspect --table URL`.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def command(arguments: Sequence[str], **given: Any) -> Any:
            return function(**given | named(wanted, arguments, given))

        # For the test that parses the examples.
        command.subjects = wanted  # type: ignore[attr-defined]
        short = " ".join(f"[{subject.option[0].removeprefix('--').upper()}]" for subject in wanted)
        decorated: Any = click.argument("arguments", nargs=-1, metavar=short)(command)
        for subject in reversed(wanted):
            decorated = click.option(
                *subject.option, subject.name, metavar=subject.metavar, help=subject.help
            )(decorated)
        return cast(Function, decorated)

    return decorate


def named(
    wanted: Sequence[Subject], arguments: Sequence[str], given: dict[str, Any]
) -> dict[str, str]:
    """The value of each subject by name, from options and, in order, from plain arguments.

    Raises:
        click.UsageError: A subject is missing, or an argument is left over.
    """
    rest, found = list(arguments), {}
    for subject in wanted:
        value = given[subject.name]
        if value is None and not rest:
            raise click.UsageError(
                f"Missing option '{subject.option[0]}'.", ctx=click.get_current_context()
            )
        found[subject.name] = rest.pop(0) if value is None else value
    if rest:
        raise click.UsageError(
            f"Got unexpected extra argument ({rest[0]}).", ctx=click.get_current_context()
        )
    return found


def spec_option(text: str = "The spec, a YAML file.") -> Callable[[Function], Function]:
    """The required option `--spec`."""
    return click.option("--spec", required=True, metavar="URL", help=text)


def input_option(text: str, *older: str) -> Callable[[Function], Function]:
    """The required option `--input`, with its older names."""
    return click.option("--input", *older, "input_url", required=True, metavar="URL", help=text)


def table_option(text: str) -> Callable[[Function], Function]:
    """The required option `--table`."""
    return click.option("--table", "table_url", required=True, metavar="URL", help=text)


def key_values(
    form: str,
) -> Callable[[click.Context, click.Parameter, Sequence[str]], dict[str, str]]:
    """The callback of an option whose values have this form, such as `KEY=VALUE`."""

    def pairs_of(_: click.Context, option: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
        pairs = dict(text.partition("=")[::2] for text in texts)
        if len(pairs) < len(texts) or not all(key and value for key, value in pairs.items()):
            name = form.partition("=")[0].lower()
            raise click.BadParameter(f"expected {form}, each {name} once, found {', '.join(texts)}")
        return pairs

    return pairs_of


partition_option = click.option(
    "--partition",
    multiple=True,
    callback=key_values("KEY=VALUE"),
    metavar="KEY=VALUE",
    help="A partition value for all of the input.",
)
partition_from_path_option = click.option(
    "--partition-from-path",
    multiple=True,
    metavar="KEY",
    help="A key to take from KEY=VALUE directories.",
)
no_partition_option = click.option(
    "--no-partition",
    is_flag=True,
    help="Take all of the input, although it has KEY=VALUE directories, for a table without "
    "partitions.",
)
retry_option = click.option(
    "--retry-s",
    type=float,
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a request to a store is made again after failures that may pass.",
)
version_option = click.option(
    "--version",
    type=int,
    metavar="NUMBER",
    help="A version of a Delta table; the newest if not given.",
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
exact_option = click.option(
    "--exact",
    is_flag=True,
    help="Count the rows exactly even if statistics are stored.",
)
compare_option = click.option(
    "--compare", metavar="URL", help="Compare with this table, which came before."
)
compare_version_option = click.option(
    "--compare-version",
    type=int,
    metavar="NUMBER",
    help="Compare with this version, of the table of --compare or of the table itself.",
)
compare_days_option = click.option(
    "--days",
    nargs=2,
    metavar="A B",
    help="Compare two values of the first partition key: what changed from A to B.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")


def load(module: str) -> Any:
    """Imports a module when a command needs it."""
    return import_extra(module, "this command")
