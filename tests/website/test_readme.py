"""The README is short, and its figures are those of the page of all figures."""

import re
from pathlib import Path

from website.links import lines_outside_code

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_it_has_at_most_500_words() -> None:
    prose = "".join(line for line, outside in lines_outside_code(README) if outside)
    assert len(re.sub(r"\]\([^)]*\)", "]", prose).split()) <= 500


def test_its_figures_are_those_of_the_page_of_all_figures() -> None:
    measured = (ROOT / "docs" / "measured.md").read_text()
    table = README.partition("| what | AMD EPYC | Intel Xeon |\n")[2].partition("\n\n")[0]
    rows = [" ".join(line.split("|")[2:]) for line in table.splitlines()[1:]]
    figures = re.findall(r"\d+(?:[.-]\d+)?(?: to \d+\.?\d*)?", " ".join(rows))
    assert len(rows) == 5
    assert len(figures) >= 6
    assert [figure for figure in figures if figure not in measured] == []


def test_continuous_integration_runs_its_two_commands() -> None:
    """`make test` is `make test-all` without the tests that are slow."""
    commands = re.findall(r"^make [a-z-]+", README, re.MULTILINE)
    run = (ROOT / ".ci" / "run").read_text()
    assert commands == ["make demo", "make test"]
    assert re.findall(r"^make (?:demo|test-all)\b", run, re.MULTILINE) == [
        "make demo",
        "make test-all",
    ]
