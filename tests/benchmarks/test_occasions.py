"""The table of occasions on a benchmark's page."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from shared_parts.machine import machine
from shared_parts.occasions import at, with_occasion

PAGE = """\
# A benchmark

<!-- occasions
of the floor, 100 columns = columns > 100 > ratio
epoch = sides > name:featstore > seconds
-->

What follows.
"""


def _told(
    ratio: float, seconds: float, *arguments: str, date: str = "2026-11-27", cpu: str = "Some CPU"
) -> list[str]:
    result = {
        "columns": {"100": {"ratio": ratio}},
        "sides": [{"name": "other", "seconds": 9.0}, {"name": "featstore", "seconds": seconds}],
        "machine": {
            "date": date,
            "cpu": cpu,
            "load_average": [0.5, 1.25],
            "arguments": list(arguments),
        },
    }
    return ["a line", "machine: ...", f"RESULT {json.dumps(result)}"]


def _rows(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("|")]


def test_the_first_run_makes_the_table_after_the_comment() -> None:
    page = with_occasion(PAGE, _told(0.77512, 12.0))
    assert _rows(page) == [
        "| run | of the floor, 100 columns | epoch |",
        "| --- | --- | --- |",
        "| 2026-11-27, Some CPU, load 0.5 to 1.25 | 0.7751 | 12 |",
    ]
    assert page.startswith(PAGE.partition("-->")[0])
    assert page.endswith("|\n\nWhat follows.\n")


def test_earlier_runs_stay_also_rows_written_by_hand() -> None:
    page = with_occasion(PAGE, _told(0.9, 3.0, date="2026-11-24"))
    page = page.replace("3 |\n", "3 |\n| 2026-11-25, by hand | 1.5 | not run |\n")
    page = with_occasion(page, _told(1.25, 2.0))
    assert _rows(page)[2:] == [
        "| 2026-11-24, Some CPU, load 0.5 to 1.25 | 0.9 | 3 |",
        "| 2026-11-25, by hand | 1.5 | not run |",
        "| 2026-11-27, Some CPU, load 0.5 to 1.25 | 1.25 | 2 |",
        "| least to most | 0.9 to 1.5 | 2 to 3 |",
    ]
    assert page.count("What follows.") == 1


def test_small_runs_have_a_range_of_their_own() -> None:
    page = PAGE
    for run in (_told(1.0, 5.0), _told(2.0, 1.0, "--small"), _told(3.0, 2.0, "--small")):
        page = with_occasion(page, run)
    assert _rows(page)[4:] == [
        "| 2026-11-27, Some CPU, load 0.5 to 1.25, --small | 3 | 2 |",
        "| least to most, --small | 2 to 3 | 1 to 2 |",
    ]
    assert "| least to most | 1 to 4 | 5 to 6 |" in with_occasion(page, _told(4.0, 6.0))


def test_each_table_of_a_page_has_the_run() -> None:
    second = "\nMore.\n\n<!-- occasions\nx = columns > 100 > ratio\n-->\n"
    page = with_occasion(with_occasion(PAGE + second, _told(1.0, 5.0)), _told(2.0, 5.0))
    assert [row for row in _rows(page) if " 2 |" in row and "least" not in row] == [
        "| 2026-11-27, Some CPU, load 0.5 to 1.25 | 2 | 5 |",
        "| 2026-11-27, Some CPU, load 0.5 to 1.25 | 2 |",
    ]


def test_an_unfinished_run_is_no_occasion() -> None:
    with pytest.raises(ValueError, match=r"expected a line 'RESULT \{json\}'"):
        with_occasion(PAGE, ["machine: x"])


def test_a_page_that_names_no_figures_is_told() -> None:
    with pytest.raises(ValueError, match="expected a comment '<!-- occasions'"):
        with_occasion("# A page\n", _told(1.0, 1.0))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("columns > 200 > ratio", "expected '200', found 100"),
        ("columns > 100 > ratio > x", "expected 'x', found 1.0"),
        ("sides > name:nobody > seconds", "expected 'name:nobody', found 0, 1"),
    ],
)
def test_a_figure_that_is_not_there_is_named(path: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_occasion(PAGE.replace("columns > 100 > ratio", path), _told(1.0, 1.0))


def test_a_figure_in_a_list_is_found_by_its_number_and_numbers_have_a_median() -> None:
    found: Any = {"list": [{"x": 1}, {"x": 2}], "numbers": [5.0, 1.0, 3.0]}
    assert at(found, "list > 1 > x") == 2
    assert at(found, "numbers > median") == 3.0


def test_what_a_benchmark_says_of_its_machine_is_enough() -> None:
    result = {"columns": {"100": {"ratio": 1.0}}, "sides": [{"name": "featstore", "seconds": 1}]}
    told = asdict(machine())
    lines = [f"RESULT {json.dumps(result | {'machine': told})}"]
    assert f"| {told['date']}, {told['cpu']}, load " in with_occasion(PAGE, lines)


def test_every_page_that_names_figures_can_be_read() -> None:
    pages = list((Path(__file__).parents[2] / "benchmarks").glob("*.md"))
    assert pages
    for page in pages:
        text = page.read_text()
        if "<!-- occasions" in text:
            with pytest.raises(ValueError, match="RESULT"):
                with_occasion(text, [])
