"""Mixtures read by several workers: DataLoader workers, ranks, and processes that are killed."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from featstore.base.errors import StateError
from featstore.dispatch.receipt import Receipt, receipts
from featstore.loader.feature_loader import FeatureLoader
from tests.loader.conftest import merged_state, rows_of
from tests.loader.mix.conftest import LARGE, SMALL, STOPS, Tables, drawn, mixed, round_trip
from tests.programs import Program, start_together
from tests.tiers import tiered

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # of torchdata
]


@pytest.mark.parametrize("stop", STOPS)
def test_dataloader_workers_share_each_pass(tables: Tables, stop: str) -> None:
    with mixed(tables, stop=stop) as loader:
        for _ in range(2):
            batches = drawn(DataLoader(loader, batch_size=None, num_workers=2))
            counts = Counter(row for batch in batches for row in batch)
            # Who holds which splits is chance, and so is with which table a worker ends.
            if stop == "all_exhausted":
                assert counts.keys() == SMALL | LARGE
            else:
                assert max(counts.values()) == 1
        with pytest.raises(StateError, match="the batches were read by DataLoader workers"):
            loader.state_dict()


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_stateful_dataloader_goes_on_after_any_batch(tables: Tables, num_workers: int) -> None:
    def batches_of(loader: FeatureLoader) -> StatefulDataLoader:
        return StatefulDataLoader(loader, batch_size=None, num_workers=num_workers)

    steps: list[tuple[list[int], Any]] = []
    with mixed(tables) as loader:
        batches, rows = batches_of(loader), list[int]()
        for batch in batches:
            rows += batch["row"].tolist()
            steps.append((list(rows), batches.state_dict()))
    chosen = steps[:: len(steps) // 3]
    for before, state in chosen:
        with mixed(tables) as loader:
            batches = batches_of(loader)
            batches.load_state_dict(state)
            counts = Counter(before + rows_of(batches))
            assert max(counts.values()) == 1
            if num_workers < 2:  # With several it is chance which splits each holds at its end.
                assert counts.keys() == set(rows)


def test_a_stateful_dataloader_of_several_workers_needs_a_single_pass(tables: Tables) -> None:
    with mixed(tables, stop="all_exhausted") as loader:
        batches = StatefulDataLoader(loader, batch_size=None, num_workers=2)
        with pytest.raises(StateError, match="expected stop first_exhausted, found all_exhausted"):
            drawn(batches)


def ranks(
    tables: Tables, store: Path, num_ranks: int, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[FeatureLoader]:
    """The loaders of several ranks, for one thread to read in turn."""
    dispatch = {"store": f"sqlite://{store}", "run_id": "a"}
    monkeypatch.setenv("WORLD_SIZE", str(num_ranks))
    return [mixed(tables, dispatch=dispatch, **options) for _ in range(num_ranks)]


def begun(loaders: list[FeatureLoader], monkeypatch: pytest.MonkeyPatch, state: Any = None) -> Any:
    found = []
    for rank, loader in enumerate(loaders):
        monkeypatch.setenv("RANK", str(rank))
        if state is not None:
            loader.load_state_dict(state)
    for rank, loader in enumerate(loaders):
        monkeypatch.setenv("RANK", str(rank))
        found.append(iter(loader))
        found[-1].begin()
    return found


def in_turn(iterations: list[Any], num_steps: int = 10_000) -> list[int]:
    """The rows of some steps, in each of which every rank that has not ended takes a batch."""
    rows, living = list[int](), list(iterations)
    for _ in range(num_steps):
        taken = [(each, next(each, None)) for each in living]
        living = [each for each, batch in taken if batch is not None]
        for _, batch in taken:
            rows += [] if batch is None else batch["row"].tolist()
    return rows


@pytest.mark.parametrize(("num_saved", "num_resumed"), [(2, 1), (2, 3), (1, 2)])
@pytest.mark.parametrize("num_steps", [0, 3])
def test_merged_states_of_ranks_go_on_with_another_number_of_them(
    tables: Tables,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_saved: int,
    num_resumed: int,
    num_steps: int,
) -> None:
    saved = ranks(tables, tmp_path / "saved.sqlite", num_saved, monkeypatch)
    before = in_turn(begun(saved, monkeypatch), num_steps)
    state = round_trip(merged_state(saved))
    assert sum(state["num_batches"]) == num_steps
    resumed = ranks(tables, tmp_path / "resumed.sqlite", num_resumed, monkeypatch)
    counts = Counter(before + in_turn(begun(resumed, monkeypatch, state), 60))
    assert max(counts.values()) == 1
    if num_resumed == 1:
        assert counts.keys() >= SMALL or counts.keys() >= LARGE
    for loader in resumed:
        loader.close()


def test_several_ranks_read_each_row_of_all_tables(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaders = ranks(tables, tmp_path / "s.sqlite", 2, monkeypatch, stop="all_exhausted")
    counts = Counter(in_turn(begun(loaders, monkeypatch), 100))
    assert counts.keys() == SMALL | LARGE
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_ranks_make_the_same_number_of_steps(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: str
) -> None:
    loaders = ranks(tables, tmp_path / "s.sqlite", 2, monkeypatch, order="static", tail=tail)
    iterations = begun(loaders, monkeypatch)
    steps = [len(drawn(each)) for each in iterations]
    assert steps[0] == steps[1] > 0
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("num_resumed", [1, 2])
@pytest.mark.parametrize("num_steps", tiered(range(1, 30), lambda n: n not in (1, 10, 28)))
def test_ranks_that_are_in_different_passes_go_on_without_losing_a_row(
    tables: Tables,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_steps: int,
    num_resumed: int,
) -> None:
    """Of the 9 batches of the small table one rank has 5 and the other 4, so they drift apart."""
    even = [{**each, "weight": 1} for each in tables]
    options = {"stop": "all_exhausted", "order": "static"}
    saved = ranks(even, tmp_path / "saved.sqlite", 2, monkeypatch, **options)
    before = Counter(in_turn(begun(saved, monkeypatch), num_steps))
    passes = [loader.state_dict()["tables"][1]["epoch"] for loader in saved]
    assert passes[0] < passes[1] or num_steps not in (10, 28)
    state = round_trip(merged_state(saved))
    resumed = ranks(even, tmp_path / "resumed.sqlite", num_resumed, monkeypatch, **options)
    counts = before + Counter(in_turn(begun(resumed, monkeypatch, state), 200))
    assert {counts[row] for row in LARGE} == {1}  # It is read in one pass.
    assert {counts[row] >= 1 for row in SMALL} == {True}
    for loader in resumed:
        loader.close()


READER = """
import json, sys
from featstore.loader.feature_loader import FeatureLoader

