"""Byte budgets: deciding what fits and what must be evicted. Pure functions."""

from collections.abc import Callable, Iterable

from featstore.base.errors import BudgetError
from featstore.base.redaction import redact


def format_bytes(num_bytes: int) -> str:
    """A size for messages, rounded and exact: `1.5 GB (1500000000 bytes)`."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.4g} {unit} ({num_bytes} bytes)"
    return f"{num_bytes} bytes"


def require_fits(files: Iterable[tuple[str, int]], budget_bytes: int, *, num_open: int = 1) -> None:
    """Checks, before anything is downloaded, that the budget holds the largest files at once.

    Args:
        files: URLs and sizes in bytes of all files.
        budget_bytes: The budget.
        num_open: How many files the reader holds at the same time.

    Raises:
        BudgetError: The `num_open` largest files do not fit. Names the largest of them.
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
        f"staging.budget_bytes is {format_bytes(budget_bytes)}, but file {redact(name)} has "
        f"{format_bytes(size_bytes)}{several}; raise the budget, or use staging mode ranges"
    )


def excess(
    num_bytes: int,
    *,
    used_bytes: int,
    unwritten_bytes: int,
    free_bytes: int,
    budget_bytes: int,
    min_free_bytes: int,
) -> int:
    """How many bytes must be evicted before `num_bytes` more may be reserved.

    Args:
        num_bytes: The size of the new reservation.
        used_bytes: What is reserved of the budget.
        unwritten_bytes: What of that is not written yet, and so not taken of the free space.
        free_bytes: Free space of the disk.
        budget_bytes: The budget.
        min_free_bytes: Free space to leave on the disk; 0 ignores the disk.

    Returns:
        A number of bytes; 0 or less if the reservation fits.
    """
    over_budget_bytes = used_bytes + num_bytes - budget_bytes
    if not min_free_bytes:
        return over_budget_bytes
    # Reserved and unwritten bytes still count as free at the disk, and will not be.
    return max(over_budget_bytes, min_free_bytes + unwritten_bytes + num_bytes - free_bytes)


def choose_evictions(
    files: Iterable[str], bytes_of: Callable[[str], int], excess_bytes: int
) -> tuple[str, ...] | None:
    """The names of the first files that together free `excess_bytes`.

    Args:
        files: Files in the order of their eviction. No more are drawn than needed, because to draw
            one may take system calls.
        bytes_of: How much of the budget a file takes.
        excess_bytes: The bytes to free.

    Returns:
        The names; None if all files together are too small.
    """
    chosen, files = list[str](), iter(files)
    while excess_bytes > 0 and (file := next(files, None)) is not None:
        chosen.append(file)
        excess_bytes -= bytes_of(file)
    return tuple(chosen) if excess_bytes <= 0 else None
