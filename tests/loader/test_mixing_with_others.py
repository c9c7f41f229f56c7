"""Mixed rows where workers take splits over from each other. What a worker had told the store comes
once; the batch with which it learns of a loss may come twice.
"""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from featstore import FeatureLoader
from tests.loader.conftest import iteration_of, rows_of, source_of
from tests.parquet_files import put_row_files

NUM_FILES, FILE_ROWS, LEASE_S = 6, 400, 0.4
NUM_ROWS = NUM_FILES * FILE_ROWS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("files")
    return str(put_row_files(directory, [FILE_ROWS] * NUM_FILES, row_group_size=50))


def loader_of(
    files: str, directory: Path, interleave: int = 3, lease_s: float = LEASE_S, **options: Any
) -> FeatureLoader:
    """A worker of a run, which loses its leases after a pause."""
    return FeatureLoader(
        files,
        slots=["row"],
        batch_size=30,
        shuffle={"window_rows": 50 * interleave, "interleave": interleave},
        dispatch={
            "store": f"sqlite:///{directory}/s.db",
            "run_id": "r",
            "lease_s": lease_s,
            "stall_s": lease_s,
            # All that a worker has open is reserved: others get it only after a pause.
            "reserve_s": 1000.0,
        },
        **options,
    )


def paused(
    loader: FeatureLoader, num_batches: int, lease_s: float = LEASE_S
) -> tuple[Any, list[int]]:
    """An iteration that has delivered so many batches, has told so, and asks for no more."""
    batches = iter(loader)
    rows = rows_of_next(batches, num_batches)
    time.sleep(lease_s / 4 + 0.01)
    loader.ack()
    return batches, rows


def rows_of_next(batches: Any, num_batches: int) -> list[int]:
    return [row for _ in range(num_batches) for row in next(batches)["row"].tolist()]


@pytest.mark.parametrize("num_batches", [1, 7, 17])
@pytest.mark.parametrize("where", [None, "row % 3 != 1"])
def test_what_a_paused_worker_had_open_is_read_by_another_from_where_it_was(
    files: str, tmp_path: Path, num_batches: int, where: str | None
) -> None:
    one, two = (loader_of(files, tmp_path, where=where) for _ in range(2))
    with one, two:
        batches, first = paused(one, num_batches)
        second = rows_of(two)
        rest = rows_of(batches)
        assert one.stats()["leases_lost"] > 0
        assert one.stats()["rows_left_to_others"] > 0
    expected = [row for row in range(1, NUM_ROWS) if where is None or row % 3 != 1]
    # A row number of 0 is a missing id, about which a condition says nothing.
    assert sorted(row for row in first + second if row) == expected
    # The worker learns of it when it reports its next batch.
    assert len(rest) <= 30


@pytest.mark.parametrize("num_batches", [2, 11])
def test_rows_of_splits_that_are_lost_are_left_out_of_batches_with_those_that_are_not(
    files: str, tmp_path: Path, num_batches: int
) -> None:
    # The leases are long and many: the worker that continues renews the rest before the other one,
    # which claims a few ahead, has taken all of them over.
    lease_s = 2.0
    one = loader_of(files, tmp_path, interleave=NUM_FILES, lease_s=lease_s)
    two = loader_of(files, tmp_path, interleave=1, lease_s=lease_s)
    with one, two, ThreadPoolExecutor(2) as threads:
        batches, first = paused(one, num_batches, lease_s)
        others, second = iter(two), list[int]()
        while not _num_takeovers(two):
            second += next(others)["row"].tolist()
            time.sleep(0.01)
        # A split is lost, and the others are not: the worker goes on with those alone.
        rest = rows_of_next(batches, 3)
        num_lost = one.stats()["leases_lost"]
        remainder, more = threads.map(rows_of, [batches, others])
    rest += remainder
    times = Counter(first + second + rest + more)
    assert set(times) == set(range(NUM_ROWS))
    twice = {row for row, count in times.items() if count > 1}
    assert twice <= set(rest[:30])
    assert 0 < num_lost < NUM_FILES


def _num_takeovers(loader: FeatureLoader) -> int:
    coordinator = (
        None if source_of(loader).iteration is None else iteration_of(loader)._reports.coordinator
    )
    return 0 if coordinator is None else coordinator.takeovers.num_takeovers
