"""Indices that workers claim at their own pace, for a list, a SampleDataset and a SampleStore, in
torch's data loaders.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import featstore
from featstore.base.errors import ConfigError, DispatchError, StateError
from featstore.dispatch.receipt import receipts
from featstore.samples.dispatched_order import DispatchedOrder
from featstore.samples.random_order import RandomOrder
from featstore.samples.sample_dataset import SampleDataset
from featstore.samples.sample_store import SampleStore
from tests.loader.conftest import rows_of
from tests.pages.page import ROOT, blocks

pytestmark = pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated:UserWarning"  # torchdata's
)
PAGE = "docs/sampling.md"
NUM_ROWS, BATCH = 200, 7
ORDER = RandomOrder(NUM_ROWS, seed=1)
ROWS = list(range(NUM_ROWS))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/store.db"


def on(store: str, order: Any = ORDER, batch: int = BATCH, **options: Any) -> DispatchedOrder:
    dispatch = {"store": store, "run_id": "run", **options}
    return DispatchedOrder(order, batch, dispatch=dispatch, shard_rows=16)


def loader_of(order: DispatchedOrder, samples: Any = ROWS, num_workers: int = 0) -> Any:
    kept = {"persistent_workers": True} if num_workers else {}
    made: Any = DataLoader
    return made(samples, batch_sampler=order, num_workers=num_workers, **kept)


def listed(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def flat(batches: Sequence[Sequence[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_worker_alone_gets_the_order_in_whole_batches(num_workers: int) -> None:
    with DispatchedOrder(ORDER, BATCH, shard_rows=16) as order:
        loader = loader_of(order, num_workers=num_workers)
        for epoch in range(2):
            order.set_epoch(epoch)
            batches = listed(order.deliver(loader))
            assert flat(batches) == list(ORDER.at_epoch(epoch))
            assert {len(batch) for batch in batches[:-1]} == {BATCH}
        assert flat(listed(order.deliver(order))) == list(ORDER.at_epoch(1)), "it repeats"


def test_any_order_is_dispatched() -> None:
    drawn = RandomOrder(20, epoch=3, weights=[1.0] * 10 + [0.0] * 10, num_draws=50)
    with DispatchedOrder(drawn, BATCH) as order:
        assert flat(listed(order.deliver(order))) == list(drawn)
    with DispatchedOrder(RandomOrder(0), BATCH) as order:
        assert listed(order.deliver(order)) == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_of_a_table_and_a_sample_store_come_once(
    dataset: SampleDataset, tmp_path: Path, num_workers: int
) -> None:
    with DispatchedOrder(len(dataset), BATCH, shard_rows=16) as order:
        batches = order.deliver(loader_of(order, dataset, num_workers))
        assert sorted(rows_of(batches)) == list(range(len(dataset)))
    with SampleStore.create(tmp_path / "samples.sqlite", {"n": "integer"}) as filled:
        filled.append([{"n": row} for row in ROWS])
    samples = SampleStore(tmp_path / "samples.sqlite")
    with DispatchedOrder(len(samples), BATCH, shard_rows=16) as order:
        numbers = [b["n"].tolist() for b in order.deliver(loader_of(order, samples, num_workers))]
        assert sorted(flat(numbers)) == ROWS
    samples.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_share_an_epoch_and_the_faster_one_gets_more(store: str, num_workers: int) -> None:
    got: dict[str, list[int]] = {"fast": [], "slow": []}
    pause = {"fast": threading.Event(), "slow": threading.Event()}
    begun = threading.Barrier(2)

    def work(name: str) -> None:
        with on(store) as order:
            for number, batch in enumerate(order.deliver(loader_of(order, ROWS, num_workers))):
                if not number:
                    begun.wait(60)
                got[name] += batch.tolist()
                pause[name].wait(0.3 if name == "slow" else 0.0)

    threads = [threading.Thread(target=work, args=(name,)) for name in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(got["fast"] + got["slow"]) == ROWS
    assert len(got["fast"]) > len(got["slow"]) > 0
    (receipt,) = receipts(store, "run").values()
    assert (receipt.delivered, receipt.missing, receipt.repeated_at_most) == (NUM_ROWS, 0, 0)


@pytest.mark.parametrize("ahead", [{}, {"num_workers": 2, "prefetch_factor": 4}])
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_what_a_data_loader_asked_ahead_is_not_delivered(
    store: str, ahead: dict[str, int], kind: Any
) -> None:
    with on(store) as order:
        loader = kind(ROWS, batch_sampler=order, **ahead)
        batches = order.deliver(loader)
        for number in range(1, 6):
            next(batches)
            assert delivered(order) == (number - 1) * BATCH
        order.ack()
        assert delivered(order) == 5 * BATCH
        batches.close()
        (receipt,) = receipts(store, "run").values()
        assert (receipt.delivered, receipt.repeated_at_most) == (5 * BATCH, 0)


def delivered(order: DispatchedOrder) -> int:
    """How many positions the state has."""
    state = order.state_dict()["delivered"]
    whole = sum(min(16, NUM_ROWS - 16 * at) for a, b in state["complete"] for at in range(a, b + 1))
    return int(whole + sum(state["partial"].values()))


def test_the_format_of_a_state_is_frozen() -> None:
    """A new format gets a new number, and older ones stay readable."""
    golden = json.loads((ROOT / "tests" / "golden" / "dispatched_order_state.json").read_text())
    with DispatchedOrder(ORDER.at_epoch(2), BATCH, shard_rows=16) as order:
        for number, _ in enumerate(order.deliver(order)):
            if number == 3:
                assert json.loads(json.dumps(order.state_dict())) == golden
                break
        order.load_state_dict(golden)
        assert flat(listed(order.deliver(order))) == list(ORDER.at_epoch(2))[3 * BATCH :]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loop_goes_on_from_the_state_of_any_step_with_any_batch_size(num_workers: int) -> None:
    with ExitStack() as stack:
        saved = stack.enter_context(DispatchedOrder(ORDER.at_epoch(2), BATCH, shard_rows=16))
        rows, states = list[int](), []
        for batch in saved.deliver(loader_of(saved, num_workers=num_workers)):
            states.append((len(rows), json.loads(json.dumps(saved.state_dict()))))
            rows += batch.tolist()
        states.append((len(rows), saved.state_dict()))
        for num_delivered, state in states[:: 1 if not num_workers else 10]:
            for batch_size in (BATCH, 11):
                again = stack.enter_context(DispatchedOrder(ORDER, batch_size, shard_rows=16))
                again.load_state_dict(state)
                assert again.state_dict() == state
                again.set_epoch(2)
                assert flat(listed(again.deliver(again))) == rows[num_delivered:]
        assert flat(listed(again.deliver(again))) == rows, "it repeats"
        again.load_state_dict(states[1][1])
        again.set_epoch(3)
        assert flat(listed(again.deliver(again))) == list(ORDER.at_epoch(3))


def test_the_states_of_ranks_are_merged_for_another_number_of_them(
    store: str, monkeypatch: pytest.MonkeyPatch, stack: ExitStack
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    states, got, batches = [], list[int](), []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        order = stack.enter_context(on(store, in_step=True))
        batches.append(order.deliver(order))
        got += flat([next(batches[-1]).tolist() for _ in range(rank + 1)])
        order.ack()
        states.append(order.state_dict())
    state = json.loads(json.dumps(DispatchedOrder.merge_states(states)))
    with pytest.raises(StateError, match=r"of worker \[0\] of 3; worker \[1, 2\] missing"):
        stack.enter_context(on(store)).load_state_dict(states[0])
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    alone = stack.enter_context(on(store))
    alone.load_state_dict(state)
    assert sorted(got + flat(listed(alone.deliver(alone)))) == ROWS


def test_a_loop_that_ends_early_gives_back_what_it_claimed(store: str) -> None:
    with on(store) as order, on(store) as other:
        got = list[int]()
        for batch in order.deliver(loader_of(order, num_workers=2)):
            order.ack()
            got += batch.tolist()
            if len(got) > 50:
                break
        assert sorted(got + flat(listed(other.deliver(other)))) == ROWS


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_process_that_comes_late_shares_the_epoch_that_it_names(
    store: str, num_workers: int
) -> None:
    with on(store) as order, on(store) as late:
        assert flat(listed(order.deliver(order))) == list(ORDER)
        order.set_epoch(1)
        batches = order.deliver(order)
        got = flat([next(batches).tolist() for _ in range(3)])
        order.ack()
        batches.close()
        late.set_epoch(1)
        got += flat(listed(late.deliver(loader_of(late, num_workers=num_workers))))
        assert sorted(got) == ROWS


def failing_at_the_third(order: DispatchedOrder, got: list[int]) -> None:
    for number, batch in enumerate(order.deliver(order)):
        if number == 2:
            raise ValueError("injected")
        got += batch.tolist()


@pytest.mark.parametrize("first", [0, 1])
def test_a_worker_that_caught_an_error_goes_on_with_the_others(store: str, first: int) -> None:
    with on(store) as order, on(store) as other:
        next((order, other)[first].deliver((order, other)[first]))
        for epoch in range(2):
            got = list[int]()
            for each in (order, other):
                each.set_epoch(epoch)
            for _ in range(8):  # More often than a shard may fail.
                with pytest.raises(ValueError, match="injected"):
                    failing_at_the_third(order, got)
            state = order.state_dict()
            assert delivered(order) == len(got) == 8 * 2 * BATCH
            got += flat(listed(other.deliver(other)))
            assert sorted(got) == ROWS
            assert listed(order.deliver(order)) == [], "others had the rest"
        with DispatchedOrder(ORDER, BATCH, shard_rows=16) as again:
            again.load_state_dict(state)
            assert len(flat(listed(again.deliver(again)))) == NUM_ROWS - 8 * 2 * BATCH


def test_a_loop_from_a_state_that_is_broken_off_goes_on(store: str) -> None:
    with on(store) as order:
        states = []
        for _ in range(2):
            got = list[int]()
            for number, batch in enumerate(order.deliver(order)):
                if number == 3:
                    break
                got += batch.tolist()
            states.append(order.state_dict())
            order.load_state_dict(states[0])
            batches = order.deliver(order)
            got += next(batches).tolist()
            order.ack()
            batches.close()
            assert delivered(order) == 4 * BATCH
            order.set_epoch(1)
            order.set_epoch(0)
            assert delivered(order) == 4 * BATCH
            got += flat(listed(order.deliver(order)))
            assert delivered(order) == NUM_ROWS
            assert sorted(got) == ROWS, "what was given back comes last"
            assert flat(listed(order.deliver(order))) == list(ORDER), "it repeats"
            order.set_epoch(1)
            order.set_epoch(0)
            assert delivered(order) == 0
        assert states[0] == states[1]


class Failing(list[int]):
    """A list with an item that cannot be read."""

    def __getitem__(self, index: Any) -> Any:
        if index == ORDER[100]:
            raise LookupError("injected")
        return super().__getitem__(index)


def asked_ahead(order: DispatchedOrder) -> Iterator[Any]:
    """A loader that fails with batches under way. (torch's takes 10 s to end its workers then.)"""
    asked = list(islice(order, 8))
    yield from asked[:2]
    raise LookupError("injected")


@pytest.mark.parametrize("make", [lambda order: loader_of(order, Failing(ROWS)), asked_ahead])
def test_an_error_of_the_loader_ends_the_loop_and_gives_back_what_was_claimed(
    store: str, make: Any
) -> None:
    with on(store) as order, on(store) as other:
        got, batches = list[int](), order.deliver(make(order))
        with pytest.raises(LookupError, match="injected"):
            got.extend(row for batch in batches for row in batch.tolist())
        assert sorted(got + flat(listed(other.deliver(other)))) == ROWS


def test_a_loop_over_the_loader_itself_is_refused() -> None:
    with DispatchedOrder(ORDER, BATCH) as order:
        with pytest.raises(StateError, match=r"expected a loop over deliver\(loader\)"):
            next(iter(loader_of(order)))
        batches = order.deliver(order)
        next(batches)
        with pytest.raises(StateError, match=r"expected a loop over deliver\(loader\)"):
            next(iter(order))


def test_loaders_that_give_other_batches_are_refused() -> None:
    with DispatchedOrder(ORDER, BATCH) as order:
        made: Any = DataLoader
        unordered = made(ROWS, batch_sampler=order, num_workers=1, in_order=False)
        with pytest.raises(ConfigError, match="expected in_order=True, found False"):
            next(order.deliver(unordered))
        for other in ([1], [1, 2], cycle([1]), [], zip(order, range(3), strict=False)):
            with pytest.raises(StateError, match="one batch for each of the order's"):
                list(order.deliver(other))


def test_a_newer_loop_and_close_end_the_one_before() -> None:
    with DispatchedOrder(ORDER, BATCH) as order:
        first = order.deliver(order)
        next(first)
        second = order.deliver(order)
        next(second)
        with pytest.raises(StateError, match="ended by close"):
            next(first)
        order.close()
        with pytest.raises(StateError, match="ended by close"):
            next(second)
        assert sorted(flat(listed(order.deliver(order)))) == ROWS


def test_states_that_do_not_fit_are_refused(store: str) -> None:
    with on(store) as order, DispatchedOrder(ORDER, BATCH, shard_rows=32) as other:
        state = order.state_dict()
        for wrong, why in (
            ({}, "expected a state of a DispatchedOrder, format 1"),
            ({**state, "format": 2}, "expected a state of a DispatchedOrder, format 1"),
            ({**state, "order": 1}, "order: expected a mapping, found 1"),
            (RandomOrder(9).batches(3).state_dict(), "expected a state of a DispatchedOrder"),
            (other.state_dict(), "expected shard_rows 16 .* found 32"),
            (state | {"delivered": other.state_dict()["delivered"]}, "saved with another division"),
        ):
            with pytest.raises(StateError, match=why):
                order.load_state_dict(wrong)
        with pytest.raises(StateError, match="found none"):
            DispatchedOrder.merge_states([])
        batches = order.deliver(order)
        next(batches)
        with pytest.raises(StateError, match="expected it before a loop"):
            order.load_state_dict(state)


def test_the_state_of_a_stateful_data_loader_is_refused(store: str) -> None:
    with on(store) as order:
        loader: Any = StatefulDataLoader(ROWS, batch_sampler=order)
        next(order.deliver(loader))
        state = loader.state_dict()
        loader.load_state_dict(state)
        with pytest.raises(StateError, match="not into a StatefulDataLoader"):
            next(order.deliver(loader))


def test_a_run_that_has_read_everything_is_told_so(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    third = ORDER.at_epoch(3)
    with on(store, third) as order:
        list(order.deliver(order))
    why = "epoch 3: nothing is left to read: .* to join the run in a later one, call set_epoch; "
    with on(store, third) as late:
        for _ in range(2):
            with pytest.raises(DispatchError, match=why):
                list(late.deliver(late))
        late.set_epoch(4)
        assert sorted(flat(listed(late.deliver(late)))) == ROWS
    with on(store, third, finished="end") as late:
        assert listed(late.deliver(late)) == []
    assert "nothing is left to read" in caplog.text


def test_the_example_of_the_page() -> None:
    [text] = [
        block.text
        for block in blocks((ROOT / PAGE).read_text())
        if block.language == "python" and not block.reason
    ]
    trained = list[int]()
    names = {"featstore": featstore, "DataLoader": DataLoader, "samples": ROWS}
    exec(text, names | {"train": lambda batch: trained.extend(batch.tolist())})
    assert Counter(trained) == dict.fromkeys(ROWS, 2)


def test_options_that_are_wrong_are_refused(store: str) -> None:
    right: dict[str, Any] = {"batch_size": 1}
    for wrong, why in (
        ({"batch_size": 0}, "batch_size"),
        ({"shard_rows": 0}, "shard_rows"),
        ({"dispatch": store}, "expected a run_id"),
        ({"dispatch": {"lease_s": -1}}, "lease_s"),
    ):
        with pytest.raises(ConfigError, match=why):
            DispatchedOrder(ORDER, **right | wrong)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [7, 64, None])
def test_the_sampler_of_a_data_loader_has_batches_of_the_loaders_size(
    store: str, num_workers: int, batch_size: int | None
) -> None:
    dispatch = {"store": store, "run_id": "run"}
    with DispatchedOrder(NUM_ROWS, dispatch=dispatch, shard_rows=50) as order:
        made: Any = DataLoader
        loader = made(ROWS, batch_size, sampler=order, num_workers=num_workers)
        found = [batch.tolist() if batch_size else [int(batch)] for batch in order.deliver(loader)]
        assert [len(rows) for rows in found[:-1]] == [batch_size or 1] * (len(found) - 1)
        assert sorted(row for rows in found for row in rows) == ROWS
    [receipt] = receipts(store, "run").values()
    assert (receipt.missing, receipt.repeated_at_most) == (0, 0)


def test_a_sampler_whose_last_rows_are_dropped_is_refused(store: str) -> None:
    dispatch = {"store": store, "run_id": "run"}
    with DispatchedOrder(NUM_ROWS, dispatch=dispatch) as order:
        made: Any = DataLoader
        loader = made(ROWS, 64, sampler=order, drop_last=True)
        with pytest.raises(StateError, match=r"one batch for each of the order's.*drop_last=False"):
            list(order.deliver(loader))


LENGTHS, MAX_VALUES = [row % 6 for row in ROWS], 14


def capped(order: Any = ORDER, batch_size: int = BATCH, **options: Any) -> DispatchedOrder:
    cap: dict[str, Any] = {"lengths": LENGTHS, "max_values": MAX_VALUES}
    return DispatchedOrder(order, batch_size, shard_rows=16, **cap | options)


def as_fit(rows: list[int], batch_size: int) -> list[list[int]]:
    """Row by row: each row goes to the batch before it if it fits."""
    batches: list[list[int]] = []
    for row in rows:
        last = batches[-1] if batches else []
        num_values = sum(LENGTHS[each] for each in [*last, row])
        if last and len(last) < batch_size and num_values <= MAX_VALUES:
            last.append(row)
        else:
            batches.append([row])
    return batches


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [4, 7, 100])
def test_a_batch_by_cost_has_as_many_rows_of_the_order_as_fit(
    num_workers: int, batch_size: int
) -> None:
    with capped(batch_size=batch_size) as order:
        loader = loader_of(order, num_workers=num_workers)
        for epoch in range(2):
            order.set_epoch(epoch)
            expected = as_fit(list(ORDER.at_epoch(epoch)), batch_size)
            assert listed(order.deliver(loader)) == expected


