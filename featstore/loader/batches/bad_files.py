"""Data files that cannot be read: with `on_bad_file: skip` they are left out, counted, and named in
a warning.
"""

import logging
import threading
from collections.abc import Callable
from typing import TypeGuard

from featstore.base.errors import ConfigError, DataFileError, MissingValueError
from featstore.dispatch.terms import Claim
from featstore.loader.batches.progress import ClaimKey
from featstore.loader.batches.stats import Stats

ERROR, SKIP = "error", "skip"
# Called with a claim, the first of its rows that is left out, and the reason.
Skip = Callable[[Claim, int, DataFileError], None]

_LOG = logging.getLogger("featstore.loader.bad_files")  # As documented.


def checked(on_bad_file: str) -> str:
    """The option `on_bad_file`. ConfigError for an unknown value."""
    if on_bad_file not in (ERROR, SKIP):
        raise ConfigError(f"on_bad_file: expected {ERROR} or {SKIP}, found {on_bad_file!r}")
    return on_bad_file


def is_bad_file(error: BaseException) -> TypeGuard[DataFileError]:
    """Whether a file is gone or damaged, or is not what the table says. A null label does not make
    it so: `null` says what it does. Nor does what is wrong with the process or the store, which is
    no DataFileError.
    """
    return isinstance(error, DataFileError) and not isinstance(error, MissingValueError)


class BadFiles:
    """The bad files of one epoch in one process. Safe to use from any thread: the one that decodes
    and the one that assembles find them, and a third one reports them. Lock: `_lock` guards all of
    it, and is held for nothing else.
    """

    def __init__(self, stats: Stats) -> None:
        self._counts, self._lock = stats.counts, threading.Lock()
        self._noted = dict[ClaimKey, tuple[int, DataFileError]]()
        self._first_left = dict[ClaimKey, int]()  # Rows from there on are counted.
        self._paths = set[str]()

    def skip(self, claim: Claim, through: int, error: DataFileError) -> None:
        """Leaves out the claim's rows from `through` on, because of `error`."""
        self.note(claim, through, error)
        self.give_up(claim)

    def note(self, claim: Claim, through: int, error: DataFileError) -> None:
        """Like `skip`, of a claim that is tried again: only `give_up` counts its rows."""
        with self._lock:
            known = self._noted.get(claim.key)
            if known is None or through < known[0]:
                self._noted[claim.key] = through, error

    def give_up(self, claim: Claim, end_row: int | None = None) -> None:
        """Counts the rows that were noted of a claim as skipped, and warns once for each file. Does
        nothing if none were.

        Args:
            claim: The claim, which nobody tries again.
            end_row: The row at which it ends now; None: as it says.
        """
        with self._lock:
            if (noted := self._noted.pop(claim.key, None)) is None:
                return
            through, error = noted
            end_row = end_row or claim.end_row or claim.split.num_rows
            end_row = self._first_left.get(claim.key, end_row)
            self._first_left[claim.key] = min(through, end_row)
            self._counts["rows_skipped"] += max(0, end_row - through)
            is_new = claim.split.path not in self._paths
            self._paths.add(claim.split.path)
            self._counts["files_skipped"] += is_new
        if is_new:
            _LOG.warning(
                "on_bad_file: skip: rows of %s are left out, from its row %d on: %s",
                claim.split.id,
                through,
                error,
            )

    def clear(self) -> None:
        with self._lock:
            self._noted.clear()
            self._first_left.clear()
            self._paths.clear()
