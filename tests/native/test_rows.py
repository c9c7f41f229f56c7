"""The kernels for rows compared with numpy on random input, and the arguments they refuse."""

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
from featstore.ops.lists import ranges_of
from featstore.ops.timestamps import UNITS
from featstore.reading import gather
from featstore.reading.buffers import Ragged, SharedLists, Values, slot_values
from featstore.reading.gather import ColumnBuffers, RowGathering, buffers_of, places_of, rebased
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.gathering import gather_batches
from tests.native.gather_calls import (
    GATHERED,
    LISTS,
    PIECE,
    VALUES,
    arguments,
    gather_columns,
    gather_offsets,
)
from tests.native.oracles import rows as oracle

INT64 = st.integers(-(2**63), 2**63 - 1)
SOME_LISTS = st.lists(st.lists(INT64, max_size=20), min_size=1, max_size=12)


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


KINDS = st.tuples(
    st.sampled_from([np.int64, np.float32, np.int32, np.uint16, np.int8]),
    st.sampled_from([(), (1,), (3,), None, None]),  # the shape of a row; None: a list
)
FILL = 7  # bytes that nobody writes
GAP = 3  # bytes between parts


def column_of(kind: Any, num_rows: int, number: int, draw: np.random.Generator) -> Values:
    """A column of a piece. Lists begin behind values that are no list's; offsets of pieces are of
    one dtype, or not.
    """
    dtype, shape = kind
    if shape is not None:
        return draw.integers(0, 99, (num_rows, *shape)).astype(dtype)
    lengths = draw.integers(0, draw.choice([2, 40]), num_rows)
    offsets = np.cumsum([number, *lengths]).astype(draw.choice(["int32", "int64"]))
    return Ragged(draw.integers(0, 99, int(offsets[-1]) + number).astype(dtype), offsets)


def as_given(values: Values, draw: np.random.Generator) -> Values | SharedLists:
    """The values, or lists as ranges of them."""
    if isinstance(values, Ragged) and draw.integers(2):
        offsets = values.offsets.astype(np.int64)
        return SharedLists(values.values, np.stack([offsets[:-1], offsets[1:]], axis=1))
    return values


def in_one_buffer(piece: ColumnBuffers) -> ColumnBuffers:
    """The same columns one after the other in one buffer, at any address."""
    memory, numbers = bytearray(1), piece.numbers.copy()
    for number, buffer in enumerate(piece.buffers):
        for place in (0, 3):
            is_there = (piece.numbers[:, place] == number) & (piece.numbers[:, place + 2] > 0)
            numbers[is_there, place + 1] += len(memory)
        memory += buffer.tobytes()
    numbers[:, [0, 3]] = 0
    return piece._replace(buffers=(memory,), numbers=numbers)


def layout(parts: Any, num_outs: int, draw: Any) -> tuple[Any, Any, Any]:
    """Outputs for the parts of items, the last part of each first: of each item its output, and
    where its parts start; and the outputs with these parts written.
    """
    outs = [bytearray([FILL] * GAP) for _ in range(num_outs)]
    to, starts = [int(draw.integers(num_outs)) for _ in parts], []
    for number, arrays in zip(to, parts, strict=True):
        backwards = []
        for array in arrays[::-1]:
            backwards.append(len(outs[number]))
            outs[number] += array.tobytes() + bytes([FILL] * GAP)
        starts.append(backwards[::-1])
    return to, np.array(starts, np.int64), [np.frombuffer(out, np.uint8) for out in outs]


