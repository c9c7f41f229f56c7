"""Kernels whose offsets, rows and cuts another thread changes meanwhile, and buffers at unaligned
addresses.

Reads and writes outside of the buffers are detected with sanitizers (`make sanitize`). A number
that is read twice is found by `fuzz/fuzz_hash.c` and `fuzz/fuzz_rows.c`, in which each number changes after
it is read: threads hit so short an interval too rarely.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from featstore.native import kernels
from tests.threads import beside

NUM_ROWS, NUM_CHANGES = 64, 1 << 18
OUTSIDE = 2**31 - 1
SHORTEST_S = 0.2  # some 60,000 calls
LONGEST_S = 20  # until both outcomes were seen, on a machine whose cores are busy


@contextmanager
def toggled(numbers: np.ndarray) -> Iterator[None]:
    """Another thread keeps setting one of the numbers far out of range and back.

    It copies to a view of that one number, which numpy does without the interpreter's lock: a
    thread that needs the lock for each change would change nothing while a kernel runs.
    """
    stop, place = threading.Event(), len(numbers) // 2
    target = np.lib.stride_tricks.as_strided(numbers[place:], (NUM_CHANGES,), (0,))
    values = np.resize(np.array([OUTSIDE, numbers[place]], numbers.dtype), NUM_CHANGES)

    def change() -> None:
        while not stop.is_set():
            np.copyto(target, values)

    with beside(change):
        try:
            yield
        finally:
            stop.set()


def _calls(call: Callable[[], Any], numbers: np.ndarray) -> None:
    """Each call ends, or raises that something does not match. Both happen, so the numbers did
    change.
    """
    call()  # as it is, all fits
    outcomes, begin = Counter[str](), time.monotonic()
    with toggled(numbers):
        while time.monotonic() - begin < (SHORTEST_S if len(outcomes) == 2 else LONGEST_S):
            outcomes[_outcome(call)] += 1
    assert set(outcomes) == {"ended", "refused"}
    call()


def _outcome(call: Callable[[], Any]) -> str:
    try:
        call()
    except ValueError:
        return "refused"
    return "ended"


def _offsets(dtype: type = np.int32) -> np.ndarray:
    return np.arange(NUM_ROWS + 1, dtype=dtype) * 3


def test_texts_whose_offsets_another_thread_changes_are_refused_or_hashed_within_the_data() -> None:
    offsets, data, hashes = _offsets(), bytes(3 * NUM_ROWS), np.zeros(NUM_ROWS, np.uint64)
    _calls(lambda: kernels.hash_texts(data, offsets, hashes, 42), offsets)


ROW_BITS = NUM_ROWS.bit_length() - 1


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("changed", ["offsets", "rows", "cuts"])
def test_lists_whose_places_another_thread_changes_are_looked_up_within_the_buffers(
    dtype: Any, changed: str
) -> None:
    places = {
        "offsets": _offsets(dtype),
        "rows": np.random.default_rng(1).permutation(NUM_ROWS).astype(np.uint32),
        "cuts": np.array([0, NUM_ROWS // 2, NUM_ROWS]),
    }
    offsets, rows, cuts = places.values()
    values, width = np.arange(3 * NUM_ROWS), offsets.itemsize
    firsts, found = np.zeros(NUM_ROWS, np.int64), np.zeros(NUM_ROWS + 2, np.int64)
    lists = ((values,), 8, (offsets,), width)
    _calls(
        lambda: kernels.gather_offsets(*lists, rows, ROW_BITS, False, cuts, firsts, found),
        places[changed],
    )


@pytest.mark.parametrize("changed", ["rows", "firsts", "offsets", "cuts", "starts", "ends"])
def test_lists_whose_places_another_thread_changes_are_gathered_within_the_buffers(
    changed: str,
) -> None:
    places: dict[str, np.ndarray] = {
        "rows": np.random.default_rng(1).permutation(NUM_ROWS).astype(np.uint32),
        "firsts": np.arange(NUM_ROWS) * 3,
        "offsets": np.concatenate([np.arange(NUM_ROWS // 2 + 1) * 3] * 2),
        "cuts": np.array([0, NUM_ROWS // 2, NUM_ROWS]),
        "starts": np.array([0, NUM_ROWS // 2 * 24]),
        "ends": np.array([NUM_ROWS // 2 * 24, NUM_ROWS * 24]),
    }
    rows, firsts, offsets, cuts, starts, ends = places.values()
    values, out = np.arange(3 * NUM_ROWS), np.zeros(3 * NUM_ROWS, np.int64)
    column = ((values,), 8, starts, out, firsts, offsets, ends)
    _calls(
        lambda: kernels.gather_columns((column,), rows, ROW_BITS, False, cuts, 1), places[changed]
    )


@pytest.mark.parametrize("changed", ["rows", "cuts", "starts"])
def test_values_whose_places_another_thread_changes_are_gathered_within_the_buffers(
    changed: str,
) -> None:
    places = {
        "rows": np.random.default_rng(1).permutation(NUM_ROWS).astype(np.uint32),
        "cuts": np.array([0, NUM_ROWS // 2, NUM_ROWS]),
        "starts": np.array([0, NUM_ROWS // 2 * 8]),
    }
    rows, cuts, starts = places.values()
    values, out = np.arange(NUM_ROWS), np.zeros(NUM_ROWS, np.int64)
    _calls(
        lambda: kernels.gather_columns(
            (((values,), 8, starts, out),), rows, ROW_BITS, False, cuts, 1
        ),
        places[changed],
    )


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_lists_whose_offsets_another_thread_changes_lose_their_nulls_within_the_buffers(
    dtype: Any,
) -> None:
    offsets, values = _offsets(dtype), np.arange(3 * NUM_ROWS)
    bits, mark = np.full(NUM_ROWS // 8 + 1, 0b01110111, np.uint8), bytes(8)
    new_offsets, new_values = np.zeros(NUM_ROWS + 1, np.int64), np.zeros(4 * NUM_ROWS, np.int64)

    def call() -> None:
        out = (mark, new_offsets, new_values)
        kernels.lists_without_nulls(offsets, offsets.itemsize, bits, 0, values, b"", 0, *out)

    _calls(call, offsets)


def test_cuts_that_another_thread_changes_rebase_offsets_within_the_buffers() -> None:
    offsets, cuts = _offsets(), np.array([0, NUM_ROWS // 2, NUM_ROWS])
    rebased = np.zeros(NUM_ROWS + 2, np.int64)
    _calls(lambda: kernels.rebase_offsets(offsets, 4, cuts, rebased), cuts)


def odd(array: np.ndarray) -> memoryview:
    """The same bytes at an odd address."""
    room: Any = np.zeros(array.nbytes + 8, np.uint8)
    first = 1 + (-room.ctypes.data) % 8
    room[first : first + array.nbytes] = array.view(np.uint8)
    return memoryview(room)[first : first + array.nbytes]


def test_what_is_read_may_lie_at_any_address() -> None:
    offsets, rows, cuts = (
        np.array([0, 1, 3, 3], np.int32),
        np.array([2, 0, 1], np.uint32),
        np.array([0, 3]),
    )
    values, start, end = np.array([7, 8, 9]), np.array([0]), np.array([24])
    hashes, same = np.zeros(3, np.uint64), np.zeros(3, np.uint64)
    kernels.hash_texts(b"abc", offsets, hashes, 1)
    kernels.hash_texts(b"abc", odd(offsets), same, 1)
    assert (hashes == same).all()
    kernels.hash_decimals(values, hashes, 1)
    kernels.hash_decimals(odd(values), same, 1)
    assert (hashes == same).all()
    kernels.sign_rows((values,), hashes, 1, False)
    kernels.sign_rows((odd(values),), same, 1, False)
    assert (hashes == same).all()
    out = np.zeros(3, np.int64)
    column: tuple[Any, ...] = ((odd(values),), 8, odd(start), out)
    kernels.gather_columns((column,), odd(rows), 2, False, odd(cuts), 1)
    assert out.tolist() == [9, 7, 8]
    firsts, new_offsets = np.zeros(3, np.int64), np.zeros(4, np.int64)
    lists = ((odd(values),), 8, (odd(offsets),), 4)
    kernels.gather_offsets(*lists, odd(rows), 2, False, odd(cuts), firsts, new_offsets)
    assert (firsts.tolist(), new_offsets.tolist()) == ([3, 0, 1], [0, 0, 1, 3])
    column = (*column, odd(firsts), odd(new_offsets), odd(end))
    kernels.gather_columns((column,), odd(rows), 2, False, odd(cuts), 1)
    assert out.tolist() == [7, 8, 9]
    kernels.rebase_offsets(odd(offsets), 4, odd(cuts), new_offsets)
    assert new_offsets.tolist() == [0, 1, 3, 3]
    kernels.lists_without_nulls(
        odd(offsets), 4, b"", 0, odd(values), b"", 0, bytes(8), new_offsets, out
    )
    assert new_offsets.tolist() == [0, 1, 3, 3]
    assert kernels.count_marks(odd(values), 8) == 3
    table = np.zeros((8, 2), np.int64)
    assert kernels.count_ids(odd(values), odd(values), table, 0, np.zeros(4, np.int64)) == (3, 3, 3)
    assert sorted(table.tolist())[-3:] == [[7, 7], [8, 8], [9, 9]]


def test_what_numbers_are_written_to_is_aligned_or_refused() -> None:
    three, offsets = np.zeros(3, np.int64), np.array([0, 1, 2, 3], np.int32)
    rows, cuts = np.array([0, 1, 2], np.uint32), np.array([0, 3])
    four, bits = np.zeros(4, np.int64), np.zeros(8, np.bool_)
    with pytest.raises(ValueError, match="aligned hashes"):
        kernels.hash_texts(b"abc", offsets, odd(three), 1)
    with pytest.raises(ValueError, match="aligned hashes"):
        kernels.hash_decimals(three, odd(three), 1)
    with pytest.raises(ValueError, match="aligned signs"):
        kernels.sign_rows((three,), odd(three), 1, False)
    with pytest.raises(ValueError, match="aligned room"):
        kernels.mark_values(three, 8, bits, 1, odd(four))
    for table, firsts in ((odd(four), four), (four, odd(four))):
        with pytest.raises(ValueError, match="aligned room"):
            kernels.count_ids(three, b"", table, 0, firsts)
    with pytest.raises(ValueError, match="of offsets aligned"):
        kernels.gather_offsets((three,), 8, (offsets,), 4, rows, 2, False, cuts, three, odd(four))
    with pytest.raises(ValueError, match="of offsets aligned"):
        kernels.gather_offsets((three,), 8, (offsets,), 4, rows, 2, False, cuts, odd(three), four)
    with pytest.raises(ValueError, match="aligned room"):
        kernels.rebase_offsets(offsets, 4, cuts, odd(four))
    with pytest.raises(ValueError, match="aligned room"):
        kernels.lists_without_nulls(offsets, 4, b"", 0, three, b"", 0, bytes(8), odd(four), three)


@pytest.mark.parametrize(
    ("first_bit", "num_values"), [(2**62, 1), (2**63 - 1, 9), (-1, 1), (-(2**63), 1), (8, 1)]
)
def test_bits_beyond_any_bitmap_are_refused(first_bit: Any, num_values: int) -> None:
    values = np.zeros(num_values, np.int64)
    with pytest.raises(ValueError, match="a bit for each"):
        kernels.fill_nulls(values, b"\xff", first_bit, bytes(8))
    offsets, new_offsets = np.array([0, num_values], np.int32), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="a bit for each"):
        kernels.lists_without_nulls(
            offsets, 4, b"", 0, values, b"\xff", first_bit, bytes(8), new_offsets, values.copy()
        )