def test_batches_by_cost_go_on_from_the_state_of_any_step_with_any_cap() -> None:
    with ExitStack() as stack:
        saved = stack.enter_context(capped(ORDER.at_epoch(2)))
        rows, states = list[int](), []
        for batch in saved.deliver(saved):
            states.append((len(rows), json.loads(json.dumps(saved.state_dict()))))
            rows += batch.tolist()
        for num_delivered, state in states:
            again = stack.enter_context(capped())
            again.load_state_dict(state)
            again.set_epoch(2)
            found = listed(again.deliver(again))
            assert found == as_fit(rows[num_delivered:], BATCH)
        without = stack.enter_context(DispatchedOrder(ORDER, BATCH, shard_rows=16))
        without.load_state_dict(states[5][1])
        without.set_epoch(2)
        assert flat(listed(without.deliver(without))) == rows[states[5][0] :]


def test_workers_share_an_epoch_of_batches_by_cost(store: str) -> None:
    pause = threading.Event()
    begun = threading.Barrier(2)

    def work(pause_s: float) -> list[list[int]]:
        with capped(batch_size=100, dispatch={"store": store, "run_id": "run"}) as order:
            found = []
            for number, batch in enumerate(order.deliver(order)):
                if not number:
                    begun.wait(60)
                found.append(batch.tolist())
                pause.wait(pause_s)
        return found

    with ThreadPoolExecutor(2) as threads:
        fast, slow = threads.map(work, (0.0, 0.1))
    assert sorted(flat(fast) + flat(slow)) == ROWS
    assert len(flat(fast)) > len(flat(slow)) > 0
    assert max(sum(LENGTHS[row] for row in batch) for batch in fast + slow) <= MAX_VALUES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_values": None}, "expected both, and batch_size, found lengths, max_values None"),
        ({"lengths": None}, "found no lengths, max_values 14 and batch_size 7"),
        ({"batch_size": None}, "found lengths, max_values 14 and batch_size None"),
        ({"max_values": 4}, "expected at most 4 values in each row, found 5 in row 5"),
        ({"max_values": 0}, "max_values: expected"),
        ({"lengths": [1]}, "lengths: expected an integer for each of 200 rows"),
    ],
)
def test_a_cap_of_a_dispatched_order_is_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        capped(**options)
