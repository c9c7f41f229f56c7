"""Batches by the number of values against a model that takes row by row; their states; and the
lengths of a dataset's lists.
"""

import json
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from featstore.base.errors import ConfigError, StateError
from featstore.samples import batches_by_cost
from featstore.samples.batches_by_cost import BatchesByCost
from featstore.samples.random_order import RandomOrder
from featstore.samples.sample_dataset import SampleDataset
from tests.loader.conftest import rows_of

MAX_VALUES = 9
LENGTHS = st.lists(st.integers(0, MAX_VALUES), max_size=60)
BATCH_SIZES, WORLDS = st.integers(1, 9), st.integers(1, 5)
WINDOWS = st.one_of(st.none(), st.integers(1, 70))


def listed(batches: BatchesByCost) -> list[list[int]]:
    return [rows.tolist() for rows in batches]


def model(lengths: list[int], rows: list[int], batch_size: int) -> list[list[int]]:
    """Each row goes to the batch before it if it fits."""
    batches: list[list[int]] = []
    for row in rows:
        last = batches[-1] if batches else []
        num_values = sum(lengths[each] for each in [*last, row])
        if last and len(last) < batch_size and num_values <= MAX_VALUES:
            last.append(row)
        else:
            batches.append([row])
    return batches


def model_by_length(
    lengths: list[int], rows: list[int], batch_size: int, window_rows: int
) -> list[list[list[int]]]:
    """The batches of each window, before they are shuffled."""
    windows = [rows[first : first + window_rows] for first in range(0, len(rows), window_rows)]
    return [
        model(lengths, sorted(window, key=lambda row: lengths[row]), batch_size)
        for window in windows
    ]


def in_step(order: RandomOrder, world: int, *args: Any, **options: Any) -> list[list[list[int]]]:
    """The batches of each step, one of each rank that has one."""
    ranks = [
        listed(order.batches_by_cost(*args, rank=rank, world_size=world, **options))
        for rank in range(world)
    ]
    return [
        [rank[step] for rank in ranks if step < len(rank)] for step in range(max(map(len, ranks)))
    ]


@given(LENGTHS, BATCH_SIZES, st.integers(1, 20))
def test_each_batch_has_as_many_rows_of_the_order_as_fit(
    lengths: list[int], batch_size: int, read_rows: int
) -> None:
    order = RandomOrder(len(lengths), seed=1, epoch=2)
    with pytest.MonkeyPatch.context() as patch:  # So that batches straddle what is read at once.
        patch.setattr(batches_by_cost, "ORDER_ROWS", read_rows)
        found = listed(order.batches_by_cost(lengths, MAX_VALUES, batch_size))
    assert found == model(lengths, list(order), batch_size)


@given(LENGTHS, BATCH_SIZES, st.integers(1, 70))
def test_similar_lengths_come_together_in_each_window(
    lengths: list[int], batch_size: int, window_rows: int
) -> None:
    order = RandomOrder(len(lengths), seed=1)
    found = listed(order.batches_by_cost(lengths, MAX_VALUES, batch_size, window_rows=window_rows))
    for expected in model_by_length(lengths, list(order), batch_size, window_rows):
        assert sorted(found[: len(expected)]) == sorted(expected)
        found = found[len(expected) :]
    assert not found


def test_known_batches_never_change() -> None:
    lengths = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
    order = RandomOrder(20, seed=7, epoch=3)
    batches = order.batches_by_cost(lengths, MAX_VALUES, 4, window_rows=12)
    assert listed(batches) == [
        [7], [4], [18], [13], [10], [11], [3, 16, 0, 17], [8], [5], [1, 6, 9, 15], [14], [19, 2],
        [12],
    ]  # fmt: skip
    assert batches.state_dict(7) == {
        "format": 1,
        "order": {
            "kind": "all by length",
            "num_rows": 20,
            "length": 20,
            "seed": 7,
            "options": None,
            "max_values": 9,
            "batch_size": 4,
            "window_rows": 12,
            "lengths": "30e80d71efce64f1c14c4e29caa3bcb3",
        },
        "epoch": 3,
        "position": 10,
    }
    batches.set_epoch(4)
    again = listed(batches)
    batches.set_epoch(3)
    assert again != listed(batches)
    assert sorted(chain(*again)) == list(range(20))


