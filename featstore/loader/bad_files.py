"""Data files that cannot be read, where the loader was told to go on without them: counted, and
warned of by name.
"""

import logging
from collections.abc import Callable
from typing import TypeGuard

from featstore.dispatch.terms import Claim
from featstore.errors import ConfigError, DataFileError, MissingValueError
from featstore.loader.stats import Stats

ERROR, SKIP = "error", "skip"
# Told of a claim whose rows from a row on are left out, and why.
Skip = Callable[[Claim, int, DataFileError], None]

_LOG = logging.getLogger(__name__)


def checked(on_bad_file: str) -> str:
    """What to do with a bad file; ConfigError for what is no answer."""
    if on_bad_file not in (ERROR, SKIP):
        raise ConfigError(f"on_bad_file: expected {ERROR} or {SKIP}, found {on_bad_file!r}")
    return on_bad_file


def is_bad_file(error: BaseException) -> TypeGuard[DataFileError]:
    """A null label is no bad file: what to do with it is for the user to say."""
    return isinstance(error, DataFileError) and not isinstance(error, MissingValueError)


class BadFiles:
    """The bad files of one epoch in one process. One thread notes them; `clear()` when it has
    ended.
    """

    def __init__(self, stats: Stats) -> None:
        self._counts = stats.counts
        self._paths: set[str] = set()
        self._claims: set[tuple[str, int]] = set()

    def skip(self, claim: Claim, through: int, error: DataFileError) -> None:
        """The claim's rows from `through` are left out because of `error`: counted once however
        often it is tried again.
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
                "on_bad_file: skip: rows of %s are left out from row %d of it: %s",
                claim.split.id,
                through,
                error,
            )

    def clear(self) -> None:
        self._paths.clear()
        self._claims.clear()
