"""Rows that are drawn: which of them each batch has, and what is left after it."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from featstore.loader.batches.drawn_rows import DrawnRows
from featstore.loader.batches.progress import BlockSource
from featstore.reading.gather import buffers_of
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_arrays import SLOT, Key
from tests.loader.batches.conftest import claim_on

ROW: Key = (SLOT, "row")


def source(index: int, num_rows: int, *, is_last: bool = False) -> BlockSource:
    return BlockSource(claim=claim_on(index), first_row=0, end_row=num_rows, is_last=is_last)


def drawn_rows(draws: list[int], passes: list[bool]) -> DrawnRows:
    """Rows of three splits in this order, each the next one of its split, which has no others."""
    found, sources = np.array(draws, np.int64), []
    for index in range(3):
        at = np.flatnonzero(found == index)
        # A split without rows ends with the row before its end.
        places = at if len(at) else np.array([max(0, len(draws) - 1)])
        sources.append((source(index, len(at), is_last=True), places))
    rows = np.arange(len(draws))
    drawn = DrawnRows(np.array(passes, bool), rows[np.array(passes, bool)], sources=sources)
    drawn.pieces, drawn.piece_rows = [buffers_of({ROW: rows}, len(rows))], [len(rows)]
    drawn.extras = [pa.table({"row": rows})]
    return drawn


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=40), st.data())
def test_batches_have_the_rows_of_their_sources_and_cover_every_stream_once(
    rows: list[tuple[int, bool]], data: st.DataObject
) -> None:
    draws, passes = [split for split, _ in rows], [of for _, of in rows]
    passes[data.draw(st.integers(0, len(passes) - 1))] = True
    drawn, delivered = drawn_rows(draws, passes), np.flatnonzero(passes)
    size = data.draw(st.integers(1, 10))
    cuts = [*range(0, len(delivered), size), len(delivered)]
    ends = [0, *(int(delivered[cut - 1]) + 1 for cut in cuts[1:-1]), len(draws)]
    through = dict.fromkeys(range(3), 0)
    batches = list(drawn.sources_of_batches(delivered, cuts, ends))
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


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.data())
def test_what_is_left_of_the_sources_begins_where_the_batches_ended(
    draws: list[int], data: st.DataObject
) -> None:
    drawn = drawn_rows(draws, [True] * len(draws))
    taken = data.draw(st.integers(0, len(draws)))
    left = dict(enumerate([(0, 0)] * 3))
    for one, at in drawn.sources_after(taken):
        left[one.claim.index] = (one.first_row, one.end_row)
        if not one.is_empty:
            assert [draws[taken + place] for place in at] == [one.claim.index] * len(at)
    for split in range(3):
        num_before, num_rows = draws[:taken].count(split), draws.count(split)
        if num_before < num_rows:
            assert left[split] == (num_before, num_rows)


def test_a_piece_that_is_added_comes_after_the_others_with_its_extra_columns() -> None:
    drawn, pool = drawn_rows([0, 1, 2, 0], [True, False, True, True]), BufferPool()
    [packed] = drawn.columns([0, 2], pool, pool, begin=1)
    drawn.add(packed, drawn.pieces[0].kinds, 2, drawn.extra_columns(begin=1))
    one, other = drawn.columns([0, 3, 5], pool, pool)
    assert [batch.made()[ROW].tolist() for batch in (one, other)] == [[0, 2, 3], [2, 3]]  # type: ignore[union-attr]
    assert drawn.extra_columns()["row"].to_pylist() == [0, 2, 3, 2, 3]


def test_of_no_rows_there_is_nothing() -> None:
    drawn = DrawnRows()
    assert not len(drawn.order)
    assert not list(drawn.sources_after(0))
    assert drawn.extra_columns().num_columns == 0