@given(LENGTHS, BATCH_SIZES, WORLDS, WINDOWS, st.booleans())
def test_ranks_take_the_next_batches_and_divide_the_last(
    lengths: list[int], batch_size: int, world: int, window_rows: Any, drop_last: bool
) -> None:
    order = RandomOrder(len(lengths), seed=3)
    args, options = (lengths, MAX_VALUES, batch_size), {"window_rows": window_rows}
    alone = listed(order.batches_by_cost(*args, **options))
    ranks = [
        order.batches_by_cost(*args, rank=rank, world_size=world, drop_last=drop_last, **options)
        for rank in range(world)
    ]
    batches = [listed(rank) for rank in ranks]
    assert [len(rank) for rank in ranks] == [len(each) for each in batches]
    full = len(alone) // world
    ending = [] if drop_last else list(chain(*alone[full * world :]))
    if 0 < len(ending) < world and full:
        before = list(chain(*alone[(full - 1) * world : full * world]))
        if len(before) + len(ending) >= 2 * world:  # Both steps have a row for each rank.
            full, ending = full - 1, before + ending
    for rank in range(world):
        assert batches[rank][:full] == alone[rank : full * world : world]
    last = [[each[step] for each in batches if step < len(each)] for step in (full, full + 1)]
    assert list(chain(*chain(*last))) == ending
    if len(ending) >= world:
        assert {len(each) for each in batches} == {full + 1 + (len(last[1]) > 0)}
        assert len(last[1]) in (0, world)
    else:
        assert [len(step) for step in last] == [len(ending), 0]
    assert all(sum(lengths[row] for row in rows) <= MAX_VALUES for each in batches for rows in each)
    assert all(0 < len(rows) <= batch_size for each in batches for rows in each)


@given(LENGTHS.filter(len), BATCH_SIZES, WORLDS, WORLDS, WINDOWS, st.data())
def test_resumed_on_other_ranks_the_rest_is_the_same(
    lengths: list[int],
    batch_size: int,
    world: int,
    next_world: int,
    window_rows: Any,
    data: Any,
) -> None:
    args, options = (lengths, MAX_VALUES, batch_size), {"window_rows": window_rows}
    order = RandomOrder(len(lengths), seed=5, epoch=2)
    whole = in_step(order, world, *args, **options)
    num_taken = data.draw(st.integers(0, len(whole)))
    batches = order.batches_by_cost(*args, rank=0, world_size=world, **options)
    stream = iter(batches)
    for _ in range(num_taken):
        next(stream)
    state = json.loads(json.dumps(batches.state_dict()))
    for _ in stream:  # Asked ahead.
        pass
    assert batches.state_dict(num_taken) == state
    resumed = RandomOrder(len(lengths), seed=5)
    found = []
    for rank in range(next_world):
        other = resumed.batches_by_cost(*args, rank=rank, world_size=next_world, **options)
        other.load_state_dict(state)
        other.set_epoch(2)
        found.append(listed(other))
    rest = list(chain(*whole[num_taken:]))
    assert sorted(chain(*chain(*found))) == sorted(chain(*rest))
    if world == next_world == 1:
        assert found[0] == rest
    again = order.batches_by_cost(*args, rank=0, world_size=world, **options)
    again.load_state_dict(state)
    assert listed(again) == [step[0] for step in whole[num_taken:]]
    assert listed(again) == [step[0] for step in whole]


def test_in_the_order_a_state_fits_other_caps_and_batches_by_rows() -> None:
    order, lengths = RandomOrder(50, seed=2), np.arange(50) % 7
    batches = order.batches_by_cost(lengths, 20, 8)
    stream = iter(batches)
    taken = [*next(stream), *next(stream)]
    for other in (order.batches_by_cost(lengths[::-1], 6, 3), order.batches(4)):
        other.load_state_dict(batches.state_dict())
        assert taken + [row for rows in other for row in rows] == list(order)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_values": 21}, "expected max_values 21 .of this one., found 20"),
        ({"batch_size": 9}, "expected batch_size 9 .*, found 8"),
        ({"window_rows": 31}, "expected window_rows 31 .*, found 30"),
        ({"window_rows": None}, "expected kind 'all' .*, found 'all by length'"),
        ({"lengths": np.arange(50) % 6}, "expected lengths '.*' .*, found '.*'"),
    ],
)
def test_with_similar_lengths_a_state_of_other_batches_is_refused(
    change: Any, message: str
) -> None:
    order = RandomOrder(50)
    lengths = np.arange(50) % 7
    options: dict[str, Any] = {"max_values": 20, "batch_size": 8, "window_rows": 30}
    state = order.batches_by_cost(lengths.astype(np.int8), **options).state_dict()
    order.batches_by_cost(lengths, **options).load_state_dict(state)
    options["lengths"] = lengths
    with pytest.raises(StateError, match=message):
        order.batches_by_cost(**options | change).load_state_dict(state)
    with pytest.raises(StateError, match="expected kind 'all' "):
        order.batches(8).load_state_dict(state)


