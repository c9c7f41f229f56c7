"""The page of Python has each public name with its parameters."""

import inspect

import pytest

import featstore
from website.reference import api
from website.reference.api import api_page, public_methods

PAGE = api_page()
NAMES = [name for name in featstore.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_there_with_its_methods_and_parameters(name: str) -> None:
    section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    value = getattr(featstore, name)
    assert section
    if inspect.isfunction(value):
        assert [each for each in inspect.signature(value).parameters if each not in section] == []
    if inspect.isclass(value):
        assert [m for m, _ in public_methods(value) if f"### {name}.{m}\n" not in section] == []


def test_arguments_of_docstrings_become_tables() -> None:
    assert "### FeatureLoader.load_state_dict" in PAGE
    assert "**Args**" in PAGE
    assert "**Raises**" in PAGE
    assert "\nArgs:\n" not in PAGE


def test_a_section_that_has_no_form_here_is_refused() -> None:
    def strange() -> None:
        """One line.

        Warns:
            UserWarning: Always.
        """

    with pytest.raises(ValueError, match=r"found warns in that of .*strange"):
        api._docstring(strange)
