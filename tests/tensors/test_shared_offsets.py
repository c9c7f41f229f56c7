"""Lists of the same lengths have one offsets tensor, in every kind of batch."""

import io
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from featstore.loader.feature_loader import FeatureLoader
from featstore.samples.sample_dataset import SampleDataset
from featstore.tensors.batch import Batch
from featstore.tensors.columns import first_equal
from tests.parquet_files import put_parquet

_ROWS = 40


@pytest.fixture
def histories(tmp_path: Path) -> Path:
    """Two files of lists: `item` and `age` are of one history; `other` has as many values in other
    rows.
    """
    for number in range(2):
        lengths = [(row * 7 + number) % 5 for row in range(_ROWS)]
        rows = range(number * _ROWS, (number + 1) * _ROWS)
        put_parquet(
            tmp_path / f"{number}.parquet",
            {
                "row": list(rows),
                "item": _lists(rows, lengths, pa.int64()),
                "age": _lists(rows, lengths, pa.float32()),
                "other": _lists(rows, lengths[::-1], pa.int64()),
            },
            row_group_size=16,
        )
    return tmp_path


def _lists(rows: range, lengths: list[int], type_: pa.DataType) -> pa.Array:
    return pa.array(
        [
            [100 * row + at for at in range(length)]
            for row, length in zip(rows, lengths, strict=True)
        ],
        pa.list_(type_),
    )


def _sent(batch: Batch) -> Batch:
    sink = io.BytesIO()
    multiprocessing.reduction.ForkingPickler(sink, pickle.HIGHEST_PROTOCOL).dump(batch)
    found: Batch = pickle.loads(sink.getvalue())
    return found


_COPIES: dict[str, Callable[[Batch], Batch]] = {
    "as delivered": lambda batch: batch,
    "cloned": Batch.clone,
    "moved": lambda batch: batch.to("cpu"),
    "pickled": lambda batch: pickle.loads(pickle.dumps(batch)),
    "in shared memory": _sent,
}


def _is_shared(batch: Batch) -> bool:
    """Whether `item` and `age` have one offsets tensor, and `other` another one."""
    item, age, other = (batch[name].offsets for name in ("item", "age", "other"))
    return item is age and other is not item


@pytest.mark.parametrize("copy", _COPIES.values(), ids=_COPIES.keys())
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [8, 30])  # within row groups, and across them
def test_lists_of_a_history_combine(
    histories: Path, copy: Callable[[Batch], Batch], shuffle: bool, batch_size: int
) -> None:
    slots = ["row", "item", "age", "other"]
    with FeatureLoader(histories, slots=slots, batch_size=batch_size, shuffle=shuffle) as loader:
        batches = [copy(batch) for batch in loader]
    assert sum(map(len, batches)) == 2 * _ROWS
    for batch in batches:
        assert _is_shared(batch)
        both = batch["item"].to_nested() - batch["age"].to_nested()
        assert not both.values().any()
        for name in ("item", "age", "other"):
            for row, found in zip(batch["row"].tolist(), batch[name], strict=True):
                number, at = divmod(row, _ROWS)
                at = _ROWS - 1 - at if name == "other" else at
                assert found.tolist() == [100 * row + i for i in range((at * 7 + number) % 5)]


def test_a_batch_on_a_device_shares_without_comparing_there(histories: Path) -> None:
    slots = ["item", "age", "other"]
    for shuffle in (False, True):
        with FeatureLoader(histories, slots=slots, batch_size=30, shuffle=shuffle) as loader:
            for batch in loader:
                moved = batch.to("meta")
                assert _is_shared(moved)
                assert moved["item"].offsets.device.type == "meta"
                assert (moved["item"].values.shape, moved["other"].values.shape) == (
                    batch["item"].values.shape,
                    batch["other"].values.shape,
                )


def test_batches_of_dataloader_workers_share_offsets(histories: Path) -> None:
    with FeatureLoader(histories, slots=["item", "age", "other"], batch_size=30) as loader:
        batches = list(torch.utils.data.DataLoader(loader, batch_size=None, num_workers=1))
    assert sum(map(len, batches)) == 2 * _ROWS
    assert all(map(_is_shared, batches))


def test_samples_share_offsets(histories: Path) -> None:
    dataset = SampleDataset(histories, slots=["item", "age", "other"])
    assert _is_shared(dataset[3:20])
    assert _is_shared(dataset[[70, 1, 33]])


def test_a_row_without_times_keeps_the_rows_of_its_lists(tmp_path: Path) -> None:
    """Its ages are one missing mark. The lists then have offsets of their own."""
    ages: list[Any] = [[1.0, 2.0], None, [3.0]]
    put_parquet(
        tmp_path / "a.parquet",
        {
            "item": pa.array([[1, 2], [3, 4], [5]], pa.list_(pa.int64())),
            "age": pa.array(ages, pa.list_(pa.float32())),
        },
    )
    (batch,) = FeatureLoader(tmp_path, slots=["item", "age"])
    item, age = batch["item"], batch["age"]
    assert item.offsets is not age.offsets
    assert [row.tolist() for row in item] == [[1, 2], [3, 4], [5]]
    assert age[0].tolist() == [1.0, 2.0]
    assert age[1].isnan().tolist() == [True]
    assert age[2].tolist() == [3.0]
    with pytest.raises(RuntimeError, match="shapes"):
        item.to_nested() + age.to_nested()


@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), max_size=8))
def test_the_first_equal_column_is_found(lengths: list[list[int]]) -> None:
    offsets = [np.concatenate([[0], np.cumsum(of)]) for of in lengths]
    found = first_equal([(int(of[-1]), of) for of in offsets])
    assert found == [lengths.index(of) for of in lengths]


def test_offsets_of_another_dtype_are_not_shared() -> None:
    wide, narrow = (np.array([0, 1, 3], dtype) for dtype in (np.int64, np.int32))
    assert first_equal([(3, wide), (3, narrow), (3, wide)]) == [0, 1, 0]
