"""Files that are read no further once an iteration is closed."""

from pathlib import Path
from typing import BinaryIO

from featstore.loader.budget import Budget
from featstore.reading.footer import Footer


class Stopped(RuntimeError):
    """Nobody wants what is being read. Seen by no consumer: it has closed the iteration."""


class StoppingFooter(Footer):
    """A file whose columns are read until the budget is closed, then Stopped: whoever closes an iteration waits for the thread
    that decodes, and so for a column at most instead of a row group."""

    def __init__(self, source: Path | BinaryIO, name: str, budget: Budget) -> None:
        super().__init__(source, name)
        self._budget = budget

    def bytes_at(self, first: int, end: int) -> bytes:
        if self._budget.is_closed:
            raise Stopped(f"{self.name}: the iteration was closed")
        return super().bytes_at(first, end)
