"""The synthetic click log: deterministic, skewed, and with a signal in it."""

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from featstore.tools import demo_synthetic as synthetic
from featstore.tools.demo_run import mean_labels
from featstore.tools.demo_synthetic import RAW_SCHEMA, write_click_log
from featstore.tools.demo_train import auc


def read(directory: Path) -> pa.Table:
    return pa.concat_tables(
        pq.ParquetFile(path).read() for path in sorted(directory.rglob("*.parquet"))
    )


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    directory = tmp_path_factory.mktemp("clicks")
    write_click_log(directory, 100_000)
    return read(directory)


def test_all_rows_are_written_in_order_over_the_days(tmp_path: Path) -> None:
    report = write_click_log(tmp_path, 50_003, num_days=3, rows_per_file=10_000)
    table = read(tmp_path)
    assert table.schema == RAW_SCHEMA
    assert table["request_id"].to_pylist() == list(range(50_003))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "dt=2026-11-01",
        "dt=2026-11-02",
        "dt=2026-11-03",
    ]
    assert (report.num_rows, report.num_files) == (50_003, 6)
    for path in tmp_path.rglob("*.parquet"):
        days = pc.strftime(pq.ParquetFile(path).read(["ts"])["ts"], "%Y-%m-%d").unique().to_pylist()
        assert [f"dt={day}" for day in days] == [path.parent.name]


def test_rows_do_not_depend_on_the_sizes_of_files(tmp_path: Path) -> None:
    for name, rows_per_file in (("a", 7_001), ("b", 1_000_000)):
        write_click_log(tmp_path / name, 40_000, rows_per_file=rows_per_file)
    assert read(tmp_path / "a").equals(read(tmp_path / "b"))


def test_another_seed_gives_other_rows(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_click_log(tmp_path / str(seed), 1_000, seed=seed)
    assert not read(tmp_path / "0")["item_id"].equals(read(tmp_path / "1")["item_id"])


def test_ids_follow_zipfs_law(log: pa.Table) -> None:
    counts = np.sort(np.bincount(log["item_id"].to_numpy()))[::-1]
    expected = 1 / np.arange(1, 101)
    assert counts[:100] / counts[0] == pytest.approx(expected / expected[0], rel=0.9)
    assert np.polyfit(np.log(np.arange(1, 101)), np.log(counts[:100]), 1)[0] == pytest.approx(
        -1.0, abs=0.2
    )


def test_missing_and_empty_values_occur(log: pa.Table) -> None:
    shares = {
        name: log[name].null_count / log.num_rows
        for name in ("user_id", "price", "tags", "history")
    }
    assert shares == {"user_id": pytest.approx(0.01, rel=0.3), "price": pytest.approx(0.03, rel=0.3),
                      "tags": pytest.approx(0.02, rel=0.3), "history": 0.0}  # fmt: skip
    lengths = pc.list_value_length(log["history"])
    assert pc.min_max(lengths).as_py() == {"min": 0, "max": synthetic.MAX_HISTORY}
    assert pc.max(pc.list_value_length(log["tags"])).as_py() == synthetic.MAX_TAGS


def test_the_signal_is_there_to_be_learned(log: pa.Table) -> None:
    training, scored = log.slice(0, 50_000), log.slice(50_000)
    assert 0.05 < log["clicked"].to_numpy().mean() < 0.15
    means = mean_labels(training, scored, "item_id", "clicked")
    assert auc(scored["clicked"].to_numpy(), means.to_numpy()) > 0.55


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    peaks = []
    for num_rows in (2, 8):
        tracemalloc.start()
        write_click_log(tmp_path / str(num_rows), num_rows * synthetic.BLOCK_ROWS, num_days=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_an_equal_log_written_again_leaves_its_files_untouched(tmp_path: Path) -> None:
    first = write_click_log(tmp_path, 700)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    assert write_click_log(tmp_path, 700) == first
    assert {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()
    } == before
