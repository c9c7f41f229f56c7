"""DataLoader workers that read random samples are killed and started anew: every row of the epoch
comes once and is right, the decoded columns stay whole, and nothing is left of the dead.
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.parquet_files import put_parquet
from tests.programs import run_python

SCRIPT = Path(__file__).with_name("sample_readers.py")
ROWS_PER_FILE, NUM_FILES = 5_000, 4


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for number in range(NUM_FILES):
        rows = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        columns = {"row": pa.array(rows, pa.int64()), "square": [float(r % 1000) for r in rows]}
        put_parquet(tmp_path / "table" / f"{number}.parquet", columns, row_group_size=1_000)
    return tmp_path / "table"


def run(table: Path, num_rounds: int, *options: object) -> None:
    """Runs the program; in all rounds but the last it must have killed, and seen the error."""
    cache = table.with_name("cache")
    arguments = (table, cache, "--rounds", num_rounds, *options)
    done = run_python(SCRIPT, *arguments, warnings="ignore")
    found = json.loads(done.stdout)
    sys.stderr.write(f"{found}\n")
    assert found["errors"] == num_rounds - 1
    assert found["killed"] >= num_rounds - 1


def test_a_worker_that_is_killed_while_it_waits_costs_no_row(table: Path) -> None:
    run(table, 5, "--method", "fork", "--workers", 3, "--waiting")


@pytest.mark.slow
def test_a_spawned_worker_that_is_killed_while_it_waits_costs_no_row(table: Path) -> None:
    run(table, 3, "--method", "spawn", "--workers", 2, "--waiting")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_workers_of_32_that_are_killed_at_random_cost_no_row(
    table: Path, seed: int, is_campaign: bool
) -> None:
    if not is_campaign and seed:
        pytest.skip("only in the campaign of make faults: 32 processes are started again and again")
    num_rounds = 20 if is_campaign else 6
    run(table, num_rounds, "--method", "fork", "--workers", 32, "--seed", seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_workers_of_32_that_decode_a_removed_cache_again_and_are_killed_cost_no_row(
    table: Path, seed: int, is_campaign: bool
) -> None:
    if not is_campaign and seed:
        pytest.skip("only in the campaign of make faults: 32 processes are started again and again")
    # Torch looks every 5 s whether workers live that are no children of their loader.
    num_rounds = 12 if is_campaign else 3
    options = ("--method", "forkserver", "--workers", 32, "--removed", "--seed", seed)
    run(table, num_rounds, *options)
