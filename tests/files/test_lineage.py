"""OpenLineage events of runs: written to files and to a server by OpenLineage's own client."""

import itertools
import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

import featstore
from featstore.base.errors import FeatstoreError, InputError
from featstore.files import lineage
from featstore.files.lineage import LineageDataset, LineageRun
from featstore.ingest.join_local import join_labels_locally
from featstore.ingest.join_options import LogSource
from tests.http_servers import Handler, serving
from tests.ingest.test_join_local import join_of, times
from tests.parquet_files import put_parquet
from tests.process import await_that, our_threads

Events = Callable[[], list[dict[str, Any]]]
SPEC = """
spec: 1
inputs: {user: string}
slots:
  - {slot: 101, name: user, op: hash, of: user}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No configuration, and a directory without one; runs wait until their events are sent. At the
    end no thread that still sends.
    """
    monkeypatch.setattr(lineage, "_WAIT_S", 60.0)
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    pytest.importorskip("openlineage.client")
    yield
    await_that(lambda: not our_threads("-lineage"))


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Events:
    """OpenLineage configured to append to a file, and what is in it."""
    path = tmp_path / "events.jsonl"
    for key, value in {"TYPE": "file", "LOG_FILE_PATH": str(path), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{key}", value)
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "ads")

    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    return read


def extract(directory: Path) -> Any:
    (directory / "spec.yaml").write_text(SPEC)
    put_parquet(directory / "raw.parquet", {"user": ["a", "b", None]})
    return featstore.extract(
        str(directory / "spec.yaml"),
        str(directory / "raw.parquet"),
        str(directory / "table"),
        partition={"dt": "2026-11-01"},
        run_id="nightly",
    )


def test_an_extraction_tells_what_it_read_and_wrote(tmp_path: Path, events: Events) -> None:
    report = extract(tmp_path)
    start, complete = events()
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert complete["job"] == start["job"]
    assert (start["job"]["namespace"], start["job"]["name"]) == ("ads", "featstore.extract")
    names = [(each["namespace"], each["name"]) for each in complete["inputs"]]
    assert names == [("file", str(tmp_path / "raw.parquet"))]
    [table] = complete["outputs"]
    assert (table["namespace"], table["name"]) == ("file", str(tmp_path / "table"))
    assert table["facets"]["version"]["datasetVersion"] == str(report.version)
    statistics = table["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"]) == (3, 1)
    assert statistics["size"] == report.size_bytes
    receipt = complete["run"]["facets"]["featstore"]["report"]
    assert (receipt["run_id"], receipt["num_rows"]) == ("nightly", 3)


def test_an_equal_extraction_tells_that_it_wrote_nothing(tmp_path: Path, events: Events) -> None:
    extract(tmp_path)
    spec, raw, table_url = (str(tmp_path / name) for name in ("spec.yaml", "raw.parquet", "table"))
    again = featstore.extract(spec, raw, table_url, partition={"dt": "2026-11-01"})
    assert not again.committed
    [table] = events()[-1]["outputs"]
    assert table["facets"]["version"]["datasetVersion"] == "0"
    statistics = table["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"], statistics["size"]) == (0, 0, 0)


def test_a_run_that_fails_says_why_and_a_dry_one_nothing(tmp_path: Path, events: Events) -> None:
    extract(tmp_path)
    put_parquet(tmp_path / "raw.parquet", {"other": [1]})
    days: Any = {"days": "2026-11-01", "dry_run": True}
    featstore.extract(
        str(tmp_path / "spec.yaml"), str(tmp_path / "{dt}.parquet"), str(tmp_path / "table"), **days
    )
    with pytest.raises(InputError):
        featstore.extract(
            str(tmp_path / "spec.yaml"), str(tmp_path / "raw.parquet"), str(tmp_path / "table")
        )
    assert [each["eventType"] for each in events()[2:]] == ["START", "FAIL"]
    message = events()[-1]["run"]["facets"]["errorMessage"]["message"]
    assert message.startswith("InputError: ")
    assert "user" in message


def table_of(directory: Path) -> str:
    for number in range(2):
        put_parquet(directory / "rows" / f"{number}.parquet", {"a": np.arange(50)})
    return str(directory / "rows")


