"""Metrics of loaders for OpenTelemetry: those of prometheus.py, under the same names. Needs the
extra `otel`, and a provider of metrics that the program has set up.
"""

from collections import defaultdict
from typing import Any

from featstore.base.errors import import_extra
from featstore.loader.prometheus import Stats, samples


class OpenTelemetryMetrics:
    """Passes metrics on to OpenTelemetry: for `on_stats` of a loader, also in DataLoader workers,
    each of which needs a provider of its own. One for each loader.

    Counters are those of Prometheus without `_total`, which its exporter adds again.

    Args:
        name: Names the loader, in the attribute `loader`.
        slots: Whether to tell the numbers of each column, too.

    Raises:
        MissingDependencyError: opentelemetry-api is not installed.
    """

    def __init__(self, *, name: str = "train", slots: bool = False) -> None:
        self._name, self._slots = name, slots
        self._begin()

    def _begin(self) -> None:
        metrics = import_extra("opentelemetry.metrics", "featstore.loader.open_telemetry")
        self._meter = metrics.get_meter("featstore")
        self._instruments = dict[str, Any]()
        self._told = defaultdict[tuple[str, ...], float](float)

    def __call__(self, stats: Stats) -> None:
        """Adds what came since the last call. Not thread-safe."""
        for sample in samples(self._name, stats, slots=self._slots):
            if sample.metric not in self._instruments:
                make = self._meter.create_gauge if sample.is_gauge else self._meter.create_counter
                self._instruments[sample.metric] = make(sample.metric, description=sample.what)
            instrument, labels = self._instruments[sample.metric], sample.labels
            if sample.is_gauge:
                instrument.set(sample.value, labels)
                continue
            key = (sample.metric, *labels.values())
            instrument.add(sample.value - self._told[key], labels)
            self._told[key] = sample.value

    def __getstate__(self) -> dict[str, Any]:
        return {"_name": self._name, "_slots": self._slots}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()
