"""Columns that are tensors already make a batch like any other."""

import numpy as np
import torch

from featstore.reading.buffers import Ragged, Values
from featstore.tensors.column_arrays import LABEL, SLOT, Key
from featstore.tensors.columns import Jagged
from featstore.tensors.packed import TensorColumns, column_from, values_of


def test_columns_are_packed_and_moved_without_sharing_memory() -> None:
    values: dict[Key, Values] = {
        (SLOT, "tags"): Ragged(np.arange(3), np.array([0, 1, 3])),
        (LABEL, "click"): np.array([1, 0], np.float32),
    }
    columns = TensorColumns({key: column_from(of) for key, of in values.items()})
    assert tuple(columns.keys) == tuple(values)
    for copied in (columns.packed(), columns.moved(device=torch.device("cpu"))):
        made = copied.made()
        tags = made[SLOT, "tags"]
        assert isinstance(tags, Jagged)
        assert [row.tolist() for row in tags] == [[0], [1, 2]]
        tags.values[:] = 7
    again = values_of(columns.made()[SLOT, "tags"])
    assert isinstance(again, Ragged)
    assert again.values.tolist() == [0, 1, 2]


def test_read_only_memory_becomes_tensors_without_a_copy() -> None:
    array = np.arange(4)
    array.flags.writeable = False
    column = column_from(array)
    assert isinstance(column, torch.Tensor)
    assert column.data_ptr() == array.ctypes.data