def test_a_training_tells_the_receipts_of_its_epochs(tmp_path: Path, events: Events) -> None:
    url = table_of(tmp_path)
    with featstore.FeatureLoader(url, slots=["a"], num_epochs=2, batch_size=30) as loader:
        assert sum(batch.num_rows for batch in loader) == 200
    start, complete = events()
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert [each["name"] for each in complete["inputs"]] == [url]
    report = complete["run"]["facets"]["featstore"]["report"]
    assert (report["rows"], report["index"], report["epochs"]) == (200, 0, [0, 1])
    assert {
        epoch: (receipt["delivered"], receipt["missing"], receipt["repeated_at_most"])
        for epoch, receipt in report["receipts"].items()
    } == {"0": (100, 0, 0), "1": (100, 0, 0)}


def test_a_loop_that_leaves_early_and_a_file_that_is_damaged_end_the_training(
    tmp_path: Path, events: Events
) -> None:
    url = table_of(tmp_path)
    with featstore.FeatureLoader(url, slots=["a"], batch_size=30) as loader:
        list(itertools.islice(loader, 1))
    assert [each["eventType"] for each in events()] == ["START", "ABORT"]
    damaged = tmp_path / "rows" / "1.parquet"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:4] + bytes(60) + content[64:])
    with pytest.raises(FeatstoreError, match=r"1\.parquet"):
        list(featstore.FeatureLoader(url, slots=["a"], batch_size=30))
    assert [each["eventType"] for each in events()[2:]] == ["START", "FAIL"]
    assert "1.parquet" in events()[-1]["run"]["facets"]["errorMessage"]["message"]


def test_a_join_tells_its_logs_and_its_report(tmp_path: Path, events: Events) -> None:
    put_parquet(tmp_path / "i/a.parquet", {"rid": [1, 2], "ts": times(0, 10)})
    put_parquet(tmp_path / "c/a.parquet", {"rid": [2], "at": times(20)})
    join_labels_locally(join_of(tmp_path, partition={"dt": "2026-11-01"}))
    start, complete = events()
    assert [each["name"] for each in start["outputs"]] == [str(tmp_path / "out")]
    assert complete["job"]["name"] == "featstore.join_labels"
    assert [each["name"] for each in complete["inputs"]] == [str(tmp_path / n) for n in "ic"]
    [output] = complete["outputs"]
    assert output["name"] == str(tmp_path / "out")
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert complete["run"]["facets"]["featstore"]["report"]["output"]["num_rows"] == 2


def test_a_join_into_a_table_tells_its_version(tmp_path: Path, events: Events) -> None:
    put_parquet(tmp_path / "i/a.parquet", {"rid": [1, 2], "ts": times(0, 10)})
    put_parquet(tmp_path / "c/a.parquet", {"rid": [2], "at": times(20)})
    write_deltalake(tmp_path / "clicks", pa.table({"rid": [2], "at": times(20)}))
    join = replace(join_of(tmp_path), output_url=f"delta+{tmp_path / 'out'}")
    join = replace(
        join,
        labels=(replace(join.labels[0], source=LogSource(url=f"delta+{tmp_path / 'clicks'}")),),
    )
    join_labels_locally(join)
    [output] = events()[-1]["outputs"]
    assert (output["namespace"], output["name"]) == ("file", str(tmp_path / "out"))
    assert output["facets"]["version"]["datasetVersion"] == "0"
    impressions, clicks = events()[-1]["inputs"]
    assert "version" not in impressions["facets"]
    assert clicks["facets"]["version"]["datasetVersion"] == "0"
    assert not join_labels_locally(join).written
    assert [each["eventType"] for each in events()] == ["START", "COMPLETE"] * 2
    [output] = events()[-1]["outputs"]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 0


