"""The grammar of all commands: examples in each help, subjects by option or in short."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from featstore.base.errors import FeatstoreError
from featstore.tools.cli.command import SPEC, Command, named, subjects
from featstore.tools.cli.program import cli
from tests.parquet_files import put_parquet
from tests.programs import run_python

OLD = click.Option(["--old", "--before", "old"], required=True, metavar="URL", help="The old one.")


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_every_command_has_help_with_examples(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*path, "--help"])
    assert shown.exit_code == 0
    text, _, examples = shown.output.partition("\nExamples:\n")
    assert text.startswith("Usage: ")
    assert all(line.startswith("  featstore ") for line in examples.splitlines())
    assert " ".join(["featstore", *path]) in examples


@pytest.mark.parametrize(
    "line",
    sorted({line for _, command in commands() for line in command.examples}),  # type: ignore[attr-defined]
)
def test_every_example_is_accepted_by_the_parser(line: str) -> None:
    """No example can name an option that is gone, or leave out one that is required."""
    words = shlex.split(line)[1:]
    if "|" in words:
        words = words[: words.index("|")]
    if ">" in words:
        words = words[: words.index(">")]
    command: click.Command = cli
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    if words == ["--help"]:
        return
    with command.make_context("x", words) as context:
        given = context.params
        named(getattr(command.callback, "subjects", ()), given.get("arguments", ()), given)


def test_a_command_without_examples_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="examples"):
        Command("x")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["a", "b"], ("a", "b")),
        (["--old", "a", "--spec", "b"], ("a", "b")),
        (["--before", "a", "--spec", "b"], ("a", "b")),
        (["--spec", "b", "a"], ("a", "b")),
        (["a", "--spec", "b"], ("a", "b")),
        (["--old", "a", "b"], ("a", "b")),
    ],
)
def test_subjects_are_given_by_option_or_in_order(
    arguments: list[str], found: tuple[str, str]
) -> None:
    assert CliRunner().invoke(_compare(), arguments).output == f"{found}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing option '--old'"),
        (["a"], "Missing option '--spec'"),
        (["--spec", "b"], "Missing option '--old'"),
        (["a", "b", "c"], r"unexpected extra argument (c)"),
        (["--old", "a", "--spec", "b", "c"], r"unexpected extra argument (c)"),
    ],
)
def test_a_subject_that_is_missing_or_left_over_is_named(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(_compare(), arguments)
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("table inspect t --last 1", "--last goes with --history"),
        ("table inspect t --history --version 1", "--version goes without --history"),
        ("table show t --where x=1 --ids", "--ids goes with --rows"),
        ("table show t --rows 1 --json", "--json goes without --rows"),
        ("table show t", "Missing option '--where' (one row) or '--rows' (the first ones)"),
        ("table check t --batch-size 8192", "--batch-size goes with --layout"),
        ("table check t --layout --spec s", "--spec goes without --layout"),
        ("table profile t -o r.html --by-day", "--by-day goes without --output"),
        ("table profile t -o r.html --json", "--json goes without --output"),
        ("import --format json --input a --output b --null -", "--null goes with --format csv"),
        (
            "import tfrecord --input a --output b --delimiter ;",
            "--delimiter goes with --format csv",
        ),
        (
            "dispatch receipt s --run-id r --rows x=1 --config c --save o",
            "--save goes without --rows",
        ),
        ("spec show s --format dot --json", "--json goes with --format text"),
        ("spec show s --slot user", "--slot goes with --format svg, dot, mermaid or sql"),
        ("spec show s user", "--slot goes with --format svg, dot, mermaid or sql"),
        ("spec show s --format sql", "Missing option '--slot'"),
        ("table profile t --days 1 2 --days 3 4", "--days: expected once, found 2 times"),
        ("spec preview s --input r --slot a --slot b", "--slot: expected once, found 2 times"),
    ],
)
def test_an_option_of_another_form_of_a_command_is_refused(line: str, said: str) -> None:
    done = CliRunner().invoke(cli, line.split())
    assert (done.exit_code, said in done.output) == (2, True), done.output


def _compare() -> click.Command:
    @click.command(cls=Command, examples=["compare"])
    @subjects(OLD, SPEC)
    def compare(old: str, spec: str) -> None:
        click.echo((old, spec))

    return compare


def test_named_prefers_options() -> None:
    with click.Context(_compare()):
        assert named((OLD, SPEC), ["b"], {"old": "a", "spec": None}) == {"old": "a", "spec": "b"}


@pytest.fixture
def table(tmp_path: Path) -> str:
    columns: dict[str, Any] = {
        "row": [1, 2, 3],
        "price": [1.0, None, float("nan")],
        "price2": [0.5, 1.5, 2.5],
    }
    put_parquet(tmp_path / "t" / "a.parquet", columns)
    return str(tmp_path / "t")


def test_the_slots_and_rows_asked_for_are_shown(table: str) -> None:
    asked = ["table", "show", "--table", table, "--rows", "9", "--slots", "price"]
    asked += ["--where", "row >= 2"]
    shown = CliRunner().invoke(cli, asked)
    assert [json.loads(line) for line in shown.output.splitlines()] == [
        {"price": None},
        {"price": None},
    ]
    first = CliRunner().invoke(cli, [*asked[:4], "--rows", "1", "--slots", "price*"])
    assert json.loads(first.output) == {"price": 1.0, "price2": 0.5}
    with pytest.raises(FeatstoreError, match="expected a Delta table to open version 3"):
        CliRunner().invoke(cli, [*asked, "--version", "3"], catch_exceptions=False)


def test_completion_knows_commands_and_options() -> None:
    """The shell calls the program with these variables, see docs/command_line.md."""
    program = (
        "import sys; sys.argv[0] = 'featstore'; from featstore.tools.cli import console; console()"
    )
    words = {"featstore ta": "table", "featstore table show --wh": "--where"}
    for line, wanted in words.items():
        variables = {
            "_FEATSTORE_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split()) - 1),
        }
        assert f"plain,{wanted}" in run_python(program, variables=variables).stdout


def test_help_takes_little_time_of_the_cpu() -> None:
    """0.06 s as measured, by which modules are loaded: a library that a command imports too early
    costs several times that.
    """
    program = (
        "import sys; before = set(sys.modules); from featstore.tools.cli import cli\n"
        "cli(['--help'], standalone_mode=False); print(*set(sys.modules) - before)"
    )
    loaded = run_python(program).stdout.splitlines()[-1].split()
    packages = {name.partition(".")[0] for name in loaded}
    assert packages - sys.stdlib_module_names == {"featstore", "click"}
    assert len(loaded) < 150


def test_schemas_are_printed_as_json() -> None:
    for group, key in (("spec", "inputs"), ("train", "batch_size")):
        printed = CliRunner().invoke(cli, [group, "schema"])
        assert key in json.loads(printed.output)["properties"]


def test_the_help_of_table_check_says_that_where_chooses_partitions() -> None:
    found = CliRunner().invoke(cli, ["table", "check", "--help"])
    assert "Only partitions that match" in found.output
    assert "Only rows that match" not in found.output
