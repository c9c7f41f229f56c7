"""Translates what Spark says of a failed job, or of a query that it refuses, into one featstore
error.

Spark reports a failure as text that holds the traces of Java and of Python. All parsing of this
text is in this module.
"""

import contextlib
import errno
import logging
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from featstore.base import errors
from featstore.base.errors import (
    AccessError,
    FeatstoreError,
    InputError,
    MissingDependencyError,
    StoreError,
    WorkerError,
)
from featstore.base.redaction import redact_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG = logging.getLogger(__name__)
_OURS = re.compile(rf"{re.escape(errors.__name__)}\.(\w+): (.*)")
_LOST_TASK = re.compile(r"Lost task (\S+) in stage (\S+) \(TID \d+\) \(([^)]*)\)")
_NO_WORKER = ("Cannot run program", "PYTHON_VERSION_MISMATCH")
_ERRNO = re.compile(r"^\[featstore errno (\d+)\]", re.MULTILINE)
# What Thrift says of a call that a metastore does not have: Hive 4 lacks those of Hive 2 and 3.
_NO_CALL = "Invalid method name"
# The metastore, or the way to it, failed. What Spark itself refuses has none of these.
_METASTORE = re.compile(r"\b(?:Hive|T|TTransport)Exception\b")
# What it says where it, or what authorizes its users, refuses; without an answer nothing is known.
_FORBIDDEN = re.compile(
    r"^(?!.*(?:connect|timed out)).*(?:not authorized|AuthorizationException|AccessControlException"
    r"|Access ?Denied|Permission denied|insufficient privilege|not have .*privilege|\bForbidden\b)",
    re.IGNORECASE,
)
# The text for a socket that ended without a message, whatever ended the worker.
_DEAD_WORKER = "Python worker exited unexpectedly"


@contextlib.contextmanager
def telling_errno() -> Iterator[None]:
    """In a worker: gives the error of a store that leaves the block its `errno` as a note, so that
    the text from which `spark_error` makes it again has it.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, FeatstoreError) and error.errno is not None:
            error.add_note(f"[featstore errno {error.errno}]")
        raise


def spark_error(text: str, python: str) -> FeatstoreError | None:
    """Returns the error to raise instead of Spark's, None if Spark's own is the best available.

    Args:
        text: Spark's text about the failed job, with the traces of Java and of Python.
        python: The interpreter that the workers run.

    Returns:
        The featstore error that a worker raised; MissingDependencyError if workers cannot run
        Python; WorkerError if one died, in which case the text is logged at level debug.
    """
    if ours := _OURS.findall(text):
        kind, message = ours[-1]
        error: FeatstoreError = getattr(errors, kind, FeatstoreError)(message)
        if isinstance(error, OSError) and (numbers := _ERRNO.findall(text)):
            error.errno = int(numbers[-1])
        return error
    if any(words in text for words in _NO_WORKER):
        return MissingDependencyError(
            f"Spark's Python workers cannot run {python}: point PYSPARK_PYTHON to a Python "
            f"{sys.version_info.major}.{sys.version_info.minor} that has featstore and pyarrow"
        )
    if _DEAD_WORKER in text:
        _LOG.debug("a Python worker of Spark died: %s", redact_text(text))
        lost = _LOST_TASK.search(text)
        where = f" in task {lost[1]} of stage {lost[2]} ({lost[3]})" if lost else ""
        return WorkerError(
            f"Spark's Python worker died{where}, and the run was given up: most often the kernel "
            "or the container killed it for its memory, as the host's log (dmesg) or the "
            "executor's says; give executors more spark.executor.memoryOverhead, run fewer tasks "
            "at a time (spark.executor.cores, spark.task.cpus), or lower rows_per_row_group in the "
            "spec's output"
        )
    return None


@contextlib.contextmanager
def refused_by_spark(what: str) -> Iterator[None]:
    """Translates Spark's error if it cannot do `what` in the block.

    Raises:
        InputError: Spark refuses something.
        AccessError: Its metastore lacks a permission, or does not permit it to the user.
        StoreError: Its metastore failed, or cannot be reached. `errno` is EIO.
    """
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        said = redact_text(str(error).strip().splitlines()[0])
        if _NO_CALL in said:
            said += (
                ". The Hive metastore lacks this call of Spark's client, as those of Hive 4 do: "
                "set spark.sql.hive.metastore.version to its version, "
                "spark.sql.hive.metastore.jars to path, and "
                "spark.sql.hive.metastore.jars.path to the client's jars (docs/howto/hive.md)"
            )
        elif _METASTORE.search(said) and _FORBIDDEN.search(said):
            refused = AccessError(
                f"Spark cannot {what}, its Hive metastore does not permit it: {said}; give the "
                f"permission to the user that it names, or run it as another user"
            )
            refused.errno = errno.EINVAL
            raise refused from None
        elif _METASTORE.search(said):
            failed = StoreError(
                f"Spark cannot {what}, its Hive metastore fails or cannot be reached: {said}; look "
                f"at hive.metastore.uris and at the metastore's log, then run it again"
            )
            failed.errno = errno.EIO
            raise failed from None
        raise InputError(f"Spark cannot {what}: {said}") from None


def query_rows(spark: "SparkSession", sql: str | None, table: str | None) -> "DataFrame":
    """The rows of a query or, without one, of a table of the metastore.

    Raises:
        InputError: Spark cannot read the query or table.
        StoreError: The metastore fails, or cannot be reached.
    """
    with refused_by_spark("run the query"):
        return spark.sql(sql) if sql is not None else spark.table(str(table))