@given(st.data(), st.integers(0, 2**32), st.booleans())
def test_columns_of_any_kind_are_gathered_as_by_numpy(
    data: st.DataObject, seed: int, is_packed: bool
) -> None:
    draw = np.random.default_rng(seed)
    piece_rows = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    kinds = data.draw(st.lists(KINDS, max_size=5))
    places = data.draw(orders(piece_rows))
    columns = [
        [column_of(kind, rows, number, draw) for number, rows in enumerate(piece_rows)]
        for kind in kinds
    ]
    pieces = [
        buffers_of(
            {key: as_given(column[number], draw) for key, column in enumerate(columns)}, rows
        )
        for number, rows in enumerate(piece_rows)
    ]
    if is_packed:
        pieces = list(map(in_one_buffer, pieces))
    parts = [oracle.gathered(column, places) for column in columns]
    lists = [key for key, (_, shape) in enumerate(kinds) if shape is None]
    values = [[of.values if isinstance(of, Ragged) else of for of in each] for each in parts]
    offsets: Any = [[of.offsets for of in parts[key]] for key in lists]  # type: ignore[union-attr]
    to, starts, expected = layout([*values, *offsets], data.draw(st.integers(1, 3)), draw)
    outs = np.zeros((len(kinds), 2), np.int64)
    outs[:, 0], outs[lists, 1] = to[: len(kinds)], to[len(kinds) :]

    gathering = RowGathering(pieces, places, outs)
    scratch = np.empty(gathering.scratch_size, np.int64)
    found = gathering.find_lists(scratch)
    assert found.tolist() == [np.concatenate(each).tolist() for each in offsets]
    firsts = scratch.reshape(len(lists), 2 * len(places) + places.num_parts)[:, : len(places)]
    assert firsts.tolist() == [
        oracle.firsts_of_lists(columns[key], places).tolist()  # type: ignore[arg-type]
        for key in lists
    ]
    written = tuple(np.full(len(each), FILL, np.uint8) for each in expected)
    gathering.gather(starts, written, data.draw(st.integers(1, 3)))
    assert [each.tobytes() for each in written] == [each.tobytes() for each in expected]


@given(st.data(), st.integers(0, 2**32), st.booleans())
def test_ranges_that_rows_share_and_ages_are_gathered_beside_lists(
    data: st.DataObject, seed: int, is_age: bool
) -> None:
    draw = np.random.default_rng(seed)
    unit = int(draw.choice([1, 1_000, *UNITS.values()]))
    # Far apart; or near, as events of a log are, with ages between two floats.
    most, step = [(2**60, 1), (2**40, 1), (2**34, 1_000), (2**26, unit)][draw.integers(4)]
    piece_rows = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    pieces, expected = [], list[list[Any]]()
    key = "slot", "of"
    for num_rows in piece_rows:
        times = draw.integers(-most, most, int(draw.integers(0, 400))) * step
        ranges = np.sort(draw.integers(0, len(times) + 1, (num_rows, 2)), axis=1)
        own = draw.integers(-most, most, num_rows) * step
        lists = [times[begin:end] for begin, end in ranges.tolist()]
        if is_age:
            ranges = np.column_stack([ranges, own, np.full(num_rows, unit)])
            lists = [
                ((time - each).astype(np.float64) / unit).astype(np.float32)
                for time, each in zip(own.tolist(), lists, strict=True)
            ]
        given: Values | SharedLists = SharedLists(times, ranges)
        if draw.integers(2):  # As rows that were gathered before.
            empty = np.zeros(0, np.float32 if is_age else np.int64)
            given = Ragged(np.concatenate([empty, *lists]), np.cumsum([0, *map(len, lists)]))
        expected += [each.tolist() for each in lists]
        pieces.append(buffers_of({key: given}, num_rows))
    order = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=30)) if expected else []
    places = places_of(np.array(order, np.int64), piece_rows, np.array([0, len(order)]))
    [packed] = gather_batches(pieces, places, BufferPool(), BufferPool())
    found = packed.arrays()[key]
    assert isinstance(found, Ragged)
    pairs = pairwise(found.offsets.tolist())
    assert [found.values[begin:end].tolist() for begin, end in pairs] == [
        expected[row] for row in order
    ]


@pytest.mark.parametrize(
    "ranges", [[[-1, 2]], [[2, 1]], [[0, 11]], [[2**62, 2**62 + 1]], [[-(2**63), 2**63 - 1]]]
)
@pytest.mark.parametrize("of_age", [[], [0, 1]])
def test_ranges_beyond_the_values_are_refused(ranges: Any, of_age: list[int]) -> None:
    of_rows = np.array([[*each, *of_age] for each in ranges])
    piece = buffers_of({"of": SharedLists(np.arange(10), of_rows)}, 1)
    places = places_of(np.arange(1), [1], np.array([0, 1]))
    with pytest.raises(ValueError, match="expected rows that there are"):
        gather_batches([piece], places, BufferPool(), BufferPool())


@given(st.integers(1, 70), st.integers(0, 20))
def test_threads_share_the_columns(num_threads: int, num_columns: int) -> None:
    places = places_of(np.array([2, 0, 1]), [3], np.array([0, 3]))
    piece = buffers_of({number: np.arange(3) + number for number in range(num_columns)}, 3)
    written = tuple(np.zeros(4, np.int64) for _ in range(num_columns))
    outs = np.stack([np.arange(num_columns), np.zeros(num_columns, np.int64)], axis=1)
    starts = np.full((num_columns, 1), 8)
    RowGathering([piece], places, outs).gather(starts, written, num_threads)
    found = [out.tolist() for out in written]
    assert found == [[0, number + 2, number, number + 1] for number in range(num_columns)]


