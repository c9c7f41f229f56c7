"""The kernels of values compared with numpy and plain Python on random input."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.native import kernels
from featstore.ops import hashing
from featstore.statistics import sketches
from tests.native.oracles import values as oracle
from tests.native.oracles.xxh64 import sign, xxh64_bytes, xxh64_long

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.lists(st.none() | st.text() | st.text(min_size=30, max_size=200), max_size=60)
WORDS = st.integers(0, 2**64 - 1)


def hash_of(value: object) -> int | None:
    """h(value) by plain Python."""
    if value is None:
        return None
    return int(np.uint64(xxh64_bytes(str(value).encode(), hashing.SEED)).view(np.int64))


@given(TEXTS, st.integers(0, 60))
def test_texts_hash_as_one_by_one_at_any_length_and_offset(
    texts: list[str | None], start: int
) -> None:
    array = pa.array(texts, pa.string()).slice(start)
    assert hashing.value_hash(array).to_pylist() == [hash_of(value) for value in array.to_pylist()]


@given(st.lists(st.binary(max_size=200), max_size=20), WORDS)
def test_bytes_hash_as_one_by_one_with_any_seed(values: list[bytes], seed: int) -> None:
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    hashes = np.zeros(len(values), np.uint64)
    kernels.hash_texts(b"".join(values), offsets, hashes, seed, False)
    assert hashes.tolist() == [xxh64_bytes(value, seed) for value in values]
    seeds = np.arange(seed % 2**63, seed % 2**63 + len(values), dtype=np.uint64)
    chained = seeds.copy()
    kernels.chain_texts(b"".join(values), offsets, chained)
    assert chained.tolist() == [
        xxh64_bytes(value, int(one)) for value, one in zip(values, seeds, strict=True)
    ]


@given(
    st.integers(0, 700), st.sampled_from([1, 4, 8, 16, 17, 24, 40]), st.integers(0, 2**32), WORDS
)
def test_texts_hash_the_same_with_and_without_wide_instructions(
    num_texts: int, most_bytes: int, draws: int, seed: int
) -> None:
    draw = np.random.default_rng(draws)
    offsets = np.cumsum([0, *draw.integers(0, most_bytes, num_texts)], dtype=np.int32)
    data, found = draw.bytes(int(offsets[-1])), []
    for portable in (False, True):
        hashes = np.zeros(num_texts, np.uint64)
        kernels.hash_texts(data, offsets, hashes, seed, portable)
        found.append(hashes.tolist())
    assert found[0] == found[1]
    cut = num_texts // 2  # The oracle is slow: one text of each input.
    if num_texts:
        assert found[0][cut] == xxh64_bytes(data[offsets[cut] : offsets[cut + 1]], seed)


@given(WORDS, WORDS)
def test_a_number_hashes_as_its_eight_bytes(value: int, seed: int) -> None:
    assert xxh64_long(value, seed) == xxh64_bytes(value.to_bytes(8, "little"), seed)


@given(st.lists(st.none() | INT64 | st.integers(-1000, 1000), max_size=60), st.integers(0, 60))
def test_integers_hash_as_their_text(values: list[int | None], start: int) -> None:
    array = pa.array(values, pa.int64()).slice(start)
    assert hashing.value_hash(array).to_pylist() == [hash_of(value) for value in array.to_pylist()]


@pytest.mark.parametrize("value", [0, -1, 9, 10, -10, 10**18, 2**63 - 1, -(2**63)])
def test_decimals_at_the_edges_hash_as_their_text(value: int) -> None:
    hashes = np.zeros(1, np.uint64)
    kernels.hash_decimals(np.array([value]), hashes, hashing.SEED, b"")
    assert int(hashes[0]) == xxh64_bytes(str(value).encode(), hashing.SEED)


@given(st.lists(st.integers(-3, 12) | INT64, max_size=60), st.integers(0, 10))
def test_known_hashes_are_looked_up(values: list[int], num_known: int) -> None:
    known, hashes = np.arange(num_known, dtype=np.uint64), np.zeros(len(values), np.uint64)
    kernels.hash_decimals(np.array(values, np.int64), hashes, hashing.SEED, known)
    assert hashes.tolist() == [
        value if 0 <= value < num_known else xxh64_bytes(str(value).encode(), hashing.SEED)
        for value in values
    ]


def test_many_integers_hash_as_few() -> None:
    values = np.concatenate([np.arange(-100, 5_000), np.arange(65_000, 66_000)])
    few = [hashing.value_hash(pa.array(part)) for part in np.array_split(values, 10)]
    assert hashing.value_hash(pa.array(values)).equals(pa.concat_arrays(few))


@given(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(1, 4),
    st.lists(st.lists(WORDS, min_size=4, max_size=4), max_size=40),
)
def test_signs_are_chained_as_one_by_one(
    slot: int, num_members: int, rows: list[list[int]]
) -> None:
    table = np.array(rows, np.uint64).reshape(len(rows), 4)
    members = [pa.array(table[:, i].view(np.int64)) for i in range(num_members)]
    seed = xxh64_bytes(slot.to_bytes(4, "little", signed=True), hashing.SEED)
    expected = [sign(row[:num_members], seed) for row in rows]
    assert hashing.sign(slot, *members).to_pylist() == expected


@given(st.lists(INT64 | st.integers(-5, 5), max_size=3000), st.integers(0, 60))
def test_different_integers_are_marked_as_one_by_one(values: list[int], start: int) -> None:
    column = np.array(values, np.int64)[start:]
    assert kernels.count_marks(column, 8) == oracle.count_marks(column)


@given(st.lists(st.floats(width=32), max_size=200), st.integers(0, 60))
def test_different_floats_are_marked_as_one_by_one(values: list[float], start: int) -> None:
    column = np.array(values, np.float32)[start:]
    assert kernels.count_marks(column, 4) == oracle.count_marks(column)


def sketched(batches: list[Any], take: Any = sketches.Distinct.update) -> tuple[Any, ...]:
    found = sketches.Distinct()
    num_missing = [take(found, values) for values in batches]
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
    assert sketched(signs) == sketched(signs, oracle.take)


@given(st.lists(st.lists(st.floats(width=32), max_size=200), max_size=4), st.integers(0, 3))
def test_floats_are_sketched_as_in_numpy(batches: list[list[float]], start: int) -> None:
    floats = [np.array(batch, np.float32)[start:] for batch in batches]
    assert sketched(floats) == sketched(floats, oracle.take)


@given(st.integers(0, 1_100), st.integers(1, 4), st.integers(0, 2**64 - 1))
def test_signs_are_the_same_with_and_without_wide_instructions(
    num_rows: int, num_members: int, seed: int
) -> None:
    words = np.random.default_rng(num_rows).integers(0, 2**64, (4, num_rows), np.uint64)
    found = []
    for portable in (False, True):
        signs = np.empty(num_rows, np.uint64)
        kernels.sign_rows(tuple(words[:num_members]), signs, seed, portable)
        found.append(signs)
    expected = [sign(row, seed) for row in words[:num_members].T.tolist()]
    assert found[0].tolist() == expected
    assert np.array_equal(found[0], found[1])


def test_of_many_signs_the_smallest_are_kept_as_in_numpy() -> None:
    signs = [
        sketches.mix(np.arange(first, first + 200_000, dtype=np.int64)) for first in (1, 100_001)
    ]
    found = sketched(signs)
    assert found == sketched(signs, oracle.take)
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
    hashes = np.zeros(num_hashes, np.uint64)
    with pytest.raises(
        ValueError,
        match="expected one int32 offset more than aligned hashes, never falling and within the "
        "data",
    ):
        kernels.hash_texts(b"abc", np.array(offsets, np.int32), hashes, 42, False)
    with pytest.raises(ValueError, match="expected one int32 offset more than aligned hashes"):
        kernels.chain_texts(b"abc", np.array(offsets, np.int32), hashes)


@pytest.mark.parametrize("offsets", [[0, 9, 41], [0, 9, 8], [-1, 9, 40]], ids=str)
def test_offsets_that_do_not_fit_are_refused_in_data_of_some_length(offsets: list[int]) -> None:
    hashes = np.zeros(2, np.uint64)
    with pytest.raises(ValueError, match="never falling and within the data"):
        kernels.hash_texts(bytes(40), np.array(offsets, np.int32), hashes, 42, False)


def test_buffers_of_other_lengths_are_refused() -> None:
    two, three = np.zeros(2, np.uint64), np.zeros(3, np.uint64)
    with pytest.raises(ValueError, match="expected as many aligned hashes as values"):
        kernels.hash_decimals(three, two, 42, b"")
    with pytest.raises(ValueError, match="expected as many values of each member as signs"):
        kernels.sign_rows((two, three), two, 42, False)
    with pytest.raises(ValueError, match="expected at most 64 members"):
        kernels.sign_rows((two,) * 65, two, 42, False)
    with pytest.raises(ValueError, match="expected whole values of 4 or 8 bytes"):
        kernels.count_marks(two, 5)
    for width, num_bits, room in ((5, 4, 3), (8, 3, 3), (8, 0, 3), (8, 4, 2)):
        with pytest.raises(
            ValueError,
            match="a power of two of bits, and aligned room for one small hash more than values",
        ):
            kernels.mark_values(
                two, width, np.zeros(num_bits, np.bool_), 1, np.zeros(room, np.int64)
            )
    for num_weights, num_numbers, known, room in (
        *((1, 8, 0, 3), (0, 6, 0, 3), (0, 2, 0, 3), (0, 9, 0, 3)),
        *((0, 8, -1, 3), (0, 8, 5, 3), (0, 8, 0, 2)),
    ):
        table, firsts = np.zeros(num_numbers, np.int64), np.zeros(room, np.int64)
        with pytest.raises(ValueError, match="room for one position more than ids"):
            kernels.count_ids(two, np.zeros(num_weights), table, known, firsts)


def test_a_table_that_is_full_is_refused() -> None:
    table, firsts = np.array([[6, 1], [5, 1]]), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="places for an id and its count, one of them free"):
        kernels.count_ids(np.array([7]), b"", table, 0, firsts)


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(TypeError, match="read-write"):
        kernels.hash_decimals(np.zeros(1, np.int64), bytes(8), 42, b"")
