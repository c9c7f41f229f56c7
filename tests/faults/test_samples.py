"""Somebody removes, truncates or changes decoded columns, kills who builds them, or changes the
table: a clear error or a rebuild, never wrong rows. Who kills readers is in test_sample_readers.py.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

from featstore.base.errors import DataFileError, StagingError
from featstore.explore.table import open_table
from featstore.samples.sample_dataset import SampleDataset
from featstore.staging.cache import Cache, CacheEntry, Limits
from tests.loader.conftest import rows_of
from tests.parquet_files import put_parquet
from tests.programs import Program, run_python, start_together

ROWS_PER_FILE, NUM_FILES = 5_000, 4
NUM_ROWS = ROWS_PER_FILE * NUM_FILES

BUILD = """
import sys
from featstore.samples.sample_dataset import SampleDataset
print("ready", flush=True)
sys.stdin.readline()
dataset = SampleDataset(sys.argv[1], slots=["*"], staging={"directory": sys.argv[2]})
print(len(dataset), int(dataset[:]["row"].sum()), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for number in range(NUM_FILES):
        _put(tmp_path / "table", number)
    return tmp_path / "table"


def _put(table: Path, number: int, add: int = 0) -> None:
    first = number * ROWS_PER_FILE
    rows = range(first + add, first + add + ROWS_PER_FILE)
    columns = {"row": pa.array(rows, pa.int64()), "square": [float(row % 1000) for row in rows]}
    put_parquet(table / f"{number}.parquet", columns, row_group_size=1_000)


def samples(table: Path, cache: Path, **options: Any) -> SampleDataset:
    return SampleDataset(
        str(table), slots=["row", "square"], staging={"directory": str(cache)}, **options
    )


def entries(cache: Path) -> list[CacheEntry]:
    return Cache(str(cache), Limits(budget_bytes=0)).entries()


def require_right(dataset: SampleDataset, num_rows: int = NUM_ROWS) -> None:
    """All rows, in a random order, have their own values."""
    order = random.sample(range(num_rows), num_rows)
    batch = dataset[order]
    assert batch["row"].tolist() == order
    assert batch["square"].tolist() == [row % 1000 for row in order]


def test_a_reader_whose_cache_is_removed_goes_on_and_the_next_one_decodes_again(
    tmp_path: Path, table: Path
) -> None:
    dataset = samples(table, tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    require_right(dataset)
    assert sorted(rows_of(DataLoader(dataset, batch_size=999, num_workers=1))) == list(
        range(NUM_ROWS)
    )
    # A spawned worker finds nothing, and decodes again.
    spawned = DataLoader(dataset, batch_size=999, num_workers=2, multiprocessing_context="spawn")
    assert sorted(rows_of(spawned)) == list(range(NUM_ROWS))
    require_right(samples(table, tmp_path / "cache"))
    assert len(entries(tmp_path / "cache")) == NUM_FILES


@pytest.mark.parametrize("fault", ["flipped", "truncated"])
def test_a_reader_whose_columns_are_changed_stops_and_the_next_one_decodes_again(
    tmp_path: Path, table: Path, fault: str
) -> None:
    dataset = samples(table, tmp_path / "cache")
    require_right(dataset)
    changed = random.choice(entries(tmp_path / "cache")).path
    if fault == "truncated":
        os.truncate(changed, 5_000)
    else:
        with changed.open("r+b") as file:
            file.seek(20_000)
            byte = file.read(1)[0]
            file.seek(20_000)
            file.write(bytes([byte ^ 1]))
    with pytest.raises(StagingError, match="found other bytes: somebody wrote to the file"):
        dataset[3]
    require_right(samples(table, tmp_path / "cache"))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_whose_columns_are_changed_hands_the_error_to_the_training_loop(
    tmp_path: Path, table: Path, method: str
) -> None:
    dataset = samples(table, tmp_path / "cache")

    def rows_of_batches() -> Iterator[list[int]]:
        yield list(range(50))
        # Drawn when the first batch is back: the worker waits, and reads nothing at this moment.
        for entry in entries(tmp_path / "cache"):
            os.truncate(entry.path, 5_000)
        yield list(range(50, 100))

    loader = DataLoader(
        dataset,
        batch_sampler=rows_of_batches(),
        num_workers=1,
        prefetch_factor=1,
        multiprocessing_context=method,
    )
    batches = iter(loader)
    assert next(batches)["row"].tolist() == list(range(50))
    with pytest.raises(StagingError, match="somebody wrote to the file"):
        next(batches)


def test_columns_that_change_before_a_worker_opens_them_are_decoded_again(
    tmp_path: Path, table: Path
) -> None:
    dataset = samples(table, tmp_path / "cache")
    for entry in entries(tmp_path / "cache"):
        entry.path.write_bytes(bytes(entry.record.size_bytes))
    loader = DataLoader(dataset, batch_size=999, num_workers=1, multiprocessing_context="spawn")
    assert sorted(rows_of(loader)) == list(range(NUM_ROWS))


def test_two_processes_that_build_at_once_decode_each_file_once(
    tmp_path: Path, table: Path
) -> None:
    arguments = (BUILD, table, tmp_path / "cache")
    expected = f"{NUM_ROWS} {sum(range(NUM_ROWS))}"
    with Program(*arguments) as one, Program(*arguments) as other:
        start_together([one, other])
        assert [one.line(), other.line()] == [expected] * 2
        found = entries(tmp_path / "cache")
        assert len(found) == NUM_FILES
        assert all(entry.is_pinned for entry in found)


@pytest.mark.slow
def test_a_builder_that_is_killed_leaves_whole_entries_and_no_others(
    tmp_path: Path, table: Path, is_campaign: bool
) -> None:
    """At any moment: what it has built serves the next one, which builds the rest."""
    num_killed_while_it_built = 0
    for number in range(12 if is_campaign else 4):
        cache = tmp_path / f"cache-{number}"
        with Program(BUILD, table, cache) as builder:
            start_together([builder])
            root = cache / "featstore-staging-3"
            while not list(root.glob(f"*.{'part' if number % 2 else 'staged'}")):
                time.sleep(0.0005)
            time.sleep(number * 0.001)
            os.kill(builder.pid, signal.SIGKILL)
        before = {entry.path for entry in entries(cache)} if root.exists() else set()
        num_killed_while_it_built += len(before) < NUM_FILES
        require_right(samples(table, cache))
        found = {entry.path for entry in entries(cache)}
        assert before <= found
        assert len(found) == NUM_FILES
        assert not list(root.glob("*.part"))
    assert num_killed_while_it_built


def test_a_file_that_is_replaced_is_decoded_anew_and_the_others_are_not(
    tmp_path: Path, table: Path
) -> None:
    before = samples(table, tmp_path / "cache")
    names = {entry.path.name for entry in entries(tmp_path / "cache")}
    _put(table, 1, add=100_000)
    after = samples(table, tmp_path / "cache")
    assert after[ROWS_PER_FILE]["row"].tolist() == [ROWS_PER_FILE + 100_000]
    require_right(before)
    assert len({entry.path.name for entry in entries(tmp_path / "cache")} - names) == 1


def test_a_new_day_decodes_only_the_new_day(tmp_path: Path, table: Path) -> None:
    samples(table, tmp_path / "cache").close()
    times = {entry.path: entry.path.stat().st_ino for entry in entries(tmp_path / "cache")}
    _put(table, NUM_FILES)
    wider = samples(table, tmp_path / "cache")
    require_right(wider, NUM_ROWS + ROWS_PER_FILE)
    after = {entry.path: entry.path.stat().st_ino for entry in entries(tmp_path / "cache")}
    assert times.items() < after.items()
    assert len(after) == NUM_FILES + 1


def test_a_table_that_is_vacuumed_serves_what_is_decoded_and_names_what_is_not(
    tmp_path: Path, table: Path
) -> None:
    snapshot = open_table(str(table)).snapshot
    dataset = SampleDataset(snapshot, slots=["row"], staging={"directory": str(tmp_path / "c")})
    for number in range(NUM_FILES):
        (table / f"{number}.parquet").unlink()
    assert dataset[[1, NUM_ROWS - 1]]["row"].tolist() == [1, NUM_ROWS - 1]
    again = SampleDataset(snapshot, slots=["row"], staging={"directory": str(tmp_path / "c")})
    assert again[7]["row"].tolist() == [7]
    with pytest.raises(DataFileError, match=r"0.parquet: expected a data file, found none; was it"):
        SampleDataset(snapshot, slots=["square"], staging={"directory": str(tmp_path / "c")})


def test_a_process_that_ends_without_closing_lets_its_entries_be_evicted(
    tmp_path: Path, table: Path
) -> None:
    run_python(BUILD, table, tmp_path / "cache", stdin=subprocess.DEVNULL)
    found = entries(tmp_path / "cache")
    assert len(found) == NUM_FILES
    assert not any(entry.is_pinned for entry in found)
