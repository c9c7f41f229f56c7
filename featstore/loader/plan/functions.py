"""Options that are a function of the user's, or its name."""

import importlib
from collections.abc import Callable
from typing import Any

from featstore.base.errors import ConfigError


def function_of(option: str, value: object) -> Callable[..., Any]:
    """The function that an option names.

    Args:
        option: The option's name, for errors.
        value: A function, or `package.module:function`.

    Raises:
        ConfigError: It cannot be imported, or not called.
    """
    found: Any = value
    if isinstance(value, str):
        module, _, name = value.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"{option}: expected 'package.module:function', found {value!r}: {error}"
            ) from error
    if not callable(found):
        raise ConfigError(f"{option}: expected a function, found {value!r}")
    function: Callable[..., Any] = found
    return function
