"""Data files that cannot be read: with `on_bad_file: skip` they are left out, counted, and named in
a warning.
"""

import logging
from collections.abc import Callable
from typing import TypeGuard

from featstore.dispatch.terms import Claim
from featstore.errors import ConfigError, DataFileError, MissingValueError
from featstore.loader.stats import Stats

ERROR, SKIP = "error", "skip"
# Called with a claim, the first of its rows that is left out, and the reason.
Skip = Callable[[Claim, int, DataFileError], None]

_LOG = logging.getLogger(__name__)


def checked(on_bad_file: str) -> str:
    """The option `on_bad_file`. ConfigError for an unknown value."""
    if on_bad_file not in (ERROR, SKIP):
        raise ConfigError(f"on_bad_file: expected {ERROR} or {SKIP}, found {on_bad_file!r}")
    return on_bad_file


def is_bad_file(error: BaseException) -> TypeGuard[DataFileError]:
    """Whether a file is damaged. A null label does not make it so: `null` says what it does."""
    return isinstance(error, DataFileError) and not isinstance(error, MissingValueError)


class BadFiles:
    """The bad files of one epoch in one process. Only the decoding thread calls `skip`; `clear` is
    called between epochs.
    """

    def __init__(self, stats: Stats) -> None:
        self._counts = stats.counts
        self._paths: set[str] = set()
        self._claims: set[tuple[str, int]] = set()

    def skip(self, claim: Claim, through: int, error: DataFileError) -> None:
        """Counts the claim's rows from `through` on as skipped because of `error`, once, however
        often the claim is tried again. Warns once for each file.
        """
        key = (claim.split.id, through)
        if key in self._claims:
            return
        self._claims.add(key)
        self._counts["rows_skipped"] += max(0, (claim.end_row or claim.split.num_rows) - through)
        if claim.split.path not in self._paths:
            self._paths.add(claim.split.path)
            self._counts["files_skipped"] += 1
            _LOG.warning(
                "on_bad_file: skip: rows of %s are left out, from its row %d on: %s",
                claim.split.id,
                through,
                error,
            )

    def clear(self) -> None:
        self._paths.clear()
        self._claims.clear()
