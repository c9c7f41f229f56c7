from collections.abc import Iterator
from typing import Any

import pytest
import torch

from featstore.loader.feature_loader import FeatureLoader
from featstore.tensors.one_buffer import in_one_buffer


@pytest.fixture
def columns(table_url: str) -> Iterator[Any]:
    """Of a batch that straddles row groups and files."""
    with FeatureLoader(
        table_url, slots=["*"], labels=["click"], weight="half", batch_size=50
    ) as loader:
        batches = iter(loader)
        next(batches)
        yield next(batches).columns


def arrays(columns: Any) -> Any:
    found = columns.made()
    assert tuple(found) == columns.keys
    parts = [
        (column,) if torch.is_tensor(column) else (column.values, column.offsets)
        for column in found.values()
    ]
    return [part.numpy() for tensors in parts for part in tensors]


def same(one: Any, other: Any) -> Any:
    return one.keys == other.keys and [a.tobytes() for a in arrays(one)] == [
        a.tobytes() for a in arrays(other)
    ]


def test_columns_in_one_buffer_are_equal_aligned_views_of_it(columns: Any) -> None:
    found = in_one_buffer(columns)
    assert same(found, columns)
    begin, places = (
        found.memory.data_ptr(),
        [place for places in found.places.values() for place in places],
    )
    assert all(first % 64 == 0 for _, first, _ in places)
    end = begin + found.end
    assert all(
        begin <= array.ctypes.data <= array.ctypes.data + array.nbytes <= end
        for array in arrays(found)
    )
    assert {dtype for dtype, *_ in places} == {torch.int64, torch.float32}


def test_a_copy_and_a_move_share_nothing_and_leave_out_what_lies_behind(columns: Any) -> None:
    long = in_one_buffer(columns, lambda size: torch.zeros(size + 1000, dtype=torch.uint8))
    for other in (
        long.packed(),
        long.moved(device="meta"),
        long.moved(device="cpu", dtype=torch.uint8, copy=True),
    ):
        assert (other.end, len(other.memory)) == (long.end, long.end)
        assert other.memory.is_meta or same(other, columns)
    long.packed().memory.zero_()
    assert same(long, columns)
