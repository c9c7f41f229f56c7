"""What the store is told of claims, over a real store."""

from itertools import chain

import pytest

from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.stores.address import bind
from featstore.dispatch.terms import Terms, WaitFor
from featstore.loader.batching import Segment
from featstore.loader.reporting import Reports
from featstore.loader.stats import Stats

PLAN = Plan(splits=[Split(path="a", num_rows=10), Split(path="b", num_rows=20)])


@pytest.fixture
def reports():
    address = bind("memory://reports")
    with Coordinator(address, plan=PLAN, prefix="featstore/x/", worker="0", terms=Terms()) as coordinator:
        made = Reports(Stats(), lease_s=60.0)
        made.coordinator = coordinator
        yield made


def claimed(reports):
    claims = list(chain(reports.coordinator.claims(WaitFor.NOTHING)))
    for claim in claims:
        reports.coordinator.reserve(claim, claim.split.num_rows)
        reports.claims[claim.key] = claim
    return claims


def segment(claim, through, *, is_complete=False):
    return Segment(split_index=claim.index, fence=claim.fence, through=through, is_complete=is_complete, part=claim.part)


def test_rows_left_are_those_of_claims_that_are_not_delivered(reports):
    first, second = claimed(reports)
    assert reports.num_rows_left == 30
    reports.note(segment(second, 15), is_told=False)
    assert reports.num_rows_left == 30 - 15
    reports.note(segment(first, 10, is_complete=True), is_told=True)
    assert list(reports.claims) == [second.key]
    reports.clear()
    assert reports.num_rows_left == 0


def test_a_claim_that_cannot_be_read_is_told_when_all_is_told(reports):
    first, _ = claimed(reports)
    reports.fail(first)
    assert reports.has_failed
    reports.settle()
    assert not reports.has_failed
    again = next(reports.coordinator.claims(WaitFor.NOTHING))
    assert again.split == first.split
    assert again.fence != first.fence
