"""docs/howto/frameworks.md, on a small table."""

import importlib.util
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.frameworks_environment import PYTHON, needs_frameworks, variables
from tests.pages.page import ROOT, blocks, run_page
from tests.parquet_files import put_parquet
from tests.programs import run_python, run_with

NUM_FILES, ROWS_PER_FILE = 4, 250
PAGE = "docs/howto/frameworks.md"
pytestmark = pytest.mark.slow


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with the table of the page."""
    draw = np.random.default_rng(1)
    for number in range(NUM_FILES):
        table = pa.table(
            {
                "price": pa.array(draw.random(ROWS_PER_FILE), pa.float32()),
                "user": pa.array(draw.integers(1, 2**63, ROWS_PER_FILE), pa.int64()),
                "tags": pa.array([[1, 2], [], [3]] * 83 + [[4]], pa.list_(pa.int64())),
                "click": pa.array(draw.integers(0, 2, ROWS_PER_FILE), pa.int64()),
            }
        )
        put_parquet(tmp_path / "data" / "ctr" / f"{number}.parquet", table, row_group_size=64)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_recipe_trains(directory: Path) -> None:
    """The jobs of Ray Data, tensorflow and JAX are written, and run by the other tests."""
    assert run_page(PAGE, directory) == 15


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: make ray")
def test_a_dataset_of_ray_has_all_rows(directory: Path) -> None:
    done = run_python(_written("ray_data_job.py", directory))
    assert "rows: 1000\n" in done.stdout


@needs_frameworks
@pytest.mark.parametrize(("job", "num_rows"), [("jax_job.py", 960), ("tensorflow_job.py", 3000)])
def test_jobs_of_other_libraries_read_whole_epochs(
    directory: Path, job: str, num_rows: int
) -> None:
    done = run_with(PYTHON, _written(job, directory), variables=variables())
    assert f"rows: {num_rows}\n" in done.stdout


def _written(job: str, directory: Path) -> Path:
    (block,) = (block for block in blocks((ROOT / PAGE).read_text()) if block.title == job)
    (directory / job).write_text(block.text.replace("/data/", f"{directory}/data/"))
    return directory / job
