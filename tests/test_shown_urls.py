"""Passwords and tokens of a URL appear in nothing that featstore shows: messages, results, logs,
output, tracebacks.

Every way to pass a URL is tried with every kind of URL. `test_shown_urls_source.py` checks the
source.
"""

import datetime
import io
import logging
import re
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import featstore
import featstore.explore.replay
import featstore.loader.stage
import featstore.spec.diff
import featstore.spec.lint
import featstore.spec.show
import featstore.spec.sql.statement
import featstore.statistics.table_lint
import featstore.table.vacuum
from featstore import Dispatch, FeatureLoader, Staging, api
from featstore.dispatch.receipt import receipts
from featstore.dispatch.recording import recorded
from featstore.dispatch.status import status
from featstore.files import listings, storage
from featstore.files.retry import RetryPolicy
from featstore.files.transfer import read_span
from featstore.ingest.hive_locations import locations
from featstore.ingest.join_options import Impressions, Label, LabelJoin, parse_log
from featstore.table.open import open_snapshot
from featstore.tools.cli import main as run_command
from tests.parquet_files import put_parquet
from tests.store_clients import forget_clients
from tests.tiers import tiered

URLS = {
    "https": "https://user:Sk3yPass@127.0.0.1:{port}/t?sig=Sk3yPass#Sk3yPass",
    "s3": "s3://Sk3yPass:Sk3yPass@bucket/t?sig=Sk3yPass",
    "az": "az://user:Sk3yPass@container/t",
    "hdfs": "hdfs://user:Sk3yPass@127.0.0.1:{port}/t",
    "sftp": "sftp://user:Sk3yPass@127.0.0.1:{port}/t",
    "no port": "sftp://user:Sk3yPass@127.0.0.1:Sk3yPass/t",
    "github": "github://org:Sk3yPass@main/t",
    "unknown": "weird+x://user:Sk3yPass@host/t",
    "chain": "simplecache::https://user:Sk3yPass@127.0.0.1:{port}/t?sig=Sk3yPass",
    "archive": "zip://x.parquet::s3://user:Sk3yPass@bucket/t.zip",
    "tcp": "tcp://user:Sk3yPass@127.0.0.1:{port}",
    "memory": "memory://user:Sk3yPass@host/t",
    "sqlite": "sqlite://user:Sk3yPass@host/t",
    "forgotten @": "sftp://user:Sk3yPass/t",
}
SPEC: Any = {
    "spec": 1,
    "inputs": {"user": "string"},
    "slots": [{"slot": 101, "name": "user", "op": "hash", "of": "user"}],
}
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "someone",
    "AWS_SECRET_ACCESS_KEY": "Sk3yPassOfS3",
    "AWS_REGION": "us-east-1",
    # delta-rs refuses plain http at once
    "AWS_ENDPOINT_URL": "http://user:Sk3yPass@127.0.0.1:{port}",
    "AZURE_STORAGE_ACCOUNT_NAME": "someone",
    "AZURE_STORAGE_ACCOUNT_KEY": "U2szeVBhc3M=",
    "AZURE_STORAGE_ENDPOINT": "http://user:Sk3yPass@127.0.0.1:{port}",
    "HTTPS_PROXY": "http://user:Sk3yPass@127.0.0.1:{port}",  # GitHub is not asked
}


def _command(*arguments: str) -> Callable[[str, Path], object]:
    """A command with `URL` replaced by the URL, and `HERE` by a directory."""

    def run(url: str, here: Path) -> None:
        given = [part.replace("URL", url).replace("HERE", str(here)) for part in arguments]
        sys.argv = ["featstore", *given]
        run_command()

    return run


def _train(here: Path, **keys: Any) -> str:
    path = here / "train.yaml"
    path.write_text(yaml.safe_dump({"table": str(here / "plain"), "slots": ["user"], **keys}))
    return str(path)


def _load(here: Path, **keys: Any) -> Any:
    with FeatureLoader.from_config(_train(here, **keys)) as loader:
        return loader, list(loader), loader.stats()


def _open(url: str, here: Path) -> Any:
    table = featstore.open_table(url)
    return table, table.snapshot, table.data_files(), table.inspect(), table.profile(), table.lint()


def _report(here: Path, url: str | Path, output: str | Path, **options: Any) -> Any:
    written, page = featstore.report(url, output, **options), here / "report.html"
    return written, page.read_text() if page.exists() else ""


