"""Tables of text that fit a terminal, where the widest columns are wrapped first, at spaces; and
tables of HTML.
"""

import html
import textwrap
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from tabulate import tabulate

_GAP = 2  # spaces between columns
_LEAST = 8  # a column is not made narrower than this
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
            wrapped so that the table fits. None sets no limit.
    """
    texts = [list(headers), *(["" if cell is None else str(cell) for cell in row] for row in rows)]
    if width is not None:
        widths = column_widths(_longest(texts, str.splitlines), _longest(texts, str.split), width)
        texts = [list(map(_wrapped, row, widths)) for row in texts]
    line = ["-" * size for size in _longest(texts, str.splitlines)]
    # Headers are the first row, since tabulate makes a column of a header wider than it.
    return tabulate(
        [texts[0], line, *texts[1:]],
        tablefmt="plain",
        disable_numparse=True,
        colalign=["left"] * len(headers) if align is None else list(align),
    )


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
    return [i for i in every if any(not _is_zero(row[i]) for row in texts[1:])] or every


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

    If all columns can be as wide as their longest word, no word is broken: columns wider than a
    common limit get the limit, or the width of that word. Otherwise columns are as wide as their
    longest word up to a common limit. It is at least 8: a table of many columns may be wider than
    `width`.

    Args:
        natural: The widths that the columns have without a limit.
        words: The length of the longest word in each column.
        width: The number of characters of a line.
    """
    room = width - _GAP * (len(natural) - 1)
    are_whole = sum(words) <= room
    bounds = list(zip(words, natural, strict=True)) if are_whole else [(0, word) for word in words]

    def limited(limit: int) -> list[int]:
        return [min(most, max(limit, least)) for least, most in bounds]

    limits = range(max(natural) + 1)
    largest = bisect_right(limits, room, key=lambda limit: sum(limited(limit))) - 1
    return limited(largest if are_whole else max(largest, _LEAST))


def _longest(rows: Sequence[Sequence[str]], parts: Callable[[str], Sequence[str]]) -> list[int]:
    """The length of the longest part (line or word) in each column, at least 1."""
    return [
        max((len(part) for cell in column for part in parts(cell)), default=1)
        for column in zip(*rows, strict=True)
    ]


def _is_zero(cell: str) -> bool:
    return cell in _ZEROS or cell.startswith("0 of ")


def _wrapped(cell: str, width: int) -> str:
    """The cell on lines of at most `width` characters. tabulate's own wrapping takes a cell such as
    `4,039` for a number, which it is not.
    """
    return "\n".join(
        part
        for line in cell.splitlines()
        for part in textwrap.wrap(line, width, break_on_hyphens=False)
    )
