"""Functions before or after whose calls a test does something else."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def preceded(function: Callable[P, R], act: Callable[[], object]) -> Callable[P, R]:
    """The function, before which `act` is called each time; `functools.cache` makes it once."""

    def both(*arguments: P.args, **options: P.kwargs) -> R:
        act()
        return function(*arguments, **options)

    return both


def followed(function: Callable[P, R], act: Callable[[], object]) -> Callable[P, R]:
    """The function, after which `act` is called each time."""

    def both(*arguments: P.args, **options: P.kwargs) -> R:
        found = function(*arguments, **options)
        act()
        return found

    return both
