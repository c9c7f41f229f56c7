"""`--json`: what each command prints, and its keys, which are frozen."""

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import featstore
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.store_keys import run_prefix
from featstore.tools.cli.program import cli
from tests.dispatch.conftest import WholeClaims
from tests.parquet_files import put_parquet

GOLDEN = Path(__file__).parents[2] / "golden" / "cli_json.json"
SPEC = """
spec: 1
inputs: {user: string, price: double, clicked: long}
labels: {click: clicked}
slots:
  - {slot: 101, name: user, op: hash, of: user}
  - {slot: 102, name: price, op: log1p, of: price}
"""

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with specs, raw rows, their table, and a store of an epoch that is half done."""
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC)
    Path("train.yaml").write_text("{table: table, slots: [user, price], labels: [click]}")
    Path("checked.yaml").write_text(SPEC + "checks: [{check: rows, at_least: 10}]")
    Path("new.yaml").write_text(SPEC.replace("name: price", "name: log_price"))
    put_parquet(
        Path("raw.parquet"),
        {"user": ["a", None, "c"], "price": [1.0, 2.0, None], "clicked": [0, 1, 0]},
    )
    featstore.extract("spec.yaml", "raw.parquet", "table", partition={"dt": "2026-11-01"})
    plan = Plan(splits=[Split(path=f"{i}.parquet", num_rows=100) for i in range(2)])
    prefix = run_prefix("run")
    with WholeClaims(
        "sqlite:///" + str(tmp_path / "x.db"), plan=plan, prefix=prefix, worker="w"
    ) as one:
        assert one.complete(next(one.claims()))
    return tmp_path


@pytest.fixture
def ask(here: Path) -> Ask:
    def run(*arguments: str, code: int = 0) -> dict[str, Any]:
        done = CliRunner().invoke(cli, [*arguments, "--json"])
        assert done.exit_code == code, done.output
        (line,) = done.stdout.splitlines()
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    return run


def test_each_command_tells_what_its_text_tells(ask: Ask, here: Path) -> None:
    table = ask("table", "inspect", "--table", "table")
    assert (table["num_rows"], table["version"]) == (3, 0)
    assert table["partitions"][0]["keys"] == {"dt": "2026-11-01"}
    profile = ask("table", "profile", "--table", "table", "--slots", "price")
    assert [slot["coverage"] for slot in profile["slots"]] == [pytest.approx(2 / 3)]
    lint = ask("table", "check", "--layout", "--table", "table")
    assert (lint["ok"], lint["findings"], lint["num_files"]) == (True, [], 1)
    check = ask("table", "check", "--table", "table", "--spec", "checked.yaml", code=1)
    assert (check["ok"], check["results"][0]["outcome"]) == (False, "fail")
    spec = ask("spec", "show", "--spec", "spec.yaml")
    assert [entry["name"] for entry in spec["entries"]] == ["user", "price", "click"]
    assert ask("spec", "lint", "--spec", "spec.yaml")["ok"] is True
    changes = ask("spec", "diff", "--old", "spec.yaml", "--spec", "new.yaml")["slots"]
    assert changes == [{"what": "renamed", "number": 102, "name": "log_price", "note": "was price"}]
    train = ask("train", "check", "--config", "train.yaml", "--head", "1")
    assert (train["num_rows"], train["head"]["click"]) == (3, [0.0])
    store = f"sqlite:///{here}/x.db"
    (epoch,) = ask("dispatch", "status", "--store", store)["epochs"]
    assert (epoch["num_splits"], epoch["num_done"], epoch["num_rows"]) == (2, 1, 100)
    of_run = ("--store", store, "--run-id", "run")
    (receipt,) = ask("dispatch", "receipt", *of_run, code=1)["epochs"]
    assert (receipt["delivered"], receipt["missing"], receipt["workers"]) == (100, 100, {"w": 100})
    Path("log.csv").write_text("user,price\na,1.5\nbad\n")
    wanted = ("import", "--format", "csv", "--input", "log.csv", "--output", "imported")
    assert ask(*wanted, "--dry-run")["inputs"] == {"user": "string", "price": "double"}
    imported = ask(*wanted, "--max-malformed", "1")
    assert (imported["num_rows"], imported["num_malformed"]) == (1, 1)


def test_the_url_of_raw_input_is_told_to_be_none_of_a_table(here: Path) -> None:
    for command in (["table", "inspect"], ["table", "compact"]):
        done = CliRunner().invoke(cli, [*command, "--table", "delta+s3://bucket/t?version=1"])
        assert "expected the URL of a table, found one of raw input: drop 'delta+'" in str(
            done.exception
        )


def test_findings_are_on_standard_output_with_the_exit_code_of_the_text(
    ask: Ask, here: Path
) -> None:
    (here / "spec.yaml").write_text(SPEC.replace("of: user}", "of: usr}"))
    found = ask("spec", "lint", "--spec", "spec.yaml", code=2)
    assert (found["ok"], len(found["findings"])) == (False, 1)
    assert "did you mean 'user'" in found["findings"][0]


def test_keys_are_frozen(ask: Ask, here: Path) -> None:
    store = f"sqlite:///{here}/x.db"
    found = {
        "table inspect": ask("table", "inspect", "table"),
        "table inspect --history": ask("table", "inspect", "table", "--history"),
        "table profile": ask("table", "profile", "table", "--exact"),
        "table profile --label": ask("table", "profile", "table", "--label", "click"),
        "table profile --compare": ask("table", "profile", "table", "--compare", "table"),
        "table check --layout": ask("table", "check", "table", "--layout", "--batch-size", "2"),
        "table check": ask("table", "check", "table", "--spec", "checked.yaml", code=1),
        "table show": ask("table", "show", "table", "--where", "click = 1"),
        "spec preview": ask("spec", "preview", "spec.yaml", "--input", "raw.parquet"),
        "spec lint": ask("spec", "lint", "spec.yaml"),
        "spec show": ask("spec", "show", "spec.yaml"),
        "spec diff": ask("spec", "diff", "spec.yaml", "new.yaml"),
        "train check": ask("train", "check", "train.yaml", "--head", "1"),
        "bench": ask("bench", "table", "--slots", "user", "--seconds", "0.01", "--max-cores", "1"),
        "whatis": ask("whatis", str(user_sign()), "--table", "table"),
        "dispatch status": ask("dispatch", "status", store),
        "dispatch receipt": ask("dispatch", "receipt", store, "--run-id", "run", code=1),
    }
    Path("log.csv").write_text("user,price\na,1.5\nbad\n")
    wanted = ("import", "--format", "csv", "--input", "log.csv", "--output", "imported")
    found["import --dry-run"] = ask(*wanted, "--dry-run")
    found["import"] = ask(*wanted, "--max-malformed", "1")
    of_day = ("--table", "table", "--partition", "dt=2026-11-01")
    put_parquet(Path("less.parquet"), {"user": ["a"], "price": [1.0], "clicked": [0]})
    found["extract"] = ask("extract", "--spec", "spec.yaml", "--input", "less.parquet", *of_day)
    days = ("--input", "raw-{dt}.parquet", "--table", "table", "--days", "2026-11-01")
    Path("less.parquet").rename("raw-2026-11-01.parquet")
    found["extract --days"] = ask("extract", "--spec", "spec.yaml", *days)
    times = [datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)]
    put_parquet(Path("logs/shown/a.parquet"), {"id": ["a"], "ts": times})
    put_parquet(Path("logs/clicks/a.parquet"), {"id": ["a"], "ts": times})
    shown = ("--impressions", "from=logs/shown row_id=id event_time=ts")
    clicks = ("--label", "name=click from=logs/clicks key=id event_time=ts window=1h")
    cut = ("--cut-off", "2026-11-02", "--memory", "200MB")
    found["join-labels"] = ask("join-labels", "--output", "joined", *cut, *shown, *clicks)
    keys = {name: _keys(content) for name, content in found.items()}
    assert keys == json.loads(GOLDEN.read_text())


def user_sign() -> int:
    sign = featstore.Extractor(featstore.load_spec("spec.yaml")).one(
        {"user": "a", "price": 1.0, "clicked": 0}
    )["user"]
    assert isinstance(sign, int)
    return sign


def _keys(content: Any) -> Any:
    """The keys of mappings, down to values; of a list, those of its first item."""
    if isinstance(content, dict):
        return {key: _keys(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_keys(content[0])] if content else []
    return "value"
