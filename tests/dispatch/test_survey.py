"""Which splits of an epoch a worker knows to be open, and which files its host has staged."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.survey import StagedSplits, Survey


@given(
    settled=st.frozensets(st.integers(0, 30)),
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5))),
)
def test_a_survey_offers_the_oldest_positions_that_are_not_settled(
    settled: Any, steps: list[Any]
) -> None:
    survey, done = Survey(settled), set(settled)
    cursor = 0
    for ahead, limit in steps:
        cursor = max(cursor, ahead)
        pending = survey.pending(cursor, limit)
        open_positions = [(index, 0) for index in range(cursor) if index not in done]
        assert pending[:limit] == open_positions[:limit]
        if pending:
            survey.settle(pending[0])
            done.add(pending[0][0])


@given(low=st.integers(0, 20), done=st.sets(st.integers(0, 20)))
def test_splits_that_another_worker_knows_to_be_done_are_not_looked_at(
    low: int, done: set[int]
) -> None:
    survey = Survey(frozenset())
    survey.pending(10, 100)
    survey.add([(3, 5), (15, 5)])
    for index in done:
        survey.settle((index, 0))
    survey.skip_below(low)
    assert all(index >= low for index, _ in survey.pending(20, 100))
    assert survey.low >= low
    assert survey.low == min((index for index, _ in survey.pending(20, 100)), default=20)


def test_a_look_repeats_until_its_parts_are_settled_and_differs_between_workers() -> None:
    one, others = Survey(frozenset()), [Survey(frozenset()) for _ in range(20)]
    first = one.look(100, 10, salt="one")
    assert (len(first), one.look(100, 10, salt="one")) == (10, first)
    one.settle(first[3])
    assert [part for part in one.look(100, 10, salt="one") if part in first] == [
        *first[:3],
        *first[4:],
    ]
    seen = [
        part
        for number, other in enumerate(others)
        for part in other.look(100, 10, salt=str(number))
    ]
    assert len(set(seen)) > 70
    assert one.look(100, 1000, salt="one") == one.pending(100, 1000)


def test_a_part_is_offered_once_and_never_again_when_settled() -> None:
    survey = Survey(frozenset())
    assert survey.add([(0, 5), (0, 7)]) == [(0, 5), (0, 7)]
    assert survey.add([(0, 5)]) == []
    survey.settle((0, 5))
    assert survey.add([(0, 5)]) == []
    assert survey.pending(1, 10) == [(0, 7), (0, 0)]


def test_staged_files_are_looked_for_in_a_bounded_range_and_once_per_position() -> None:
    plan, asked = (
        Plan(splits=[Split(path=str(i), num_rows=1) for i in range(1000)], shuffle=False),
        [],
    )

    def is_staged(path: Any) -> bool:
        asked.append(int(path))
        return path in {"3", "70", "500"}

    lookahead = StagedSplits(is_staged)
    assert list(lookahead.staged(plan, 0)) == [3]
    assert list(lookahead.staged(plan, 10)) == [70]
    assert list(lookahead.staged(plan, 10)) == []
    assert asked == list(range(74))


def test_staged_files_of_a_later_section_are_not_claimed_ahead() -> None:
    plan = Plan(
        splits=[Split(path=str(index), num_rows=1) for index in range(9)],
        shuffle=False,
        section_sizes=(4, 5),
    )
    lookahead = StagedSplits(lambda path: int(path) % 2 == 1)
    assert list(lookahead.staged(plan, 0)) == [1, 3]
    assert list(lookahead.staged(plan, 3)) == []
    assert list(lookahead.staged(plan, 4)) == [5, 7]
    assert list(lookahead.staged(plan, 9)) == []
