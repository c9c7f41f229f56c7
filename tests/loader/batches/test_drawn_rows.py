"""Rows that are drawn: which of them each batch has, and what is left after it."""

import time
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from featstore.loader.batches.drawn_rows import DrawnRows
from featstore.loader.batches.progress import BlockSource
from featstore.reading.gather import ShareRows, buffers_of
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_arrays import SLOT, Key
from tests.loader.batches.conftest import claim_on
from tests.process import least_cpu_s

ROW: Key = (SLOT, "row")


def source(index: int, num_rows: int, *, is_last: bool = False) -> BlockSource:
    return BlockSource(claim=claim_on(index), first_row=0, end_row=num_rows, is_last=is_last)


def drawn_rows(draws: list[int], passes: list[bool]) -> DrawnRows:
    """Rows of three splits in this order, each the next one of its split, which has no others."""
    drawn, rows, shares = DrawnRows(), np.arange(len(draws), dtype=np.uint32), list[ShareRows]()
    for index in range(3):
        at = np.flatnonzero(np.array(draws) == index)
        of_split = source(index, len(at), is_last=True)
        if len(at):
            shares.append((rows[at], 6, 0, np.array(passes)[at], len(drawn.sources)))
            drawn.sources.append(of_split)
        else:
            # A split without rows ends with the row before its end.
            shares.append((b"", 0, 0, b"", -1))
            drawn.ended.append((of_split, max(0, len(draws) - 1)))
    drawn.pieces, drawn.piece_rows = [buffers_of({ROW: np.arange(40)}, 40)], [40]
    drawn.extras = [pa.table({"row": rows})]
    drawn.place(0, np.array(draws, np.uint16), tuple(shares))
    return drawn


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=40), st.data())
def test_batches_have_the_rows_of_their_sources_and_cover_every_stream_once(
    rows: list[tuple[int, bool]], data: st.DataObject
) -> None:
    draws, passes = [split for split, _ in rows], [of for _, of in rows]
    passes[data.draw(st.integers(0, len(passes) - 1))] = True
    drawn, delivered = drawn_rows(draws, passes), np.flatnonzero(passes)
    assert drawn.places.tolist() == delivered.tolist()
    size = data.draw(st.integers(1, 10))
    cuts = [*range(0, len(delivered), size), len(delivered)]
    through = dict.fromkeys(range(3), 0)
    batches = [part.delivered() for part in drawn.parts(cuts[1:])]
    for (first, cut), (sources, of_rows) in zip(pairwise(cuts), batches, strict=True):
        numbers = [0] * (cut - first) if of_rows is None else of_rows.tolist()
        found = [sources[number].claim.index for number in numbers]
        assert found == [draws[row] for row in delivered[first:cut]]
        for number, one in enumerate(sources):
            assert one.first_row == through[one.claim.index]
            through[one.claim.index] = one.end_row
            num_places = one.end_row - one.first_row if one.places is None else len(one.places)
            assert num_places == numbers.count(number)
    assert through == {split: draws.count(split) for split in range(3)}
    ended = [one.claim.index for sources, _ in batches for one in sources if one.is_last]
    assert sorted(ended) == [0, 1, 2]


@given(st.lists(st.integers(0, 2), min_size=2, max_size=40), st.data())
def test_what_is_left_of_the_sources_begins_where_the_batches_ended(
    draws: list[int], data: st.DataObject
) -> None:
    drawn = drawn_rows(draws, [True] * len(draws))
    taken = data.draw(st.integers(1, len(draws) - 1))
    _, left = drawn.parts([taken, len(draws)])
    splits = [one.claim.index for one in left.sources]
    assert [splits[number] for number in left.draws[0]] == draws[taken:]
    for one in left.sources:
        num_before, num_rows = (of.count(one.claim.index) for of in (draws[:taken], draws))
        assert (one.first_row, one.end_row) == (num_before, num_rows)
    assert {one.claim.index for one, _ in left.ended} == {0, 1, 2} - set(draws)
    assert all(at == len(draws) - taken - 1 for _, at in left.ended)


def test_a_piece_that_is_added_comes_before_rows_that_are_drawn_with_its_extra_columns() -> None:
    drawn, pool = drawn_rows([0, 1, 2, 0], [True, False, True, True]), BufferPool()
    [packed] = drawn.columns([0, 2], pool, pool, begin=1)
    extras = drawn.extra_columns(begin=1)
    rest = DrawnRows([source(4, 2)], [np.zeros(2, np.int32)], [np.ones(2, bool)])
    rest.add(packed, drawn.pieces[0].kinds, 2, extras, np.array([7, 8]))
    rest.lengths += [np.arange(num_rows) for num_rows in drawn.piece_rows]
    rest.pieces += drawn.pieces
    rest.piece_rows += drawn.piece_rows
    rest.extras += drawn.extras
    rest.sources.append(source(5, 3))
    rest.place(1, np.zeros(3, np.uint16), ((np.array([1, 3, 2], np.uint32), 6, 1, b"", 1),))
    assert np.concatenate(rest.draws).tolist() == [0, 0, 1, 1, 1]
    one, other = rest.columns([0, 3, 5], pool, pool)
    assert [batch.made()[ROW].tolist() for batch in (one, other)] == [[2, 3, 1], [3, 2]]  # type: ignore[union-attr]
    assert rest.extra_columns()["row"].to_pylist() == [2, 3, 1, 3, 2]
    assert rest.delivered_lengths()[:2].tolist() == [7, 8]


def test_of_no_rows_there_is_nothing() -> None:
    drawn = DrawnRows()
    drawn.place(0, np.zeros(0, np.uint16), ())
    assert not len(drawn.places)
    assert drawn.delivered() == ((), None)
    assert drawn.extra_columns().num_columns == 0


def test_rows_that_wait_are_not_copied_when_others_are_drawn() -> None:
    drawn = drawn_rows([0, 1, 2], [True, False, True])
    [before], [passed] = drawn.draws, drawn.passes
    drawn.place(0, np.zeros(1, np.uint16), ((np.zeros(1, np.uint32), 6, 0, b"", 0),))
    assert drawn.draws[0] is before
    assert drawn.passes[0] is passed
    assert drawn.num_drawn == 4


def test_a_batch_of_few_rows_of_thousands_of_windows_looks_at_each_row_once() -> None:
    num_sources, num_rows = 20_000, 50
    draws = np.repeat(np.arange(num_sources, dtype=np.int32), num_rows)
    passes = np.arange(len(draws)) % num_rows == 7
    sources = [source(index, num_rows) for index in range(num_sources)]
    delivered = []

    def deliver() -> None:
        [part] = DrawnRows(sources, [draws], [passes]).parts([num_sources])
        delivered.append(part.delivered())

    assert (
        least_cpu_s(deliver, time.process_time) < 1.5
    )  # 5 s and more if each source looked at all rows.
    found, of_rows = delivered[0]
    assert all(one.places is not None and one.places.tolist() == [7] for one in found)
    assert of_rows is not None
    assert of_rows.tolist() == list(range(num_sources))
