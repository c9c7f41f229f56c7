"""The kernels for rows compared with numpy on random input, and the arguments they refuse."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.schema import Slot, SlotKind
from featstore.loader.request.decode import bucketed
from featstore.native import kernels
from featstore.reading import gather
from featstore.reading.buffers import Ragged, slot_values
from featstore.reading.gather import (
    GatheredColumn,
    gather_columns,
    gather_offsets,
    of_one_dtype,
    places_of,
    rebased,
)
from tests.native.oracles import rows as oracle

INT64 = st.integers(-(2**63), 2**63 - 1)
LISTS = st.lists(st.lists(INT64, max_size=20), min_size=1, max_size=12)


@st.composite
def orders(draw: st.DrawFn, piece_rows: list[int]) -> gather.Places:
    """Some of the pieces' rows, in any order, in any number of parts."""
    num_rows = sum(piece_rows)
    order = draw(st.lists(st.integers(0, num_rows - 1), max_size=30)) if num_rows else []
    inner = sorted(draw(st.lists(st.integers(0, len(order)), max_size=4)))
    cuts = np.array([0, *inner, len(order)])
    # What it says of the rows is only for speed: the result must be the same.
    ascends = draw(st.booleans())
    return places_of(np.array(order, np.int64), piece_rows, cuts, ascends=ascends)


