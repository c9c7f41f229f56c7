from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from featstore.reading.buffers import Ragged
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_arrays import SLOT
from featstore.tensors.columns import Jagged
from featstore.tensors.gathering import joined

IDS, TAGS, PAIR = (SLOT, "ids"), (SLOT, "tags"), (SLOT, "pair")


def parts(sizes: Any, dtype: Any = np.int32) -> Any:
    """Rows numbered through, from which every column follows; offsets begin above 0."""
    found: dict[Any, list[Any]] = {IDS: [], TAGS: [], PAIR: []}
    first = 0
    for size in sizes:
        rows = np.arange(first, first + size)
        lengths = rows % 3
        found[IDS].append(rows + 2**53 + 1)
        found[TAGS].append(
            Ragged(np.repeat(rows, lengths), 5 + np.cumsum([0, *lengths]).astype(dtype))
        )
        found[PAIR].append(np.stack([rows, -rows], axis=1).astype(np.float32))
        first += size
    return found


@given(st.lists(st.integers(0, 8), min_size=1, max_size=4), st.sampled_from([np.int32, np.int64]))
def test_parts_come_one_after_the_other(sizes: list[int], dtype: Any) -> None:
    found: Mapping[Any, Any] = joined(parts(sizes, dtype), BufferPool()).made()
    rows = range(sum(sizes))
    assert list(found) == [IDS, TAGS, PAIR]
    assert found[IDS].tolist() == [row + 2**53 + 1 for row in rows]
    assert found[PAIR].tolist() == [[row, -row] for row in rows]
    tags = found[TAGS]
    assert isinstance(tags, Jagged)
    assert (tags.offsets.dtype, tags.offsets[0].item(), len(tags)) == (torch.int64, 0, len(rows))
    assert [values.tolist() for values in tags] == [[row] * (row % 3) for row in rows]


def test_a_kept_column_keeps_its_memory() -> None:
    pool = BufferPool()
    kept: Any = joined(parts([3, 4]), pool).made()[IDS]
    expected = kept.tolist()
    other: Any = joined(parts([4, 3]), pool).made()[PAIR]
    assert kept.tolist() == expected
    address = other.untyped_storage().data_ptr()
    del other
    again: Any = joined(parts([4, 3]), pool).made()[PAIR]
    assert address <= again.data_ptr() < address + 1000
