"""OpenLineage events of a run: what it read and wrote. Off unless OpenLineage's own variables or
config file say where events go.

Events leave in a thread of the run. A backend that is down costs the run nothing, and one that
hangs at its end `_WAIT_S`; what it misses is a warning in the log.
"""

import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl

from featstore.base.errors import StoreError, import_extra
from featstore.base.redaction import redact, redact_text
from featstore.files.looks import is_file_at
from featstore.files.storage import local_path

_LOG = logging.getLogger(__name__)
_WAIT_S = 2.0
_CONFIG = "openlineage.yml"
_NONE: Mapping[str, int | str | None] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class LineageDataset:
    """What a run reads or writes.

    Attributes:
        url: Its URL, or the name of what has none.
        version: Its version; None if it has none, or it is not known.
        num_rows, num_files, size_bytes: What was written of it; None if it is not known.
    """

    url: str = field(repr=False)
    version: int | str | None = None
    num_rows: int | None = None
    num_files: int | None = None
    size_bytes: int | None = None

    @classmethod
    def of(cls, url: str, versions: Mapping[str, int | str | None] = _NONE) -> "LineageDataset":
        """One of which only the URL is known, and the version that it names, or else the one that
        was read of its table, of `versions` by URL.
        """
        place, named = _place_of(url)
        return cls(url=url, version=named or versions.get(place))

    @property
    def names(self) -> tuple[str, str]:
        """Namespace and name, as OpenLineage's naming of file systems and stores says."""
        place, _ = _place_of(redact(self.url))
        if (path := local_path(place)) is not None:
            return "file", str(path.absolute())
        scheme, _, found = place.partition("://")
        host, _, name = found.partition("/")
        return f"{scheme}://{host}", name.lstrip("/") or "/"


def _place_of(url: str) -> tuple[str, str | None]:
    """Where a table of Delta or Iceberg that raw input names lies, and the version in its URL; or
    the URL.
    """
    if not url.startswith(("delta+", "iceberg+", "iceberg://")):
        return url, None
    place, _, options = url.partition("?")
    version = dict(parse_qsl(options)).get("version")
    return place.removeprefix("delta+").removeprefix("iceberg+"), version


class LineageRun:
    """One run. A context manager: the events are START, and COMPLETE, FAIL or, if a consumer left
    before the end, ABORT. For one thread.

    Args:
        job: The job's name.
        inputs: What it reads.
        outputs: What it writes.
        is_on: False for a run that does nothing. Otherwise the configuration says whether events
            are sent.
    """

    def __init__(
        self,
        job: str,
        inputs: Iterable[LineageDataset],
        outputs: Iterable[LineageDataset] = (),
        *,
        is_on: bool = True,
    ) -> None:
        self.is_on = is_on and _is_configured()
        if not self.is_on:
            return
        self._inputs, self._outputs = list(inputs), list(outputs)
        self._report: Mapping[str, Any] = {}
        self._sender: _Sender | None = _Sender(job)
        self._send("START")

    def note(
        self,
        report: Mapping[str, Any],
        inputs: Iterable[LineageDataset] = (),
        outputs: Iterable[LineageDataset] = (),
    ) -> None:
        """What is known at the end: a report, and the datasets with their versions and rows."""
        if self.is_on:
            self._report = json.loads(json.dumps(report, default=str))
            self._inputs = list(inputs) or self._inputs
            self._outputs = list(outputs) or self._outputs

    def end(self, kind: str, error: BaseException | None = None) -> None:
        """The last event. Does nothing after the first call."""
        if self.is_on and self._sender is not None:
            self._send(kind, error)
            self._sender.close()
            self._sender = None

    def __enter__(self) -> "LineageRun":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end("COMPLETE" if error is None else "FAIL", error)

    def _send(self, kind: str, error: BaseException | None = None) -> None:
        assert self._sender is not None
        self._sender.put(
            kind,
            inputs=self._inputs,
            outputs=self._outputs,
            report=self._report,
            error=None if error is None else f"{type(error).__name__}: {redact_text(str(error))}",
        )


