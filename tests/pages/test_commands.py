"""Every command of every page is one that the parser accepts, and every block is run by a test or
says why not.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from featstore.tools.cli.command import named
from featstore.tools.cli.program import cli
from tests.pages.page import ROOT, blocks
from website.pages import repository_pages

PAGES = [path for path in map(str, repository_pages(ROOT)) if path.startswith(("README", "docs/"))]
TESTS = {
    path: path.read_text()
    for path in Path(__file__).parents[1].rglob("test_*.py")
    if "website" not in path.parts  # these speak of pages and run none
}


def commands_of(page: str) -> Iterator[str]:
    """The lines of a page's shell blocks that call featstore."""
    for block in blocks((ROOT / page).read_text()):
        if block.is_shell:
            for line in block.text.replace("\\\n", " ").splitlines():
                if line.strip().startswith("featstore "):
                    yield line.strip()


LINES = sorted({line for page in PAGES for line in commands_of(page)})


@pytest.mark.parametrize("line", LINES)
def test_every_command_is_accepted_by_the_parser(line: str) -> None:
    words = shlex.split(line.partition(" | ")[0].partition(" > ")[0], comments=True)[1:]
    command: click.Command = cli
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    with command.make_context("x", words) as context:
        given = context.params
        named(getattr(command.callback, "subjects", ()), given.get("arguments", ()), given)


def test_there_are_commands() -> None:
    assert len(LINES) > 30


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_by_a_test_or_says_why_not(page: str) -> None:
    left_out = [
        block.text
        for block in blocks((ROOT / page).read_text())
        if (block.is_shell or block.language == "python") and not block.reason
    ]
    name = page.removeprefix("docs/")
    runs = [
        test
        for test, text in TESTS.items()
        if f'{name}"' in text
        and any(way in text for way in ("run_page", "```", "blocks((ROOT / PAGE).read_text())"))
    ]
    assert runs or not left_out, (
        f"{page}: expected a test that runs its blocks and names the page, or blocks with the title "
        f"'not run: REASON' (or the language `text`, if they are no commands), found {left_out}"
    )
