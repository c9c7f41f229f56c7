"""Whatever reads rows of a table says that a slot group is stale, or reads it as missing if asked
to.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import featstore
from featstore.base.errors import StaleGroupError
from featstore.explore.table import Table
from featstore.tools.cli.program import cli
from tests.stale_tables import REWRITES, make, rewrite

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


def test_head_and_profile_of_the_command_line_say_so(url: str) -> None:
    rewrite(url, "delete")
    for command in ("head", "profile", "show"):
        arguments = ["table", command, url]
        arguments += ["--exact"] if command == "profile" else []
        arguments += ["--where", "id = 105"] if command == "show" else []
        refused = CliRunner().invoke(cli, arguments)
        assert isinstance(refused.exception, StaleGroupError)
        read = CliRunner().invoke(cli, [*arguments, "--stale-groups", "missing"])
        assert read.exit_code == 0, read.output
