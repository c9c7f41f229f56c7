"""Every kernel compared with its pure counterpart on random input. Skipped without compiled
kernels.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.ops import hashing
from featstore.ops.single import xxh64_bytes
from featstore.statistics import sketches
from featstore.table import encoding
from tests.native.kernels import KERNELS, NEEDED, without_kernels

pytestmark = NEEDED

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.lists(st.none() | st.text() | st.text(min_size=30, max_size=200), max_size=60)
WORDS = st.integers(0, 2**64 - 1)


def pure(call: Callable[[], Any]) -> Any:
    """The result of the same call without kernels."""
    return without_kernels(call, hashing, encoding, sketches)


@given(TEXTS, st.integers(0, 60))
def test_texts_hash_as_in_numpy_at_any_length_and_offset(
    texts: list[str | None], start: int
) -> None:
    array = pa.array(texts, pa.string()).slice(start)
    assert hashing.value_hash(array).equals(pure(lambda: hashing.value_hash(array)))


@given(st.lists(st.binary(max_size=200), max_size=20), WORDS)
def test_bytes_hash_as_one_by_one_with_any_seed(values: list[bytes], seed: int) -> None:
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    hashes = np.zeros(len(values), np.uint64)
    KERNELS.hash_texts(b"".join(values), offsets, hashes, seed)
    assert hashes.tolist() == [xxh64_bytes(value, seed) for value in values]


@given(st.lists(st.none() | INT64 | st.integers(-1000, 1000), max_size=60), st.integers(0, 60))
def test_integers_hash_as_in_numpy(values: list[int | None], start: int) -> None:
    array = pa.array(values, pa.int64()).slice(start)
    assert hashing.value_hash(array).equals(pure(lambda: hashing.value_hash(array)))


@pytest.mark.parametrize("value", [0, -1, 9, 10, -10, 10**18, 2**63 - 1, -(2**63)])
def test_decimals_at_the_edges_hash_as_their_text(value: int) -> None:
    hashes = np.zeros(1, np.uint64)
    KERNELS.hash_decimals(np.array([value]), hashes, hashing.SEED)
    assert int(hashes[0]) == xxh64_bytes(str(value).encode(), hashing.SEED)


@given(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(1, 4),
    st.lists(st.lists(WORDS, min_size=4, max_size=4), max_size=40),
)
def test_signs_are_chained_as_in_numpy(slot: int, num_members: int, rows: list[list[int]]) -> None:
    table = np.array(rows, np.uint64).reshape(len(rows), 4)
    members = [pa.array(table[:, i].view(np.int64)) for i in range(num_members)]
    assert hashing.sign(slot, *members).equals(pure(lambda: hashing.sign(slot, *members)))


@given(st.lists(INT64 | st.integers(-5, 5), max_size=3000), st.integers(0, 60))
def test_different_integers_are_counted_as_in_numpy(values: list[int], start: int) -> None:
    column = pa.chunked_array([pa.array(values, pa.int64()).slice(start)])
    assert encoding.count_distinct(column) == pure(lambda: encoding.count_distinct(column))


@given(st.lists(st.floats(width=32), max_size=200), st.integers(0, 60))
def test_different_floats_are_counted_as_in_numpy(values: list[float], start: int) -> None:
    column = pa.chunked_array([pa.array(values, pa.float32()).slice(start)])
    assert encoding.count_distinct(column) == pure(lambda: encoding.count_distinct(column))


def sketched(batches: list[Any]) -> tuple[Any, ...]:
    found = sketches.Distinct()
    num_missing = [found.take(values) for values in batches]
    return num_missing, found.bits.tolist(), found.smallest.tolist()


@given(
    st.lists(
        st.lists(
            st.integers(0, 2**63 - 1) | st.integers(0, 5) | st.integers(0, 2**57), max_size=200
        ),
        max_size=4,
    )
)
def test_signs_are_sketched_as_in_numpy(batches: list[list[int]]) -> None:
    signs = [np.array(batch, np.int64) for batch in batches]
    assert sketched(signs) == pure(lambda: sketched(signs))


@given(st.lists(st.lists(st.floats(width=32), max_size=200), max_size=4), st.integers(0, 3))
def test_floats_are_sketched_as_in_numpy(batches: list[list[float]], start: int) -> None:
    floats = [np.array(batch, np.float32)[start:] for batch in batches]
    assert sketched(floats) == pure(lambda: sketched(floats))


@given(st.integers(0, 1_100), st.integers(1, 4), st.integers(0, 2**64 - 1))
def test_signs_are_the_same_with_and_without_wide_instructions(
    num_rows: int, num_members: int, seed: int
) -> None:
    words = np.random.default_rng(num_rows).integers(0, 2**64, (4, num_rows), np.uint64)
    found = []
    for portable in (False, True):
        signs = np.empty(num_rows, np.uint64)
        KERNELS.sign_rows(tuple(words[:num_members]), signs, seed, portable)
        found.append(signs)
    chained: Any = np.full(num_rows, seed, np.uint64)
    for member in words[:num_members]:
        chained = hashing._hash_longs(member, chained)
    expected = chained & np.uint64(2**63 - 1)
    assert np.array_equal(found[0], np.where(expected == 0, 1, expected))
    assert np.array_equal(found[0], found[1])


def test_of_many_signs_the_smallest_are_kept_as_in_numpy() -> None:
    signs = [
        sketches.mix(np.arange(first, first + 200_000, dtype=np.int64)) for first in (1, 100_001)
    ]
    found = sketched(signs)
    assert found == pure(lambda: sketched(signs))
    assert len(found[2]) == sketches.NUM_SMALLEST


def test_threads_hash_the_same_values_at_once() -> None:
    texts = pa.array([f"user_{number}" for number in range(50_000)])
    expected = hashing.value_hash(texts)
    with ThreadPoolExecutor(4) as threads:
        assert all(
            found.equals(expected)
            for found in threads.map(lambda _: hashing.value_hash(texts), range(8))
        )


@pytest.mark.parametrize(
    ("offsets", "num_hashes"),
    [([0, 1, 4], 2), ([0, 2, 1], 2), ([-1, 1, 2], 2), ([0, 1], 2), ([0, 1, 2, 3], 2)],
    ids=["beyond the data", "falling", "below 0", "too few", "too many"],
)
def test_offsets_that_do_not_fit_are_refused(offsets: list[int], num_hashes: int) -> None:
    with pytest.raises(
        ValueError,
        match="expected one int32 offset more than aligned hashes, never falling and within the "
        "data",
    ):
        KERNELS.hash_texts(b"abc", np.array(offsets, np.int32), np.zeros(num_hashes, np.uint64), 42)


def test_buffers_of_other_lengths_are_refused() -> None:
    two, three = np.zeros(2, np.uint64), np.zeros(3, np.uint64)
    with pytest.raises(ValueError, match="expected as many aligned hashes as values"):
        KERNELS.hash_decimals(three, two, 42)
    with pytest.raises(ValueError, match="expected as many values of each member as signs"):
        KERNELS.sign_rows((two, three), two, 42, False)
    with pytest.raises(ValueError, match="expected at most 64 members"):
        KERNELS.sign_rows((two,) * 65, two, 42, False)
    with pytest.raises(ValueError, match="expected whole values of 4 or 8 bytes"):
        KERNELS.count_marks(two, 5)
    for width, num_bits, room in ((5, 4, 3), (8, 3, 3), (8, 0, 3), (8, 4, 2)):
        with pytest.raises(
            ValueError,
            match="a power of two of bits, and aligned room for one small hash more than values",
        ):
            KERNELS.mark_values(
                two, width, np.zeros(num_bits, np.bool_), 1, np.zeros(room, np.int64)
            )
    for num_weights, num_numbers, known, room in (
        *((1, 8, 0, 3), (0, 6, 0, 3), (0, 2, 0, 3), (0, 9, 0, 3)),
        *((0, 8, -1, 3), (0, 8, 5, 3), (0, 8, 0, 2)),
    ):
        table, firsts = np.zeros(num_numbers, np.int64), np.zeros(room, np.int64)
        with pytest.raises(ValueError, match="room for one position more than ids"):
            KERNELS.count_ids(two, np.zeros(num_weights), table, known, firsts)


def test_a_table_that_is_full_is_refused() -> None:
    table, firsts = np.array([[6, 1], [5, 1]]), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="places for an id and its count, one of them free"):
        KERNELS.count_ids(np.array([7]), b"", table, 0, firsts)


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(TypeError, match="read-write"):
        KERNELS.hash_decimals(np.zeros(1, np.int64), bytes(8), 42)
