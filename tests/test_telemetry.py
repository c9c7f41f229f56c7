"""Spans of OpenTelemetry, and what they cost without it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featstore
from featstore.base.errors import DataFileError
from featstore.base.telemetry import span
from featstore.files.retry import thread_pool
from tests.conftest import Loopback
from tests.parquet_files import put_parquet
from tests.programs import run_python

TRAINING = "featstore.training"
SPEC = """
spec: 1
inputs: {user: string}
slots:
  - {slot: 101, name: user, op: hash, of: user}
"""


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What a program's own provider got. The API keeps one for the process, so it is put in its
    place here.
    """
    trace = pytest.importorskip("opentelemetry.trace")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    found = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield found
    provider.shutdown()


def spans(exporter: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for each in exporter.get_finished_spans():
        found.setdefault(each.name, []).append(each)
    return found


def test_an_extraction_has_a_span_with_one_for_each_day_and_unit(
    tmp_path: Path, exporter: Any
) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    for day in ("2026-11-01", "2026-11-02"):
        put_parquet(tmp_path / f"{day}.parquet", {"user": ["a", "b", "c"]})
    featstore.extract(
        featstore.load_spec(str(tmp_path / "spec.yaml")),
        str(tmp_path / "{dt}.parquet"),
        str(tmp_path / "table"),
        days="2026-11-01..2026-11-02",
        run_id="nightly",
    )
    found = spans(exporter)
    assert found.keys() == {"featstore.extract", "featstore.extract.day", "featstore.extract.unit"}
    [run] = found["featstore.extract"]
    assert dict(run.attributes) == {
        "featstore.table": str(tmp_path / "table"),
        "featstore.run_id": "nightly",
        "featstore.rows": 6,
        "featstore.commits": 2,
    }
    days = found["featstore.extract.day"]
    assert [day.attributes["featstore.partition"] for day in days] == [
        "dt=2026-11-01",
        "dt=2026-11-02",
    ]
    assert {day.parent.span_id for day in days} == {run.context.span_id}
    units = found["featstore.extract.unit"]  # In threads of a pool.
    assert [unit.parent.span_id for unit in units] == [day.context.span_id for day in days]


def test_epochs_and_downloads_of_a_loader_are_children_of_the_span_that_reads_it(
    tmp_path: Path, exporter: Any, loopback: Loopback
) -> None:
    put_parquet(tmp_path / "a.parquet", {"a": np.arange(50)})
    loopback.files["/a.parquet"] = (tmp_path / "a.parquet").read_bytes()
    staging = {"directory": str(tmp_path / "cache"), "mode": "whole"}
    url = f"{loopback.url}/a.parquet"
    with (
        span("training"),
        featstore.FeatureLoader(
            url, slots=["a"], num_epochs=2, batch_size=10, staging=staging
        ) as loader,
    ):
        for _ in loader:
            # Not the epoch's: the loop is the caller's.
            assert sys.modules["opentelemetry.trace"].get_current_span().name == TRAINING
    found = spans(exporter)
    [training] = found[TRAINING]
    epochs, [download] = found["featstore.epoch"], found["featstore.stage.download"]
    assert [(e.attributes["featstore.epoch"], e.attributes["featstore.rows"]) for e in epochs] == [
        (0, 50),
        (1, 50),
    ]
    assert download.attributes["featstore.url"] == url
    assert download.attributes["featstore.staged_bytes"] == len(loopback.files["/a.parquet"])
    children = (*epochs, download)
    assert {each.parent.span_id for each in children} == {training.context.span_id}
    assert len(exporter.get_finished_spans()) == 4  # One for each file or epoch, none for a batch.


def test_an_error_is_recorded_and_passes(exporter: Any) -> None:
    with pytest.raises(DataFileError, match="damaged"), span("work", files=1):
        raise DataFileError("damaged")
    [found] = exporter.get_finished_spans()
    assert (found.status.status_code.name, found.status.description) == ("ERROR", "DataFileError")
    assert [event.name for event in found.events] == ["exception"]


def test_an_error_is_recorded_without_the_secrets_of_urls(exporter: Any) -> None:
    url = "https://user:pw@host/a.parquet?sig=secret"
    with pytest.raises(FileNotFoundError, match="secret"), span("work"):
        raise FileNotFoundError(f"404 of {url}") from ValueError(url)
    [event] = exporter.get_finished_spans()[0].events
    assert event.attributes["exception.message"] == "404 of https://host/a.parquet"
    assert "ValueError: https://host/a.parquet" in event.attributes["exception.stacktrace"]
    assert not any(secret in str(event.attributes) for secret in ("pw@", "sig="))


def test_a_generator_that_is_closed_early_has_ended_its_span_without_an_error(
    exporter: Any,
) -> None:
    def items() -> Iterator[int]:
        with span("items", is_current=False):
            yield from range(3)

    found = items()
    assert next(found) == 0
    found.close()  # type: ignore[attr-defined]
    [made] = exporter.get_finished_spans()
    assert made.status.is_ok
    assert not made.events


def test_threads_of_a_pool_have_the_callers_span(exporter: Any) -> None:
    def work() -> None:
        with span("inner"):
            pass

    with span("outer"), thread_pool(2) as threads:
        threads.submit(work).result()
    inner, outer = exporter.get_finished_spans()
    assert inner.parent.span_id == outer.context.span_id


def test_nothing_is_imported_for_spans_and_without_a_provider_none_is_made() -> None:
    code = (
        "import sys; from featstore.base.telemetry import span\n"
        "with span('work', rows=1) as note: note(rows=2)\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert run_python(code).stdout.strip() == "[]"
