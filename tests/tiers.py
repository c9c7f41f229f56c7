"""Which tests are left to `make test-all`."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def tiered(values: Iterable[Any], is_slow: Callable[[Any], bool]) -> list[Any]:
    """Values for `pytest.mark.parametrize`, those that are slow with that mark."""
    return [
        pytest.param(value, marks=pytest.mark.slow) if is_slow(value) else value for value in values
    ]
