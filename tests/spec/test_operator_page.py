"""docs/operators.md names every operator, and its examples are specs."""

import re
from pathlib import Path

import pytest

from featstore.ops.registry import OPERATORS
from featstore.spec.graph import build_graph
from featstore.spec.parse import parse_spec

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_is_on_the_page_with_its_params(name: str) -> None:
    row = next(
        line
        for line in PAGE.splitlines()
        if line.startswith("| `") and f"`{name}`" in line.split("|")[1]
    )
    assert all(f"`{param}" in row for param in OPERATORS[name].params)


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(spec:.*?)```", PAGE, re.DOTALL))
def test_every_example_of_the_page_is_a_spec(example: str) -> None:
    assert build_graph(parse_spec(example)).schema.slots
