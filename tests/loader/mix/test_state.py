"""The state of a mixture as JSON, and the states of several workers merged."""

import json
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import ConfigError, StateError
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.iteration.state import LoaderState
from featstore.loader.mixed_state import MixedState, Turns, merge_any_states
from featstore.loader.request.train_config import MOST_PASSES, naming

GOLDEN = Path(__file__).parents[2] / "golden" / "mixed_state.json"


def table_state(**keys: Any) -> dict[str, Any]:
    same = {"table": "t", "plan": "p", "request": "r", "seed": 0, "window_rows": None}
    own = {"num_epochs": 1, "epoch": 0, "first_epoch": 0, **keys}
    return LoaderState(**{**same, **own}).to_json()


def state_of(worker: int, num_workers: int = 2, **keys: Any) -> dict[str, Any]:
    """The state of one worker of a mixture of two tables."""
    own = {"num_workers": num_workers, "workers": (worker,)}
    tables = tuple(table_state(**own, **each) for each in keys.pop("tables", ({}, {})))
    counts = keys.pop("num_batches", (1,) * len(tables))
    turns = Turns((1.0,) * len(tables), counts)
    known = {"stop": "first_exhausted", "epoch": 0, "turns": turns}
    return MixedState(**{**known, **keys}, tables=tables).to_json()


def test_the_format_is_frozen() -> None:
    golden = json.loads(GOLDEN.read_text())
    state = MixedState.from_json(golden)
    assert state.to_json() == golden
    assert (state.stop, state.epoch) == ("all_exhausted", 3)
    assert state.turns == Turns((3.0, 0.5), (35, 6))
    assert [each["epoch"] - 3 * MOST_PASSES for each in state.tables] == [0, 1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (table_state(), "expected mixed_format 1, found the state of a loader of one table"),
        ({"mixed_format": 2}, r"expected mixed_format 1, found \{'mixed_format': 2\}"),
        (7, "expected mixed_format 1, found 7"),
        ({"mixed_format": 1}, "damaged, or edited by hand"),
        ({**state_of(0), "more": 1}, "damaged, or edited by hand"),
        ({**state_of(0), "tables": [3]}, "damaged, or edited by hand"),
        ({**state_of(0), "epoch": "x"}, "damaged, or edited by hand"),
        ({**state_of(0), "weights": [1, "x"]}, "damaged, or edited by hand"),
        (
            {**state_of(0), "num_batches": [1]},
            "damaged: expected weights and num_batches of 2 tables, found 2 and 1",
        ),
    ],
    ids=str,
)
def test_other_data_is_refused(data: Any, message: str) -> None:
    with pytest.raises(StateError, match=message):
        MixedState.from_json(data)


def test_a_loader_of_one_table_refuses_the_state_of_a_mixture(table_url: str) -> None:
    with (
        FeatureLoader(table_url, slots=["row"]) as loader,
        pytest.raises(StateError, match="that of a loader of one table, found that of a mixture"),
    ):
        loader.load_state_dict(state_of(0))


def test_the_states_of_all_workers_make_one() -> None:
    first = state_of(0, num_batches=(2, 1), tables=({"done": {0: 5}}, {}))
    second = state_of(1, num_batches=(2, 2), tables=({"done": {1: "complete"}}, {"done": {0: 2}}))
    found = MixedState.from_json(FeatureLoader.merge_states([first, second]))
    assert found.turns.num_batches == (2, 2)
    assert [LoaderState.from_json(each).done for each in found.tables] == [
        {0: 5, 1: "complete"},
        {0: 2},
    ]
    assert [each["workers"] for each in found.tables] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("who", [(True, True), (True, False), (False, False)])
def test_an_epoch_has_ended_once_it_has_for_all_workers(who: tuple[bool, bool]) -> None:
    states = [state_of(i, ended=ended) for i, ended in enumerate(who)]
    assert MixedState.from_json(merge_any_states(states)).ended is all(who)


def test_after_its_end_the_next_epoch_begins() -> None:
    passes = {"num_epochs": MOST_PASSES, "first_epoch": 0}
    tables = ({"done": {0: 5}, "epoch": 1, "ahead": {1: 4}, **passes}, {"epoch": 2, **passes})
    state = state_of(0, 1, stop="all_exhausted", ended=True, tables=tables)
    found = MixedState.from_json(state).to_continue
    assert (found.epoch, found.turns, found.ended) == (1, Turns.begin([1.0, 1.0]), False)
    for each in map(LoaderState.from_json, found.tables):
        assert (each.first_epoch, each.delivered) == (MOST_PASSES, {MOST_PASSES: {}})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (state_of(1, epoch=1), "the states differ in epoch: 1 and 0"),
        (state_of(1, stop="all_exhausted"), "differ in stop: all_exhausted and first_exhausted"),
        (state_of(1, tables=({},)), "differ in number of tables: 1 and 2"),
        (state_of(1, tables=({}, {"seed": 4})), r"tables\[1\]: merge_states: .* differ in seed"),
        (state_of(0), r"tables\[0\]: merge_states: more than one state of worker \[0\]"),
        (table_state(), "found the state of a loader of one table"),
    ],
    ids=["epoch", "stop", "tables", "seed", "twice", "plain"],
)
def test_states_that_are_not_of_one_step_are_refused(other: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        merge_any_states([state_of(0), other])


def test_workers_in_different_passes_go_on_in_the_earliest_of_them() -> None:
    passes = {"num_epochs": MOST_PASSES}
    tables: list[dict[str, Any]] = [
        {"epoch": 5, "done": {0: 7}},
        {"epoch": 6, "done": {2: 3}, "ended": {1: "complete", 2: 8}},
        {"epoch": 7, "done": {3: 3}, "ended": {4: "complete"}},
    ]
    states = [
        state_of(i, 3, stop="all_exhausted", tables=({}, {**passes, **table}))
        for i, table in enumerate(tables)
    ]
    found = LoaderState.from_json(merge_any_states(states)["tables"][1])
    assert (found.epoch, found.first_epoch, found.workers) == (5, 0, (0, 1, 2))
    # Of a worker that is two passes ahead nothing is known of this one: its rows come again.
    assert found.delivered == {5: {0: 7, 1: "complete", 2: 8}, 6: {2: 3}}
    assert found.ended is None


def test_an_error_is_named_and_stays_of_its_kind() -> None:
    with pytest.raises(ConfigError, match=r"^tables\[1\]: no$"), naming("tables[1]"):
        raise ConfigError("no")


@pytest.mark.parametrize(
    ("stop", "num_tables", "message"),
    [
        ("all_exhausted", 2, "another stop: expected all_exhausted.*found first_exhausted"),
        ("first_exhausted", 3, "another number of tables: expected 3.*found 2"),
    ],
)
def test_a_mixture_of_another_kind_cannot_continue(
    stop: str, num_tables: int, message: str
) -> None:
    with pytest.raises(StateError, match=message):
        MixedState.from_json(state_of(0)).require_fit(stop, num_tables)