ACTS: dict[str, Callable[[str, Path], object]] = {
    "open_table": _open,
    "open_table at a version": lambda url, here: featstore.open_table(url, 3),
    "FeatureLoader": lambda url, here: list(FeatureLoader(url, slots=["user"])),
    "from_config at": lambda url, here: FeatureLoader.from_config(url),
    "config: table": lambda url, here: _load(here, table=url),
    "config: table, staged": lambda url, here: _load(
        here, table=url, staging={"directory": str(here / "ssd"), "mode": "whole"}
    ),
    "config: follow": lambda url, here: _load(
        here, table=url, follow=True, dispatch={"store": f"sqlite://{here}/f.db", "run_id": "r"}
    ),
    "config: staging.directory": lambda url, here: _load(here, staging={"directory": url}),
    "config: dispatch.store": lambda url, here: _load(here, dispatch={"store": url, "run_id": "r"}),
    "config: dispatch.store, read before": lambda url, here: [
        _load(here, dispatch={"store": url, "run_id": "twice"}) for _ in range(2)
    ],
    "config: order.recording": lambda url, here: _load(
        here, order={"kind": "replay", "recording": url}
    ),
    "config: staging": lambda url, here: _load(here, staging=url),
    "config: dispatch": lambda url, here: _load(here, dispatch=url),
    "config: where": lambda url, here: _load(here, where=f"user = '{url}' and"),
    "spec: file": lambda url, here: featstore.load_spec(SPEC | {"inputs": {"user": url}}),
    "options": lambda url, here: (Staging(directory=url), Dispatch(store=url, run_id="r")),
    "load_spec": lambda url, here: featstore.load_spec(url),
    "extract from": lambda url, here: featstore.extract(SPEC, url, here / "new", spark=None),
    "extract to": lambda url, here: featstore.extract(SPEC, here / "raw", url, spark=None),
    "extract days": lambda url, here: featstore.extract(
        SPEC, f"{url}/dt={{dt}}", here / "new", days="2026-11-01..2026-11-02"
    ),
    "extract group": lambda url, here: featstore.extract(
        SPEC, here / "raw", url, group="g", spark=None
    ),
    "extract by": lambda url, here: featstore.extract(url, here / "raw", here / "new", spark=None),
    "relabel": lambda url, here: api.relabel(SPEC, here / "raw", url, key="user"),
    "compact": lambda url, here: api.compact(url),
    "fit": lambda url, here: api.fit(here / "spec.yaml", url),
    "fit by": lambda url, here: api.fit(url, here / "raw"),
    "replay": lambda url, here: featstore.explore.replay.replay(
        str(here / "spec.yaml"), url, str(here / "plain")
    ),
    "replay against": lambda url, here: featstore.explore.replay.replay(
        str(here / "spec.yaml"), str(here / "raw"), url
    ),
    "report": lambda url, here: _report(here, url, here / "report.html"),
    "report compared": lambda url, here: _report(
        here, here / "made", here / "report.html", compare=url, where=f"user != '{url}'"
    ),
    "report to": lambda url, here: _report(here, here / "made", f"{url}.html"),
    "lint a spec": lambda url, here: featstore.spec.lint.lint(url),
    "show a spec": lambda url, here: featstore.spec.show.show(url),
    "diff of specs": lambda url, here: featstore.spec.diff.diff(str(here / "spec.yaml"), url),
    "sql of a slot": lambda url, here: featstore.spec.sql.statement.sql(url, "user"),
    "lint a table": lambda url, here: featstore.statistics.table_lint.lint(url),
    "vacuum": lambda url, here: featstore.table.vacuum.vacuum(url),
    "register": lambda url, here: locations(open_snapshot(url)),
    "warm": lambda url, here: featstore.loader.stage.warm(url),
    "warm a table": lambda url, here: featstore.loader.stage.warm(
        _train(here, staging={"directory": str(here / "ssd")}), table=url
    ),
    "list a cache": lambda url, here: featstore.loader.stage.list(url),
    "clear a cache": lambda url, here: featstore.loader.stage.clear(url),
    "status": lambda url, here: status(url),
    "receipts": lambda url, here: receipts(url, "r"),
    "recorded": lambda url, here: recorded(url, "r"),
    "size": lambda url, here: storage.size_bytes(url),
    "read": lambda url, here: storage.open_read(url).read(),
    "fetch": lambda url, here: storage.fetch(url, io.BytesIO()),
    "write": lambda url, here: storage.open_write(f"{url}/x").__enter__(),
    "delete": lambda url, here: storage.delete(url),
    "link": lambda url, here: storage.link(url, f"{url}2"),
    "time": lambda url, here: storage.modified_s(url),
    "list": lambda url, here: listings.list_files(url),
    "find": lambda url, here: listings.find_file(url),
    "span": lambda url, here: list(read_span(url, 0, 1, size_bytes=10).blocks),
    "impressions": lambda url, here: parse_log(f"from={url} row_id=a", Impressions),
    "label": lambda url, here: parse_log(f"fron={url} name=click", Label),
    "no pair": lambda url, here: parse_log(url, Label),
    "a join": lambda url, here: _join(url),
    "$ inspect": _command("table", "inspect", "URL"),
    "$ rows": _command("table", "show", "URL", "--rows", "1"),
    "$ extract": _command(
        "extract", "--spec", "HERE/spec.yaml", "--input", "URL", "--table", "HERE/new"
    ),
    "$ extract to": _command(
        "extract", "--spec", "HERE/spec.yaml", "--input", "HERE/raw", "--table", "URL"
    ),
    "$ report": _command("table", "profile", "URL", "-o", "HERE/report.html"),
    "$ report to": _command("table", "profile", "HERE/made", "-o", "URL.html"),
    "$ spec lint": _command("spec", "lint", "URL"),
    "$ spec fit": _command("spec", "fit", "HERE/spec.yaml", "--input", "URL"),
    "$ status": _command("dispatch", "status", "URL"),
    "$ receipt": _command("dispatch", "receipt", "URL", "--run-id", "r"),
    "$ stage list": _command("stage", "list", "URL"),
    "$ stage warm": _command("stage", "warm", "URL"),
}


