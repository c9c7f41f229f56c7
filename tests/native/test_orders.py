"""The order of shuffled rows by the kernels, compared with numpy on random input."""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.loader.plan.shuffle import permutation
from featstore.native import kernels
from tests.native.oracles import orders as oracle

NUMBERS = st.integers(0, 2**40)


@given(st.integers(0, 3000), st.lists(st.integers(0, 2**70), min_size=1, max_size=6))
def test_a_permutation_is_that_of_numpys_words(num_rows: int, key: list[int]) -> None:
    order = permutation(num_rows, *key)
    assert order.dtype == np.int64
    assert order.tolist() == oracle.permutation(num_rows, *key).tolist()


# In the second, the words of rows 231,731 and 275,179 differ in their 19 lowest bits only, which
# the row's number replaces, and that of the later row is lower.
@pytest.mark.parametrize(("num_rows", "key"), [(16_384, 1), (300_000, 1952)])
def test_a_long_permutation_is_that_of_numpys_words(num_rows: int, key: int) -> None:
    assert np.array_equal(permutation(num_rows, key), oracle.permutation(num_rows, key))


def words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8 if number >> 32 else 4, "little") for number in numbers)


def streams(splits: Sequence[int], rows: Sequence[int], positions: Sequence[int], left: Any) -> Any:
    """Open splits without a share, as the kernel takes them."""
    share = [-1] * len(splits)
    return array("q", np.stack([splits, rows, positions, left, share], axis=1).tobytes())


class Drawn:
    """A call of the kernel, beside numpy's draws."""

    def __init__(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, 9))
        lists = st.lists(NUMBERS, min_size=count, max_size=count)
        self.splits, positions = sorted(data.draw(lists)), data.draw(lists)
        rows = [1 + number % 10**9 for number in data.draw(lists)]
        left = np.array([1 + number % 700 for number in data.draw(lists)])
        self.num_rows = data.draw(st.integers(0, 1500))
        seed, epoch = data.draw(NUMBERS), data.draw(NUMBERS)
        whole = oracle.draws(seed, epoch, self.splits, rows, sum(positions), self.num_rows)
        # Up to the first row after which a split has given as many as it has left.
        given = [np.flatnonzero(whole == split)[left[split] - 1 :][:1] for split in range(count)]
        self.ended = min((int(each[0]) for each in given if len(each)), default=-1)
        self.expected = whole if self.ended < 0 else whole[: self.ended + 1]
        self.counts = np.bincount(self.expected, minlength=count)
        self.positions, self.left = positions + self.counts, left - self.counts
        self.streams = streams(self.splits, rows, positions, left)
        self.entropy = words(seed, epoch)


@given(st.data())
def test_rows_are_drawn_as_by_numpy_until_a_window_ends(data: st.DataObject) -> None:
    of = Drawn(data)
    draws, shares = np.zeros(of.num_rows, np.uint16), np.zeros((9, 2), np.int64)
    num_rows, num_shares, ended = kernels.draw_rows(of.entropy, of.streams, draws, shares, 0)
    assert num_rows == len(of.expected)
    assert ended == (-1 if of.ended < 0 else of.expected[-1])
    # Shares are numbered in the order in which they come.
    of_shares = shares[:num_shares, 0]
    assert of_shares.tolist() == list(dict.fromkeys(of.expected.tolist()))
    assert of_shares[draws[:num_rows]].tolist() == of.expected.tolist()
    assert shares[:num_shares, 1].tolist() == of.counts[of_shares].tolist()
    numbers = np.frombuffer(of.streams, np.int64).reshape(-1, 5)
    assert numbers[:, 2].tolist() == of.positions.tolist()
    assert numbers[:, 3].tolist() == of.left.tolist()
    shares_of = {int(stream): share for share, stream in enumerate(of_shares)}
    assert numbers[:, 4].tolist() == [shares_of.get(at, -1) for at in range(len(numbers))]


def test_where_there_is_no_room_for_one_more_share_drawing_ends_before_it() -> None:
    open_streams = streams([3, 5, 8], [10] * 3, [0] * 3, [10] * 3)
    draws, shares = np.zeros(30, np.uint16), np.zeros((2, 2), np.int64)
    num_rows, num_shares, ended = kernels.draw_rows(words(7, 1), open_streams, draws, shares, 0)
    expected = oracle.draws(7, 1, [3, 5, 8], [10] * 3, 0, 30)
    assert (num_shares, ended) == (2, -1)
    assert len(set(expected[:num_rows].tolist())) == 2
    assert len(set(expected[: num_rows + 1].tolist())) == 3
    assert open_streams[4::5].count(-1) == 1


@pytest.mark.parametrize(
    ("of", "shares", "num_shares"),
    [
        ([[3, 10, 0, 5, -1]], 1, 2),  # More shares than there is room for.
        ([[3, 10, 0, 5, 1]], 2, 1),  # One that there is not.
        ([[3, 10, 0, 0, -1]], 1, 0),  # No rows left.
        ([[3, 0, 0, 5, -1]], 1, 0),
        ([[-3, 10, 0, 5, -1]], 1, 0),
        ([[3, 10, -1, 5, -1]], 1, 0),
        ([], 1, 0),
    ],
)
def test_streams_that_cannot_be_are_refused(of: Any, shares: int, num_shares: int) -> None:
    numbers, draws = np.array(of, np.int64), np.zeros(9, np.uint16)
    with pytest.raises(ValueError, match="expected 1 to 65,536 streams with rows"):
        kernels.draw_rows(words(1), numbers, draws, np.zeros((shares, 2), np.int64), num_shares)