def test_no_parts_have_no_rows() -> None:
    piece = buffers_of({"a": np.arange(3), "b": Ragged(np.arange(3), np.arange(4))}, 3)
    places = places_of(np.arange(0), [3], np.array([0]))
    gathering = RowGathering([piece], places, np.zeros((2, 2), np.int64))
    gathering.find_lists(np.empty(gathering.scratch_size, np.int64))
    gathering.gather(np.zeros((3, 0), np.int64), (np.zeros(0, np.int64),), 1)


def test_empty_buffers_may_be_nowhere() -> None:
    """As Arrow's of no bytes are."""
    empty: Any = pa.foreign_buffer(0, 0)
    numbers, columns = np.array([[0, 0, 0, 1, 0, 4, 2]]), np.array([[0, 8, 0, 0, 1]] * 2)
    pieces = (((empty, np.zeros(3, np.int32)), numbers),)
    rows, cuts = np.array([1, 0, 1], np.uint32), np.array([0, 3])
    found, offsets = np.ones(2 * 7, np.int64), np.ones(4, np.int64)
    starts = np.zeros((4, 1), np.int64)
    kernels.gather_offsets(pieces, columns, rows, 1, False, cuts, found)
    assert not found.any()
    outs = bytearray(), offsets
    kernels.gather_columns(pieces, columns, rows, 1, False, cuts, starts, found, outs, 1)
    assert not offsets.any()
    kernels.gather_columns((), empty, empty, 0, False, cuts[:1], empty, empty, (), 1)


@given(SOME_LISTS, st.lists(st.integers(0, 12)), st.sampled_from([np.int32, np.int64]))
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


def both_refuse(of: dict[str, Any]) -> None:
    for call in (gather_offsets, gather_columns):
        with pytest.raises(ValueError, match="expected rows that there are"):
            call(of)


def test_rows_and_lists_as_they_are_given_are_gathered() -> None:
    of = arguments()
    gather_columns(of)
    values, offsets = of["outs"]
    lists = [6, 7, 8, 3, 4, 5, 0, 1, 2]
    assert values.tolist() == [2, 1, 0, *lists]
    assert offsets.tolist() == [0, 3, 0, 3, 6]
    expected, of["found"] = of["found"], np.zeros_like(of["found"])
    gather_offsets(of)
    assert of["found"].tolist() == expected.tolist()


@pytest.mark.parametrize("row", [3, 4, 2**32 - 1])
def test_rows_that_are_not_there_are_refused(row: int) -> None:
    of = arguments()
    of["rows"][1] = row
    both_refuse(of)


@pytest.mark.parametrize(
    "cuts", [[1, 1, 3], [0, 4, 3], [0, 1, 4], [0, 1, 2], [0, 2, 1], [0, -1, 3], [0, 2**62, 3]]
)
def test_cuts_that_do_not_rise_from_0_to_all_rows_are_refused(cuts: list[int]) -> None:
    both_refuse(arguments() | {"cuts": np.array(cuts)})


@pytest.mark.parametrize("item", range(3), ids=["values", "lists", "offsets"])
@pytest.mark.parametrize("start", [-1, 97, 2**62, 2**63 - 1])
def test_parts_beyond_their_output_are_refused(item: int, start: int) -> None:
    of = arguments()
    of["starts"][item, 1] = start
    with pytest.raises(ValueError, match="room"):
        gather_columns(of)


FAR = (-(2**63), -1, 2**31, 2**61, 2**62, 2**63 - 1)
OUTSIDE = {
    "values_in": (*FAR, 2),
    "values_at": (*FAR, 1, 8, 72, 73),
    "num_values": (*FAR, 10),
    "offsets_in": (*FAR, 2),
    "offsets_at": (*FAR, 1, 4, 16, 17),
    "offset_width": (*FAR, 0, 1, 5, 8, 16, 2**32 + 4),
    "rows": (*FAR, 4),
}


