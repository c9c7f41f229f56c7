import numpy as np
import pyarrow as pa
import pytest

from featstore.table.distinct import count_distinct


@pytest.mark.parametrize("num_distinct", [1, 50, 3_000, 40_000, 131_072, 500_000])
@pytest.mark.parametrize("arrow_type", [pa.int64(), pa.float32()])
def test_numbers_are_counted_to_within_one_percent(num_distinct: int, arrow_type: pa.DataType) -> None:
    values = pa.array(np.resize(np.arange(num_distinct), 600_000)).cast(arrow_type)
    assert count_distinct(pa.chunked_array([values])) == pytest.approx(num_distinct, rel=0.01, abs=1)


def test_signs_that_are_all_different_are_never_counted_as_more_than_there_are() -> None:
    signs = np.random.default_rng(1).integers(0, 2**63, 60_000)
    assert 59_400 <= count_distinct(pa.chunked_array([signs])) <= 60_000


def test_how_values_are_cut_changes_no_count() -> None:
    whole = pa.array(np.arange(10_000) % 777)
    assert count_distinct(pa.chunked_array([whole[:1], whole[1:3_000], whole[3_000:]])) == count_distinct(
        pa.chunked_array([whole])
    )


def test_texts_and_nulls_are_counted_exactly() -> None:
    assert count_distinct(pa.chunked_array([["a", "b", None, "a"]])) == 3
    assert count_distinct(pa.chunked_array([pa.array([1, None, 1])])) == 2
    assert count_distinct(pa.chunked_array([], pa.int64())) == 0
