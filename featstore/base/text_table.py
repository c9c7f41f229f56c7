"""Tables of text that fit a terminal, where the widest columns are wrapped first, at spaces, and
columns for which there is no room are lines below their rows; and tables of HTML.
"""

import functools
import html
import itertools
import textwrap
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from tabulate import tabulate

_GAP = 2  # spaces between columns
_INDENT = "    "  # of a line below a row
_NO_BREAK = "\u00a0"  # in cells; a space in text
_ZEROS = {"", "-", "0", "0.0%"}
_NAMES = 6  # that `short_names` spells out


class Printed:
    """A result that `print` shows as its text."""

    def text(self, width: int | None = None) -> str:
        """The result as text, with tables of `width` characters at most if given."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.text()


def text_table(
    rows: Sequence[Sequence[object]],
    headers: Sequence[str],
    *,
    align: Sequence[str] | None = None,
    width: int | None = None,
) -> str:
    """A table of text with a line below its headers. Cells that are None are empty.

    Args:
        rows: The cells of each row.
        headers: A header for each column.
        align: `left` or `right` for each column; by default all are left.
        width: The number of characters that a line may have. Cells of the widest columns are
            wrapped, and where the words of all columns do not fit, the last ones are lines below
            each row. A word is only broken if it is longer than a line. None sets no limit.
    """
    texts = [list(headers), *(["" if cell is None else str(cell) for cell in row] for row in rows)]
    below: list[list[str]] = [[]] * len(texts)
    if width is not None:
        texts = [[cell.replace(" ±", f"{_NO_BREAK}±") for cell in row] for row in texts]
        num_kept = _num_fitting(_longest(texts, _words), width)
        below = _lines_below([row[num_kept:] for row in texts], width)
        texts = [row[:num_kept] for row in texts]
        widths = column_widths(_longest(texts, str.splitlines), _longest(texts, _words), width)
        texts = [list(map(_wrapped, row, widths)) for row in texts]
    line = ["-" * size for size in _longest(texts, str.splitlines)]
    # Headers are the first row, since tabulate makes a column of a header wider than it.
    table = tabulate(
        [texts[0], line, *texts[1:]],
        tablefmt="plain",
        disable_numparse=True,
        colalign=(["left"] * len(headers) if align is None else list(align))[: len(line)],
    )
    return "\n".join(_with_lines(table.splitlines(), texts, below)).replace(_NO_BREAK, " ")


def whole(text: str) -> str:
    """A text that tables do not wrap, such as a value with its share."""
    return text.replace(" ", _NO_BREAK)


def _num_fitting(words: Sequence[int], width: int) -> int:
    """How many of the first columns a line has room for, with whole words; at least one."""
    ends = itertools.accumulate(word + _GAP for word in words)
    return max(1, sum(end - _GAP <= width for end in ends))


def _lines_below(rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """For each row, headers first, the lines of the columns for which there was no room, of cells
    that say something. Several have their header in each line, one has it below the others.
    """
    headers, *cells = rows
    names = [f"{header}: " if len(headers) > 1 else "" for header in headers]
    texts = [headers if len(headers) == 1 else (), *cells]
    return [
        [
            line
            for name, cell in zip(names, row, strict=False)
            if cell not in ("", "-")
            for line in _wrapped(f"{_INDENT}{name}{cell}", width, _INDENT + "  ").splitlines()
        ]
        for row in texts
    ]


def _with_lines(
    lines: Sequence[str], texts: Sequence[Sequence[str]], below: Sequence[Sequence[str]]
) -> Iterator[str]:
    """The lines of a table, with those below each row."""
    left = iter(lines)
    for i, (row, more) in enumerate(zip(texts, below, strict=True)):
        yield from itertools.islice(left, max(cell.count("\n") + 1 for cell in row))
        yield from more
        yield from itertools.islice(left, i == 0)  # the line below the headers


def telling_columns(
    headers: Sequence[str], rows: Sequence[Sequence[object]], width: int
) -> list[int]:
    """The positions of the columns that a line of `width` characters shows. Pure.

    All, if the table fits without wrapping a cell; otherwise those that are more than zeros in some
    row (`0`, `0.0%`, `0 of 17`, `-` or nothing). Of a table without rows, and if no column would be
    left, all.
    """
    every = list(range(len(headers)))
    texts = [list(headers), *(["" if cell is None else str(cell) for cell in row] for row in rows)]
    if not rows or sum(_longest(texts, str.splitlines)) + _GAP * (len(headers) - 1) <= width:
        return every
    zeros = [[cell in _ZEROS or cell.startswith("0 of ") for cell in row] for row in texts[1:]]
    return [i for i in every if not all(row[i] for row in zeros)] or every


def html_table(
    head: str,
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    foot: Sequence[str] = (),
) -> str:
    """A table of HTML, as a notebook shows it, between a paragraph and some more. Every text is
    escaped.
    """
    names = "".join(f"<th>{html.escape(name)}</th>" for name in headers)
    cells = ("".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    first, *last = (f"<p>{html.escape(text)}</p>" if text else "" for text in (head, *foot))
    return f"{first}<table><tr>{names}</tr>{body}</table>{''.join(last)}"


def short_names(names: Sequence[str]) -> str:
    """Names as a list that fits a line: the first six, and how many more there are."""
    shown = ", ".join(map(repr, names[:_NAMES]))
    more = len(names) - _NAMES
    return f"[{shown}, and {more:,} more]" if more > 0 else f"[{shown}]"


def column_widths(natural: Sequence[int], words: Sequence[int], width: int) -> list[int]:
    """The width of each column of a table whose lines have at most `width` characters. Pure.

    Columns wider than a common limit get the limit, or the width of their longest word. A single
    column is not wider than the line.

    Args:
        natural: The widths that the columns have without a limit.
        words: The length of the longest word in each column. They fit the line, if it is not one.
        width: The number of characters of a line.
    """
    room = width - _GAP * (len(natural) - 1)

    def limited(limit: int) -> list[int]:
        return [min(most, max(limit, least)) for least, most in zip(words, natural, strict=True)]

    limits = range(max(natural) + 1)
    largest = bisect_right(limits, room, key=lambda limit: sum(limited(limit))) - 1
    return limited(largest) if sum(words) <= room else [width]


def _longest(rows: Sequence[Sequence[str]], parts: Callable[[str], Sequence[str]]) -> list[int]:
    """The length of the longest part (line or word) in each column, at least 1."""
    return [
        max((len(part) for cell in column for part in parts(cell)), default=1)
        for column in zip(*rows, strict=True)
    ]


def _words(text: str) -> list[str]:
    """The parts between spaces and line breaks."""
    return text.replace("\n", " ").split(" ")


def _wrapped(cell: str, width: int, indent: str = "") -> str:
    """The cell on lines of at most `width` characters, from the second on indented. tabulate's own
    wrapping takes a cell such as `4,039` for a number, which it is not.
    """
    wrap = functools.partial(
        textwrap.wrap, width=width, subsequent_indent=indent, break_on_hyphens=False
    )
    lines: list[str] = []
    for line in cell.splitlines():
        parts = wrap(line, break_long_words=False)
        # A whole text that is longer than a line is wrapped at its spaces.
        fit = all(len(part) <= width for part in parts)
        lines += parts if fit else wrap(line.replace(_NO_BREAK, " "))
    return "\n".join(lines)