def test_an_import_tells_what_it_wrote_and_an_equal_one_that_it_did_not(
    tmp_path: Path, events: Events
) -> None:
    (tmp_path / "log.csv").write_text("user\na\nb\n")
    url = f"delta+{tmp_path / 'log'}"
    for num_rows in (2, 0):
        featstore.api.import_raw("csv", f"{tmp_path}/log.csv", url, partition={"dt": "1"})
        start, complete = events()[-2:]
        assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
        assert complete["job"]["name"] == "featstore.import"
        assert [each["name"] for each in complete["inputs"]] == [f"{tmp_path}/log.csv"]
        [output] = complete["outputs"]
        assert (output["name"], output["facets"]["version"]["datasetVersion"]) == (
            str(tmp_path / "log"),
            "0",
        )
        assert output["outputFacets"]["outputStatistics"]["rowCount"] == num_rows
    spec, table = tmp_path / "spec.yaml", str(tmp_path / "table")
    spec.write_text(SPEC)
    one: Any = {"input_url": f"{url}?dt=1", "partition": {"dt": "1"}}
    days: Any = {"input_url": f"{url}?dt={{dt}}", "days": "2026-11-01", "allow_missing": True}
    for options in (one, days):
        featstore.extract(str(spec), table_url=table, **options)
        [log] = events()[-1]["inputs"]
        assert log["facets"]["version"]["datasetVersion"] == "0"


@pytest.mark.parametrize("variables", [{}, {"OPENLINEAGE_NAMESPACE": "ads"}, "disabled", "empty"])
def test_nothing_is_sent_and_no_thread_begins_unless_it_is_configured(
    variables: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if variables == "disabled":
        variables = {"OPENLINEAGE_URL": "http://127.0.0.1:9", "OPENLINEAGE_DISABLED": "true"}
    if variables == "empty":  # A config file without a transport: its client would print events.
        Path("openlineage.yml").write_text("tags: {job: {team: ads}}\n")
        variables = {}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with LineageRun("job", [LineageDataset(url="s3://bucket/a")]):
        assert not our_threads("-lineage") or Path("openlineage.yml").is_file()
    assert "eventType" not in capfd.readouterr().out


class _Backend(Handler):
    got: list[dict[str, Any]]
    is_open: threading.Event

    def do_POST(self) -> None:  # noqa: N802  as the server calls it
        self.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.is_open.wait(60)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def backend(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[list[dict[str, Any]], threading.Event]]:
    got, is_open = list[dict[str, Any]](), threading.Event()
    with serving(_Backend, got=got, is_open=is_open) as port:
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{port}")
        yield got, is_open
        is_open.set()


def test_a_config_in_variables_sends_to_a_server(backend: Any) -> None:
    got, is_open = backend
    is_open.set()
    with LineageRun("job", [LineageDataset(url="s3://user:secret@bucket/a?key=1", version=3)]):
        pass
    assert [each["eventType"] for each in got] == ["START", "COMPLETE"]
    [read] = got[1]["inputs"]
    assert (read["namespace"], read["name"]) == ("s3://bucket", "a")
    assert read["facets"]["version"]["datasetVersion"] == "3"


def test_a_backend_that_hangs_slows_a_run_by_no_more_than_its_wait(
    backend: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lineage, "_WAIT_S", 0.3)
    got, is_open = backend
    with LineageRun("job", []):
        await_that(lambda: bool(got))  # Events leave in another thread.
    assert our_threads("-lineage"), "the run has waited for an answer"
    assert "no answer in 0.3 s; the run does not wait" in caplog.text
    is_open.set()
    await_that(lambda: not our_threads("-lineage"))  # Its server is still there.


def test_a_backend_that_is_down_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(tmp_path / "none" / "events"))
    with caplog.at_level(logging.WARNING, "featstore.files.lineage"):
        assert extract(tmp_path).num_rows == 3
    [record] = [each for each in caplog.records if each.name == "featstore.files.lineage"]
    assert record.getMessage().startswith("OpenLineage: events are lost: ")


def test_names_are_those_of_openlineage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {
        "s3://bucket/a/b": ("s3://bucket", "a/b"),
        "s3://bucket": ("s3://bucket", "/"),
        "hdfs://name:8020/a": ("hdfs://name:8020", "a"),
        "delta+s3://bucket/t?version=3": ("s3://bucket", "t"),
        "file:///data/t": ("file", "/data/t"),
        "/data/t": ("file", "/data/t"),
        "t": ("file", str(tmp_path / "t")),
        "s3://bucket/a#1?/b": ("s3://bucket", "a#1?/b"),
        "file:///data/a#1": ("file", "/data/a#1"),
        "iceberg://catalog/db.t?version=main": ("iceberg://catalog", "db.t"),
    }
    assert {url: LineageDataset(url=url).names for url in names} == names
    versions = {url: LineageDataset.of(url).version for url in names if "version" in url}
    assert [*versions.values()] == ["3", "main"]
