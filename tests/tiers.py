"""The tests that only `make test-all` runs."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def tiered(values: Iterable[Any], is_slow: Callable[[Any], bool]) -> list[Any]:
    """Values for `pytest.mark.parametrize`, of which the slow ones are marked."""
    return [
        pytest.param(value, marks=pytest.mark.slow) if is_slow(value) else value for value in values
    ]
