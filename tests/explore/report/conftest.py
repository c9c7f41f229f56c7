"""One real browser for the tests of each module, and a table of two days."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featstore
from featstore.explore.table import Table
from tests.parquet_files import put_parquet

# The driver is shared with the benchmark.
sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from shared_parts.chromium import Tab, chromium, chromium_binary

DAYS = ("2026-11-01", "2026-11-02")
SPEC: Any = {
    "spec": 1,
    "inputs": {
        "request": "string",
        "user": "string",
        "paid": "double",
        "tags": "list<string>",
        "ts": "timestamp",
        "clicked": "long",
    },
    "labels": {"click": "clicked"},
    "keep": ["request"],
    "slots": [
        {"slot": 101, "name": "user", "op": "hash", "of": "user"},
        {"slot": 102, "name": "price", "op": "identity", "of": "paid"},
        {"slot": 103, "name": "tags", "op": "hash", "of": "tags"},
        {"slot": 104, "name": "hour", "op": "hour", "of": "ts", "tz": "UTC"},
        {"slot": 105, "name": "log_price", "op": "log1p", "of": "paid"},
    ],
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Tab]:
    """A tab of a Chromium. The tests are skipped without one."""
    binary = chromium_binary()
    if binary is None:
        pytest.skip("no chromium on PATH: install chromium")
    with chromium(binary) as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab) -> Tab:
    """The tab, with a window and a theme that no earlier test has changed."""
    browser.resize(1300, 900)
    browser.prefer("light")
    return browser


def day_rows(number: int) -> dict[str, Any]:
    """Forty rows of a day. Users change by a half from the first to the second."""
    rows = range(40)
    return {
        "request": [f"r{number}-{i}" for i in rows],
        "user": [f"u{i % 4 + 2 * number}" for i in rows],
        "paid": [None if i % 5 == 0 else float(i + 100 * number) for i in rows],
        "tags": [[f"t{tag}" for tag in range(i % 3)] for i in rows],
        "ts": pa.array([i % 3 * 3_600_000_000 for i in rows], pa.timestamp("us")),
        "clicked": [i % 2 for i in rows],
    }


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Two days of forty rows."""
    home = tmp_path_factory.mktemp("two-days")
    for number, day in enumerate(DAYS):
        put_parquet(home / "raw" / f"dt={day}" / "log.parquet", day_rows(number))
    featstore.extract(SPEC, home / "raw", home / "table", partition_from_path=["dt"])
    return featstore.open_table(home / "table")
