from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import SampleIndexError
from featstore.samples.indices import is_single, positions_of

SIZES = st.integers(0, 30)


@given(num_rows=SIZES, index=st.integers(-40, 40))
def test_one_index_means_what_it_means_in_a_list(num_rows: int, index: int) -> None:
    rows = list(range(num_rows))
    try:
        expected = rows[index]
    except IndexError:
        with pytest.raises(SampleIndexError, match=rf"index {index} is out of range"):
            positions_of(index, num_rows)
    else:
        assert positions_of(index, num_rows).tolist() == [expected]


@given(num_rows=SIZES, cut=st.slices(40))
def test_a_slice_means_what_it_means_in_a_list(num_rows: int, cut: slice) -> None:
    assert positions_of(cut, num_rows).tolist() == list(range(num_rows))[cut]


@given(data=st.data(), num_rows=st.integers(1, 30))
def test_several_indices_are_those_of_a_list_one_by_one(data: Any, num_rows: int) -> None:
    indices = data.draw(st.lists(st.integers(-num_rows, num_rows - 1), max_size=10))
    expected = [list(range(num_rows))[index] for index in indices]
    for given_as in (indices, np.array(indices, np.int32), torch.tensor(indices, dtype=torch.long)):
        assert positions_of(given_as, num_rows).tolist() == expected


@pytest.mark.parametrize("index", [3, np.int64(3), np.array(3), torch.tensor(3)])
def test_an_integer_of_any_library_is_one_index(index: Any) -> None:
    assert is_single(index)
    assert positions_of(index, 5).tolist() == [3]


@pytest.mark.parametrize("index", [[3], slice(3), np.array([3]), torch.tensor([3]), []])
def test_several_are_not_one(index: Any) -> None:
    assert not is_single(index)


@pytest.mark.parametrize("indices", [[5], [0, -6], np.array([2**63], np.uint64)])
def test_the_first_index_that_is_out_of_range_is_named(indices: Any) -> None:
    with pytest.raises(
        SampleIndexError, match=r"is out of range: expected -5 to 4, as there are 5"
    ):
        positions_of(indices, 5)


def test_of_no_rows_no_index_is_in_range() -> None:
    with pytest.raises(SampleIndexError, match="index 0 is out of range: there are no rows"):
        positions_of(0, 0)
    with pytest.raises(IndexError):
        positions_of([-1], 0)


@pytest.mark.parametrize("indices", [[1.5], [[1, 2]], ["a"], "a", np.array([True, False])])
def test_what_is_no_integer_is_refused(indices: Any) -> None:
    with pytest.raises(
        SampleIndexError, match="expected an integer, a slice or a list of integers"
    ):
        positions_of(indices, 5)


def test_true_is_no_index() -> None:
    with pytest.raises(SampleIndexError, match="found True"):
        is_single(True)
