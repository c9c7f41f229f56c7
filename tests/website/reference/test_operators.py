"""The page of operators has each one with its parameters."""

import pytest

from featstore.ops.registry import OPERATORS
from website.reference.operators import operators_page

PAGE = operators_page()


@pytest.mark.parametrize("name", OPERATORS)
def test_each_operator_is_there_with_its_params(name: str) -> None:
    section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    params = [*OPERATORS[name].params, *OPERATORS[name].frozen]
    assert "\nInputs: " in section
    assert [param for param in params if f"<code>{param}</code>" not in section] == []
