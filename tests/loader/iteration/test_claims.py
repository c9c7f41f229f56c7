"""What the dispatch store is to be told of claims, and what is left of them."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from featstore.dispatch.plan import Split
from featstore.dispatch.terms import Claim
from featstore.loader.batches.progress import Progress, Segment
from featstore.loader.iteration.delivery import Claims, Delivery, Kind, Report
from tests.loader.iteration.states import START

NUM_ROWS = 6
CLAIMS = [
    Claim(index=index, split=Split(path=str(index), num_rows=NUM_ROWS), fence=index + 1)
    for index in range(3)
]


def opened(*, tells: bool = True, claims: Sequence[Claim] = CLAIMS) -> Claims:
    found = Claims(tells, {})
    found.open.update({claim.key: claim for claim in claims})
    return found


def note(claims: Claims, claim: Claim, through: int) -> None:
    claims.note([segment(claim, through)])


def segment(claim: Claim, through: int) -> Segment:
    return Segment(claim, through, through == NUM_ROWS)


def untold(claims: Claims) -> list[Report]:
    kinds: tuple[Kind, ...] = ("advanced", "complete", "failed")
    return [report for kind in kinds for report in claims.untold(kind)]


@given(st.lists(st.tuples(st.sampled_from(range(3)), st.integers(1, 3), st.booleans())))
def test_each_claim_is_told_of_with_its_newest_row_until_that_is_told(
    steps: list[tuple[int, int, bool]],
) -> None:
    claims, through, told = opened(), [0] * 3, [0] * 3
    for index, num_rows, is_told in steps:
        if through[index] < NUM_ROWS:
            through[index] = min(NUM_ROWS, through[index] + num_rows)
            note(claims, CLAIMS[index], through[index])
        expected = {
            Report(claim, "complete" if row == NUM_ROWS else "advanced", row % NUM_ROWS)
            for claim, row, known in zip(CLAIMS, through, told, strict=True)
            if row != known
        }
        assert set(untold(claims)) == expected
        assert claims.num_rows_left(None) == sum(NUM_ROWS - row for row in through)
        if is_told:
            for report in expected:
                claims.told(report)
            told = list(through)


def test_a_row_that_was_delivered_while_the_store_was_told_of_an_older_one_is_told_too() -> None:
    claims = opened()
    note(claims, CLAIMS[0], 2)
    [older] = claims.untold("advanced")
    note(claims, CLAIMS[0], 3)
    claims.told(older)
    assert untold(claims) == [Report(CLAIMS[0], "advanced", 3)]


def test_of_a_lost_claim_nothing_is_told_whatever_is_delivered_of_it() -> None:
    claims = opened()
    note(claims, CLAIMS[0], 2)
    note(claims, CLAIMS[1], NUM_ROWS)
    assert [claims.lose(CLAIMS[index].key) for index in (0, 1, 0)] == [True, True, False]
    note(claims, CLAIMS[0], NUM_ROWS)
    assert untold(claims) == []


def test_where_nobody_is_asked_for_claims_nothing_is_told() -> None:
    claims = opened(tells=False)
    note(claims, CLAIMS[0], 2)
    note(claims, CLAIMS[1], NUM_ROWS)
    assert untold(claims) == []


def test_rows_that_others_cut_off_and_claims_that_are_lost_are_not_left() -> None:
    later = Claim(index=3, split=Split(path="3", num_rows=NUM_ROWS), fence=1, start_row=4)
    claims = opened(claims=[*CLAIMS, later])
    note(claims, CLAIMS[0], 1)
    limits = {CLAIMS[0].key: 3, CLAIMS[1].key: None, later.key: 3}
    assert claims.num_rows_left(limits) == (3 - 1) + NUM_ROWS + 0
    assert claims.num_rows_left(None) == NUM_ROWS - 1 + 2 * NUM_ROWS + 2
    assert claims.num_rows_left({}) == 0


def test_a_failed_claim_is_told_of_once() -> None:
    claims = opened()
    claims.add(Report(CLAIMS[2], "failed"))
    [report] = untold(claims)
    assert report == Report(CLAIMS[2], "failed")
    claims.told(report)
    assert untold(claims) == []


def test_a_new_epoch_knows_no_claim_of_the_one_before() -> None:
    counts = Counter[str]()
    delivery = Delivery(START, counts, tells=True)
    for claim in CLAIMS:
        delivery.claim(claim)
    delivery.add(Progress((segment(CLAIMS[0], 2), segment(CLAIMS[1], NUM_ROWS)), is_batch=False))
    delivery.lose(CLAIMS[2].key)
    delivery.end_epoch(is_last=False)
    assert delivery.untold("advanced", "complete", "failed") == []
    delivery.stop(2, limits=None)
    assert counts == {"leases_lost": 1, "rows_dropped_tail": 0}
    delivery.lose(CLAIMS[2].key)
    assert counts["leases_lost"] == 1
    delivery.claim(CLAIMS[2])
    delivery.lose(CLAIMS[2].key)
    assert counts["leases_lost"] == 2


def test_a_complete_claim_is_not_lost_to_whoever_asks_for_more_of_it() -> None:
    """As blocks do that lie beyond a cut."""
    counts = Counter[str]()
    delivery = Delivery(START, counts, tells=True)
    delivery.claim(CLAIMS[0])
    delivery.add(Progress((segment(CLAIMS[0], NUM_ROWS),), is_batch=False))
    delivery.lose(CLAIMS[0].key)
    [report] = delivery.untold("advanced", "complete")
    assert (report.kind, counts["leases_lost"]) == ("complete", 0)
    delivery.told(report, is_mine=False)
    assert counts["leases_lost"] == 1
