"""Files that are read no further once an iteration is closed."""

from pathlib import Path
from typing import BinaryIO

from featstore.errors import StateError
from featstore.loader.rows.memory_budget import CLOSED, Budget
from featstore.loader.rows.resolved import Resolved
from featstore.reading.footer import FileColumns, Footer, Selection


class StoppingFooter(Footer):
    """A file whose columns are read until the budget is closed, then StateError: whoever closes an
    iteration waits for the thread that decodes, and so for a column at most instead of a row
    group."""

    def __init__(
        self,
        source: Path | BinaryIO,
        name: str,
        budget: Budget,
        resolved: Resolved | None = None,
        *,
        is_checked: bool = False,
    ) -> None:
        super().__init__(source, name, is_checked=is_checked)
        self._budget, self._resolved = budget, resolved or Resolved()

    def resolve(self, selection: Selection) -> FileColumns:
        return self._resolved.of(self, selection)

    @property
    def stop(self) -> bytearray:
        return self._budget.closed

    def require_wanted(self) -> None:
        if self._budget.is_closed:
            raise StateError(CLOSED)
