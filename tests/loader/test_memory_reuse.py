"""Memory of shuffled batches that serves the next epoch, and is freed when the loader is closed."""

import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore import FeatureLoader
from featstore.tensors import buffer_pool
from featstore.tensors.batch import Batch


@pytest.fixture
def loader(tmp_path: Path) -> FeatureLoader:
    for number in range(2):
        ids = pa.array(range(1000 * number, 1000 * (number + 1)), pa.int64())
        pq.write_table(pa.table({"ids": ids}), tmp_path / f"{number}.parquet")
    return FeatureLoader(str(tmp_path), slots=["ids"], batch_size=100, shuffle=True)


def addresses(batches: list[Batch]) -> set[int]:
    return {batch["ids"].untyped_storage().data_ptr() for batch in batches}


def test_the_next_epoch_begins_with_the_memory_of_the_last(loader: FeatureLoader) -> None:
    first = {batch["ids"].untyped_storage().data_ptr() for batch in loader}
    second = {batch["ids"].untyped_storage().data_ptr() for batch in loader}
    assert second <= first


def test_batches_that_are_kept_are_not_written_over_by_the_next_epoch(
    loader: FeatureLoader,
) -> None:
    kept = list(loader)
    rows = [batch["ids"].tolist() for batch in kept]
    others = list(loader)
    assert not addresses(kept) & addresses(others)
    assert [batch["ids"].tolist() for batch in kept] == rows


def pooled_bytes() -> int:
    """The memory that pools have allocated, and not freed."""
    traced = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(True, buffer_pool.__file__)]
    )
    return sum(trace.size for trace in traced.traces if trace.size >= 500)


def test_memory_of_batches_that_are_no_longer_kept_is_freed_while_the_loader_reads_on(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ids = pa.array(range(2000), pa.int64())
    pq.write_table(pa.table({"ids": ids}), tmp_path / "a.parquet", row_group_size=100)
    shuffle = {"window_rows": 100, "interleave": 1}
    with FeatureLoader(str(tmp_path), slots=["ids"], batch_size=100, shuffle=shuffle) as loader:
        tracemalloc.start()
        request.addfinalizer(tracemalloc.stop)
        kept = list(loader)
        before = pooled_bytes()
        assert before >= 2000 * 8
        del kept
        for _ in range(20):  # Of about ten takes each, of a pool of eleven buffers.
            assert sum(batch.num_rows for batch in loader) == 2000
        assert 0 < pooled_bytes() < before / 2


def test_batches_outlive_a_loader_that_is_closed(loader: FeatureLoader) -> None:
    kept = list(loader)
    loader.close()
    assert sorted(row for batch in kept for row in batch["ids"].tolist()) == list(range(2000))
    assert sorted(row for batch in loader for row in batch["ids"].tolist()) == list(range(2000))
