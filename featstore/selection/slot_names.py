"""Selects slots by names and globs."""

import fnmatch
from collections.abc import Iterable, Sequence

from featstore.base.errors import SelectionError, nearest
from featstore.base.text_table import short_names


def select(patterns: Iterable[str], names: Sequence[str]) -> tuple[str, ...]:
    """Resolves patterns to names.

    Args:
        patterns: Names and globs.
        names: All known names.

    Returns:
        The matching names, each once: in the order of the patterns, and for a glob in the order of
        `names`.

    Raises:
        SelectionError: A pattern matches no name. The message suggests the nearest names.
    """
    chosen: dict[str, None] = {}
    for pattern in patterns:
        found = matching(pattern, names)
        if not found:
            listed = " (give each name by itself)" if "," in pattern else ""
            raise SelectionError(
                f"no slot matches {pattern!r}{listed} among {len(names)} slots"
                f"{nearest(pattern, names)}; there are {short_names(names)}"
            )
        chosen.update(dict.fromkeys(found))
    return tuple(chosen)


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """The name itself, or all names that a glob matches."""
    if pattern in names:
        return [pattern]
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]
