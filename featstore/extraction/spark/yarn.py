"""The end of an application on YARN whose driver runs there (cluster mode)."""

import contextlib
import logging
import os
from typing import Any

_logger = logging.getLogger(__name__)
_MASTER = "org.apache.spark.deploy.yarn.ApplicationMaster"


def is_cluster_driver() -> bool:
    """Whether this process is a driver that runs on YARN, whose master waits for its context."""
    return {"CONTAINER_ID", "PYSPARK_GATEWAY_PORT"} <= os.environ.keys()


def end_application(exit_code: int, reason: str) -> None:
    """Ends the application of YARN whose driver this process is, so that the run is not repeated.

    YARN starts an application again whose driver ended with an error, unless the attempt was the
    last one. So this attempt becomes the last one, and `reason` what `spark-submit` and YARN show.
    Elsewhere nothing happens: outside of YARN, and in client mode, where nothing is repeated.

    Spark has no public way to say so. Where its application master is not as expected, a warning
    says it, and YARN repeats the run.

    Args:
        exit_code: The exit code of this process, which ends soon after the call.
        reason: Why it failed.
    """
    if not is_cluster_driver():
        return
    from py4j.protocol import Py4JNetworkError
    from pyspark import SparkContext

    try:
        # An application can be ended only once it is registered, which its context sees to.
        SparkContext._ensure_initialized()
        jvm: Any = SparkContext._jvm
        master = _field(jvm.java.lang.Class.forName(f"{_MASTER}$"), "master", None)
        if master is None:
            return
        attempt = jvm.java.lang.Class.forName(_MASTER)
        if not _field(attempt, "registered", master):
            SparkContext.getOrCreate()
        _field(attempt, "sparkConf", master).set("spark.yarn.maxAppAttempts", "1")
        failed = jvm.org.apache.hadoop.yarn.api.records.FinalApplicationStatus.FAILED
        # It may end, and cut the connection, before it answers.
        with contextlib.suppress(Py4JNetworkError, ConnectionError):
            master.finish(failed, exit_code, reason)
    except Exception as error:  # noqa: BLE001  the inside of another program
        _logger.warning("YARN will repeat this run, although it fails again: %s", error)


def _field(owner: Any, name: str, of: Any) -> Any:
    """A private field of an object. Scala puts the class before the names of some."""
    field = next(f for f in owner.getDeclaredFields() if f.getName().split("$")[-1] == name)
    field.setAccessible(True)
    return field.get(of)