def _join(url: str) -> LabelJoin:
    impressions = parse_log(f"from={url} row_id=a event_time=b", Impressions)
    label = parse_log(f"name=click from={url} key=a event_time=b window=1h", Label)
    cut_off = datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC)
    return LabelJoin(impressions=impressions, labels=(label,), cut_off=cut_off, output_url=url)


@pytest.fixture
def port() -> Iterator[int]:
    """A port on which nothing listens, reserved for this test."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int) -> Path:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value.format(port=port))
    monkeypatch.setattr(sys, "argv", sys.argv)
    # Extractions, imports and joins ask a store that does not answer again for two minutes.
    monkeypatch.setattr(
        "featstore.files.retry.RetryPolicy", lambda retry_s: RetryPolicy(retry_s=0.1)
    )
    forget_clients()
    put_parquet(tmp_path / "raw" / "x.parquet", {"user": ["a", "b"]})
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    featstore.extract(SPEC, tmp_path / "raw", tmp_path / "made", spark=None)
    (tmp_path / "plain").mkdir()
    data = next((tmp_path / "made").glob("*.parquet")).read_bytes()
    (tmp_path / "plain" / "x.parquet").write_bytes(data)
    with storage.open_write(f"{URLS['memory']}/x.parquet") as file:
        file.write(data)
    return tmp_path


@pytest.mark.parametrize("kind", tiered(URLS, lambda kind: kind == "s3"))
def test_no_secret_of_a_url_is_shown_by_anything_that_takes_one(
    kind: str,
    here: Path,
    port: int,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="featstore")
    url, num_failed = URLS[kind].format(port=port), 0
    for name, act in ACTS.items():
        shown, failed = _shown(act, url, here)
        num_failed += failed
        captured = capfd.readouterr()
        for text in (*shown, captured.out, captured.err, caplog.text):
            assert "Sk3y" not in text, f"{name}: {text}"
        if failed and name.startswith("$"):
            assert re.fullmatch(r"featstore: error: .*\n", captured.err), f"{name}: {captured.err}"
    assert num_failed > (len(ACTS) / 4), "the URL did not reach what should have failed on it"


def _shown(act: Callable[[str, Path], object], url: str, here: Path) -> tuple[list[str], bool]:
    """Everything that a user may see of an action, and whether it failed."""
    try:
        result = act(url, here)
    except SystemExit as end:
        return [], bool(end.code)
    except Exception as error:  # noqa: BLE001  whatever it is, it is shown
        return [str(error), repr(error), *traceback.format_exception(error)], True
    found = result if isinstance(result, tuple | list) else [result]
    return [text for part in found for text in (str(part), repr(part))], False
