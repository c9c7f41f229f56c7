"""Metrics of loaders for Prometheus, while they run. Needs the extra `prometheus`.

Each number of `FeatureLoader.stats()` is a counter, which begins at 0 when a loader or a DataLoader
worker does: `rows` is `featstore_loader_rows_total`, and seconds such as `wait_s` are
`featstore_loader_wait_seconds_total`. Numbers of a stage are `featstore_loader_stage_..._total`
with the label `stage`, numbers of a column `featstore_loader_slot_..._total` with the label `slot`.
Numbers of `queues`, which rise and fall, are gauges: `featstore_loader_queue_...`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featstore.base.errors import import_extra
from featstore.loader.feature_loader import FeatureLoader

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Stats = Mapping[str, Any]
# What stays the same when a process restarts: a worker's whole name would be a new time series each
# time. Host and index are also the names of files.
_LABELS = ("loader", "host", "rank", "index")


class LoaderCollector:
    """A collector of prometheus_client for the loaders of this process. Register one for all of
    them, since a metric may be registered only once:
    `REGISTRY.register(LoaderCollector({"train": loader}))`.

    Args:
        loaders: The loaders by name; the name is the label `loader`.
        slots: Whether to tell the numbers of each column, too: three time series for each.

    Raises:
        MissingDependencyError: prometheus_client is not installed.
    """

    def __init__(self, loaders: Mapping[str, FeatureLoader], *, slots: bool = False) -> None:
        _core()
        self._loaders, self._slots = dict(loaders), slots

    def collect(self) -> Iterable["Metric"]:
        """The metrics now. Called by prometheus_client, from any thread."""
        stats = {name: loader.stats() for name, loader in self._loaders.items()}
        return _families(stats, slots=self._slots)


class TextFile:
    """Writes metrics to a file that the textfile collector of Prometheus' node exporter reads: for
    `on_stats` of a loader, also in DataLoader workers, which nobody can ask over HTTP.

    Each process has its own file, `NAME-HOST-INDEX.prom`, which is replaced at once. Files stay
    when their process ends; the next one of this host and index replaces them. Processes of one
    host without a launcher that numbers them (RANK) need a FEATSTORE_WORKER each.

    Args:
        directory: What the node exporter got as `--collector.textfile.directory`.
        name: Names the loader, in the label `loader` and in the file's name.
        slots: As of `LoaderCollector`.

    Raises:
        MissingDependencyError: prometheus_client is not installed.
    """

    def __init__(self, directory: str | Path, *, name: str = "train", slots: bool = False) -> None:
        _core()
        self._directory, self._name, self._slots = Path(directory), name, slots

    def __call__(self, stats: Stats) -> None:
        """Writes the file. OSError if it cannot be written."""
        client = import_extra("prometheus_client", "TextFile")
        registry = client.CollectorRegistry(auto_describe=False)
        registry.register(_Collected(_families({self._name: stats}, slots=self._slots)))
        worker = stats["worker"]
        path = self._directory / f"{self._name}-{worker['host']}-{worker['index']}.prom"
        client.write_to_textfile(str(path), registry)


class _Collected:
    """What prometheus_client asks for metrics, and keeps by its hash."""

    def __init__(self, families: Iterable["Metric"]) -> None:
        self.collect = lambda: families


def _core() -> Any:
    return import_extra("prometheus_client.metrics_core", "featstore.loader.prometheus")


def _families(stats: Mapping[str, Stats], *, slots: bool) -> list["Metric"]:
    """The metrics of several loaders by name. Those of one metric are one family."""
    families: dict[str, Any] = {}
    for loader, numbers in stats.items():
        worker = numbers["worker"]
        of_loader = [loader, *(str(worker[label]) for label in _LABELS[1:])]
        own = {name: value for name, value in numbers.items() if not isinstance(value, Mapping)}
        _add(families, "", own, of_loader)
        _add(families, "queue", numbers["queues"], of_loader)
        for stage, own in numbers["stages"].items():
            _add(families, "stage", own, of_loader, stage)
        for slot, own in numbers["slots"].items() if slots else ():
            _add(families, "slot", own, of_loader, slot)
    return list(families.values())


def _add(
    families: dict[str, Any],
    part: str,
    numbers: Mapping[str, float],
    of_loader: list[str],
    *of: str,
) -> None:
    """Adds a loader's numbers, or those of a part of it: its queues, a stage or a slot."""
    core, parts = _core(), (part,) if part else ()
    for name, value in numbers.items():
        unit = name.removesuffix("_s") + "_seconds" if name.endswith("_s") else name
        metric = "_".join(("featstore_loader", *parts, unit))
        if metric not in families:
            what = f"{part} {name}" if part else name
            family = core.GaugeMetricFamily if part == "queue" else core.CounterMetricFamily
            families[metric] = family(
                metric, f"{what} of FeatureLoader.stats()", labels=(*_LABELS, *parts[: len(of)])
            )
        families[metric].add_metric([*of_loader, *of], value)
