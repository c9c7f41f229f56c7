"""Memory of shuffled batches that serves the next epoch, and is freed when the loader is closed."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore import FeatureLoader
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


def test_batches_outlive_a_loader_that_is_closed(loader: FeatureLoader) -> None:
    kept = list(loader)
    loader.close()
    assert sorted(row for batch in kept for row in batch["ids"].tolist()) == list(range(2000))
    assert sorted(row for batch in loader for row in batch["ids"].tolist()) == list(range(2000))
