"""Lists that rows of a batch share: their union, and what becomes of it in batches that move."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from featstore.reading.buffers import BatchValues, SharedLists
from featstore.reading.gather import buffers_of, places_of
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_arrays import LABEL, SLOT, Key
from featstore.tensors.columns import Jagged, SharedJagged
from featstore.tensors.gathering import gather_batches
from featstore.tensors.shared_lists import unite

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=30)


@given(RANGES)
def test_a_union_has_each_value_once_and_rows_have_theirs(
    given_ranges: list[tuple[int, int]],
) -> None:
    # Values are their own numbers; each row's piece is all of them.
    begins = np.array([begin for begin, _ in given_ranges], np.int64)
    lengths = np.array([length for _, length in given_ranges], np.int64)
    ranges = np.stack([begins, begins + lengths, begins], axis=1).reshape(-1, 3)
    order, added = unite(ranges)
    ends = (begins + lengths)[order]
    values = [v for end, num in zip(ends, added, strict=True) for v in range(end - num, end)]
    rows = [list(range(begin, begin + length)) for begin, length in given_ranges]
    assert [values[begin:end] for begin, end, _ in ranges.tolist()] == rows
    assert values == laid_out(rows)


def laid_out(rows: list[list[int]]) -> list[int]:
    """The values of the rows, those of rows that have some in common together."""
    unions = list[tuple[int, set[int]]]()
    for number, row in enumerate(rows):
        own = [each for each in unions if each[1] & set(row)]
        unions = [each for each in unions if each not in own]
        if row:
            first = min([number, *(each[0] for each in own)])
            unions.append((first, set(row).union(*(each[1] for each in own))))
    return [value for _, union in sorted(unions) for value in sorted(union)]


def test_rows_of_what_was_gathered_are_gathered_again() -> None:
    """As where other workers have taken rows of a block."""
    ranges = np.array([[0, 3, 40], [2, 5, 42], [7, 9, 90], [1, 4, 41]], np.int64)
    columns: dict[Key, BatchValues] = {
        (SLOT, "id"): SharedLists(np.arange(10, 20), ranges),
        (SLOT, "price"): SharedLists(np.arange(10, dtype=np.float32), ranges.copy()),
        (LABEL, "y"): np.arange(4, dtype=np.float32),
    }
    rows = np.array([2, 3, 0, 1])
    places = places_of(rows, [4], np.array([0, 3, 4]))
    parts = gather_batches([buffers_of(columns, 4)], places, BufferPool(), BufferPool())
    for packed, own in zip(parts, ([2, 3, 0], [1]), strict=True):
        made = packed.made()
        assert list(made) == list(columns)
        ids, prices, labels = made.values()
        assert isinstance(ids, SharedJagged)
        assert isinstance(prices, SharedJagged)
        assert isinstance(labels, torch.Tensor)
        assert labels.tolist() == own
        assert ids.values.tolist() == ([17, 18, 10, 11, 12, 13] if len(own) == 3 else [12, 13, 14])
        expected = [list(range(*ranges[row, :2])) for row in own]
        assert [row.tolist() for row in prices.expand()] == expected
        assert [[each - 10 for each in row.tolist()] for row in ids.expand()] == expected


def test_expanded_values_are_those_of_the_rows_and_carry_gradients() -> None:
    column = SharedJagged(torch.tensor([7, 8, 9]), torch.tensor([[0, 2, 0], [1, 1, 1], [1, 3, 1]]))
    assert column.lengths().tolist() == [2, 0, 2]
    assert [row.tolist() for row in column.expand()] == [[7, 8], [], [8, 9]]
    embedded = torch.eye(3, requires_grad=True)
    lists = column.expand(embedded)
    assert lists.values.shape == (4, 3)
    lists.values.sum().backward()  # type: ignore[no-untyped-call]
    assert embedded.grad is not None
    assert embedded.grad[:, 0].tolist() == [1, 2, 1]


def test_one_model_serves_lists_and_shared_lists() -> None:
    column = Jagged(torch.tensor([7, 8, 8, 9]), torch.tensor([0, 2, 2, 4]))
    assert column.expand() is column
    computed = torch.rand(4, 3)
    lists = column.expand(computed)
    assert lists.values is computed
    assert lists.offsets is column.offsets


@pytest.mark.parametrize(
    "column",
    [
        SharedJagged(torch.arange(3), torch.tensor([[0, 3, 0]])),
        Jagged(torch.arange(3), torch.tensor([0, 3])),
    ],
    ids=["shared", "jagged"],
)
def test_values_of_another_column_are_refused(column: Jagged | SharedJagged) -> None:
    with pytest.raises(ValueError, match=r"one for each of the 3 values, found 4: compute them of"):
        column.expand(torch.zeros(4, 2))


@pytest.mark.parametrize("name", ["offsets", "to_nested"])
def test_what_only_lists_have_is_named_with_expand(name: str) -> None:
    column = SharedJagged(torch.arange(3), torch.tensor([[0, 3, 0]]))
    with pytest.raises(AttributeError, match=rf"{name}.* of a SharedJagged: .* expand\(\)\.{name}"):
        getattr(column, name)
    assert hasattr(column.expand(), name)