def starts_of(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the parts, with a gap of one element between them, the last part first."""
    ends = np.cumsum(counts[::-1] + 1)[::-1]
    return np.ascontiguousarray(ends - counts), np.ascontiguousarray(ends)


def both(column: Callable[[np.ndarray], GatheredColumn], places: gather.Places, out: Any) -> Any:
    """Writes a column by the kernels, and compares it with what numpy writes."""
    expected = out.copy()
    gather_columns([column(out)], places)
    oracle.gather_column(column(expected), places)
    assert out.tobytes() == expected.tobytes()
    return out


@given(
    st.data(),
    st.sampled_from([np.int64, np.float32, np.int32, np.uint16]),
    st.sampled_from([(), (1,), (3,)]),
)
def test_values_of_any_width_are_gathered_as_by_numpy(
    data: st.DataObject, dtype: Any, shape: Any
) -> None:
    piece_rows = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    pieces = [
        np.random.default_rng(n).integers(0, 9999, (rows, *shape)).astype(dtype)
        for n, rows in enumerate(piece_rows)
    ]
    places = data.draw(orders(piece_rows))
    counts = places.part_rows * int(np.prod(shape, dtype=np.int64))
    starts, ends = starts_of(counts)

    out = both(
        lambda out: GatheredColumn(pieces=pieces, out=out, starts=starts, ends=ends),
        places,
        np.zeros(int(ends.max()) + 1, dtype),
    )
    rows = [
        pieces[piece][row]
        for piece, row in zip(places.pieces, oracle.rows_in_piece(places), strict=True)
    ]
    for start, (first, end) in zip(starts, pairwise(places.cuts), strict=True):
        expected = [value for row in rows[first:end] for value in np.atleast_1d(row).tolist()]
        assert out[start : start + len(expected)].tolist() == expected


@given(
    st.data(),
    st.sampled_from([np.int64, np.float32]),
    st.lists(st.sampled_from([np.int32, np.int64]), min_size=3, max_size=3),
)
def test_lists_of_any_length_are_gathered_as_by_numpy(
    data: st.DataObject, dtype: Any, offset_dtypes: Any
) -> None:
    pieces = []
    for number, lists in enumerate(data.draw(st.lists(LISTS, min_size=1, max_size=3))):
        offsets = (np.cumsum([0, *map(len, lists)]) + number).astype(offset_dtypes[number])
        values = np.array([0] * number + [value % 1000 for one in lists for value in one], dtype)
        pieces.append(Ragged(values, offsets))
    places = data.draw(orders([len(piece) for piece in pieces]))
    pieces = of_one_dtype(pieces)
    size = len(places) + places.num_parts
    found, expected = (
        (np.empty(len(places), np.int64), np.empty(size, np.int64)) for _ in range(2)
    )
    gather_offsets(pieces, places, *found)
    oracle.gather_offsets(pieces, places, *expected)
    assert [each.tolist() for each in found] == [each.tolist() for each in expected]
    counts = found[1][np.cumsum(places.part_rows + 1) - 1]
    starts, ends = starts_of(counts)
    both(
        lambda out: GatheredColumn(pieces=pieces, out=out, starts=starts, ends=ends, found=found),
        places,
        np.zeros(int(ends.max()) + 1, dtype),
    )


@given(st.integers(1, 70), st.integers(0, 20))
def test_threads_share_the_columns(num_threads: int, num_columns: int) -> None:
    places = places_of(np.array([2, 0, 1]), [3], np.array([0, 3]))
    columns = [
        GatheredColumn(
            pieces=[np.arange(3) + number],
            out=np.zeros(4, np.int64),
            starts=np.array([1]),
            ends=np.array([4]),
        )
        for number in range(num_columns)
    ]
    gather_columns(columns, places, num_threads)
    found = [column.out.tolist() for column in columns]
    assert found == [[0, number + 2, number, number + 1] for number in range(num_columns)]


@given(LISTS, st.lists(st.integers(0, 12)), st.sampled_from([np.int32, np.int64]))
def test_offsets_are_rebased_as_by_numpy(lists: Any, inner: list[int], dtype: Any) -> None:
    offsets = np.cumsum([7, *map(len, lists)]).astype(dtype)
    cuts = np.array([0, *sorted(min(cut, len(lists)) for cut in inner), len(lists)])
    found, expected = (np.empty(len(lists) + len(cuts) - 1, np.int64) for _ in range(2))
    rebased(offsets, cuts, found)
    oracle.rebased(offsets, cuts, expected)
    assert found.tolist() == expected.tolist()


@given(st.data())
def test_parts_are_packed_as_by_numpy(data: st.DataObject) -> None:
    """Values of any dtype, and offsets of either width, with gaps between them."""
    parts, layout, at = list[np.ndarray](), list[tuple[int, int]](), 0
    for _ in range(data.draw(st.integers(0, 6))):
        dtype = data.draw(st.sampled_from([np.uint16, np.float32, np.int64]))
        offsets = data.draw(st.sampled_from([None, np.int32, np.int64]))
        lengths = data.draw(st.lists(st.integers(0, 9), max_size=12))
        at += data.draw(st.integers(0, 3)) * 8
        if offsets is None:
            parts.append(np.array(lengths, dtype))
            layout.append((at, 0))
            at += -(-parts[-1].nbytes // 8) * 8
        else:
            parts.append(np.cumsum([5, *lengths]).astype(offsets))
            layout.append((at, parts[-1].itemsize))
            at += 8 * len(parts[-1])
    numbers = np.array(layout, np.int64).reshape(-1, 2)
    found, expected = np.zeros(at, np.uint8), np.zeros(at, np.uint8)
    kernels.pack_parts(tuple(parts), numbers, found)
    oracle.pack_parts(parts, numbers, expected)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("part", "start", "width"),
    [
        (np.zeros(2, np.int64), 1, 0),
        (np.zeros(2, np.int64), -1, 0),
        (np.zeros(1, np.int8), 2**62, 0),
        (np.zeros(3, np.int32), 0, 4),  # 24 bytes
        (np.zeros(1, np.int32), 4, 4),
        (np.zeros(0, np.int32), 0, 4),
        (np.zeros(2, np.int32), 0, 2),
        (np.zeros(2, np.int32), 0, 2**32),
    ],
)
def test_parts_that_do_not_fit_where_they_should_go_are_refused(
    part: np.ndarray, start: int, width: int
) -> None:
    out = bytearray(16)
    for layout in ([[start, width]], [[0, 0], [start, width]]):
        parts = (b"", part)[-len(layout) :]
        with pytest.raises(ValueError, match="expected a start and an offset's width, or 0"):
            kernels.pack_parts(parts, np.array(layout), out)
    assert out == bytes(16)
    out.clear()  # BufferError if it was held.
    with pytest.raises(ValueError, match="expected a start"):
        kernels.pack_parts((part,), np.zeros(3, np.int64), bytearray(16))
    with pytest.raises(TypeError):
        kernels.pack_parts((part, 1), np.zeros(4, np.int64), bytearray(16))


@given(st.lists(st.none() | INT64, max_size=40), st.integers(0, 20))
def test_null_ids_are_marked(values: list[Any], start: int) -> None:
    column = pa.chunked_array([pa.array(values, pa.int64()).slice(start)])
    slot = Slot(name="a", kind=SlotKind.ID)
    found: Any = slot_values(column, slot)
    assert found.tolist() == [value or 0 for value in values[start:]]
    assert column.to_pylist() == values[start:]


@given(
    st.lists(st.none() | st.lists(st.none() | st.floats(width=32), max_size=5), max_size=20),
    st.integers(0, 9),
)
def test_null_lists_and_elements_are_left_out(
    lists: list[list[float | None] | None], start: int
) -> None:
    column = pa.chunked_array([pa.array(lists, pa.list_(pa.float32())).slice(start)])
    slot = Slot(name="a", kind=SlotKind.FLOAT, shape=(None,))
    found: Any = slot_values(column, slot)
    rows = [[np.nan] if row is None else [x for x in row if x is not None] for row in lists[start:]]
    assert np.diff(found.offsets).tolist() == [len(row) for row in rows]
    values = found.values[int(found.offsets[0]) : int(found.offsets[-1])]
    np.testing.assert_array_equal(values, np.array([x for row in rows for x in row], np.float32))


@pytest.mark.parametrize(
    ("row", "cuts", "starts"),
    [
        (3, [0, 1], [0]),
        (2**32 - 1, [0, 1], [0]),
        (4, [0, 1], [0]),
        (0, [0, 2], [0]),
        (0, [0, 1], [3]),
    ],
)
def test_what_lies_outside_of_the_buffers_is_refused(row: int, cuts: Any, starts: Any) -> None:
    values, out = np.arange(3), np.zeros(3, np.int64)
    arguments: tuple[Any, ...] = (
        np.array([row], np.uint32),
        *(np.array(part, np.int64) for part in (cuts, starts)),
    )
    with pytest.raises(ValueError, match="expected rows that there are"):
        kernels.gather_columns(
            (((values,), 8, arguments[2] * 8, out),), arguments[0], 2, False, arguments[1], 1
        )
    assert not out.any()


def test_pieces_without_their_offsets_are_refused() -> None:
    numbers, out, rows = np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(1, np.uint32)
    for offsets in ((np.array([0, 1]), np.array([0, 1])), (np.zeros(0, np.int64),), ()):
        with pytest.raises(ValueError, match="expected rows that there are"):
            kernels.gather_offsets(
                (numbers,),
                8,
                offsets,
                8,
                rows,
                0,
                False,
                np.array([0, 1]),
                np.zeros(1, np.int64),
                out,
            )
    with pytest.raises(TypeError):
        kernels.gather_columns((((1,), 8, numbers, out),), rows, 0, False, np.array([0, 1]), 1)


@pytest.mark.parametrize(
    ("column", "num_threads"),
    [
        (((), 8, np.zeros(1, np.int64), np.zeros(1, np.int64)), 1),
        (((bytes(8),), 0, np.zeros(1, np.int64), np.zeros(1, np.int64)), 1),
        (((bytes(8),), 8, np.zeros(2, np.int64), np.zeros(1, np.int64)), 1),
        (((bytes(8),), 8, np.zeros(1, np.int64), np.zeros(1, np.int64), bytes(8)), 1),
        (((bytes(8),), 8, bytes(8), bytearray(8), bytes(8), bytes(16), bytes(16)), 1),
        (((bytes(8),), 8, bytes(8), bytearray(8), bytes(4), bytes(16), bytes(8)), 1),
        (((bytes(8),), 8, np.zeros(1, np.int64), np.zeros(1, np.int64)), 0),
        (((bytes(8),), 8, np.zeros(1, np.int64), np.zeros(1, np.int64)), 65),
    ],
)
def test_columns_that_do_not_fit_are_refused_and_those_before_them_let_go(
    column: Any, num_threads: int
) -> None:
    whole = (bytes(8),), 8, bytes(8), bytearray(8)
    with pytest.raises(ValueError, match="expected rows that there are"):
        kernels.gather_columns(
            (whole, column), np.zeros(1, np.uint32), 0, False, np.array([0, 1]), num_threads
        )
    whole[3].clear()  # BufferError if it was held.


def test_what_is_no_column_is_refused() -> None:
    rows, cuts = np.zeros(1, np.uint32), np.array([0, 1])
    with pytest.raises(ValueError, match="expected columns as tuples"):
        kernels.gather_columns((1,), rows, 0, False, cuts, 1)  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        kernels.gather_columns((((bytes(8),), 8, bytes(8), bytes(8)),), rows, 0, False, cuts, 1)


@pytest.mark.parametrize("offsets", [[0, 2, 1], [0, 1, 9], [-1, 0, 1]])
def test_lists_outside_of_their_values_are_refused(offsets: Any) -> None:
    values, offsets = np.arange(3), np.array(offsets, np.int32)
    rows, cuts = np.array([0, 1], np.uint32), np.array([0, 2])
    found = np.zeros(2, np.int64), np.zeros(3, np.int64)
    with pytest.raises(ValueError, match="expected rows that there are"):
        kernels.gather_offsets((values,), 8, (offsets,), 4, rows, 1, False, cuts, *found)
    new = np.zeros(3, np.int64), np.zeros(9, np.int64)
    with pytest.raises(ValueError, match="expected offsets that never fall"):
        kernels.lists_without_nulls(offsets, 4, b"", 0, values, b"", 0, bytes(8), *new)


@pytest.mark.parametrize(
    ("rows", "firsts", "offsets", "end"),
    [
        ([0, 0], [0, 1], [0, 1, 4], 32),  # beyond the values
        ([0, 0], [-1, 1], [0, 1, 2], 16),
        ([0, 0], [0, 1], [0, 2, 1], 8),
        ([0, 0], [0, 1], [1, 2, 3], 24),
        ([0, 0], [0, 1], [0, 1, 2], 24),  # other bytes than the part has
        ([0, 2], [0, 1], [0, 1, 2], 16),
    ],
)
def test_lists_that_were_not_looked_up_are_refused(
    rows: Any, firsts: Any, offsets: Any, end: int
) -> None:
    with pytest.raises(ValueError, match="expected rows that there are"):
        kernels.gather_columns(
            (
                (
                    (np.arange(3),),
                    8,
                    np.array([0]),
                    np.zeros(10, np.int64),
                    *map(np.array, (firsts, offsets, [end])),
                ),
            ),
            np.array(rows, np.uint32),
            1,
            False,
            np.array([0, 2]),
            1,
        )


REMAINDERS = st.one_of(
    st.integers(1, 2**63 - 2),
    st.builds(lambda bits, more: max(1, 2**bits + more), st.integers(0, 62), st.integers(-1, 1)),
)


@given(
    ids=st.lists(st.one_of(INT64, st.integers(-3, 3)), max_size=40),
    num_remainders=REMAINDERS,
    times=st.integers(0, 2**63),
)
def test_ids_have_the_buckets_of_their_remainders(
    ids: Any, num_remainders: int, times: int
) -> None:
    """Also multiples of the divisor and what is next to them, where a quotient may be wrong."""
    multiple = times // num_remainders * num_remainders
    near = [at for at in (multiple - 1, multiple, multiple + 1) if at < 2**63]
    values = np.array([*ids, *near, *(-at for at in near)], np.int64)
    found = bucketed(values, num_remainders + 1)
    assert found.tolist() == [0 if at == 0 else 1 + at % num_remainders for at in values.tolist()]


def test_buckets_that_do_not_fit_are_refused() -> None:
    for ids, num_remainders, room in ((3, 0, 3), (3, -1, 3), (3, 5, 4)):
        with pytest.raises(ValueError, match="expected as many int64 ids as buckets"):
            kernels.bucket_ids(np.zeros(ids, np.int64), num_remainders, np.zeros(room, np.int64))


def test_bitmaps_and_cuts_that_are_too_short_are_refused() -> None:
    with pytest.raises(ValueError, match="a bit for each"):
        kernels.fill_nulls(np.zeros(9, np.int64), b"\x00", 0, bytes(8))
    with pytest.raises(ValueError, match="expected rising cuts"):
        kernels.rebase_offsets(np.zeros(3, np.int32), 4, np.array([0, 5]), np.zeros(6, np.int64))
