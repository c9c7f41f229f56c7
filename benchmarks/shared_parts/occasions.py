"""Keeps the runs of a benchmark in a data file, and shows the newest ones on the benchmark's page.

    python benchmarks/NAME.py > FILE
    python -m shared_parts.occasions NAME FILE [NOTE]   # in benchmarks/: adds the run, then renders
    python -m shared_parts.occasions [NAME]             # renders this page, or all of them

A comment on the page names the columns of the table that follows it, each with the path of its
figure in the `RESULT` line, and what is required of it, if anything:

    <!-- occasions
    of `ParquetFile`, 100 columns (required at most 1.5) = columns > 100 > ratio
    -->

A `*` in each path of a table (`peers > * > memory_mb`) stands for all keys that are there. The
table then shows the last of the runs that it would show, with a row for each key.

`occasions/NAME.jsonl` has a line for each run, with the figures that its page names. A table shows
one run on each CPU, of those that have more than half of its figures, or any if none has: the
newest that is quiet and of full size, else the newest of full size, else the newest. A run whose
CPU was not recorded is shown only where there is none of full size whose CPU is known. A run is
quiet if the load was at most 2.0 and no NOTE says what ran beside it.
"""

import json
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[1]
_COMMENT = re.compile(r"<!-- occasions\n(?P<figures>.*?)-->\n(?P<table>(?:\n?\|[^\n]*\n)*)", re.S)
_REQUIRED = re.compile(r"\s*\(required (.*?)\)")
_BETWEEN, _EACH = " > ", "*"
_QUIET_LOAD, _NO_CPU = 2.0, "CPU not recorded"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A line of a data file.

    Attributes:
        date: The day on which the run began.
        cpu: The model's name, or "CPU not recorded".
        load: The load average at the begin and the end, if it was recorded.
        small: Whether the run was smaller than the figures of record.
        quiet: Whether nothing else ran on the machine.
        note: What ran beside it, or what else sets the run apart.
        figures: Of each path that the page names.
    """

    date: str
    cpu: str
    load: Sequence[float] | None
    small: bool
    quiet: bool
    note: str
    figures: Mapping[str, Any]


def runs_of(name: str) -> list[Run]:
    """The recorded runs of a benchmark, in the order in which they were added."""
    lines = _data_file(name).read_text().splitlines() if _data_file(name).exists() else []
    return [Run(**json.loads(line)) for line in lines]


def run_from(page: str, lines: Iterable[str], note: str = "") -> Run:
    """The run that printed the lines, with the figures that the page names.

    A figure that is null was not measured, and is left out.

    Args:
        page: The text of the page, with a comment that names figures for each table.
        lines: What the benchmark printed.
        note: What ran beside it.

    Raises:
        ValueError: The page names no figures, the run did not end, or its result has no figure at
            a path that the page names.
    """
    tables = list(_COMMENT.finditer(page))
    if not tables:
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
    machine = result["machine"]
    named = [path for table in tables for path in _columns(table).values()]
    paths = [path for of in named for path in _paths(result, of)]
    return Run(
        date=machine["date"],
        cpu=machine["cpu"],
        load=machine["load_average"],
        small="--small" in machine["arguments"],
        quiet=max(machine["load_average"]) <= _QUIET_LOAD and not note,
        note=note,
        figures={path: found for path in paths if (found := at(result, path)) is not None},
    )


def rendered(page: str, runs: Sequence[Run]) -> str:
    """The page with its tables made from the runs.

    Args:
        page: The text of the page.
        runs: The recorded runs of the benchmark, older ones first where they have the same date.
    """
    return _COMMENT.sub(lambda found: _with_table(found, runs), page)


def _with_table(found: re.Match[str], runs: Sequence[Run]) -> str:
    columns = _columns(found)
    if any(_EACH in path for path in columns.values()):
        return f"<!-- occasions\n{found['figures']}-->\n\n{_of_each(columns, runs)}\n"
    required = [" ".join(_REQUIRED.findall(name)) for name in columns]
    rows = [["run", *(_REQUIRED.sub("", name) for name in columns)], ["---"] * (len(columns) + 1)]
    if any(required):
        rows.append(["required", *required])
    for run in _shown(runs, set(columns.values())):
        rows.append([_head(run), *(_cell(run.figures.get(path)) for path in columns.values())])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"<!-- occasions\n{found['figures']}-->\n\n{table}\n"


def _of_each(columns: Mapping[str, str], runs: Sequence[Run]) -> str:
    """A table with a row for each key that stands for the `*`."""
    places = {name: path.split(_EACH) for name, path in columns.items()}

    def keys_of(run: Run) -> list[str]:
        found = [
            path.removeprefix(before).partition(_BETWEEN)[0]
            for path in run.figures
            for before, _ in places.values()
            if path.startswith(before)
        ]
        return list(dict.fromkeys(found))

    paths = {
        before + key + after
        for run in runs
        for key in keys_of(run)
        for before, after in places.values()
    }
    shown = _shown(runs, paths)
    if not shown:
        return ""
    run = shown[-1]
    rows = [[_head(run), *columns], ["---"] * (len(columns) + 1)]
    for key in keys_of(run):
        figures = [run.figures.get(before + key + after) for before, after in places.values()]
        if any(figure is not None for figure in figures):
            rows.append([key, *map(_cell, figures)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _paths(result: Any, path: str) -> list[str]:
    """The paths that a path with `*` stands for, or itself."""
    if _EACH not in path:
        return [path]
    before, after = path.split(_EACH)
    each = at(result, before.removesuffix(_BETWEEN))
    return [before + key + after for key in each if _has(each[key], after.removeprefix(_BETWEEN))]


def _has(found: Any, path: str) -> bool:
    return path.split(_BETWEEN)[0] in _candidates(found, path.split(_BETWEEN)[0])


def _columns(found: re.Match[str]) -> dict[str, str]:
    """The path of each column that a comment names."""
    lines = filter(str.strip, found["figures"].splitlines())
    return dict([part.strip() for part in line.rsplit("=", 1)] for line in lines)


def _shown(runs: Iterable[Run], paths: Set[str]) -> list[Run]:
    def rank(run: Run) -> tuple[bool, bool, bool, str]:
        num_there = len(run.figures.keys() & paths)
        return 2 * num_there > len(paths), not run.small, run.quiet, run.date

    of_table = [run for run in runs if run.figures.keys() & paths]
    by_cpu = {run.cpu: run for run in sorted(of_table, key=rank)}  # the last one stays
    if any(not run.small and cpu != _NO_CPU for cpu, run in by_cpu.items()):
        by_cpu.pop(_NO_CPU, None)
    return sorted(by_cpu.values(), key=lambda run: (run.date, run.cpu))


def at(result: Any, path: str) -> Any:
    """The figure at a path such as `columns > 100 > ratio`.

    Args:
        result: A benchmark's result.
        path: Keys, with ` > ` between them. In a list: a number, `KEY:VALUE` of the first element
            that has it, or `median` of numbers. Of a number: `MB`.

    Raises:
        ValueError: There is none; the message names what there is.
    """
    found = result
    for step in path.split(_BETWEEN):
        candidates = _candidates(found, step)
        if step not in candidates:
            there = ", ".join(candidates) or found
            raise ValueError(f"figure {path!r}: expected {step!r}, found {there}")
        found = candidates[step]
    return found


def _candidates(found: Any, step: str) -> dict[str, Any]:
    if isinstance(found, Mapping):
        return {str(key): value for key, value in found.items()}
    if isinstance(found, int | float):
        return {"MB": round(found / 1e6)}
    if not isinstance(found, list):
        return {}
    key, _, value = step.partition(":")
    numbered = {str(number): element for number, element in enumerate(found)}
    named = [one for one in found if isinstance(one, Mapping) and str(one.get(key)) == value]
    is_numbers = bool(found) and all(isinstance(one, int | float) for one in found)
    median = {"median": statistics.median(found)} if is_numbers else {}
    return numbered | median | ({step: named[0]} if named else {})


def _head(run: Run) -> str:
    load = f", load {run.load[0]} to {run.load[1]}" if run.load else ""
    return f"{run.date}, {run.cpu}{load}{', --small' if run.small else ''}"


def _cell(figure: Any) -> str:
    if isinstance(figure, list):
        return ", ".join(map(_cell, figure))
    return f"{figure:.4g}" if isinstance(figure, float) else "" if figure is None else str(figure)


def _data_file(name: str) -> Path:
    return PAGES / "occasions" / f"{name}.jsonl"


def main(arguments: Sequence[str]) -> None:
    """Renders a page, or all; with a second argument it first adds the run that printed that file."""
    if len(arguments) > 1:
        name, output, *note = arguments
        page = (PAGES / f"{name}.md").read_text()
        run = run_from(page, Path(output).read_text().splitlines(), *note)
        with _data_file(name).open("a") as file:
            file.write(f"{json.dumps(asdict(run))}\n")
    for name in arguments[:1] or sorted(path.stem for path in PAGES.glob("occasions/*.jsonl")):
        path = PAGES / f"{name}.md"
        path.write_text(rendered(path.read_text(), runs_of(name)))


if __name__ == "__main__":
    main(sys.argv[1:])