@pytest.mark.parametrize(("name", "number"), [(k, v) for k, each in OUTSIDE.items() for v in each])
def test_lists_that_lie_outside_of_their_buffers_are_refused(name: str, number: int) -> None:
    of = arguments()
    of["numbers"][LISTS, PIECE.index(name)] = number
    both_refuse(of)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("values_in", number) for number in (*FAR, 2)),
        *(("values_at", number) for number in (*FAR, 49, 72, 73)),
        *(("num_values", number) for number in (*FAR, 2, 10)),
        *(("rows", number) for number in (*FAR, 4)),
    ],
)
def test_values_that_lie_outside_of_their_buffers_are_refused(name: str, number: int) -> None:
    of = arguments()
    of["numbers"][VALUES, PIECE.index(name)] = number
    with pytest.raises(ValueError, match="expected rows that there are"):
        gather_columns(of)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("column", number) for number in (*FAR, 2)),
        *(("width", number) for number in (*FAR, 0, 9)),
    ],
)
def test_columns_that_are_not_there_or_of_other_widths_are_refused(name: str, number: int) -> None:
    for column in (VALUES, LISTS):
        of = arguments()
        of["columns"][column, GATHERED.index(name)] = number
        with pytest.raises(ValueError, match="expected rows that there are"):
            gather_columns(of)
    with pytest.raises(ValueError, match="expected rows that there are"):
        gather_offsets(of)


@pytest.mark.parametrize(
    ("column", "name", "number"),
    [
        *((VALUES, "of_row", number) for number in (*FAR, 2)),
        (VALUES, "of_row", 0),  # A list, whose place in each part is not given.
        (LISTS, "of_row", 1),
        *((VALUES, "to", number) for number in (*FAR, 2)),
        *((LISTS, "to", number) for number in (*FAR, 2)),
        *((LISTS, "offsets_to", number) for number in (*FAR, 2)),
    ],
)
def test_columns_that_go_nowhere_or_have_other_rows_are_refused(
    column: int, name: str, number: int
) -> None:
    of = arguments()
    of["columns"][column, GATHERED.index(name)] = number
    with pytest.raises(ValueError, match="expected rows that there are"):
        gather_columns(of)


def test_pieces_with_other_columns_are_refused() -> None:
    of = arguments()
    whole = (of["buffers"], of["numbers"])
    for other in (
        (of["buffers"], of["numbers"][:LISTS]),
        (of["buffers"][:1], of["numbers"]),
        ((), of["numbers"]),
        (of["buffers"], b""),
    ):
        both_refuse(of | {"pieces": (whole, other)})
    both_refuse(of | {"pieces": ()})


@pytest.mark.parametrize(
    "changed",
    [
        {"row_bits": -1},
        {"row_bits": 32},
        {"cuts": b""},
        {"columns": np.zeros(9, np.int64), "lists": np.zeros(4, np.int64)},
        {"found": np.zeros(7, np.int64)},
        {"found": np.zeros(9, np.int64)},
        {"found": np.zeros(16, np.int64)},
        {"found": b""},
    ],
    ids=str,
)
def test_tables_of_other_lengths_are_refused(changed: dict[str, Any]) -> None:
    of = arguments() | changed
    if isinstance(of["found"], bytes):
        of["found"] = bytearray()
    both_refuse(of)


@pytest.mark.parametrize(
    "changed",
    [
        {"starts": np.zeros((2, 2), np.int64)},
        {"starts": np.zeros((4, 2), np.int64)},
        {"starts": np.zeros((3, 1), np.int64)},
        {"starts": b""},
        {"num_threads": 0},
        {"num_threads": 65},
        {"outs": ()},
    ],
    ids=str,
)
def test_other_places_for_the_parts_are_refused_and_buffers_let_go(changed: dict[str, Any]) -> None:
    of = arguments()
    held = [bytearray(72), bytearray(of["buffers"][1]), bytearray(99), bytearray(40)]
    of |= {"buffers": tuple(held[:2]), "outs": tuple(held[2:])}
    with pytest.raises(ValueError, match="expected rows that there are"):
        gather_columns(of | changed)
    for buffer in held:
        buffer.clear()  # BufferError if it was held.


def test_what_is_no_piece_and_no_buffer_is_refused_and_those_before_it_let_go() -> None:
    of, held = arguments(), bytearray(72)
    whole: Any = ((held, of["buffers"][1]), of["numbers"])
    for call in (gather_offsets, gather_columns):
        for piece in (1, (1,), (*whole, 1), (list(whole[0]), whole[1]), (held, of["numbers"])):
            with pytest.raises(ValueError, match="expected pieces as a tuple of buffers"):
                call(of | {"pieces": (whole, piece)})
        for piece in (((held, 1), of["numbers"]), (whole[0], 1)):
            with pytest.raises(TypeError):
                call(of | {"pieces": (whole, piece)})
    with pytest.raises(BufferError):
        gather_columns(of | {"pieces": (whole,), "outs": (held, bytes(40))})
    with pytest.raises(TypeError):
        gather_columns(of | {"pieces": (whole,), "outs": (held, 1)})
    held.clear()  # BufferError if it was held.


