"""What is run under failing calls, and what is told of it."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from featstore.tools.cli.program import main
from tests.faults.failing_calls.forked import Ending
from tests.faults.failing_calls.reader import Content

Rows = list[Any]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A command, or an epoch.

    Attributes:
        name: Its name.
        prepare: Makes what it starts from, in an empty directory.
        act: Runs it there, and adds what it delivers to a list.
        read: What it leaves there, by the reader of our own.
        prints: Whether what it prints is its result.
        is_rising: Whether it may commit a part of its partitions before it fails.
        may_be_absent: Whether a part without input is left as it was: then an input that is said
            not to be there (ENOENT) is not.
        exit_code: How a clean run ends.
        removes: Whether it only removes files: what it leaves behind is not wrong.
        judge: What is wrong with what was delivered, by what a clean run delivers.
    """

    name: str
    prepare: Callable[[Path], object]
    act: Callable[[Path, Rows], object]
    read: Callable[[Path], Content]
    prints: bool = False
    is_rising: bool = False
    may_be_absent: bool = False
    exit_code: int = 0
    removes: bool = False
    judge: Callable[[Rows, Ending], str | None] | None = None


def run_command(*arguments: object) -> None:
    """Runs a command of featstore in this process."""
    sys.argv = ["featstore", *map(str, arguments)]
    main()


def in_order(clean: Rows, ending: Ending) -> str | None:
    """All rows in their order; or, with an error, those that came before it."""
    got = ending.delivered
    if got == (clean if ending.code == 0 else clean[: len(got)]):
        return None
    return f"{len(got)} rows of {len(clean)}{', others' if len(got) == len(clean) else ''}"


def in_any_order(clean: Rows, ending: Ending) -> str | None:
    """All rows; or, with an error, no row more than once."""
    got, wanted = Counter(map(repr, ending.delivered)), Counter(map(repr, clean))
    if (got == wanted) if ending.code == 0 else (got <= wanted):
        return None
    return f"{got.total()} rows of {wanted.total()}, {(got & wanted).total()} of them right"


def normal(text: str, root: Path) -> str:
    """What is printed, without what differs between two runs."""
    text = text.replace(str(root), "ROOT")
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?", "TIME", text)
    text = re.sub(r"\b[0-9a-f]{8,64}\b", "HASH", text)
    return re.sub(r"\d[\d.,]* ?(ms|us|s|rows/s|MB/s)\b", "SECONDS", text)


def differs(found: Content, clean: Sequence[Content], *, by_part: bool) -> str | None:
    """How what there is differs from each of what there may be; with `by_part`, each part may be
    as in any of them.
    """
    if found in clean:
        return None
    if "unreadable" in found:
        return f"unreadable: {found['unreadable']}"
    names = sorted({name for content in (found, *clean) for name in content})
    others = [
        name for name in names if all(found.get(name) != content.get(name) for content in clean)
    ]
    if by_part and not others:
        return None
    name = next(iter(others), names[0] if names else "")
    return f"{name}: found {_short(found.get(name))}, expected {_short(clean[-1].get(name))}"


def _short(part: Any) -> str:
    if isinstance(part, dict):
        return "{" + ", ".join(f"{key}: {_short(value)}" for key, value in part.items()) + "}"
    return f"{len(part)} rows" if isinstance(part, list) else str(part)
