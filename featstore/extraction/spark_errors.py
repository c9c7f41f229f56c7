"""What a failed Spark job says, as one error: featstore's own of a worker, or what became of one.

Spark tells a failure as text, with the traces of Java and of Python: this is where it is read.
"""

import logging
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from featstore import errors
from featstore.errors import FeatstoreError, MissingDependencyError, WorkerError
from featstore.redaction import redact_text

if TYPE_CHECKING:
    from pyspark import SparkContext

_LOG = logging.getLogger(__name__)
_OURS = re.compile(r"featstore\.errors\.(\w+): (.*)")
_LOST_TASK = re.compile(r"Lost task (\S+) in stage (\S+) \(TID \d+\) \(([^)]*)\)")
_NO_WORKER = ("Cannot run program", "PYTHON_VERSION_MISMATCH")
# The text for a socket that ended without a message, whatever ended the worker.
_DEAD_WORKER = "Python worker exited unexpectedly"
_Result = TypeVar("_Result")


def run_checked(context: "SparkContext", collect: Callable[[], _Result]) -> _Result:
    """Runs a job; an error of ours that a worker raised is raised here, and workers that cannot
    start are named.

    Raises:
        MissingDependencyError: Workers cannot run Python.
        WorkerError: A worker died. Spark's text, with Java's trace, is logged at level debug.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return collect()
    except (Py4JJavaError, PySparkException) as error:
        text = str(error)
        if _DEAD_WORKER in text and not _OURS.search(text):
            _LOG.debug("a Python worker of Spark died: %s", redact_text(text))
            raise _worker_error(text) from None
        told = _told(context, text)
        if told is None:
            raise
        raise told from error


def _told(context: "SparkContext", text: str) -> FeatstoreError | None:
    """The error that Spark's text is about, None where it is not one of ours."""
    if ours := _OURS.findall(text):
        kind, message = ours[-1]
        return getattr(errors, kind, FeatstoreError)(message)
    if any(words in text for words in _NO_WORKER):
        return MissingDependencyError(
            f"Spark's Python workers cannot run {context.pythonExec}: point PYSPARK_PYTHON to a "
            f"Python {sys.version_info.major}.{sys.version_info.minor} that has featstore and pyarrow"
        )
    return None


def _worker_error(text: str) -> WorkerError:
    lost = _LOST_TASK.search(text)
    where = f" in task {lost[1]} of stage {lost[2]} ({lost[3]})" if lost else ""
    return WorkerError(
        f"Spark's Python worker died{where}, and the run was given up: most often the kernel or the "
        "container killed it for its memory, as the host's log (dmesg) or the executor's says; "
        "give executors more spark.executor.memoryOverhead, run fewer tasks at a time "
        "(spark.executor.cores, spark.task.cpus), or lower rows_per_row_group in the spec's output"
    )