class _Sender:
    """Sends the events of one run from a thread of its own."""

    def __init__(self, job: str) -> None:
        self._job, self._has_failed = job, False
        self._events: queue.SimpleQueue[Callable[[Any], Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="featstore-lineage", daemon=True)
        self._thread.start()

    def put(self, kind: str, **about: Any) -> None:
        self._events.put(partial(_event, kind, datetime.now(UTC).isoformat(), **about))

    def close(self) -> None:
        """Waits until the events are sent, unless the backend has failed, or hangs."""
        self._events.put(None)
        if not self._has_failed:
            self._thread.join(_WAIT_S)
            if self._thread.is_alive() and not self._has_failed:
                _LOG.warning("OpenLineage: no answer in %g s; the run does not wait", _WAIT_S)

    def _run(self) -> None:
        try:
            client = import_extra("openlineage.client", "OpenLineage").OpenLineageClient()
            if client.transport.kind == "console" and not client.config.transport:
                return  # The config file has no transport: events would go to standard output.
            made = import_extra("openlineage.client.uuid", "OpenLineage").generate_new_uuid()
            identity = self._job, str(made)
            while (event := self._events.get()) is not None:
                self._emit(client, event(identity))
            client.close(_WAIT_S)
        except Exception as error:  # noqa: BLE001  No event is worth a run.
            self._warn(error)

    def _emit(self, client: Any, event: Any) -> None:
        try:
            client.emit(event)
        except Exception as error:  # noqa: BLE001
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            _LOG.warning("OpenLineage: events are lost: %s", redact_text(str(error)))


def _is_configured() -> bool:
    """Whether OpenLineage's own configuration says where events go."""
    of = os.environ.get
    if of("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    if of("OPENLINEAGE_URL") or any(n.startswith("OPENLINEAGE__TRANSPORT") for n in os.environ):
        return True
    try:
        home = Path("~/.openlineage", _CONFIG).expanduser()
        return any(is_file_at(path) for path in (of("OPENLINEAGE_CONFIG"), _CONFIG, home) if path)
    except (StoreError, RuntimeError):  # The latter where there is no home.
        return False  # OpenLineage's client could not read it, either.


def _event(
    kind: str,
    time: str,
    identity: tuple[str, str],
    *,
    inputs: Iterable[LineageDataset],
    outputs: Iterable[LineageDataset],
    report: Mapping[str, Any],
    error: str | None,
) -> Any:
    events = import_extra("openlineage.client.event_v2", "OpenLineage")
    facets = import_extra("openlineage.client.facet_v2", "OpenLineage")
    of_run = {}
    if report:
        of_run["featstore"] = facets.RunFacet().with_additional_properties(report=report)
    if error is not None:
        of_run["errorMessage"] = facets.error_message_run.ErrorMessageRunFacet(
            message=error, programmingLanguage="PYTHON"
        )

    def of_dataset(made: Any, dataset: LineageDataset, **more: Any) -> Any:
        version = facets.dataset_version_dataset.DatasetVersionDatasetFacet
        known = {} if dataset.version is None else {"version": version(str(dataset.version))}
        namespace, name = dataset.names
        return made(namespace=namespace, name=name, facets=known, **more)

    def written(dataset: LineageDataset) -> dict[str, Any]:
        if dataset.num_rows is None:
            return {}
        statistics = facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=dataset.num_rows, fileCount=dataset.num_files, size=dataset.size_bytes
        )
        return {"outputStatistics": statistics}

    job, run_id = identity
    return events.RunEvent(
        eventTime=time,
        eventType=events.RunState[kind],
        producer="urn:featstore",
        run=events.Run(runId=run_id, facets=of_run),
        job=events.Job(namespace=os.environ.get("OPENLINEAGE_NAMESPACE") or "default", name=job),
        inputs=[of_dataset(events.InputDataset, each) for each in inputs],
        outputs=[
            of_dataset(events.OutputDataset, each, outputFacets=written(each)) for each in outputs
        ],
    )