@st.composite
def drawn_shares(draw: st.DrawFn) -> tuple[np.ndarray, list[Any], list[int], int]:
    """Shares of windows of one or more pieces, the draws among them, and pieces that wait."""
    waiting = draw(st.lists(st.integers(0, 5), max_size=3))
    row_bits, num_pieces, shares = draw(st.integers(3, 8)), len(waiting), []
    for source in range(draw(st.integers(0, 4))):
        bits, of_window = draw(st.integers(0, row_bits)), draw(st.integers(1, 3))
        rows = draw(st.lists(st.integers(0, (of_window << bits) - 1), max_size=20))
        passes = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
        shares.append(
            (
                np.array(rows, np.uint32),
                bits,
                num_pieces,
                np.array(passes if draw(st.booleans()) else [], bool),
                draw(st.sampled_from([-1, source])),
            )
        )
        num_pieces += of_window
    numbers = np.repeat(np.arange(len(shares)), [len(share[0]) for share in shares])
    draws = np.array(draw(st.permutations(numbers.tolist())), np.uint16)
    return draws, shares, waiting, row_bits


def placed(draws: Any, shares: Any, waiting: Any, row_bits: int) -> tuple[np.ndarray, ...]:
    places = np.zeros(max(0, sum(waiting)) + len(draws), np.uint32)
    sources, passes = np.zeros(len(draws), np.int32), np.zeros(len(draws), bool)
    pieces = np.array(waiting, np.int64)
    count = kernels.place_rows(draws, tuple(shares), pieces, row_bits, places, sources, passes)
    return places[:count], sources, passes


@given(drawn_shares())
def test_rows_are_placed_as_by_numpy(of: Any) -> None:
    for found, expected in zip(placed(*of), oracle.placed(*of), strict=True):
        assert found.tolist() == expected.tolist()


ONE = (np.zeros(2, np.uint32), 2, 0, b"", 0)


@pytest.mark.parametrize(
    ("draws", "shares", "waiting", "row_bits"),
    [
        ([0, 0, 0], [ONE], [], 2),  # More rows than the share has.
        ([1], [ONE], [], 2),
        ([0], [(*ONE[:2], 4, b"", 0)], [], 30),  # A piece of more bits than there are.
        ([], [], [5], 2),
        ([], [], [-1], 2),
        ([0], [ONE], [], 1),
        ([0], [ONE], [], 32),
        ([0], [(*ONE[:3], b"\1", 0)], [], 2),
        ([0], [(ONE[0], 2, -1, b"", 0)], [], 2),
        ([0], [None], [], 2),
    ],
)
def test_rows_that_cannot_be_placed_are_refused(
    draws: Any, shares: Any, waiting: Any, row_bits: int
) -> None:
    with pytest.raises(ValueError, match=r"^expected "):
        placed(np.array(draws, np.uint16), shares, waiting, row_bits)


@given(
    st.lists(st.tuples(st.integers(-1, 4), st.booleans()), max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
    st.booleans(),
)
def test_sources_of_parts_are_numbered_as_by_numpy(
    rows: list[tuple[int, bool]], cuts: list[int], is_whole: bool
) -> None:
    ends = [*sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    sources = np.array([source for source, _ in rows], np.int32)
    passes = np.array(
        [is_whole or (source >= 0 and is_passing) for source, is_passing in rows], bool
    )
    numbers, of_parts, expected = oracle.numbered(sources, passes, ends)
    found, counts = np.zeros((len(rows), 3), np.int32), np.zeros(len(ends), np.int64)
    places = np.zeros(0 if is_whole else passes.sum(), np.int64)
    given_passes = b"" if is_whole else passes
    count = kernels.number_sources(sources, given_passes, np.array(ends), 5, found, counts, places)
    assert sources.tolist() == numbers.tolist()
    assert counts.tolist() == list(map(len, of_parts))
    assert found[:count].tolist() == [list(each) for part in of_parts for each in part]
    assert is_whole or places.tolist() == expected


@pytest.mark.parametrize(
    ("rows", "ends", "room", "passes"),
    [
        ([0, 2], [2], 9, b""),
        ([0, -2], [2], 9, b""),
        ([0], [2], 9, b""),
        ([0, 1], [2], 1, b""),
        ([0, 1], [1], 9, b""),
        ([0, 1], [1, 0, 2], 9, b""),
        ([0, 1], [2], 9, b"\1"),
        ([0, 1], [2], 9, b"\1\1"),  # There is room for one place.
    ],
)
def test_sources_that_cannot_be_numbered_are_refused(
    rows: list[int], ends: list[int], room: int, passes: bytes
) -> None:
    sources, counts = np.array(rows, np.int32), np.zeros(len(ends), np.int64)
    found, places = np.zeros((room, 3), np.int32), np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="expected sources that there are"):
        kernels.number_sources(sources, passes, np.array(ends), 2, found, counts, places)


def test_buffers_that_do_not_fit_are_refused() -> None:
    order = np.zeros(9, np.uint8)
    with pytest.raises(ValueError, match="expected whole words"):
        kernels.permute(b"123", order[:8])
    with pytest.raises(ValueError, match="aligned room"):
        kernels.permute(b"1234", order[1:])
    with pytest.raises(ValueError, match="expected sources"):
        kernels.number_sources(
            *(order[:8], b"", np.array([2]), 1, order[:8], np.zeros(2, np.int64), order[:8])
        )
