"""Markdown as code hosts read it, written so that the site's renderer reads the same."""

import re

from website.links import lines_outside_code

_ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def for_renderer(text: str) -> str:
    """A page in which every list after a paragraph has an empty line before it.

    CommonMark begins a list without one, Python-Markdown does not.
    """
    lines: list[str] = []
    before = "\n"
    for line, outside in lines_outside_code(text):
        if outside and _ITEM.match(line) and _is_paragraph(before):
            lines.append("\n")
        lines.append(line)
        before = line
    return "".join(lines)


def _is_paragraph(line: str) -> bool:
    return bool(line.strip()) and not _ITEM.match(line) and not line.startswith((" ", "|", "#"))