config, num_batches = json.loads(sys.argv[1]), int(sys.argv[2])
with FeatureLoader.from_config(config) as loader:
    print("ready", flush=True)
    input()
    for number, batch in enumerate(loader, 1):
        print(json.dumps(batch["row"].tolist()), flush=True)
        if number == num_batches:
            input()
print("end", flush=True)
"""


def reader(config: dict[str, Any], rank: int, num_batches: int = 0) -> Program:
    """One of two ranks. After so many batches it waits, for ever if nobody lets it go on."""
    variables = {"RANK": str(rank), "WORLD_SIZE": "2"}
    return Program(READER, json.dumps(config), num_batches, variables=variables)


def config_of(tables: Tables, store: str, **options: Any) -> dict[str, Any]:
    even = [{**each, "weight": 1} for each in tables]
    dispatch = {"store": store, "run_id": "a", **options}
    known = {"slots": ["row"], "batch_size": 5, "shuffle": {"window_rows": 20, "interleave": 2}}
    return {**known, "tables": even, "stop": "all_exhausted", "dispatch": dispatch}


def rows_said(said: str) -> list[int]:
    """The rows that a reader that has ended said it got."""
    *batches, end = said.splitlines()
    assert end == "end"
    return [row for batch in batches for row in json.loads(batch)]


def first_passes(store: str) -> list[Receipt]:
    """The receipts of the first pass over each table, of the small one first."""
    found = [each for prefix, each in receipts(store, "a").items() if prefix.endswith("/0")]
    return sorted(found, key=lambda receipt: receipt.size.num_rows)


def test_two_processes_read_each_pass_together(tables: Tables, tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/store.sqlite"
    config = config_of(tables, store)
    with reader(config, 0) as one, reader(config, 1) as other:
        start_together([one, other])
        rows = rows_said(one.result()) + rows_said(other.result())
    assert set(rows) == LARGE | SMALL
    for receipt, table in zip(first_passes(store), (SMALL, LARGE), strict=True):
        told = (receipt.delivered, receipt.missing, receipt.repeated_at_most)
        assert told == (len(table), 0, 0)


def test_what_a_killed_process_held_is_read_by_the_others(tables: Tables, tmp_path: Path) -> None:
    """A rank dies that holds leases of both tables; the receipt says how many rows come twice."""
    store = f"sqlite://{tmp_path}/store.sqlite"
    config = config_of(tables, store, lease_s=2)
    with reader(config, 0, num_batches=6) as victim:
        start_together([victim])
        seen = [row for _ in range(6) for row in json.loads(victim.line())]
        victim.die()
    assert {row < 1000 for row in seen} == {True, False}
    with reader(config, 1) as survivor:
        start_together([survivor])
        counts = Counter(rows_said(survivor.result()))
    assert set(counts) | set(seen) == LARGE | SMALL
    assert {counts[row] for row in LARGE - set(seen)} == {1}
    twice = [row for row in seen if row in LARGE and counts[row]]
    small, large = first_passes(store)
    assert small.missing == large.missing == 0
    assert len(twice) <= large.repeated_at_most
