import pytest

from featstore.tensors.buffer_pool import BufferPool


@pytest.mark.parametrize("num_bytes", [0, 1, 1000])
def test_memory_is_at_least_as_large_as_asked_for(num_bytes: int) -> None:
    pool = BufferPool()
    assert len(pool.take(10)) >= 10
    assert len(pool.take(num_bytes)) >= num_bytes


def test_memory_that_a_view_refers_to_is_not_given_again() -> None:
    pool = BufferPool()
    view = pool.take(10)[2:4]
    assert view.base is not None
    address = view.base.ctypes.data
    assert pool.take(10).ctypes.data != address
    del view
    assert pool.take(10).ctypes.data == address
