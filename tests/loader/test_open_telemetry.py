"""Metrics of loaders for OpenTelemetry: the numbers and names of Prometheus."""

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featstore import FeatureLoader
from featstore.base.errors import MissingDependencyError
from featstore.loader.batches.stats import OnStats
from featstore.loader.open_telemetry import OpenTelemetryMetrics
from featstore.loader.prometheus import samples
from tests.parquet_files import put_parquet


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a program's own provider reads."""
    metrics = pytest.importorskip("opentelemetry.metrics")
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    found = export.InMemoryMetricReader()
    provider = sdk.MeterProvider(metric_readers=[found])
    monkeypatch.setattr(metrics, "get_meter", provider.get_meter)
    yield found
    provider.shutdown()


def _read(reader: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    [of_resource] = reader.get_metrics_data().resource_metrics
    return {
        (metric.name, tuple(sorted(point.attributes.items()))): point.value
        for scope in of_resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_metrics_are_those_of_prometheus(tmp_path: Path, reader: Any) -> None:
    put_parquet(tmp_path / "a.parquet", {"a": np.arange(100)})
    metrics = OpenTelemetryMetrics(name="ctr", slots=True)
    on_stats = OnStats(call=metrics, every_s=0)
    told = []
    with FeatureLoader(str(tmp_path), slots=["a"], batch_size=10, on_stats=on_stats) as loader:
        for _ in loader:
            told.append(_read(reader))
        stats = loader.stats()
        metrics(stats)
    expected = {
        (each.metric, tuple(sorted(each.labels.items()))): each.value
        for each in samples("ctr", stats, slots=True)
    }
    assert _read(reader) == pytest.approx(expected)
    rows = [value for found in told for (name, _), value in found.items() if name == ROWS]
    assert rows == [10 * number for number in range(1, 11)]


ROWS = "featstore_loader_rows"


def test_metrics_pass_to_the_process_of_a_worker(reader: Any) -> None:
    stats: dict[str, Any] = {
        "rows": 7,
        "queues": {},
        "memory": {},
        "stages": {},
        "slots": {},
        "worker": {"host": "h", "rank": 0, "index": 1},
    }
    metrics = OpenTelemetryMetrics(name="ctr")
    metrics(stats)
    pickle.loads(pickle.dumps(metrics))(stats)
    labels = (("host", "h"), ("index", "1"), ("loader", "ctr"), ("rank", "0"))
    assert _read(reader) == {(ROWS, labels): 14}


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingDependencyError, match=r"featstore-pipeline\[otel\]"):
        OpenTelemetryMetrics()
