"""What the benchmark of DLIO is given, and what it takes from DLIO's reports."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dlio.comparison import BATCH_SIZE, ROWS_PER_S_OF_ACCELERATOR, figures_of
from dlio.rows import FORMATS, records_of
from dlio.shares import share_of
from featstore.base.errors import ConfigError
from loader_parts.plain_workload import DLRM

WORKLOAD = Path(__file__).parents[2] / "benchmarks/dlio/configs/workload/dlrm_parquet.yaml"
# Three steps in 0.504 s, and 0.002 s between them.
EPOCH: dict[str, Any] = {
    "proc": {"block1": [0.5, 0.001, 0.003]},
    "load": {"block1": [0.4, 0.0005, 0.0015]},
    "throughput": {"block1": 3 * BATCH_SIZE / 0.506},
    "au": {"block1": 12.0},
}
SLOWER = EPOCH | {"throughput": {"block1": 3 * BATCH_SIZE / 5.0}, "au": {"block1": 1.0}}


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return replace(DLRM, rows_per_file=100).rows_of(0).select(DLRM.columns)


def test_the_workload_has_the_shape_that_is_written(table: pa.Table) -> None:
    workload = yaml.safe_load(WORKLOAD.read_text())
    assert workload["dataset"]["num_samples_per_file"] == DLRM.rows_per_file
    assert workload["dataset"]["record_length"] == records_of(table).dtype.itemsize
    assert workload["reader"]["batch_size"] == BATCH_SIZE
    assert workload["train"]["computation_time"] == pytest.approx(
        BATCH_SIZE / ROWS_PER_S_OF_ACCELERATOR, rel=1e-3
    )
    assert DLRM.rows_per_file % BATCH_SIZE == 0


def test_each_format_holds_the_rows_as_dlio_takes_samples_of_it(
    table: pa.Table, tmp_path: Path
) -> None:
    rows = [bytes(row) for row in records_of(table)]
    for name in ("npz", "csv", "indexed_binary"):
        FORMATS[name](table, tmp_path / f"rows.{name}")
    samples = np.load(tmp_path / "rows.npz")["x"]
    assert [samples[..., row].tobytes() for row in range(len(rows))] == rows
    types = pa.csv.ConvertOptions(column_types=table.schema)
    assert pa.csv.read_csv(tmp_path / "rows.csv", convert_options=types).equals(table)
    data = (tmp_path / "rows.indexed_binary").read_bytes()
    offsets, sizes = (
        np.fromfile(tmp_path / f"rows.indexed_binary.{end}.idx", np.int64) for end in ("off", "sz")
    )
    assert [data[at : at + size] for at, size in zip(offsets, sizes, strict=True)] == rows


@given(st.integers(1, 8), st.integers(1, 8))
def test_ranks_share_all_files_and_have_equally_many(num_ranks: int, per_rank: int) -> None:
    files = [f"{number}" for number in range(num_ranks * per_rank)]
    shares = [share_of(files, rank, num_ranks) for rank in range(num_ranks)]
    assert {len(share) for share in shares} == {per_rank}
    assert [file for share in shares for file in share] == files


@pytest.mark.parametrize(("num_files", "num_ranks"), [(5, 2), (2, 4), (0, 1)])
def test_files_that_ranks_cannot_share_are_refused(num_files: int, num_ranks: int) -> None:
    with pytest.raises(ConfigError, match=rf"{num_ranks} ranks, found {num_files} files; set num"):
        share_of(["file"] * num_files, 0, num_ranks)


def test_the_first_step_is_left_out_of_the_steady_figures() -> None:
    found = figures_of([EPOCH], {"num_rows": 3 * BATCH_SIZE, "cpu_s": 2.0}, 3 * BATCH_SIZE)
    assert found == pytest.approx(
        {
            "m_rows_per_cpu_s": 3 * BATCH_SIZE / 2.0 / 1e6,
            "m_rows_per_s": 3 * BATCH_SIZE / 0.506 / 1e6,
            "steady_m_rows_per_s": 2 * BATCH_SIZE / 0.006 / 1e6,
            "au_percent": 12.0,
            "wait_ms": 1.0,
            "step_ms": 3.0,
        }
    )


def test_figures_are_medians_of_the_epochs_and_the_cpu_that_of_all() -> None:
    counted = {"num_rows": 9 * BATCH_SIZE, "cpu_s": 2.0}
    found = figures_of([SLOWER, EPOCH, EPOCH], counted, 3 * BATCH_SIZE)
    assert found["au_percent"] == 12.0
    assert found["step_ms"] == pytest.approx(3.0)
    assert found["m_rows_per_cpu_s"] == pytest.approx(9 * BATCH_SIZE / 2.0 / 1e6)


@pytest.mark.parametrize(
    ("expected", "counted"),
    [(2 * BATCH_SIZE, 2 * BATCH_SIZE), (3 * BATCH_SIZE, 3 * BATCH_SIZE - 1)],
)
def test_a_run_that_read_other_rows_ends_the_benchmark(expected: int, counted: int) -> None:
    with pytest.raises(SystemExit, match=f"expected {expected} rows in each epoch, found"):
        figures_of([EPOCH], {"num_rows": counted, "cpu_s": 2.0}, expected)
