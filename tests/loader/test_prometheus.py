"""Metrics for Prometheus, while a loader runs."""

import json
import re
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import prometheus_client
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from torch.utils.data import DataLoader

from featstore import FeatureLoader
from featstore.base.errors import MissingDependencyError
from featstore.loader.batches.stats import OnStats
from featstore.loader.iteration.worker import host_name
from featstore.loader.prometheus import LoaderCollector, TextFile
from tests.parquet_files import put_parquet
from tests.process import await_that
from tests.programs import run_on_host

ROOT = Path(__file__).parents[2]
NUM_ROWS, NUM_FILES = 5_000, 4
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def url(tmp_path: Path) -> str:
    root = tmp_path / "table"
    root.mkdir()
    for number in range(NUM_FILES):
        put_parquet(
            root / f"{number}.parquet",
            {"a": np.arange(NUM_ROWS), "b": np.arange(NUM_ROWS)},
            row_group_size=500,
        )
    return str(root)


def _labels(**labels: str) -> tuple[tuple[str, str], ...]:
    own = {"loader": "train", "host": host_name(), "rank": "0", "index": "0"} | labels
    return tuple(sorted(own.items()))


def _samples(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        is_gauge = family.name.startswith(("featstore_loader_queue_", "featstore_loader_memory_"))
        assert family.type == ("gauge" if is_gauge else "counter")
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def address(registry: CollectorRegistry) -> Iterator[str]:
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()
    thread.join()


def _scraped(address: str) -> Samples:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return _samples(answer.read().decode())


def test_a_scrape_while_the_loader_runs_tells_how_far_it_is(
    url: str, registry: CollectorRegistry, address: str
) -> None:
    with (
        FeatureLoader(url, slots=["a"], batch_size=1000) as train,
        FeatureLoader(url, slots=["b"], batch_size=1000) as evaluation,
    ):
        registry.register(LoaderCollector({"train": train, "eval": evaluation}))
        of_train, of_eval = _labels(loader="train"), _labels(loader="eval")
        for number, _ in enumerate(train, 1):
            found = _scraped(address)
            assert found["featstore_loader_rows_total", of_train] == number * 1000
            assert found["featstore_loader_rows_total", of_eval] == 0
        delivery = tuple(sorted((*of_train, ("stage", "delivery"))))
        assert found["featstore_loader_stage_batches_total", delivery] == 20
        assert found["featstore_loader_queue_pending_batches", of_train] == 1
        assert found["featstore_loader_queue_reserved_rows", of_eval] == 0
        assert not any("slot" in name for name, _ in found)
        found = _scraped(address)
        assert found["featstore_loader_wait_seconds_total", of_train] == train.stats()["wait_s"]


def test_columns_are_told_when_asked_for(url: str, registry: CollectorRegistry) -> None:
    with FeatureLoader(url, slots=["a", "b"]) as loader:
        registry.register(LoaderCollector({"train": loader}, slots=True))
        assert sum(batch.num_rows for batch in loader) == NUM_FILES * NUM_ROWS
        found = _samples(prometheus_client.generate_latest(registry).decode())
        for name in ("a", "b"):
            labels = _labels(slot=name)
            told = loader.stats()["slots"][name]
            assert found["featstore_loader_slot_bytes_total", labels] == told["bytes"]
            assert found["featstore_loader_slot_decode_seconds_total", labels] == told["decode_s"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_each_worker_of_a_dataloader_writes_its_own_file(
    url: str, tmp_path: Path, start: str
) -> None:
    on_stats = OnStats(call=TextFile(tmp_path, name="ctr"), every_s=0)
    with FeatureLoader(url, slots=["a"], batch_size=500, on_stats=on_stats) as loader:
        batches = DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context=start)
        assert sum(batch.num_rows for batch in batches) == NUM_FILES * NUM_ROWS
    rows = {}
    for worker in ("0", "1"):
        found = _samples((tmp_path / f"ctr-{host_name()}-{worker}.prom").read_text())
        rows[worker] = found["featstore_loader_rows_total", _labels(loader="ctr", index=worker)]
    assert sum(rows.values()) == NUM_FILES * NUM_ROWS
    assert len(list(tmp_path.glob("*.prom*"))) == 2


READER = """
import sys
from featstore import FeatureLoader
from featstore.loader.prometheus import TextFile

url, directory, num_batches = sys.argv[1], sys.argv[2], int(sys.argv[3])
on_stats = {"call": TextFile(directory), "every_s": 0}
with FeatureLoader(url, slots=["a"], batch_size=1000, on_stats=on_stats) as loader:
    for _ in zip(range(num_batches), loader):
        pass
"""


@pytest.mark.slow
def test_processes_with_one_number_on_three_hosts_make_three_files_and_three_time_series(
    url: str, tmp_path: Path
) -> None:
    """As pods: each is process 1 of its own, with index 0. One starts again, in its own series."""
    hosts = ["trainer-a", "trainer-b", "trainer-c"]
    for num_batches, host in enumerate([*hosts, "trainer-b"], 1):
        run_on_host(f"{host}.training.svc", READER, url, tmp_path, num_batches)
    files = {f"train-{host}-0.prom" for host in hosts}
    assert {path.name for path in tmp_path.glob("*.prom*")} == files
    found: Samples = {}
    for name in files:
        found |= _samples((tmp_path / name).read_text())
    rows = {
        labels: n for (name, labels), n in found.items() if name == "featstore_loader_rows_total"
    }
    assert rows == {_labels(host=host): n * 1000 for host, n in zip(hosts, (1, 4, 3), strict=True)}


def test_processes_of_one_host_with_one_number_are_told_apart_by_the_variable(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        monkeypatch.setenv("FEATSTORE_WORKER", name)
        on_stats = OnStats(call=TextFile(tmp_path), every_s=0)
        with FeatureLoader(url, slots=["a"], on_stats=on_stats) as loader:
            assert sum(batch.num_rows for batch in loader) == NUM_FILES * NUM_ROWS
        found = _samples((tmp_path / f"train-{name}-0.prom").read_text())
        assert found["featstore_loader_rows_total", _labels(host=name)] == NUM_FILES * NUM_ROWS


def test_a_directory_that_is_missing_ends_the_iteration_with_its_name(
    url: str, tmp_path: Path
) -> None:
    with (
        FeatureLoader(url, slots=["a"], on_stats=TextFile(tmp_path / "none")) as loader,
        pytest.raises(FileNotFoundError, match=rf"none/train-{host_name()}-0\.prom"),
    ):
        next(iter(loader))


def test_metrics_may_be_asked_for_by_many_threads_while_the_loader_begins_and_closes(
    url: str,
) -> None:
    ended, num_asked = threading.Event(), [0, 0, 0]

    def asks(thread: int) -> None:
        while not ended.is_set():
            collected = LoaderCollector({"train": loader}, slots=True).collect()
            assert sum(len(family.samples) for family in collected) > 30
            num_asked[thread] += 1

    loader = FeatureLoader(
        url, slots=["a", "b"], batch_size=500, staging={"mode": "whole"}, shuffle=True
    )
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool, closing(loader):
            asking = [pool.submit(asks, thread) for thread in range(3)]
            await_that(lambda: min(num_asked) > 0)
            for _ in range(3):
                assert sum(batch.num_rows for batch in loader) == NUM_FILES * NUM_ROWS
                loader.close()
            ended.set()
            for each in asking:
                each.result()
    finally:
        ended.set()
        sys.setswitchinterval(before)


def test_without_the_library_the_extra_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setitem(sys.modules, "prometheus_client.metrics_core", None)
    with pytest.raises(MissingDependencyError, match=r"featstore-pipeline\[prometheus\]"):
        TextFile(".")


def test_every_metric_that_the_dashboard_asks_for_is_one_of_a_loader(
    url: str, registry: CollectorRegistry
) -> None:
    dashboard = json.loads((ROOT / "docs" / "loader_grafana.json").read_text())
    variables = dashboard["templating"]["list"]
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [each["query"]["query"] for each in variables if each["type"] == "query"]
    with FeatureLoader(url, slots=["a"]) as loader:
        registry.register(LoaderCollector({"train": loader}))
        found = _samples(prometheus_client.generate_latest(registry).decode())
    labels: dict[str, set[tuple[str, str]]] = {}
    for name, pairs in found:
        labels.setdefault(name, set()).update(pairs)
    assert len(queries) > 10
    for query in queries:
        asked = re.findall(r"featstore_\w+", query)
        assert asked, query
        assert set(asked) <= labels.keys(), query
        # A stage that does not exist, or has no such number, would be an empty panel.
        wanted = set(re.findall(r'(stage)="(\w+)"', query))
        assert all(wanted <= labels[name] for name in asked), query
