"""Adds a run of a benchmark to the table of occasions on the benchmark's page.

    python benchmarks/NAME.py > FILE
    python -m shared_parts.occasions NAME FILE     # in benchmarks/

The page says in a comment which figures of the `RESULT` line the table keeps, a line for each
column, with the path of its figure. The table follows the comment:

    <!-- occasions
    of `ParquetFile`, 100 columns = columns > 100 > ratio
    -->

A page may have several such tables. Each run is a row, and the last rows tell the least and the most
of all runs of a size. Rows may also be
written by hand, and stay as they are.
"""

import json
import re
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_PAGES = Path(__file__).parents[1]
_COMMENT = re.compile(r"<!-- occasions\n(?P<figures>.*?)-->\n(?P<table>(?:\n?\|[^\n]*\n)*)", re.S)
_SUMMARY, _SMALL = "least to most", "--small"


def with_occasion(page: str, lines: Iterable[str]) -> str:
    """The page with one more row in each of its tables, for the run that printed the lines.

    Args:
        page: The text of the page, with a comment that names figures for each table.
        lines: What the benchmark printed.

    Raises:
        ValueError: The page names no figures, the run did not end, or its result has no figure at
            a path that the page names.
    """
    if _COMMENT.search(page) is None:
        raise ValueError(
            "expected a comment '<!-- occasions' on the page that names figures, found none; "
            "see shared_parts/occasions.py"
        )
    results = [line for line in lines if line.startswith("RESULT ")]
    if not results:
        raise ValueError(
            "expected a line 'RESULT {json}' in the benchmark's output, found none; let it finish"
        )
    result = json.loads(results[-1].removeprefix("RESULT "))
    return _COMMENT.sub(lambda found: _with_row(found, result), page)


def _with_row(found: re.Match[str], result: Mapping[str, Any]) -> str:
    paths = dict(
        [part.strip() for part in line.rsplit("=", 1)]
        for line in found["figures"].splitlines()
        if line.strip()
    )
    rows = [row for row in _cells(found["table"])[2:] if not row[0].startswith(_SUMMARY)]
    rows.append([_head(result["machine"]), *(_told(at(result, path)) for path in paths.values())])
    heads = [["run", *paths], ["---"] * (len(paths) + 1)]
    table = "\n".join(map(_row, [*heads, *rows, *_summary(rows)]))
    return f"<!-- occasions\n{found['figures']}-->\n\n{table}\n"


def at(result: Any, path: str) -> Any:
    """The figure at a path such as `columns > 100 > ratio`.

    Args:
        result: A benchmark's result.
        path: Keys, with ` > ` between them. In a list: a number, `KEY:VALUE` of the first element
            that has it, or `median` of numbers.

    Raises:
        ValueError: There is none; the message names what there is.
    """
    found = result
    for step in path.split(" > "):
        candidates = _candidates(found, step)
        if step not in candidates:
            there = ", ".join(candidates) or found
            raise ValueError(f"figure {path!r}: expected {step!r}, found {there}")
        found = candidates[step]
    return found


def _candidates(found: Any, step: str) -> dict[str, Any]:
    if isinstance(found, Mapping):
        return {str(key): value for key, value in found.items()}
    if not isinstance(found, list):
        return {}
    key, _, value = step.partition(":")
    numbered = {str(number): element for number, element in enumerate(found)}
    named = [one for one in found if isinstance(one, Mapping) and str(one.get(key)) == value]
    is_numbers = bool(found) and all(isinstance(one, int | float) for one in found)
    median = {"median": statistics.median(found)} if is_numbers else {}
    return numbered | median | ({step: named[0]} if named else {})


def _head(machine: Mapping[str, Any]) -> str:
    begin, end = machine["load_average"]
    small = f", {_SMALL}" if _SMALL in machine["arguments"] else ""
    return f"{machine['date']}, {machine['cpu']}, load {begin} to {end}{small}"


def _told(figure: Any) -> str:
    if isinstance(figure, list):
        return ", ".join(map(_told, figure))
    return f"{figure:.4g}" if isinstance(figure, float) else str(figure)


def _summary(rows: list[list[str]]) -> list[list[str]]:
    full = [row for row in rows if _SMALL not in row[0]]
    small = [row for row in rows if _SMALL in row[0]]
    return [
        [f"{_SUMMARY}{kind}", *map(_range, zip(*(row[1:] for row in of), strict=True))]
        for kind, of in (("", full), (f", {_SMALL}", small))
        if len(of) > 1
    ]


def _range(column: Iterable[str]) -> str:
    figures = sorted((float(cell), cell) for cell in column if re.fullmatch(r"-?[\d.]+", cell))
    return f"{figures[0][1]} to {figures[-1][1]}" if figures else ""


def _cells(table: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in table.splitlines()
        if line.strip()
    ]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    of = _PAGES / f"{sys.argv[1]}.md"
    of.write_text(with_occasion(of.read_text(), Path(sys.argv[2]).read_text().splitlines()))