def test_what_was_not_handed_out_since_cannot_have_been_delivered() -> None:
    batches = RandomOrder(50).batches_by_cost(np.ones(50, np.int32), 10, 8)
    assert len(listed(batches)) == 7
    state = batches.state_dict(2)
    for wrong in (-1, 8):
        with pytest.raises(StateError, match="num_delivered: expected at most what was handed"):
            batches.state_dict(wrong)
    batches.load_state_dict(state)
    assert len(batches) == 5
    with pytest.raises(StateError, match=r"num_delivered: .* at row 16, found 1"):
        batches.state_dict(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": [1, 2]}, "lengths: expected an integer for each of 3 rows, found int64 of"),
        ({"lengths": [1.0, 2.0, 3.0]}, "found float64 of shape .3,.$"),
        ({"lengths": [[1], [2], [3]]}, "found int64 of shape .3, 1.$"),
        ({"lengths": [1, -2, 3]}, r"lengths\[1\]: expected an integer of 0 or more, found -2"),
        (
            {"lengths": [1, 6, 3]},
            "max_values: expected at most 5 values in each row, found 6 in row 1: raise max_values",
        ),
        ({"max_values": 0}, "max_values: expected an integer of 1 or more"),
        ({"batch_size": 0}, "batch_size: expected an integer of 1 or more"),
        ({"window_rows": 0}, "window_rows: expected an integer of 1 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(change: Any, message: str) -> None:
    options: dict[str, Any] = {"lengths": [1, 2, 3], "max_values": 5, "batch_size": 2}
    with pytest.raises(ConfigError, match=message):
        RandomOrder(3).batches_by_cost(**options | change)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's
@pytest.mark.parametrize(("window_rows", "num_workers"), [(None, 0), (40, 0), (40, 1)])
def test_a_stateful_data_loader_gives_samples_and_resumes(
    dataset: SampleDataset, window_rows: int | None, num_workers: int
) -> None:
    lengths = dataset.lengths("tags")
    order = RandomOrder(len(dataset), seed=4)

    def make() -> Any:
        batches: Any = order.batches_by_cost(lengths, 30, 16, window_rows=window_rows)
        return StatefulDataLoader(dataset, batch_sampler=batches, num_workers=num_workers)

    whole = list(make())
    assert sorted(rows_of(whole)) == sorted(rows_of([dataset[:]]))
    assert max(len(batch["tags"].values) for batch in whole) <= 30
    for num_taken in (1, 5, len(whole)):
        loader = make()
        stream = iter(loader)
        taken = [next(stream) for _ in range(num_taken)]
        again = make()
        again.load_state_dict(loader.state_dict())
        assert rows_of([*taken, *again]) == rows_of(whole)


def test_a_data_loader_with_workers_takes_it_as_batch_sampler(dataset: SampleDataset) -> None:
    batches: Any = RandomOrder(len(dataset)).batches_by_cost(dataset.lengths("tags"), 90, 64)
    loader: Any = DataLoader(dataset, batch_sampler=batches, num_workers=1)
    found = [batch["row"].tolist() for batch in loader]
    assert found == [dataset[rows]["row"].tolist() for rows in batches]
    assert len(loader) == len(found)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"where": "row % 3 = 1"},
        {"where": "row < 0"},
        {"slots": [{"name": "tags", "max_len": 2}]},
    ],
)
def test_lengths_are_those_of_the_delivered_lists(table_url: str, options: Any) -> None:
    with SampleDataset(table_url, **{"slots": ["tags"], **options}) as samples:
        lengths = samples.lengths("tags")
        assert lengths.dtype == np.int64
        assert lengths.tolist() == torch.diff(samples[:]["tags"].offsets).tolist()


@pytest.mark.parametrize("name", ["row", "tag", "pair"])
def test_lengths_of_what_is_no_list_are_refused(dataset: SampleDataset, name: str) -> None:
    with pytest.raises(ConfigError, match=f"lengths: expected a list slot .*, found '{name}'"):
        dataset.lengths(name)


def test_lengths_of_padded_lists_are_refused(table_url: str) -> None:
    with (
        SampleDataset(table_url, slots=[{"name": "tags", "pad": 2}]) as samples,
        pytest.raises(ConfigError, match="selected without pad, found 'tags'"),
    ):
        samples.lengths("tags")
