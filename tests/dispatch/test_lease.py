"""The lease machine: its records, its clocks, and arbitrary interleavings of workers against a model."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from featstore.dispatch import lease as leases
from featstore.dispatch.lease import Lease, LeaseState, Survey, Watch
from featstore.errors import DispatchError

LEASE_S = 10.0
RECORDS = st.builds(
    Lease,
    state=st.sampled_from(LeaseState),
    fence=st.integers(1, 9),
    worker=st.text(max_size=5),
    nonce=st.text(max_size=5),
    beat=st.integers(0, 9),
    rows=st.integers(0, 9),
)


@given(record=RECORDS)
def test_a_record_survives_the_store(record):
    assert Lease.decode(record.encode()) == record


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "{}", '{"format":2}', '{"format":1,"state":"lost"}', '{"format":1,"state":"held"}']
)
def test_a_foreign_value_is_refused_with_what_was_found(text):
    with pytest.raises(DispatchError, match="a lease that this version cannot read: expected format 1, found"):
        Lease.decode(text)


def test_a_record_of_another_format_is_refused():
    fields = json.loads(leases.claim(None, worker="w", nonce="n").encode()) | {"format": 2}
    with pytest.raises(DispatchError, match="expected format 1"):
        Lease.decode(json.dumps(fields))


@given(record=RECORDS)
def test_a_new_claim_has_a_higher_fence_and_goes_on_where_the_last_one_was(record):
    taken = leases.claim(record, worker="w", nonce="new", start_row=99)
    assert (taken.state, taken.fence, taken.rows) == (LeaseState.HELD, record.fence + 1, record.rows)
    assert not taken.same_claim(record)


def test_a_first_claim_goes_on_where_the_restored_state_was():
    assert leases.claim(None, worker="w", nonce="n", start_row=7).rows == 7


@given(record=RECORDS, rows=st.integers(0, 9))
def test_renewing_and_acknowledging_change_the_value_and_never_take_rows_back(record, rows):
    assert leases.renew(record).encode() != record.encode()
    assert leases.advance(record, rows).rows == max(record.rows, rows)
    assert leases.advance(record, rows).encode() != record.encode()


def test_a_lease_expires_only_when_its_value_stood_still_for_the_lease_time():
    watch = Watch(LEASE_S)
    assert not watch.is_expired(0, "a", 100.0)
    assert not watch.is_expired(0, "a", 109.9)
    assert watch.is_expired(0, "a", 110.0)
    assert not watch.is_expired(0, "b", 111.0)
    assert not watch.is_expired(0, "a", 121.0)
    watch.forget(0)
    assert not watch.is_expired(0, "a", 500.0)


def test_a_missing_key_expires_as_a_value_does():
    watch = Watch(LEASE_S)
    assert not watch.is_expired(0, None, 0.0)
    assert watch.is_expired(0, None, LEASE_S)
    assert not watch.is_expired(0, "a", LEASE_S)


@given(settled=st.frozensets(st.integers(0, 30)), steps=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5))))
def test_a_survey_offers_the_oldest_positions_that_are_not_settled(settled, steps):
    survey, done = Survey(settled), set(settled)
    cursor = 0
    for ahead, limit in steps:
        cursor = max(cursor, ahead)
        pending = survey.pending(cursor, limit)
        open_positions = [index for index in range(cursor) if index not in done]
        assert pending[:limit] == open_positions[:limit]
        if pending:
            survey.settle(pending[0])
            done.add(pending[0])


class Interleavings(RuleBasedStateMachine):
    """Workers that claim, renew, acknowledge, complete, pause for any time, and die, over one store.

    A worker acts on its own last record, which may be stale: that is what a pause is. The store is a dict with
    compare-and-set, and every write goes through it.
    """

    @initialize(num_splits=st.integers(1, 5), num_workers=st.integers(1, 4))
    def begin(self, num_splits, num_workers):
        self.now = 0.0
        self.cursor = 0
        self.values = {}
        self.num_splits = num_splits
        self.held = {name: {} for name in range(num_workers)}
        self.watches = {name: Watch(LEASE_S) for name in range(num_workers)}
        self.done_by = {}
        self.fences = {}
        self.num_claims = 0

    def _compare_set(self, index, expected, desired):
        held = self.values.get(index)
        if held == expected:
            self.values[index] = desired
        return self.values.get(index) == desired

    def _claim(self, worker, index):
        value = self.values.get(index)
        self.num_claims += 1
        mine = leases.claim(None if value is None else Lease.decode(value), worker=str(worker), nonce=str(self.num_claims))
        if self._compare_set(index, value, mine.encode()):
            assert mine.fence > self.fences.get(index, 0)
            self.fences[index] = mine.fence
            self.held[worker][index] = mine

    def _change(self, data, change):
        """Applies a change to what a worker believes to hold; the model says whether it may succeed."""
        owned = [(worker, index) for worker in self.held for index in self.held[worker]]
        if not owned:
            return None
        worker, index = data.draw(st.sampled_from(owned))
        mine = self.held[worker][index]
        rightful = mine.fence == self.fences[index] and index not in self.done_by
        rightful = rightful and Lease.decode(self.values[index]).state is LeaseState.HELD
        changed = change(mine)
        assert self._compare_set(index, mine.encode(), changed.encode()) is rightful
        if rightful and changed.state is LeaseState.HELD:
            self.held[worker][index] = changed
        else:
            del self.held[worker][index]
        return (worker, index) if rightful else None

    @precondition(lambda self: self.cursor < self.num_splits)
    @rule(data=st.data())
    def claim_next(self, data):
        worker = data.draw(st.sampled_from(sorted(self.held)))
        self.cursor += 1
        self._claim(worker, self.cursor - 1)

    @precondition(lambda self: self.cursor < self.num_splits)
    @rule()
    def die_between_cursor_and_claim(self):
        self.cursor += 1

    @precondition(lambda self: self.cursor > 0)
    @rule(data=st.data())
    def survey(self, data):
        worker = data.draw(st.sampled_from(sorted(self.held)))
        index = data.draw(st.integers(0, self.cursor - 1))
        value = self.values.get(index)
        state = None if value is None else Lease.decode(value).state
        if state is LeaseState.DONE or index in self.held[worker]:
            return
        if self.watches[worker].is_expired(index, value, self.now) or state is LeaseState.FREE:
            self._claim(worker, index)

    @rule(data=st.data())
    def renew(self, data):
        self._change(data, leases.renew)

    @rule(data=st.data(), rows=st.integers(0, 100))
    def acknowledge(self, data, rows):
        self._change(data, lambda mine: leases.advance(mine, rows))

    @rule(data=st.data())
    def give_back(self, data):
        self._change(data, leases.release)

    @rule(data=st.data())
    def complete(self, data):
        marked = self._change(data, lambda mine: leases.finish(mine, 100))
        if marked is not None:
            worker, index = marked
            assert index not in self.done_by, "a split was completed twice"
            self.done_by[index] = worker

    @rule(seconds=st.integers(0, 20))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(data=st.data())
    def die(self, data):
        """A worker is killed and starts again, knowing nothing."""
        worker = data.draw(st.sampled_from(sorted(self.held)))
        self.held[worker] = {}
        self.watches[worker] = Watch(LEASE_S)

    @invariant()
    def done_stays_done(self):
        for index in getattr(self, "done_by", {}):
            assert Lease.decode(self.values[index]).state is LeaseState.DONE

    def teardown(self):
        """Whatever happened, one late worker finishes the epoch within a lease time of its own."""
        if not hasattr(self, "values"):
            return
        self.held["late"], watch = {}, Watch(LEASE_S)
        for now in (self.now, self.now + LEASE_S):
            for index in range(self.num_splits):
                value = self.values.get(index)
                state = None if value is None else Lease.decode(value).state
                if state is not LeaseState.DONE and (watch.is_expired(index, value, now) or state is LeaseState.FREE):
                    self._claim("late", index)
                    mine = self.held["late"].pop(index)
                    assert self._compare_set(index, mine.encode(), leases.finish(mine, 100).encode())
        assert {Lease.decode(self.values[index]).state for index in range(self.num_splits)} == {LeaseState.DONE}


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
