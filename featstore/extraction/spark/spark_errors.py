"""What a failed Spark job says, as one error: featstore's own of a worker, or what became of one.

Spark tells a failure as text, with the traces of Java and of Python: this is where it is read.
"""

import logging
import re
import sys

from featstore import errors
from featstore.errors import FeatstoreError, MissingDependencyError, WorkerError
from featstore.redaction import redact_text

_LOG = logging.getLogger(__name__)
_OURS = re.compile(r"featstore\.errors\.(\w+): (.*)")
_LOST_TASK = re.compile(r"Lost task (\S+) in stage (\S+) \(TID \d+\) \(([^)]*)\)")
_NO_WORKER = ("Cannot run program", "PYTHON_VERSION_MISMATCH")
# The text for a socket that ended without a message, whatever ended the worker.
_DEAD_WORKER = "Python worker exited unexpectedly"


def spark_error(text: str, python: str) -> FeatstoreError | None:
    """The error to raise in the place of Spark's, None where Spark's own is the best there is.

    Args:
        text: What Spark says of the failed job, with the traces of Java and of Python.
        python: The interpreter that the workers run.

    Returns:
        The error of ours that a worker raised; MissingDependencyError where workers cannot run
        Python; WorkerError where one died: then the text is logged at level debug.
    """
    if ours := _OURS.findall(text):
        kind, message = ours[-1]
        error: FeatstoreError = getattr(errors, kind, FeatstoreError)(message)
        return error
    if any(words in text for words in _NO_WORKER):
        return MissingDependencyError(
            f"Spark's Python workers cannot run {python}: point PYSPARK_PYTHON to a Python "
            f"{sys.version_info.major}.{sys.version_info.minor} that has featstore and pyarrow"
        )
    if _DEAD_WORKER in text:
        _LOG.debug("a Python worker of Spark died: %s", redact_text(text))
        return _worker_error(text)
    return None


def _worker_error(text: str) -> WorkerError:
    lost = _LOST_TASK.search(text)
    where = f" in task {lost[1]} of stage {lost[2]} ({lost[3]})" if lost else ""
    return WorkerError(
        f"Spark's Python worker died{where}, and the run was given up: most often the kernel or "
        f"the "
        "container killed it for its memory, as the host's log (dmesg) or the executor's says; "
        "give executors more spark.executor.memoryOverhead, run fewer tasks at a time "
        "(spark.executor.cores, spark.task.cpus), or lower rows_per_row_group in the spec's output"
    )
