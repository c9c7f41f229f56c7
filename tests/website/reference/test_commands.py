"""The page of commands has each command with each of its options."""

import click
import pytest

from website.reference.commands import commands_page, contexts

PAGE = commands_page()
COMMANDS = {context.command_path: context for context in contexts()}


def test_groups_are_followed() -> None:
    assert {"featstore extract", "featstore table profile", "featstore spec schema"} <= set(
        COMMANDS
    )


@pytest.mark.parametrize("path", COMMANDS)
def test_each_command_is_there_with_its_options_and_examples(path: str) -> None:
    section = PAGE.partition(f"\n## {path}\n")[2].partition("\n## ")[0]
    command = COMMANDS[path].command
    options = [param.opts[-1] for param in command.params if isinstance(param, click.Option)]
    assert section
    assert [option for option in options if option not in section] == []
    assert command.get_short_help_str(1000).rstrip(".") in " ".join(section.split())
