import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("array_record")
pytest.importorskip("datasets")
pytest.importorskip("lmdb")

from random_access_parts.rows import NUM_SLOTS, Rows
from random_access_parts.sides import SIDES
from random_access_parts.workers import measure

ROWS = Rows(num_rows=3_000)


def test_rows_are_a_function_of_their_index_and_differ() -> None:
    whole = np.concatenate(list(ROWS.blocks()))
    assert whole.shape == (3_000, NUM_SLOTS)
    assert (whole[[5, 2_999]] == ROWS.at(np.array([5, 2_999]))).all()
    assert len(np.unique(whole)) == whole.size
    assert whole.min() >= 0


@pytest.mark.parametrize("name", SIDES)
def test_every_side_gives_the_rows_that_are_asked_for(name: str, tmp_path: Path) -> None:
    side = SIDES[name]()
    side.make(ROWS, tmp_path)
    indices = np.random.default_rng(1).integers(0, 3_000, 500)
    assert np.array_equal(side.open().take(indices), ROWS.at(indices))
    side.close()


def test_workers_are_measured_together(tmp_path: Path) -> None:
    side = SIDES["featstore SampleStore"]()
    side.make(ROWS, tmp_path)
    idle = measure(None, ROWS, 2, 64, 0)
    found = measure(side, ROWS, 2, 64, 0.1)
    assert idle.rows_per_s == 0
    assert found.pss_bytes > idle.pss_bytes / 2
    assert found.rows_per_s > 0
    assert found.cpu_us_per_row > 0


def test_a_side_that_gives_other_rows_is_no_figure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    side = SIDES["numpy gather"]()
    side.make(ROWS, tmp_path)
    path = tmp_path / "rows.bin"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(AssertionError, match="a worker failed"):
        measure(side, ROWS, 2, 64, 0.1)
    assert "AssertionError" in capfd.readouterr().err


@pytest.mark.slow
def test_calls_with_other_sides_make_one_run(tmp_path: Path) -> None:
    kept = tmp_path / "figures.json"
    first = _result_of("numpy gather", kept)
    both = _result_of("Python list in each worker", kept)
    assert list(first["sides"]) == ["numpy gather"]
    assert list(both["sides"]) == ["numpy gather", "Python list in each worker"]
    assert both["sides"]["numpy gather"] == first["sides"]["numpy gather"]
    # A row of 40 integers is 40 objects of 32 bytes, and a tuple of 40 pointers.
    listed = both["sides"]["Python list in each worker"]["figures"]["1"]
    assert listed["added_bytes"] > 200_000 * 40 * 40


def _result_of(side: str, kept: Path) -> dict[str, Any]:
    command = [sys.executable, "benchmarks/random_access.py", "--rows", "200000", "--workers", "1"]
    command += ["--seconds", "0.01", "--side", side, "--figures", str(kept)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))
    return result
