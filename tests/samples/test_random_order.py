import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featstore
from featstore.base.errors import ConfigError, SampleIndexError
from featstore.samples.random_order import RandomOrder
from tests.programs import run_python

GOLDEN = Path(__file__).parents[1] / "golden" / "random_order.json"
KINDS: list[dict[str, Any]] = [
    {},
    {"weights": np.arange(1, 41)},
    {"row_groups": [10, 5, 0, 20, 5], "window_groups": 2},
]


def test_known_orders_never_change() -> None:
    cases = json.loads(GOLDEN.read_text())
    assert {case["expected"]["identity"]["kind"] for case in cases} == {
        "all",
        "weighted",
        "windows",
    }
    for case in cases:
        order = RandomOrder(**case["arguments"])
        assert order[case["positions"]].tolist() == case["expected"]["rows"]
        assert order.identity == case["expected"]["identity"]


@pytest.mark.parametrize("options", KINDS)
def test_indices_slices_lists_and_iteration_give_the_same_rows(options: dict[str, Any]) -> None:
    order = RandomOrder(40, seed=3, epoch=1, **options)
    rows = order[:]
    assert rows.dtype == np.int64
    assert len(order) == len(rows) == 40
    assert list(order) == rows.tolist() == [order[i] for i in range(40)]
    assert order[-1] == rows[-1]
    assert order[10:30:3].tolist() == rows[10:30:3].tolist()
    assert order[[5, -2, 5]].tolist() == rows[[5, -2, 5]].tolist()
    assert type(order[0]) is int


@pytest.mark.parametrize("options", KINDS)
def test_seed_and_epoch_choose_the_order_and_nothing_else_does(options: dict[str, Any]) -> None:
    order = RandomOrder(40, seed=3, epoch=1, **options)
    assert order[:].tolist() == RandomOrder(40, seed=3, epoch=1, **options)[:].tolist()
    assert order[:].tolist() != RandomOrder(40, seed=3, epoch=2, **options)[:].tolist()
    assert order[:].tolist() != RandomOrder(40, seed=4, epoch=1, **options)[:].tolist()
    other = order.at_epoch(7)
    assert (other.epoch, order.epoch) == (7, 1)
    assert other[:].tolist() == RandomOrder(40, seed=3, epoch=7, **options)[:].tolist()
    copied = pickle.loads(pickle.dumps(order))
    assert copied[:].tolist() == order[:].tolist()


@given(num_rows=st.integers(0, 500), seed=st.integers(0, 2**70), epoch=st.integers(0, 1000))
def test_every_row_comes_once(num_rows: int, seed: int, epoch: int) -> None:
    assert sorted(RandomOrder(num_rows, seed, epoch)) == list(range(num_rows))


def test_2_to_the_40_rows_take_no_memory() -> None:
    tracemalloc.start()
    order = featstore.RandomOrder(2**40, seed=1)
    rows = order[2**39 : 2**39 + 4096]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.unique(rows)) == 4096
    assert peak < 2_000_000


def test_more_draws_than_rows_and_fewer() -> None:
    weights = [0, 1, 0, 3]
    assert len(RandomOrder(4, weights=weights)) == 4
    many = RandomOrder(4, weights=weights, num_draws=10_000)
    assert len(many) == 10_000
    counts = np.bincount(many[:], minlength=4)
    assert counts[[0, 2]].tolist() == [0, 0]
    assert abs(counts[3] / 10_000 - 0.75) < 0.03
    assert many[:2].tolist() == RandomOrder(4, weights=weights, num_draws=2)[:].tolist()


def test_states_tell_orders_of_other_weights_and_row_groups_apart() -> None:
    orders = [
        RandomOrder(4),
        RandomOrder(4, seed=1),
        RandomOrder(4, weights=[1, 1, 1, 1]),
        RandomOrder(4, weights=[1, 1, 1, 2]),
        RandomOrder(4, weights=[1, 1, 1, 1], num_draws=5),
        RandomOrder(4, row_groups=[2, 2], window_groups=1),
        RandomOrder(4, row_groups=[2, 2], window_groups=2),
        RandomOrder(4, row_groups=[1, 3], window_groups=1),
    ]
    assert len({json.dumps(order.identity) for order in orders}) == len(orders)
    assert RandomOrder(4, weights=[1, 2, 3, 4]).identity == (
        RandomOrder(4, epoch=3, weights=np.array([1, 2, 3, 4], np.float32)).identity
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_rows": -1}, "num_rows: expected an integer of 0 or more, found -1"),
        ({"num_rows": 2**40 + 1}, "num_rows: expected at most 2"),
        ({"num_rows": 4, "seed": -1}, "seed: expected an integer of 0 or more"),
        ({"num_rows": 4, "epoch": 1.5}, "epoch: expected an integer of 0 or more"),
        (
            {"num_rows": 4, "weights": [1]},
            r"weights: expected to cover 4 rows \(num_rows\), found 1",
        ),
        ({"num_rows": 4, "row_groups": [3], "window_groups": 1}, "row_groups: .*found 3"),
        ({"num_rows": 4, "row_groups": [4]}, "expected both or neither"),
        ({"num_rows": 4, "window_groups": 1}, "expected both or neither"),
        ({"num_rows": 4, "row_groups": [4], "window_groups": 0}, "window_groups: expected an int"),
        ({"num_rows": 4, "num_draws": 3}, "num_draws: expected only with weights"),
        ({"num_rows": 1, "weights": [1], "num_draws": -1}, "num_draws: expected an integer"),
        (
            {"num_rows": 1, "weights": [1], "row_groups": [1], "window_groups": 1},
            "weights and row_groups: expected one of them",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RandomOrder(**arguments)


def test_a_position_out_of_range_is_an_index_error() -> None:
    with pytest.raises(SampleIndexError, match="index 3 is out of range"):
        RandomOrder(3)[3]


def test_it_says_what_it_is() -> None:
    assert repr(RandomOrder(3, seed=1)) == "RandomOrder(3, seed=1, epoch=0, kind='all')"


def test_an_order_loads_neither_torch_nor_pyarrow() -> None:
    done = run_python(
        "import sys, featstore; next(iter(featstore.RandomOrder(5).batches(2)));"
        "print({'torch', 'pyarrow'} & set(sys.modules))"
    )
    assert done.stdout.strip() == "set()"
