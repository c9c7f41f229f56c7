"""Shows what a command found: as text that fits the terminal, or as JSON."""

import dataclasses
import json
import math
import shutil
import sys
from collections.abc import Mapping
from typing import Any

import click


def show(report: Any, *, as_json: bool = False, err: bool = False) -> None:
    """Prints a report.

    Args:
        report: Text, or an object that is printed by `str()`. One with tables has a method
            `text(width)` besides. Its form in JSON is that of its method `as_dict()`, or that of
            its fields if it has none.
        as_json: Whether to print JSON.
        err: Whether to print text on standard error. JSON is always on standard output.
    """
    if as_json:
        has_form = hasattr(report, "as_dict")
        click.echo(to_json(report.as_dict() if has_form else dataclasses.asdict(report)))
    elif hasattr(report, "text"):
        click.echo(report.text(terminal_width()), err=err)
    else:
        click.echo(report, err=err)


def terminal_width() -> int | None:
    """The columns of the terminal; None if standard output is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def to_json(content: object) -> str:
    """JSON on one line. Numbers that JSON does not have (NaN, infinities) become null, and dates
    and other values text.
    """
    return json.dumps(_plain(content), ensure_ascii=False, allow_nan=False, default=str)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
