"""Data files that cannot be read, where the loader was told to go on without them: counted, and warned of by name."""

import logging

from featstore.dispatch.terms import Claim
from featstore.errors import ConfigError, DataFileError
from featstore.loader.stats import Stats

ERROR, SKIP = "error", "skip"
_LOG = logging.getLogger(__name__)


def checked(on_bad_file: str) -> str:
    """What to do with a bad file; ConfigError for what is no answer."""
    if on_bad_file not in (ERROR, SKIP):
        raise ConfigError(f"on_bad_file: expected {ERROR} or {SKIP}, found {on_bad_file!r}")
    return on_bad_file


class BadFiles:
    """The bad files of one epoch in one process. One thread notes them; `clear()` when it has ended."""

    def __init__(self, stats: Stats) -> None:
        self._counts = stats.counts
        self._paths: set[str] = set()
        self._claims: set[tuple[str, int]] = set()

    def skip(self, claim: Claim, through: int, error: DataFileError) -> None:
        """The claim's rows from `through` are left out because of `error`: counted once however often it is tried again."""
        key = (claim.split.id, through)
        if key in self._claims:
            return
        self._claims.add(key)
        self._counts["rows_skipped"] += max(0, (claim.end_row or claim.split.num_rows) - through)
        if claim.split.path not in self._paths:
            self._paths.add(claim.split.path)
            self._counts["files_skipped"] += 1
            _LOG.warning("on_bad_file: skip: rows of %s are left out from row %d of it: %s", claim.split.id, through, error)

    def clear(self) -> None:
        self._paths.clear()
        self._claims.clear()
