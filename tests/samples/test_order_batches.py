"""Orders shared among ranks, resumed at each step, and in torch's data loaders."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from featstore.base.errors import ConfigError, StateError
from featstore.samples.order_batches import OrderBatches, OrderRows
from featstore.samples.random_order import RandomOrder

NUM_ROWS, WORLDS = st.integers(0, 60), st.integers(1, 5)


class Numbers(Dataset[int]):
    """Row i is the number i. It is fetched by batches, as the datasets of featstore are."""

    def __len__(self) -> int:
        return 53

    def __getitem__(self, index: int) -> int:
        return int(index)

    def __getitems__(self, indices: Any) -> list[int]:
        return [int(index) for index in indices]


def listed(batches: OrderBatches) -> list[list[int]]:
    return [rows.tolist() for rows in batches]


def in_step(order: RandomOrder, batch_size: int, world: int, **options: Any) -> list[list[int]]:
    """The rows of each step, of all ranks."""
    ranks = [
        listed(order.batches(batch_size, rank=rank, world_size=world, **options))
        for rank in range(world)
    ]
    most = max(map(len, ranks), default=0)
    return [[row for rank in ranks for row in (rank + [[]] * most)[step]] for step in range(most)]


@given(num_rows=NUM_ROWS, batch_size=st.integers(1, 9), world=WORLDS)
def test_every_row_once_over_any_number_of_ranks(
    num_rows: int, batch_size: int, world: int
) -> None:
    order = RandomOrder(num_rows, seed=1)
    steps = in_step(order, batch_size, world)
    assert [row for step in steps for row in step] == list(order)
    assert all(len(step) == batch_size * world for step in steps[:-2])
    if len(steps) > 1:
        assert len(steps[-2]) == batch_size * world or len(steps[-1]) == world


@given(num_rows=NUM_ROWS, world=WORLDS)
def test_every_row_once_over_any_number_of_ranks_row_by_row(num_rows: int, world: int) -> None:
    order = RandomOrder(num_rows, seed=1)
    ranks = [list(order.rows(rank=rank, world_size=world)) for rank in range(world)]
    assert sorted(row for rank in ranks for row in rank) == list(range(num_rows))
    assert max(map(len, ranks)) - min(map(len, ranks)) <= 1
    for rank in range(world):
        full = num_rows // world
        assert ranks[rank][:full] == list(order)[rank : full * world : world]


@given(num_rows=NUM_ROWS, batch_size=st.integers(1, 9), world=WORLDS, drop_last=st.booleans())
def test_the_length_is_the_number_of_batches_and_of_rows(
    num_rows: int, batch_size: int, world: int, drop_last: bool
) -> None:
    order = RandomOrder(num_rows)
    for rank in range(world):
        options: dict[str, Any] = {"rank": rank, "world_size": world, "drop_last": drop_last}
        batches = order.batches(batch_size, **options)
        found = list(batches)
        assert len(batches) == len(found)
        assert all(0 < len(rows) <= batch_size for rows in found)
        rows = order.rows(**options)
        assert len(rows) == len(list(rows))


@given(num_rows=st.integers(0, 300), batch_size=st.integers(2, 9), world=WORLDS)
def test_ranks_have_equally_many_batches_if_there_is_a_row_for_each(
    num_rows: int, batch_size: int, world: int
) -> None:
    order = RandomOrder(num_rows)
    num_batches = {
        len(order.batches(batch_size, rank=rank, world_size=world)) for rank in range(world)
    }
    assert len(num_batches) == (2 if 0 < num_rows < world else 1)


@given(num_rows=NUM_ROWS, batch_size=st.integers(1, 9), world=WORLDS)
def test_without_the_last_step_all_batches_are_full(
    num_rows: int, batch_size: int, world: int
) -> None:
    order = RandomOrder(num_rows)
    steps = in_step(order, batch_size, world, drop_last=True)
    assert len(steps) == num_rows // (batch_size * world)
    assert [row for step in steps for row in step] == list(order)[: len(steps) * batch_size * world]
    rows = [list(order.rows(rank=rank, world_size=world, drop_last=True)) for rank in range(world)]
    assert {len(found) for found in rows} == {num_rows // world}


def test_in_the_last_step_the_ranks_share_what_is_left() -> None:
    order = RandomOrder(25)
    sizes = [[len(rows) for rows in order.batches(4, rank=rank, world_size=3)] for rank in range(3)]
    assert sizes == [[4, 3, 1], [4, 3, 1], [4, 4, 1]]  # The step before leaves two rows more.
    order = RandomOrder(35)
    sizes = [[len(rows) for rows in order.batches(4, rank=rank, world_size=3)] for rank in range(3)]
    assert sizes == [[4, 4, 3], [4, 4, 4], [4, 4, 4]]


@pytest.mark.parametrize(
    "options",
    [{}, {"weights": range(1, 48)}, {"row_groups": [10, 17, 20], "window_groups": 2}],
)
@pytest.mark.parametrize(("world", "next_world"), [(1, 1), (2, 3), (3, 1), (4, 2)])
def test_resumed_after_each_step_on_other_ranks_the_rest_is_the_same(
    options: dict[str, Any], world: int, next_world: int
) -> None:
    order = RandomOrder(47, seed=5, epoch=2, **options)
    for num_steps in range(47 // (4 * world) + 2):
        ranks = [order.batches(4, rank=rank, world_size=world) for rank in range(world)]
        taken: list[int] = []
        streams = [iter(rank) for rank in ranks]
        for _ in range(num_steps):
            taken += [row for stream in streams for row in next(stream, [])]
        states = [json.loads(json.dumps(rank.state_dict())) for rank in ranks]
        if len(taken) < 47:  # A rank that got nothing in the last step is not told of it.
            assert all(state == states[0] for state in states)
        else:
            states = [max(states, key=lambda state: state["position"])]
        fresh = RandomOrder(47, seed=5, epoch=0, **options)
        rest: list[list[int]] = []
        for rank in range(next_world):
            batches = fresh.batches(3, rank=rank, world_size=next_world)
            batches.load_state_dict(states[0])
            batches.set_epoch(2)  # A training loop calls it for the epoch it goes on with, too.
            rest.append([row for rows in batches for row in rows.tolist()])
        assert sorted(taken + [row for rank in rest for row in rank]) == sorted(order)


def test_resumed_row_by_row_after_each_row() -> None:
    order = RandomOrder(23, seed=5)
    whole = list(order.rows(rank=1, world_size=2))
    for num_taken in range(len(whole) + 1):
        rows = order.rows(rank=1, world_size=2)
        stream = iter(rows)
        taken = [next(stream) for _ in range(num_taken)]
        again = RandomOrder(23, seed=5).rows(rank=1, world_size=2)
        again.load_state_dict(rows.state_dict())
        assert len(again) == len(whole) - num_taken
        assert taken + list(again) == whole


def test_an_iteration_that_is_asked_for_and_not_begun_loses_no_state() -> None:
    """Lightning calls `iter` once more than one expects."""
    batches = RandomOrder(20).batches(4)
    batches.load_state_dict({**batches.state_dict(), "position": 8})
    iter(batches)
    assert batches.state_dict()["position"] == 8
    assert len(listed(batches)) == 3
    assert len(listed(batches)) == 5  # the next time from the beginning


def test_an_epoch_that_is_over_stays_over_in_its_state() -> None:
    batches = RandomOrder(10).batches(4)
    listed(batches)
    again = RandomOrder(10).batches(4)
    again.load_state_dict(batches.state_dict())
    assert listed(again) == []
    again.set_epoch(1)
    assert listed(again) == listed(RandomOrder(10, epoch=1).batches(4))


def test_set_epoch_goes_to_the_beginning_of_another_epoch() -> None:
    batches = RandomOrder(10).batches(4)
    next(iter(batches))
    batches.set_epoch(3)
    assert batches.state_dict()["position"] == 0
    assert batches.order.epoch == 3
    assert listed(batches) == listed(RandomOrder(10, epoch=3).batches(4))


def test_a_state_after_fewer_batches_than_were_handed_out() -> None:
    batches = RandomOrder(50).batches(4, rank=0, world_size=2)
    whole = listed(batches)
    for num_delivered in range(len(whole) + 1):
        again = RandomOrder(50).batches(4, rank=0, world_size=2)
        again.load_state_dict(batches.state_dict(num_delivered))
        assert listed(again) == whole[num_delivered:]
    for wrong in (-1, len(whole) + 1):
        with pytest.raises(StateError, match="num_delivered: expected at most what was handed"):
            batches.state_dict(wrong)
    with pytest.raises(StateError, match="found 1"):
        RandomOrder(50).batches(4).state_dict(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state | {"format": 2}, "expected a state of a RandomOrder, format 1"),
        (lambda state: [], "expected a state of a RandomOrder"),
        (lambda state: {"format": 1}, "order: expected a mapping, found None"),
        (lambda state: state | {"order": None}, "order: expected a mapping, found None"),
        (lambda state: state | {"order": {}}, "expected kind .*, found None"),
        (lambda state: state | {"epoch": None}, "epoch: expected an integer of 0 or more"),
        (lambda state: state | {"epoch": -1}, "epoch: expected an integer of 0 or more"),
        (lambda state: state | {"position": "x"}, "position: expected an integer of 0 or more"),
        (lambda state: state | {"position": -1}, "position: expected an integer of 0 or more"),
        (lambda state: state | {"position": 2.0}, "position: expected an integer of 0 or more"),
        (lambda state: state | {"position": 51}, "position: expected 0 to 50, found 51"),
        (
            lambda state: state | {"order": state["order"] | {"seed": 4}},
            "expected seed 0 .of this one., found 4",
        ),
        (
            lambda state: state | {"order": state["order"] | {"num_rows": 4}},
            "expected num_rows 50 .*; make the order with the arguments that it had",
        ),
    ],
)
def test_a_state_of_something_else_is_refused(change: Callable[..., Any], message: str) -> None:
    batches = RandomOrder(50).batches(4)
    with pytest.raises(StateError, match=message):
        batches.load_state_dict(change(batches.state_dict()))


def test_the_ranks_are_those_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    order = RandomOrder(20)
    assert listed(order.batches(4)) == listed(order.batches(4, rank=1, world_size=3))
    assert listed(order.batches(4, rank=0, world_size=1)) != listed(order.batches(4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1}, "rank and world_size: expected both or neither"),
        ({"rank": 2, "world_size": 2}, r"rank: expected less than world_size \(2\), found 2"),
        ({"rank": -1, "world_size": 2}, "rank: expected an integer of 0 or more"),
        ({"rank": 0, "world_size": 0}, "world_size: expected an integer of 1 or more"),
    ],
)
def test_ranks_that_there_are_not_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RandomOrder(20).batches(4, **options)
    with pytest.raises(ConfigError, match=message):
        RandomOrder(20).rows(**options)


def test_a_batch_of_no_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size: expected an integer of 1 or more"):
        RandomOrder(20).batches(0)


def test_joining_batches_with_plus_is_an_error_instead_of_a_sum() -> None:
    batch = next(iter(RandomOrder(20).batches(4)))
    with pytest.raises(ValueError, match="read-only"):
        batch += np.array([1, 2, 3, 4])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_loader_takes_it_as_sampler_and_as_batch_sampler(num_workers: int) -> None:
    order = RandomOrder(53, seed=2)
    by_rows: Any = DataLoader(Numbers(), sampler=order, batch_size=7, num_workers=num_workers)
    assert [row for batch in by_rows for row in batch.tolist()] == list(order)
    batches: Any = order.batches(7)
    by_batches: Any = DataLoader(Numbers(), batch_sampler=batches, num_workers=num_workers)
    assert [batch.tolist() for batch in by_batches] == listed(order.batches(7))
    assert len(by_batches) == 8


def stateful(num_workers: int, *, by_rows: bool) -> tuple[OrderBatches | OrderRows, Any]:
    order = RandomOrder(53, seed=2)
    if by_rows:
        rows: Any = order.rows()
        return rows, StatefulDataLoader(
            Numbers(), sampler=rows, batch_size=7, num_workers=num_workers
        )
    batches: Any = order.batches(7)
    return batches, StatefulDataLoader(Numbers(), batch_sampler=batches, num_workers=num_workers)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's
@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_data_loader_resumes_where_the_training_loop_was(
    num_workers: int, by_rows: bool
) -> None:
    whole = listed(RandomOrder(53, seed=2).batches(7))
    for num_taken in (1, 3, 8) if num_workers else range(1, 9):
        _, loader = stateful(num_workers, by_rows=by_rows)
        stream = iter(loader)
        taken = [next(stream).tolist() for _ in range(num_taken)]
        state = loader.state_dict()
        _, again = stateful(num_workers, by_rows=by_rows)
        again.load_state_dict(state)
        assert taken + [batch.tolist() for batch in again] == whole


def test_a_plain_data_loader_resumes_by_the_number_of_batches_that_arrived() -> None:
    """Its workers are ahead: what the sampler has handed out is not what the loop has got."""
    whole = listed(RandomOrder(53, seed=2).batches(7))
    batches: Any = RandomOrder(53, seed=2).batches(7)
    stream: Any = iter(DataLoader(Numbers(), batch_sampler=batches, num_workers=2))
    taken = [next(stream).tolist() for _ in range(2)]
    assert batches.state_dict()["position"] > 14
    again: Any = RandomOrder(53, seed=2).batches(7)
    again.load_state_dict(batches.state_dict(2))
    loader: Any = DataLoader(Numbers(), batch_sampler=again, num_workers=2)
    assert taken + [batch.tolist() for batch in loader] == whole
