"""Tables of text that fit a terminal: the widest columns are wrapped first."""

from collections.abc import Sequence

from tabulate import tabulate

_GAP = 2  # spaces between columns
_PADDING = 2  # tabulate makes each column so much wider than its header
_LEAST = 8  # a column is not made narrower than this


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
    if not rows:
        width = None  # tabulate cannot wrap without rows
    widths = None if width is None else column_widths(_natural(rows, headers), width)
    return tabulate(
        rows,
        headers=list(headers),
        disable_numparse=True,
        colalign=None if align is None or not rows else list(align),
        maxcolwidths=widths,
        maxheadercolwidths=None if widths is None else [each - _PADDING for each in widths],
    )


def column_widths(natural: Sequence[int], width: int) -> list[int]:
    """The width of each column of a table whose lines have at most `width` characters. Pure.

    Columns narrower than a common limit keep their width, and the others get the limit. It is the
    largest one that fits, but at least 8: a table of many columns may be wider than `width`.

    Args:
        natural: The widths that the columns have without a limit.
        width: The number of characters of a line.
    """
    room = width - _GAP * (len(natural) - 1)
    limit, num_wider = room, len(natural)
    for natural_width in sorted(natural):
        limit = room // num_wider
        if natural_width > limit:
            break
        room -= natural_width
        num_wider -= 1
    else:
        return list(natural)
    return [min(natural_width, max(limit, _LEAST)) for natural_width in natural]


def _natural(rows: Sequence[Sequence[object]], headers: Sequence[str]) -> list[int]:
    columns = zip(*rows, strict=True)
    return [
        max(len(header) + _PADDING, *(len(str(cell)) for cell in column if cell is not None), 1)
        for header, column in zip(headers, columns, strict=True)
    ]
