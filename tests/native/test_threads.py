"""Kernels whose offsets, rows and cuts another thread changes meanwhile, and buffers at unaligned
addresses.

Reads and writes outside of the buffers are detected with sanitizers (`make sanitize`). A number
that is read twice is found by `fuzz/fuzz_hash.c`, `fuzz/fuzz_rows.c`, `fuzz/fuzz_columns.c` and
`fuzz/fuzz_histories.c`, in which
each number changes after it is read: threads hit so short an interval too rarely.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featstore.native import kernels
from featstore.native.bounds import COLUMN
from tests.native.gather_calls import (
    GATHERED,
    LISTS,
    PIECE,
    arguments,
    gather_columns,
    gather_offsets,
)
from tests.threads import beside

NUM_ROWS, NUM_CHANGES = 64, 1 << 18
OUTSIDE = 2**31 - 1
SHORTEST_S = 0.2  # some 60,000 calls
LONGEST_S = 120  # until both outcomes were seen, on a machine whose cores are busy


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
    _calls(lambda: kernels.hash_texts(data, offsets, hashes, 42, False), offsets)


def only(numbers: np.ndarray, place: int) -> np.ndarray:
    """A view of one number."""
    return numbers.reshape(-1)[place : place + 1]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("changed", ["offsets", "rows", "cuts", "numbers", "lists"])
def test_lists_whose_places_another_thread_changes_are_looked_up_within_the_buffers(
    dtype: Any, changed: str
) -> None:
    of = arguments(NUM_ROWS, dtype)
    of |= {"offsets": of["buffers"][1], "lists": of["columns"][LISTS].copy()}
    places = {
        "numbers": only(of["numbers"], len(PIECE) + PIECE.index("num_values")),
        "lists": only(of["lists"], GATHERED.index("column")),
    }
    _calls(lambda: gather_offsets(of), places.get(changed, of[changed]))


@pytest.mark.parametrize(
    "changed", ["rows", "cuts", "firsts", "offsets", "starts", "numbers", "columns"]
)
def test_columns_whose_places_another_thread_changes_are_gathered_within_the_buffers(
    changed: str,
) -> None:
    of = arguments(NUM_ROWS)
    places = {
        "firsts": of["found"][:NUM_ROWS],
        "offsets": of["found"][NUM_ROWS:],
        "numbers": only(of["numbers"], len(PIECE) + PIECE.index("offsets_at")),
        "columns": only(of["columns"], GATHERED.index("to")),
        "starts": of["starts"].reshape(-1),
    }
    _calls(lambda: gather_columns(of), places[changed] if changed in places else of[changed])


FOOTER = np.array([[[0, 1, 2, 100, 100, 0, 100]]])  # of one chunk


@pytest.mark.parametrize("changed", ["leaf", "width", "row_groups", "rows"])
def test_columns_whose_numbers_another_thread_changes_are_planned_by_what_is_there(
    changed: str,
) -> None:
    columns, chunks = np.zeros((1, len(COLUMN)), np.int64), np.zeros((1, 1, 5), np.int64)
    places = {name: only(columns, COLUMN[name]) for name in ("leaf", "width")}
    places |= {"row_groups": np.zeros(1, np.int64), "rows": np.array([1])}
    of_groups = places["row_groups"], places["rows"]
    if changed == "rows":  # Two of them, whose sum may be too large.
        of_groups = np.zeros(2, np.int64), np.array([1, 1])
        places["rows"], chunks = of_groups[1], np.zeros((1, 2, 5), np.int64)
    _calls(
        lambda: kernels.plan_columns(FOOTER, 1, *of_groups, columns, chunks, False, True),
        places[changed],
    )


@pytest.mark.parametrize("changed", ["values_at", "width", "codec", "rows"])
def test_columns_whose_numbers_another_thread_changes_are_decoded_within_their_buffers(
    tmp_path: Path, changed: str
) -> None:
    """A file that ends before the chunk begins: nothing is found."""
    (tmp_path / "file").write_bytes(b"")
    columns, chunks = np.zeros((1, len(COLUMN)), np.int64), np.zeros((1, 1, 5), np.int64)
    columns[0, [COLUMN["width"], COLUMN["found"]]] = 8, 2
    chunks[0, 0] = 0, 9, 0, 2, 99
    memory, room = np.zeros(2, np.int64), bytearray(99)
    places = {name: only(columns, COLUMN[name]) for name in ("values_at", "width")}
    rows = np.array([2, 0]) if changed == "rows" else np.array([2])
    chunks = np.tile(chunks, (1, len(rows), 1))
    places |= {"codec": only(chunks, 2), "rows": rows}
    with (tmp_path / "file").open("rb") as file:

        def call() -> None:
            columns[0, COLUMN["found"]] = 2
            how = 1, b"\0", True, None, False
            arguments: Any = (chunks, rows, b"", b"", columns, (memory,), room, *how)
            kernels.decode_columns(file.fileno(), *arguments)

        _calls(call, places[changed])
    assert not memory.any()


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


@pytest.mark.parametrize("changed", [0, 1], ids=["starts", "lengths"])
def test_ranges_that_another_thread_changes_are_copied_within_the_buffers(changed: int) -> None:
    ranges = np.arange(NUM_ROWS) * 3, np.full(NUM_ROWS, 2)
    values, out = np.arange(3 * NUM_ROWS), np.zeros(2 * NUM_ROWS, np.int64)
    _calls(lambda: kernels.copy_ranges(values, 8, *ranges, out), ranges[changed])


def test_cuts_that_another_thread_changes_rebase_offsets_within_the_buffers() -> None:
    offsets, cuts = _offsets(), np.array([0, NUM_ROWS // 2, NUM_ROWS])
    rebased = np.zeros(NUM_ROWS + 2, np.int64)
    _calls(lambda: kernels.rebase_offsets(offsets, 4, cuts, rebased), cuts)


def odd(array: np.ndarray) -> memoryview:
    """The same bytes at an odd address."""
    room: Any = np.zeros(array.nbytes + 8, np.uint8)
    first = 1 + (-room.ctypes.data) % 8
    room[first : first + array.nbytes] = array.reshape(-1).view(np.uint8)
    return memoryview(room)[first : first + array.nbytes]


def test_what_is_read_may_lie_at_any_address() -> None:
    offsets, cuts = np.array([0, 1, 3, 3], np.int32), np.array([0, 3])
    values = np.array([7, 8, 9])
    hashes, same = np.zeros(3, np.uint64), np.zeros(3, np.uint64)
    kernels.hash_texts(b"abc", offsets, hashes, 1, False)
    kernels.hash_texts(b"abc", odd(offsets), same, 1, False)
    assert (hashes == same).all()
    kernels.hash_decimals(values, hashes, 1, b"")
    kernels.hash_decimals(odd(values), same, 1, odd(hashes[:0]))
    assert (hashes == same).all()
    kernels.sign_rows((values,), hashes, 1, False)
    kernels.sign_rows((odd(values),), same, 1, False)
    assert (hashes == same).all()
    of = arguments()
    found, memory = np.zeros_like(of["found"]), odd(np.zeros(12, np.int64))
    of |= {name: odd(of[name]) for name in ("numbers", "columns", "rows", "cuts", "starts")}
    of |= {"buffers": tuple(map(odd, of["buffers"])), "lists": odd(arguments()["columns"][LISTS])}
    gather_offsets(of | {"found": found})
    assert found.tolist() == of["found"].tolist()
    gather_columns(of | {"found": odd(found), "outs": (memory, of["outs"][1])})
    written = np.frombuffer(bytes(memory), np.int64)
    assert written.tolist() == [2, 1, 0, 6, 7, 8, 3, 4, 5, 0, 1, 2]
    assert of["outs"][1].tolist() == [0, 3, 0, 3, 6]
    out, new_offsets = np.zeros(3, np.int64), np.zeros(4, np.int64)
    kernels.rebase_offsets(odd(offsets), 4, odd(cuts), new_offsets)
    assert new_offsets.tolist() == [0, 1, 3, 3]
    kernels.lists_without_nulls(
        odd(offsets), 4, b"", 0, odd(values), b"", 0, bytes(8), new_offsets, out
    )
    assert new_offsets.tolist() == [0, 1, 3, 3]
    kernels.copy_ranges(odd(values), 8, odd(np.array([1])), odd(np.array([2])), odd(out[:2]))
    assert kernels.count_marks(odd(values), 8) == 3
    table = np.zeros((8, 2), np.int64)
    assert kernels.count_ids(odd(values), odd(values), table, 0, np.zeros(4, np.int64)) == (3, 3, 3)
    assert sorted(table.tolist())[-3:] == [[7, 7], [8, 8], [9, 9]]


def test_what_numbers_are_written_to_is_aligned_or_refused() -> None:
    three, offsets = np.zeros(3, np.int64), np.array([0, 1, 2, 3], np.int32)
    cuts = np.array([0, 3])
    four, bits = np.zeros(4, np.int64), np.zeros(8, np.bool_)
    with pytest.raises(ValueError, match="aligned hashes"):
        kernels.hash_texts(b"abc", offsets, odd(three), 1, False)
    with pytest.raises(ValueError, match="aligned hashes"):
        kernels.hash_decimals(three, odd(three), 1, b"")
    with pytest.raises(ValueError, match="aligned signs"):
        kernels.sign_rows((three,), odd(three), 1, False)
    with pytest.raises(ValueError, match="aligned room"):
        kernels.mark_values(three, 8, bits, 1, odd(four))
    for table, firsts in ((odd(four), four), (four, odd(four))):
        with pytest.raises(ValueError, match="aligned room"):
            kernels.count_ids(three, b"", table, 0, firsts)
    of = arguments()
    with pytest.raises(ValueError, match="of offsets aligned"):
        gather_offsets(of | {"found": odd(of["found"])})
    with pytest.raises(ValueError, match="of offsets aligned"):
        gather_columns(of | {"outs": (of["outs"][0], odd(of["outs"][1]))})
    columns, chunks = np.zeros((1, len(COLUMN)), np.int64), np.zeros(5, np.int64)
    one = np.zeros(1, np.int64)
    for to, chunks_to in ((odd(columns), chunks), (columns, odd(chunks))):
        with pytest.raises(ValueError, match="aligned room"):
            kernels.plan_columns(FOOTER, 1, one, one, to, chunks_to, False, False)
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
