"""Batches as numpy arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from featstore.loader.feature_loader import FeatureLoader
from featstore.tensors.batch import Batch
from featstore.tensors.numpy_batch import JaggedArray, NumpyBatch, numpy_batch
from tests.parquet_files import put_parquet


def make(table_url: str, **options: Any) -> Batch:
    """A batch of every kind of column."""
    known: dict[str, Any] = {
        "slots": ["row", "half", "tags", "pair"],
        "labels": ["click"],
        "extras": ["note"],
        "batch_size": 50,
    }
    with FeatureLoader(table_url, **known | options) as loader:
        return next(iter(loader))


def test_arrays_are_the_memory_of_the_tensors_and_may_not_be_written(table_url: str) -> None:
    batch = make(table_url, weight="half")
    found = numpy_batch(batch)
    assert isinstance(found, NumpyBatch)
    assert list(found.slots) == ["row", "half", "tags", "pair"]
    tags = found.slots["tags"]
    assert isinstance(tags, JaggedArray)
    assert found.weight is not None
    pairs = [
        (found.slots["row"], batch["row"]),
        (found.slots["half"], batch["half"]),
        (found.slots["pair"], batch["pair"]),
        (tags.values, batch["tags"].values),
        (tags.offsets, batch["tags"].offsets),
        (found.labels["click"], batch.labels["click"]),
        (found.weight, batch.weight),
    ]
    for array, tensor in pairs:
        assert isinstance(array, np.ndarray)
        assert tensor is not None
        assert (array.dtype, array.shape) == (tensor.numpy().dtype, tuple(tensor.shape))
        assert array.ctypes.data == tensor.data_ptr()
        assert array.tolist() == tensor.tolist()
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert found.extras is batch.extras
    assert (found.num_rows, found.is_padding) == (50, False)


def test_a_batch_without_weights_has_none_and_a_padding_batch_counts_no_rows(
    table_url: str,
) -> None:
    batch = make(table_url)
    padding = Batch(batch.columns, num_rows=50, extras=batch.extras, is_padding=True)
    found = numpy_batch(padding)
    assert (found.weight, found.num_rows, found.is_padding) == (None, 0, True)
    assert len(found.labels["click"]) == 50


def test_what_numpy_does_not_have_is_refused(tmp_path: Path, table_url: str) -> None:
    put_parquet(tmp_path / "a.parquet", {"price": pa.array([1.0, 2.0], pa.float32())})
    batch = make(
        str(tmp_path),
        slots=[{"name": "price", "dtype": "bfloat16"}],
        labels=[],
        extras=[],
    )
    assert batch["price"].dtype == torch.bfloat16
    with pytest.raises(
        TypeError,
        match=r"column 'price': expected a CPU tensor of a dtype that numpy has, found "
        r"torch\.bfloat16 on cpu: select the slot with dtype float16",
    ):
        numpy_batch(batch)
    with pytest.raises(TypeError, match=r"column 'row': expected a CPU tensor.*found .*on meta"):
        numpy_batch(make(table_url).to("meta"))
