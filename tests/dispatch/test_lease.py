"""The record of a lease and each of its transitions."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import DispatchError
from featstore.dispatch import lease as leases
from featstore.dispatch.lease import Lease, LeaseState, Share
from featstore.dispatch.plan import Extent

SMALL = st.integers(0, 9)
SHARES = st.builds(
    Share, worker=st.text(max_size=3), index=SMALL, turn=SMALL, first=SMALL, through=SMALL
)
RECORDS = st.builds(
    lambda rows, first, more, **fields: Lease(
        rows=rows, first=min(first, rows), reserved=rows + more, **fields
    ),
    state=st.sampled_from(LeaseState),
    fence=st.integers(1, 9),
    worker=st.text(max_size=5),
    nonce=st.text(max_size=5),
    index=SMALL,
    beat=SMALL,
    rows=SMALL,
    first=SMALL,
    more=SMALL,
    started=st.booleans(),
    end=st.integers(18, 30),
    work=SMALL,
    pace=SMALL,
    turn=SMALL,
    failures=SMALL,
    repeated=SMALL,
    shares=st.lists(SHARES, max_size=2).map(tuple),
    split=st.text(max_size=3),
)
WHOLE = Extent(split="a#0-", start_row=0, end=100)


def _held(**fields: Any) -> Any:
    return replace(leases.claim(WHOLE, worker="w", nonce="n"), **fields)


@given(record=RECORDS, cuts=st.lists(st.integers(20, 30), max_size=3).map(tuple))
def test_a_record_round_trips_through_the_store(record: Any, cuts: Any) -> None:
    record = replace(record, cuts=cuts)
    assert Lease.decode(record.encode()) == record


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "{}",
        '{"format":1}',
        '{"format":3,"state":"lost"}',
        '{"format":3,"state":"held"}',
    ],
)
def test_a_foreign_value_is_refused_and_shown(text: str) -> None:
    with pytest.raises(
        DispatchError, match="a lease that this version cannot read: expected format 3, found"
    ):
        Lease.decode(text)


def test_a_record_of_another_format_is_refused() -> None:
    fields = json.loads(_held().encode()) | {"format": 1}
    with pytest.raises(DispatchError, match="expected format 3"):
        Lease.decode(json.dumps(fields))


def test_a_lease_of_format_2_is_refused_by_name() -> None:
    fields = json.loads(_held().encode()) | {"format": 2, "shares": [["0-7", 3, 0, 20]]}
    with pytest.raises(
        DispatchError,
        match=r"a lease of format 2, of featstore 0\.1: expected format 3, .* under a new run_id",
    ):
        Lease.decode(json.dumps(fields))


@given(record=RECORDS)
def test_a_new_claim_has_a_higher_fence_and_resumes_after_the_last_one(record: Any) -> None:
    taken = leases.claim_again(record, worker="w", nonce="new", index=2, turn=4)
    assert (taken.state, taken.fence, taken.rows, taken.index, taken.turn) == (
        LeaseState.HELD,
        record.fence + 1,
        record.rows,
        2,
        4,
    )
    assert (taken.first, taken.reserved, taken.end, taken.cuts) == (
        record.rows,
        record.rows,
        record.end,
        record.cuts,
    )
    assert (taken.pace, taken.work, taken.started) == (0, 0, False), "those are the last holder's"
    assert not taken.same_claim(record)


def test_a_first_claim_resumes_after_the_restored_state() -> None:
    claimed = leases.claim(replace(WHOLE, start_row=7, cuts=(50,)), worker="w", nonce="n", turn=2)
    assert (claimed.rows, claimed.first, claimed.reserved, claimed.limit, claimed.turn) == (
        7,
        7,
        7,
        50,
        2,
    )


@given(record=RECORDS, rows=st.integers(0, 40))
def test_each_write_of_a_holder_changes_the_value_and_never_takes_an_acknowledgement_back(
    record: Any, rows: Any
) -> None:
    for changed in (
        leases.renew(record),
        leases.start(record),
        leases.advance(record, rows),
        leases.reserve(record, rows),
    ):
        assert changed.encode() != record.encode()
        assert record.rows <= changed.rows <= max(record.rows, rows)
        assert changed.rows <= changed.reserved
    assert leases.advance(record, rows).rows == max(record.rows, rows)
    assert leases.advance(record, rows).reserved == max(record.reserved, rows)


def test_a_holder_whose_loop_is_slower_reserves_fewer_rows_but_none_that_are_acknowledged() -> None:
    record = leases.advance(leases.reserve(_held(), 60), 20)
    assert leases.reserve(record, 30).reserved == 30
    assert leases.reserve(record, 10).reserved == 20


def test_a_pace_stays_in_the_lease_until_another_one_is_known() -> None:
    record = leases.reserve(_held(), 10, pace=7)
    assert leases.reserve(leases.renew(record), 20).pace == 7
    assert leases.reserve(record, 20, pace=3).pace == 3


def test_nothing_is_reserved_beyond_a_cut() -> None:
    assert leases.reserve(leases.cut(_held(), 40), 100).reserved == 40
    assert leases.reserve(_held(), 300).reserved == 100


def test_a_claim_ends_where_it_was_cut_and_the_part_where_the_claim_ended() -> None:
    once = leases.cut(_held(), 60)
    twice = leases.cut(once, 30)
    assert (once.limit, twice.limit) == (60, 30)
    assert leases.parts(twice) == [(30, 60), (60, 100)]
    assert leases.finish(leases.reserve(twice, 30)).rows == 30


@given(rows=st.integers(0, 100), more=st.integers(0, 100), at=st.integers(1, 99))
def test_a_lease_is_cut_at_any_row_that_is_not_reserved(rows: int, more: int, at: int) -> None:
    record = _held(rows=min(rows, at), reserved=min(rows + more, at))
    shorter = leases.cut(record, at)
    assert (shorter.limit, shorter.num_left) == (at, at - record.reserved)
    assert leases.parts(shorter) == [(at, 100)]
    assert shorter.life == record.life, "a cut by another worker is no sign of life"


@pytest.mark.parametrize(
    ("record", "at"),
    [
        (_held(reserved=50), 49),
        (_held(), 0),
        (_held(), 100),
        (_held(state=LeaseState.FREE), 50),
    ],
)
def test_reserved_rows_all_rows_of_a_claim_and_leases_that_nobody_holds_are_not_cut(
    record: Any, at: int
) -> None:
    with pytest.raises(ValueError, match=f"no cut at {at} of a lease that is"):
        leases.cut(record, at)


def test_a_claim_is_finished_only_where_all_its_rows_were_reserved() -> None:
    with pytest.raises(ValueError, match="split a#0-: finished at 100, but reserved only to 90"):
        leases.finish(_held(reserved=90))


def test_taking_over_a_started_claim_counts_a_failure_and_repeated_rows() -> None:
    taken = leases.claim_again(leases.start(_held(reserved=30)), worker="v", nonce="m")
    assert (taken.failures, taken.repeated, taken.started) == (1, 30, False)
    again = leases.claim_again(leases.start(leases.reserve(taken, 20)), worker="w", nonce="n")
    assert (again.failures, again.repeated) == (2, 50)
    assert leases.has_failed(leases.start(again), 3)
    assert not leases.has_failed(again, 3)


def test_rows_that_were_read_and_not_reserved_cannot_be_repeated() -> None:
    taken = leases.claim_again(leases.start(_held()), worker="v", nonce="m")
    assert (taken.failures, taken.repeated) == (1, 0)


def test_a_claim_that_is_taken_from_a_living_holder_has_not_failed() -> None:
    started = leases.start(_held(failures=2))
    taken = leases.claim_again(started, worker="v", nonce="m", relieves=True)
    assert (taken.failures, taken.repeated) == (2, 0)
    assert leases.claim_again(started, worker="v", nonce="m").failures == 3


def test_progress_resets_failures_and_a_claim_that_never_started_has_not_failed() -> None:
    failed = _held(failures=4)
    assert leases.claim_again(failed, worker="v", nonce="m").failures == 4
    assert leases.claim_again(leases.advance(failed, 1), worker="v", nonce="m").failures == 0
    assert leases.fail(failed).failures == 5
    assert leases.fail(leases.advance(failed, 1)).failures == 1


def test_releasing_a_lease_counts_no_failure() -> None:
    taken = leases.claim_again(leases.release(_held(rows=10, reserved=30)), worker="v", nonce="m")
    assert (taken.failures, taken.repeated, taken.rows) == (0, 0, 10)


def test_a_quarantined_split_keeps_its_acknowledged_rows() -> None:
    record = leases.quarantine(_held(rows=10, reserved=30, started=True))
    assert (record.state, record.rows, record.repeated) == (LeaseState.QUARANTINED, 10, 20)


def test_each_claims_share_is_kept() -> None:
    first = leases.advance(_held(turn=3), 20)
    second = leases.advance(leases.claim_again(first, worker="v", nonce="m", index=2, turn=8), 70)
    empty = leases.claim_again(second, worker="u", nonce="k", turn=9)
    assert leases.all_shares(empty) == (
        Share(worker="w", turn=3, first=0, through=20),
        Share(worker="v", index=2, turn=8, first=20, through=70),
    )
