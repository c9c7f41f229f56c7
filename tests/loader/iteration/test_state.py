import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import StateError
from featstore.loader.iteration.state import LoaderState, merge_states

GOLDEN = Path(__file__).parents[2] / "golden" / "loader_state.json"
STATE = LoaderState(
    table="5e0c" * 16,
    plan="91ab" * 8,
    request="4e57" * 8,
    seed=7,
    window_rows=100_000,
    num_epochs=2,
    epoch=3,
    first_epoch=2,
    num_workers=2,
    workers=(1,),
    done={0: "complete", 1: "complete", 2: "complete", 5: 8192, 9: "complete"},
)


def test_the_bytes_of_a_state_are_a_contract() -> None:
    assert json.dumps(STATE.to_json(), indent=2) + "\n" == GOLDEN.read_text()
    assert LoaderState.from_json(json.loads(GOLDEN.read_text())) == STATE


@pytest.mark.parametrize("followed", [(None, 3), (3, None), (3, 5)])
def test_the_state_of_a_followed_table_says_which_versions_besides(followed: Any) -> None:
    state = LoaderState(**{**vars(STATE), "followed": followed})
    assert state.to_json() == STATE.to_json() | {"followed": list(followed)}
    assert LoaderState.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_the_state_of_workers_in_two_epochs_says_what_was_delivered_of_both() -> None:
    state = LoaderState(**{**vars(STATE), "ahead": {0: 7, 2: "complete", 3: ((1, 2), (4, 5))}})
    parts = {"complete": [[2, 2]], "partial": {"0": 7, "3": [[1, 2], [4, 5]]}}
    assert state.to_json() == STATE.to_json() | {"ahead": parts}
    assert LoaderState.from_json(json.loads(json.dumps(state.to_json()))) == state


@given(st.dictionaries(st.integers(0, 30), st.one_of(st.integers(1, 99), st.just("complete"))))
def test_a_state_survives_json(done: Any) -> None:
    state = LoaderState(**{**vars(STATE), "done": done})
    assert LoaderState.from_json(json.loads(json.dumps(state.to_json()))) == state


def saved(worker: int, **changed: Any) -> dict[str, object]:
    return LoaderState(
        **{**vars(STATE), "workers": (worker,), "num_workers": 3, **changed}
    ).to_json()


def test_merging_unites_what_the_workers_delivered() -> None:
    states = [
        saved(0, done={0: "complete", 3: 5}),
        saved(1, done={1: 7, 3: "complete"}),
        saved(2, done={1: 9}),
    ]
    merged = LoaderState.from_json(merge_states(states))
    assert merged.done == {0: "complete", 1: 9, 3: "complete"}
    merged.require_complete()


def test_a_merged_state_with_workers_missing_is_refused() -> None:
    with pytest.raises(StateError, match=r"worker \[1\] missing.*merge_states"):
        LoaderState.from_json(merge_states([saved(0), saved(2)])).require_complete()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"table": "x"}, "table, or another version of it$"),
        ({"plan": "x"}, "division of the files"),
        ({"plan": "x", "request": "x"}, "`where`"),
        ({"request": "x"}, "selection: slots"),
        ({"seed": 8}, "seed: 8 and"),
        ({"epoch": 2}, "epoch: 2 and 3: expected states of one step.*order rank.*num_epochs 1"),
        ({"epoch": 5, "ended": {}}, "epoch: 5 and 3: expected states of one step"),
        ({"num_workers": 4}, "num_workers: 4 and"),
    ],
)
def test_states_of_different_runs_or_steps_do_not_merge(changed: Any, message: str) -> None:
    with pytest.raises(StateError, match=f"the states differ in {message}"):
        merge_states([saved(0), saved(1, **changed)])


def test_one_worker_twice_does_not_merge() -> None:
    with pytest.raises(StateError, match=r"more than one state of worker \[1\]"):
        merge_states([saved(1), saved(1)])


def test_no_states_do_not_merge() -> None:
    with pytest.raises(StateError, match="found none"):
        merge_states([])


@pytest.mark.parametrize("data", [{}, {"format": 2}, {**STATE.to_json(), "format": 0}, None])
def test_another_format_is_refused(data: Any) -> None:
    with pytest.raises(StateError, match="expected format 1, found"):
        LoaderState.from_json(data)


@pytest.mark.parametrize(
    "changed", [{"partial": []}, {"complete": [3]}, {"ahead": []}, {"more": 1}]
)
def test_a_damaged_state_is_refused(changed: Any) -> None:
    with pytest.raises(StateError, match="damaged, or edited by hand"):
        LoaderState.from_json(STATE.to_json() | changed)


def test_a_worker_that_has_ended_its_pass_merges_with_others_that_have_not() -> None:
    ended = saved(0, epoch=4, first_epoch=4, num_epochs=1, done={}, ended={0: "complete", 3: 7})
    going = [
        saved(worker, epoch=3, first_epoch=3, num_epochs=1, done={worker: 5}) for worker in (1, 2)
    ]
    merged = LoaderState.from_json(merge_states([ended, *going]))
    assert (merged.epoch, merged.first_epoch, merged.ended) == (3, 3, None)
    assert merged.done == {0: "complete", 1: 5, 2: 5, 3: 7}
    all_ended = merge_states([{**ended, "workers": [worker]} for worker in range(3)])
    assert (all_ended["epoch"], all_ended["complete"], "ended" in all_ended) == (4, [], False)
    assert LoaderState.from_json(ended).to_json() == ended


def test_workers_of_which_some_are_in_the_next_epoch_merge_with_what_is_delivered_of_it() -> None:
    resumed = {"first_epoch": 3, "epoch": 3, "ahead": {0: 3, 5: 2}}
    crossed = saved(0, first_epoch=3, epoch=4, done={0: 9, 5: 2}, ended={0: "complete", 3: 7})
    going = [saved(worker, done={worker: 5}, **resumed) for worker in (1, 2)]
    merged = LoaderState.from_json(merge_states([going[0], crossed, going[1]]))
    assert (merged.epoch, merged.first_epoch, merged.ended) == (3, 3, None)
    assert merged.delivered == {3: {0: "complete", 1: 5, 2: 5, 3: 7}, 4: {0: 9, 5: 2}}
    all_crossed = merge_states([{**crossed, "workers": [worker]} for worker in range(3)])
    assert (all_crossed["epoch"], all_crossed.keys() & {"ended", "ahead"}) == (4, set())