@given(
    st.sampled_from([np.int64, np.float32, np.uint8]),
    st.sampled_from([np.int64, np.int32]),
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=20),
)
def test_ranges_are_copied_as_by_numpy(
    dtype: Any, of_ends: Any, num_values: int, ends: list[tuple[int, int]]
) -> None:
    values = np.arange(num_values).astype(dtype)
    ranges = [sorted(min(end, num_values) for end in pair) for pair in ends]
    numbers = [[first, last - first] for first, last in ranges] or [[0, 0]]
    starts, lengths = np.array(numbers, of_ends).T
    expected = np.concatenate([values[:0], *(values[first:last] for first, last in ranges)])
    found = ranges_of(values, starts, lengths)
    assert (found.dtype, found.tolist()) == (values.dtype, expected.tolist())


@pytest.mark.parametrize(
    ("starts", "lengths", "room"),
    [
        ([0, 2], [1, 2], 3),  # beyond the values
        ([0, -1], [1, 1], 2),
        ([0, 1], [3, -1], 2),
        ([0, 2**63 - 1], [1, 1], 2),
        ([0, 1], [1, 2**63 - 1], 2),
        ([0, 1], [1, 1], 1),  # no room
        ([0, 1], [1, 1], 3),  # more room than values
        ([0, 1], [1], 1),
    ],
)
def test_ranges_that_do_not_fit_are_refused(starts: Any, lengths: Any, room: int) -> None:
    values, out = np.arange(3), np.zeros(room, np.int64)
    with pytest.raises(ValueError, match="expected a start and a length of each range"):
        kernels.copy_ranges(values, 8, np.array(starts), np.array(lengths), out)


@pytest.mark.parametrize("offsets", [[0, 2, 1], [0, 1, 9], [-1, 0, 1]])
def test_lists_outside_of_their_values_are_refused(offsets: Any) -> None:
    values, offsets = np.arange(3), np.array(offsets, np.int32)
    of = arguments(2) | {"buffers": (values, offsets), "lists": np.array([0, 8, 0, 0, 0])}
    of["numbers"] = np.array([[0, 0, 3, 1, 0, 4, 2]])
    with pytest.raises(ValueError, match="expected rows that there are"):
        gather_offsets(of)
    new = np.zeros(3, np.int64), np.zeros(9, np.int64)
    with pytest.raises(ValueError, match="expected offsets that never fall"):
        kernels.lists_without_nulls(offsets, 4, b"", 0, values, b"", 0, bytes(8), *new)


@pytest.mark.parametrize(
    ("rows", "firsts", "offsets", "room"),
    [
        ([0, 0], [0, 1], [0, 1, 4], 10),  # beyond the values
        ([0, 0], [-1, 1], [0, 1, 2], 10),
        ([0, 0], [3, 1], [0, 1, 2], 10),
        ([0, 0], [2**63 - 1, 1], [0, 1, 2], 10),
        ([0, 0], [0, 1], [0, 2, 1], 10),
        ([0, 0], [0, 1], [0, -1, 2], 10),
        ([0, 0], [0, 1], [1, 2, 3], 10),
        ([0, 0], [0, 1], [0, 1, 2**62], 10),
        ([0, 0], [0, 1], [0, 1, 2], 1),  # less room than the part has
        ([0, 2], [0, 1], [0, 1, 2], 10),
    ],
)
def test_lists_that_were_not_looked_up_are_refused(
    rows: Any, firsts: Any, offsets: Any, room: int
) -> None:
    out, end = np.zeros(room, np.int64), np.zeros(3, np.int64)
    with pytest.raises(ValueError, match="expected rows that there are"):
        kernels.gather_columns(
            (((np.arange(3), np.array([0, 1, 3])), np.array([0, 0, 3, 1, 0, 8, 2])),),
            np.array([0, 8, 0, 0, 1]),
            np.array(rows, np.uint32),
            1,
            False,
            np.array([0, 2]),
            np.zeros((2, 1), np.int64),
            np.array([*firsts, *offsets]),
            (out, end),
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
