"""Byte budgets: reading them from options, and deciding what fits, what must go and how far ahead
to fetch. Pure.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from featstore.errors import BudgetError, ConfigError

_UNITS = (
    {"": 1, "b": 1}
    | {f"{p}b": 1000**n for n, p in enumerate("kmgt", 1)}
    | {f"{p}ib": 1024**n for n, p in enumerate("kmgt", 1)}
)
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(value: int | str, option: str = "bytes") -> int:
    """A number of bytes from a number or a text such as `200GB` (powers of 1000) or `4 GiB` (powers
    of 1024).

    ConfigError, naming `option`, for anything that is not at least 1 byte.
    """
    found = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool):
        num_bytes = value
    elif found and found.group(2).lower() in _UNITS:
        num_bytes = int(float(found.group(1)) * _UNITS[found.group(2).lower()])
    else:
        num_bytes = 0
    if num_bytes < 1:
        raise ConfigError(
            f"{option}: expected a number of bytes above 0, or text such as 200GB or 4GiB, found "
            f"{value!r}"
        )
    return num_bytes


def format_bytes(num_bytes: int) -> str:
    """The number with its exact count, for messages: `1.5 GB (1500000000 bytes)`."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.4g} {unit} ({num_bytes} bytes)"
    return f"{num_bytes} bytes"


def require_fits(files: Iterable[tuple[str, int]], budget_bytes: int, *, num_open: int = 1) -> None:
    """Checks before anything is downloaded that the budget holds the `num_open` largest of `files`
    (name, bytes) at once.

    `num_open` is how many files the reader holds at the same time. BudgetError names the largest
    file, its size and the budget.
    """
    largest = sorted(files, key=lambda file: file[1], reverse=True)[:num_open]
    needed_bytes = sum(size_bytes for _, size_bytes in largest)
    if needed_bytes <= budget_bytes:
        return
    name, size_bytes = largest[0]
    several = (
        f", and the {len(largest)} files that are open at once need {format_bytes(needed_bytes)}"
        if len(largest) > 1
        else ""
    )
    raise BudgetError(
        f"staging.budget_bytes is {format_bytes(budget_bytes)}, but file {name} has "
        f"{format_bytes(size_bytes)}{several}; "
        "raise the budget, or use staging mode direct"
    )


@dataclass(frozen=True, kw_only=True)
class CachedFile:
    """A file of the cache, and what it takes of the budget."""

    name: str
    size_bytes: int


def excess(
    num_bytes: int,
    *,
    used_bytes: int,
    unwritten_bytes: int,
    free_bytes: int,
    budget_bytes: int,
    min_free_bytes: int,
) -> int:
    """How many bytes must go before `num_bytes` more may be reserved; 0 or less where they fit.

    `used_bytes` of the budget are reserved, `unwritten_bytes` of these not yet written to a disk
    that has `free_bytes`.
    """
    over_budget_bytes = used_bytes + num_bytes - budget_bytes
    if not min_free_bytes:
        return over_budget_bytes
    return max(over_budget_bytes, min_free_bytes + unwritten_bytes + num_bytes - free_bytes)


def choose_evictions(files: Iterable[CachedFile], excess_bytes: int) -> tuple[str, ...] | None:
    """The first of the files, which come in the order in which they may go, that together free
    `excess_bytes`; None where all do not. No more are drawn than that takes."""
    chosen, files = list[str](), iter(files)
    while excess_bytes > 0 and (file := next(files, None)) is not None:
        chosen.append(file.name)
        excess_bytes -= file.size_bytes
    return tuple(chosen) if excess_bytes <= 0 else None


@dataclass(frozen=True, kw_only=True)
class StageAheadLimit:
    """How much may be staged and waiting for the reader; a single file is always let through."""

    max_bytes: int
    max_files: int

    def has_room(self, num_files: int, num_bytes: int, next_bytes: int = 0) -> bool:
        """Whether a file of `next_bytes` may join `num_files` that wait with `num_bytes`."""
        return num_files == 0 or (
            num_files < self.max_files and num_bytes + next_bytes <= self.max_bytes
        )
