"""Functions of the user's, as options name them."""

import math

import pytest

from featstore.base.errors import ConfigError
from featstore.loader.request.options import function_of


def test_a_function_is_taken_as_it_is_or_found_by_its_name() -> None:
    assert function_of("transform", math.sqrt) is math.sqrt
    assert function_of("transform", "math:sqrt") is math.sqrt


@pytest.mark.parametrize("name", ["math", "math:", ":sqrt", "math:no_such", "no_such_module:f"])
def test_a_name_that_leads_to_nothing_is_named_with_its_option(name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"on_stats: expected 'package.module:function', found {name!r}"
    ):
        function_of("on_stats", name)


@pytest.mark.parametrize("value", [3, "math:pi"])
def test_what_cannot_be_called_is_no_function(value: object) -> None:
    with pytest.raises(ConfigError, match="transform: expected a function, found"):
        function_of("transform", value)
