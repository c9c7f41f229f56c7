"""Whatever reads rows of a table says that a slot group is stale, or reads it as missing if asked
to.
"""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import featstore
from featstore.base.errors import StaleGroupError
from featstore.explore.table import Table
from featstore.tools.cli.program import cli
from tests.stale_tables import REWRITES, N, X, make, rewrite

STALE = r"slot group 'more' is stale .*, so x would be missing there"
READERS: dict[str, Callable[[Table], Any]] = {
    "to_arrow": Table.to_arrow,
    "to_batches": lambda table: list(table.to_batches(["x"])),
    "head": lambda table: table.head(1),
    "sample": lambda table: table.sample(1, ["x"]),
    "profile": Table.profile,
    "stored profile": lambda table: table.profile(stored=True),
    "profile by partition": Table.profile_partitions,
    "label profile": lambda table: table.label_profile("click"),
    "where": lambda table: table.to_arrow(["n"], where="x is null"),
    "duckdb": Table.duckdb,
    "polars": Table.polars,
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return make(tmp_path)


@pytest.mark.parametrize("read", READERS.values(), ids=list(READERS))
def test_a_stale_group_is_told_before_any_row(url: str, read: Callable[[Table], Any]) -> None:
    rewrite(url, "delete")
    with pytest.raises(StaleGroupError, match=STALE):
        read(featstore.open_table(url))
    read(featstore.open_table(url, stale_groups="missing"))


@pytest.mark.parametrize("how", REWRITES)
def test_what_is_missing_is_missing_only_if_that_was_asked_for(url: str, how: str) -> None:
    before = featstore.open_table(url)
    assert before.to_arrow()["x"].null_count == 0
    rewrite(url, how)
    found = featstore.open_table(url, stale_groups="missing").to_arrow()
    stale = found.num_rows - 50 * ("optimize" not in how and how != "z-order")
    assert 0 < found["x"].null_count <= stale
    assert before.to_arrow()["x"].null_count == 0, "its version has all files"


def test_other_slots_and_days_are_read(url: str) -> None:
    rewrite(url, "delete")
    table = featstore.open_table(url)
    assert table.to_arrow(["n"]).num_rows == 99
    assert table.profile(slots=["n"]).num_rows == 99
    assert table.to_arrow(["x"], where="day = '2'")["x"].null_count == 0
    assert table.inspect().groups[0].stale
    assert table.check is not None


COMMANDS = {
    "rows": "table show TABLE --rows 10",
    "show": "table show TABLE --where 'id = 105'",
    "profile": "table profile TABLE --exact",
    "check": "table check TABLE --spec SPEC",
    "report": "table profile TABLE -o ROOT/report.html",
    "preview": "spec preview SPEC --input ROOT/raw --table TABLE",
    "replay": "replay --spec SPEC --input ROOT/raw --table TABLE --partition-from-path day",
    "stage": "stage warm ROOT/train.yaml",
}
# The exit codes of those that find the missing values.
FOUND = {"check": 1, "replay": 1}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_that_reads_values_says_so(url: str, tmp_path: Path, name: str) -> None:
    rewrite(url, "delete")
    checked = [{"check": "coverage", "of": "x", "at_least": 0.9}]
    spec = {"inputs": {"n": "long", "x": "double"}, "slots": [N, X], "checks": checked}
    (tmp_path / "spec.yaml").write_text(json.dumps({"spec": 1, **spec}))
    config = {"table": url, "slots": ["n", "x"], "staging": {"directory": str(tmp_path / "cache")}}
    arguments = [
        part.replace("TABLE", url).replace("SPEC", f"{tmp_path}/spec.yaml")
        for part in shlex.split(COMMANDS[name].replace("ROOT", str(tmp_path)))
    ]
    (tmp_path / "train.yaml").write_text(json.dumps(config))
    refused = CliRunner().invoke(cli, arguments)
    assert isinstance(refused.exception, StaleGroupError), refused.output
    (tmp_path / "train.yaml").write_text(json.dumps(config | {"stale_groups": "missing"}))
    arguments += [] if name == "stage" else ["--stale-groups", "missing"]
    read = CliRunner().invoke(cli, arguments)
    assert read.exit_code == FOUND.get(name, 0), read.output
