import pickle
import random
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from featstore.tensors.buffer_pool import BufferPool, BufferPools


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


def addresses(pool: BufferPool, sizes: list[int]) -> list[int]:
    """Where buffers of these sizes lie that are in use at once."""
    taken = [pool.take(size) for size in sizes]
    return [memory.ctypes.data for memory in taken]


def test_buffers_grow_to_the_largest_of_what_is_in_use_at_once_and_are_then_no_longer_new() -> None:
    pool = BufferPool()
    rng = random.Random(0)
    for _ in range(20):
        addresses(pool, [rng.randrange(900_000, 1_000_000) for _ in range(3)])
    known = set(addresses(pool, [1_000_000] * 3))
    for _ in range(20):
        assert set(addresses(pool, [rng.randrange(900_000, 1_000_000) for _ in range(3)])) == known


def test_a_small_request_takes_the_smallest_buffer_that_is_free() -> None:
    pool = BufferPool()
    large, small = addresses(pool, [1000, 10])
    assert addresses(pool, [5, 500]) == [small, large]


def test_of_many_free_buffers_only_some_are_kept() -> None:
    pool = BufferPool()
    taken = [pool.take(1000) for _ in range(20)]
    kept = [weakref.ref(memory) for memory in taken]
    del taken
    pool.take(2000)  # None is large enough; it is then that free ones are looked through.
    assert 0 < sum(memory() is not None for memory in kept) < 9


def test_buffers_that_were_not_in_use_at_once_lately_are_let_go() -> None:
    pool = BufferPool()
    taken = [pool.take(1000) for _ in range(20)]
    kept = [weakref.ref(memory) for memory in taken]
    del taken
    assert sum(memory() is not None for memory in kept) == 20
    for _ in range(200):
        addresses(pool, [1000, 1000])
    assert sum(memory() is not None for memory in kept) == 2


def test_of_buffers_that_are_free_the_largest_stay() -> None:
    pool = BufferPool()
    addresses(pool, [1000, 10, 100])
    largest = addresses(pool, [1000])
    for _ in range(100):
        addresses(pool, [5])
    assert addresses(pool, [5]) == largest


def test_where_more_are_in_use_at_once_now_and_then_no_memory_is_new() -> None:
    pool = BufferPool()
    known = set(addresses(pool, [1000] * 5))
    for number in range(1000):
        assert set(addresses(pool, [1000] * (5 if number % 10 == 0 else 1))) <= known


def test_another_process_gets_an_empty_pool() -> None:
    pool = BufferPool()
    pool.take(1_000_000)
    sent = pickle.dumps(pool)
    assert len(sent) < 1000
    assert len(pickle.loads(sent).take(10)) == 10


def test_what_is_free_serves_any_thread() -> None:
    pool = BufferPool()
    with ThreadPoolExecutor(4) as threads:
        ends = [threads.submit(_write_and_read_back, pool, number) for number in range(4)]
        assert all(end.result() for end in ends)


def _write_and_read_back(pool: BufferPool, number: int) -> bool:
    for _ in range(500):
        memory = pool.take(64)[:64]
        memory[:] = number
        if memory.tolist() != [number] * 64:
            return False
    return True


def test_memory_of_small_windows_is_not_kept_and_that_of_large_ones_is() -> None:
    pools = BufferPools()
    small = weakref.ref(pools.of_window(1000))
    assert small() is None
    large = pools.of_window(1 << 16)
    address = large.ctypes.data
    assert pools.windows.take(1 << 16).ctypes.data != address
    del large
    assert pools.of_window(1 << 16).ctypes.data == address
