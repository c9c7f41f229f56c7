"""Options as a config or a caller gives them: objects, mappings, lists, functions."""

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from featstore.base.errors import ConfigError, nearest
from featstore.base.redaction import shown

Options = TypeVar("Options")


def as_options(
    kind: type[Options], value: Options | Mapping[str, Any] | None, what: str
) -> Options | None:
    """An options object as it is, or built from a mapping of its fields.

    Args:
        kind: The dataclass of the options.
        value: An object of it, a mapping, or None, which stays None.
        what: The argument's name, for errors.

    Raises:
        ConfigError: Not a mapping, or one with unknown keys.
    """
    if value is None or isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what}: expected keys of {kind.__name__}, found {shown(value)}")
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in value:
        if key not in known:
            raise ConfigError(
                f"{what}: unknown key {key!r}{nearest(str(key), known)}; there are "
                f"{', '.join(known)}"
            )
    return kind(**value)


def as_list(what: str, items: Any) -> list[Any]:
    """The items of a list in a config. ConfigError for text, a mapping, or what is no list."""
    if isinstance(items, str | Mapping) or not isinstance(items, Iterable):
        raise ConfigError(f"{what}: expected a list, found {items!r}")
    return list(items)


def require_keys(what: str, item: Mapping[str, Any], known: Collection[str]) -> str:
    """The name of an item that is a mapping. ConfigError where it has none, or unknown keys."""
    for key in item:
        if key not in known:
            raise ConfigError(
                f"{what}: unknown key {key!r} in {dict(item)}{nearest(str(key), known)}"
            )
    if not isinstance(item.get("name"), str):
        raise ConfigError(f"{what}: expected a name in {dict(item)}")
    return str(item["name"])


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
