from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from featstore.loader.feature_loader import FeatureLoader
from featstore.tensors.column_arrays import SLOT
from featstore.tensors.columns import Jagged
from featstore.tensors.packed import PackedColumns, TensorColumns, TensorPlace, TensorPlaces, pack


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
    found = pack(columns)
    assert same(found, columns)
    [buffer] = found.buffers
    begin, end = buffer.data_ptr(), buffer.data_ptr() + len(buffer)
    assert all(array.ctypes.data % 64 == begin % 64 for array in arrays(found))
    assert all(
        begin <= array.ctypes.data <= array.ctypes.data + array.nbytes <= end
        for array in arrays(found)
    )
    dtypes = {place.dtype for places in found.places.values() for place in places}
    assert dtypes == {torch.int64, torch.float32}


def test_an_empty_column_where_another_begins_moves_none_after_it() -> None:
    places = {"full": (0, 3), "empty": (0, 0), "next": (3, 2)}
    packed = PackedColumns(
        buffers=(torch.arange(5).view(torch.uint8),),
        places=TensorPlaces(
            {
                (SLOT, name): (TensorPlace(0, torch.int64, first, (size,)),)
                for name, (first, size) in places.items()
            }
        ),
    )
    made: dict[Any, Any] = packed.made()
    found = {name: column.tolist() for (_, name), column in made.items()}
    assert found == {"full": [0, 1, 2], "empty": [], "next": [3, 4]}


def test_a_copy_and_a_move_share_nothing_and_leave_out_what_lies_behind(columns: Any) -> None:
    [exact] = pack(columns).buffers
    long = pack(columns, lambda size: torch.zeros(size + 1000, dtype=torch.uint8))
    for other in (
        long.packed(),
        long.moved(device="meta"),
        long.moved(device="cpu", dtype=torch.uint8, copy=True),
    ):
        [buffer] = other.buffers
        assert len(buffer) == len(exact)
        assert buffer.is_meta or same(other, columns)
    long.packed().buffers[0].zero_()
    assert same(long, columns)


def test_gathered_batches_that_are_laid_out_alike_share_their_places_in_one_buffer(
    table_url: str,
) -> None:
    slots, shuffle = ["row", "pair", "half"], {"window_rows": 40}
    with FeatureLoader(table_url, slots=slots, batch_size=20, shuffle=shuffle) as loader:
        columns = [batch.columns for batch in islice(loader, 2)]
        packed = [pack(each) for each in columns]
        assert all(map(same, packed, columns))
    assert packed[0].places is packed[1].places
    for found in packed:
        [buffer] = found.buffers
        ids, floats = (
            next(array for array in arrays(found) if array.dtype == dtype)
            for dtype in (np.int64, np.float32)
        )
        assert ids.ctypes.data % 64 == floats.ctypes.data % 64 == buffer.data_ptr() % 64


def test_batches_without_lists_that_are_laid_out_alike_share_their_places() -> None:
    first, second = (
        pack(TensorColumns({(SLOT, "a"): torch.arange(3) + n, (SLOT, "b"): torch.rand(3, 2)}))
        for n in range(2)
    )
    assert first.places is second.places
    assert [array.tolist() for array in (arrays(first)[0], arrays(second)[0])] == [
        [0, 1, 2],
        [1, 2, 3],
    ]


def test_tensors_that_are_no_contiguous_arrays_are_packed_too() -> None:
    """As a transform may return them; offsets become those of the packed values."""
    strided, wide = torch.arange(10)[::2], torch.arange(6.0).reshape(2, 3).T
    jagged = Jagged(torch.arange(8)[::2], torch.tensor([0, 1, 1, 4]))
    columns: Any = {(SLOT, "a"): strided, (SLOT, "b"): wide, (SLOT, "c"): jagged}
    found: Any = pack(TensorColumns(columns)).made()
    assert torch.equal(found[SLOT, "a"], strided)
    assert torch.equal(found[SLOT, "b"], wide)
    assert [row.tolist() for row in found[SLOT, "c"]] == [[0], [], [2, 4, 6]]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_lists_whose_offsets_begin_above_0_keep_their_values(dtype: Any) -> None:
    """As of a column whose first rows a transform has cut off."""
    jagged = Jagged(torch.arange(10), torch.tensor([2, 4, 4, 7], dtype=dtype))
    column: Any = pack(TensorColumns({(SLOT, "a"): jagged})).made()[SLOT, "a"]
    assert [row.tolist() for row in column] == [row.tolist() for row in jagged]
    assert column.offsets.tolist() == [0, 2, 2, 5]


@given(
    st.lists(
        st.tuples(st.sampled_from([torch.int64, torch.float32, torch.bfloat16]), st.integers(0, 9)),
        max_size=8,
    )
)
def test_columns_of_any_dtypes_and_sizes_are_found_where_they_were_put(
    of: list[tuple[torch.dtype, int]],
) -> None:
    columns = {
        (SLOT, str(number)): torch.arange(size).to(dtype) + number
        for number, (dtype, size) in enumerate(of)
    }
    found = pack(TensorColumns(columns)).made()
    assert found.keys() == columns.keys()
    for key, column in columns.items():
        assert isinstance(packed := found[key], torch.Tensor)
        assert packed.dtype == column.dtype
        assert torch.equal(packed, column)
