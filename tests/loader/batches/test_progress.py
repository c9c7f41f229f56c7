"""What counts as delivered of a split, whatever order its parts come in."""

from hypothesis import given
from hypothesis import strategies as st

from featstore.base.intervals import united
from featstore.dispatch.plan import Rows, Split, as_ranges, compact
from featstore.dispatch.terms import Claim
from featstore.loader.batches.progress import Segment, delivered

NUM_ROWS = 12


def rows_in(rows: Rows) -> set[int]:
    return {row for first, end in as_ranges(rows, NUM_ROWS) for row in range(first, end)}


def segment(part: int, through: int, *, is_complete: bool = False) -> Segment:
    split = Split(path="a", num_rows=NUM_ROWS)
    return Segment(Claim(index=3, split=split, fence=1, part=part), through, is_complete)


ENDS = st.tuples(st.integers(0, NUM_ROWS), st.integers(0, NUM_ROWS)).map(sorted)
BEFORE = st.one_of(
    st.just("complete"),
    st.lists(ENDS.map(lambda ends: (ends[0], ends[1]))).map(lambda ranges: compact(united(ranges))),
)


@given(BEFORE, ENDS, st.booleans())
def test_a_segment_adds_its_rows_and_takes_none(
    before: Rows, ends: list[int], is_complete: bool
) -> None:
    after = delivered(before, segment(*ends, is_complete=is_complete))
    assert rows_in(after) == rows_in(before) | set(range(*ends))
    if after != "complete":
        assert after == compact(united(as_ranges(after, NUM_ROWS)))


@given(BEFORE, ENDS, st.booleans())
def test_a_split_is_complete_where_a_claim_has_ended_and_no_row_is_missing(
    before: Rows, ends: list[int], is_complete: bool
) -> None:
    after = delivered(before, segment(*ends, is_complete=is_complete))
    is_whole = rows_in(before) | set(range(*ends)) == set(range(NUM_ROWS))
    assert (after == "complete") == (before == "complete" or (is_complete and is_whole))


@given(st.permutations([(0, 4), (4, 5), (5, 9), (9, NUM_ROWS)]))
def test_the_parts_of_a_split_complete_it_in_any_order(parts: list[tuple[int, int]]) -> None:
    after: Rows = 0
    for part in parts[:-1]:
        after = delivered(after, segment(*part, is_complete=True))
        assert after != "complete"
    assert delivered(after, segment(*parts[-1], is_complete=True)) == "complete"


def test_a_split_without_rows_is_complete_at_its_end() -> None:
    assert (
        delivered(0, Segment(Claim(index=3, split=Split(path="a", num_rows=0), fence=1), 0, True))
        == "complete"
    )


def test_rows_before_the_end_of_a_claim_are_counted_from_the_first() -> None:
    assert delivered(4, segment(0, 7)) == 7
