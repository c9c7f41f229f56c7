"""Tables of Markdown."""

import html
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown; each cell on one line, with its bars escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(cell, line))} |\n" for line in lines)


def cell(text: str) -> str:
    """A text as the content of a cell."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """A text as code within a line or a cell."""
    return f"<code>{html.escape(text).replace('|', '&#124;').replace('*', '&#42;')}</code>"
