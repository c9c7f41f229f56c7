"""Metrics of loaders for Prometheus, while they run. Needs the extra `prometheus`.

Each number of `FeatureLoader.stats()` is a counter, which begins at 0 when a loader or a DataLoader
worker does: `rows` is `featstore_loader_rows_total`, and seconds such as `wait_s` are
`featstore_loader_wait_seconds_total`. Numbers of a stage are `featstore_loader_stage_..._total`
with the label `stage`, numbers of a column `featstore_loader_slot_..._total` with the label `slot`.
Numbers of `queues` and `memory` are gauges: `featstore_loader_queue_...` and
`featstore_loader_memory_...`.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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


class MetricSample(NamedTuple):
    """A number of a loader as a metric.

    Attributes:
        metric: The metric's name, without `_total`.
        what: What it is.
        is_gauge: Whether it may fall; otherwise it is a counter.
        labels: Its labels by name.
        value: The number.
    """

    metric: str
    what: str
    is_gauge: bool
    labels: dict[str, str]
    value: float


def samples(loader: str, stats: Stats, *, slots: bool) -> Iterator[MetricSample]:
    """The numbers of a loader's `stats()`, whose name is `loader`; of columns with `slots`."""
    worker = stats["worker"]
    labels = {"loader": loader} | {label: str(worker[label]) for label in _LABELS[1:]}
    own = {name: value for name, value in stats.items() if not isinstance(value, Mapping)}
    yield from _part("", own, labels)
    yield from _part("queue", stats["queues"], labels)
    yield from _part("memory", stats["memory"], labels)
    for stage, numbers in stats["stages"].items():
        yield from _part("stage", numbers, labels | {"stage": stage})
    for slot, numbers in stats["slots"].items() if slots else ():
        yield from _part("slot", numbers, labels | {"slot": slot})


def _part(
    part: str, numbers: Mapping[str, float], labels: dict[str, str]
) -> Iterator[MetricSample]:
    """The numbers of a loader, or of a part of it: its queues, its memory, a stage or a slot."""
    for name, value in numbers.items():
        unit = name.removesuffix("_s") + "_seconds" if name.endswith("_s") else name
        metric = "_".join(filter(None, ("featstore_loader", part, unit)))
        what = f"{part} {name} of FeatureLoader.stats()".lstrip()
        yield MetricSample(metric, what, part in ("queue", "memory"), labels, value)


def _families(stats: Mapping[str, Stats], *, slots: bool) -> list["Metric"]:
    """The metrics of several loaders by name. Those of one metric are one family."""
    core, families = _core(), dict[str, Any]()
    for loader, numbers in stats.items():
        for sample in samples(loader, numbers, slots=slots):
            if sample.metric not in families:
                family = core.GaugeMetricFamily if sample.is_gauge else core.CounterMetricFamily
                families[sample.metric] = family(
                    sample.metric, sample.what, labels=tuple(sample.labels)
                )
            families[sample.metric].add_metric([*sample.labels.values()], sample.value)
    return list(families.values())
