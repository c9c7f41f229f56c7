"""Which keys a pass has: what workers share, and what a later start must not find done."""

import itertools
import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from featstore.base.errors import ConfigError, DispatchError, StateError
from featstore.loader.feature_loader import FeatureLoader
from tests.dispatch.stores.served import free_url
from tests.loader.conftest import rows_of
from tests.programs import Program

NUM_ROWS = 280
Dispatch = dict[str, Any]

# Reads epochs from `first` to 3. In the last one it waits after its first batch.
READER = """
import json, sys
from featstore import FeatureLoader

table_url, store, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
dispatch = {"store": store, "run_id": "a", "in_step": False}
epochs = []
with FeatureLoader(table_url, slots=["row"], batch_size=5, dispatch=dispatch) as loader:
    for epoch in range(first, 4):
        loader.set_epoch(epoch)
        epochs.append([])
        for batch in loader:
            epochs[-1] += batch["row"].tolist()
            if epoch == 3 and len(epochs[-1]) == 5:
                print("reading", flush=True)
                sys.stdin.readline()
print(json.dumps(epochs))
"""


@pytest.fixture(params=["memory", "sqlite"])
def dispatch(request: pytest.FixtureRequest, tmp_path: Path) -> Dispatch:
    url = (
        f"memory://{uuid.uuid4().hex}"
        if request.param == "memory"
        else f"sqlite://{tmp_path}/store.sqlite"
    )
    return {"store": url, "run_id": "a"}


def make(table_url: str, dispatch: Dispatch, **options: Any) -> FeatureLoader:
    return FeatureLoader(
        table_url, **{"slots": ["row"], "batch_size": 23, "dispatch": dispatch, **options}
    )


def restored(table_url: str, dispatch: Dispatch, state: Any) -> FeatureLoader:
    loader = make(table_url, dispatch)
    loader.load_state_dict(state)
    return loader


@pytest.fixture
def half_way(table_url: str, dispatch: Dispatch) -> Iterator[Any]:
    """A state after three batches, and their rows; the store stays in use."""
    with make(table_url, dispatch) as loader:
        batches = iter(loader)
        rows = rows_of(itertools.islice(batches, 3))
        loader.ack()
        yield rows, loader.state_dict()


def test_each_launch_from_one_checkpoint_reads_all_that_is_left(
    table_url: str, dispatch: Dispatch, half_way: Any
) -> None:
    before, state = half_way
    for num_batches in (4, 2, None):
        with restored(table_url, dispatch, state) as loader:
            rest = rows_of(itertools.islice(loader, num_batches))
    assert sorted(before + rest) == list(range(NUM_ROWS))


@pytest.mark.parametrize("absent", [(), (1,)], ids=["both", "one died before it restored"])
def test_ranks_that_restore_together_share_what_is_left_at_each_launch(
    table_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: Any
) -> None:
    dispatch = {"store": f"sqlite://{tmp_path}/store.sqlite", "run_id": "a"}
    monkeypatch.setenv("WORLD_SIZE", "2")
    state = make(table_url, dispatch).state_dict() | {"workers": [0, 1]}
    for number, ranks in enumerate(
        ([0, 1], [rank for rank in (0, 1) if rank not in absent], [0, 1])
    ):
        loaders, shares = [], []
        for rank in ranks:
            monkeypatch.setenv("RANK", str(rank))
            loaders.append(restored(table_url, dispatch, state))
        for rank, loader in zip(ranks, loaders, strict=True):
            monkeypatch.setenv("RANK", str(rank))
            shares.append(iter(loader))
        rows = [row for share in shares for row in rows_of(itertools.islice(share, 2))]
        if number == 2:
            with ThreadPoolExecutor(2) as threads:
                rows += [row for share in threads.map(rows_of, shares) for row in share]
        for loader in loaders:
            loader.close()
    assert sorted(rows) == list(range(NUM_ROWS))


@pytest.mark.parametrize("is_restored", [False, True])
def test_ranks_share_an_epoch_after_their_hosts_counted_restarts_differently(
    table_url: str, monkeypatch: pytest.MonkeyPatch, is_restored: bool
) -> None:
    """As when torchrun's agent on a lost host is replaced: that one counts from 0."""
    host, _, port = free_url("torch").removeprefix("torch://").rpartition(":")
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    loaders, shares = [], []
    for rank, count in enumerate(("1", "0")):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
        loaders.append(make(table_url, {"store": "auto"}))
        if is_restored:
            loaders[-1].load_state_dict(loaders[0].state_dict() | {"workers": [0, 1]})
        shares.append(iter(loaders[-1]))
    rows = [row for share in shares for row in rows_of(itertools.islice(share, 2))]
    with ThreadPoolExecutor(2) as threads:
        rows += [row for share in threads.map(rows_of, shares) for row in share]
    for loader in loaders:
        loader.close()
    assert sorted(rows) == list(range(NUM_ROWS))


def test_a_second_run_or_loader_under_one_run_id_is_told_that_nothing_is_left(
    table_url: str, dispatch: Dispatch
) -> None:
    first = make(table_url, dispatch)
    assert len(rows_of(first)) == NUM_ROWS
    with pytest.raises(DispatchError, match=r"epoch 0: nothing is left to read.* its own run_id"):
        rows_of(make(table_url, dispatch, batch_size=7))
    assert len(rows_of(make(table_url, dispatch | {"run_id": "b"}))) == NUM_ROWS


def test_a_rank_that_comes_when_the_others_have_read_all_has_an_empty_epoch(
    table_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatch = {"store": f"sqlite://{tmp_path}/store.sqlite", "run_id": "a"}
    monkeypatch.setenv("WORLD_SIZE", "2")
    numbers = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        numbers.append(len(rows_of(make(table_url, dispatch))))
    assert numbers == [NUM_ROWS, 0]


def test_a_process_that_comes_late_shares_the_epoch_that_it_names(
    table_url: str, tmp_path: Path
) -> None:
    store = f"sqlite://{tmp_path}/store.sqlite"
    with Program(READER, table_url, store, 0) as early:
        assert early.line() == "reading"
        with Program(READER, table_url, store, 3) as late:
            assert late.line() == "reading"
            early.go_on()
            late.go_on()
            *before, mine = json.loads(early.result())
            [its] = json.loads(late.result())
    assert [sorted(rows) for rows in before] == [list(range(NUM_ROWS))] * 3
    assert sorted(mine + its) == list(range(NUM_ROWS))


def test_workers_of_a_dataloader_that_come_late_share_the_epoch_that_they_are_told(
    table_url: str, tmp_path: Path
) -> None:
    dispatch = {"store": f"sqlite://{tmp_path}/store.sqlite", "run_id": "a"}
    with make(table_url, dispatch) as early:
        assert [len(rows_of(early)) for _ in range(2)] == [NUM_ROWS] * 2
        batches = iter(early)
        rows = rows_of(itertools.islice(batches, 3))
        early.ack()
    with make(table_url, dispatch) as late:
        late.set_epoch(2)
        rows += rows_of(DataLoader(late, batch_size=None, num_workers=2))
    assert sorted(rows) == list(range(NUM_ROWS))


def test_an_epoch_that_a_loader_has_begun_before_is_read_anew(
    table_url: str, dispatch: Dispatch
) -> None:
    one, late = make(table_url, dispatch), make(table_url, dispatch)
    assert [len(rows_of(one)) for _ in range(2)] == [NUM_ROWS] * 2
    one.set_epoch(1)
    assert [len(rows_of(one)) for _ in range(2)] == [NUM_ROWS] * 2
    for _ in range(2):
        late.set_epoch(1)
        with pytest.raises(DispatchError, match=r"epoch 1: nothing is left .* call set_epoch"):
            rows_of(late)
    late.set_epoch(1)
    assert len(rows_of(late)) == NUM_ROWS, "nobody has read it for the third time"


def test_iterations_of_several_epochs_meet_if_they_begin_with_the_same(
    table_url: str, dispatch: Dispatch
) -> None:
    one, late = (make(table_url, dispatch, num_epochs=2) for _ in range(2))
    assert [len(rows_of(one)) for _ in range(2)] == [2 * NUM_ROWS] * 2
    late.set_epoch(2)
    with pytest.raises(DispatchError, match="epochs 2 to 3: nothing is left to read"):
        rows_of(late)
    late.set_epoch(1)
    assert len(rows_of(late)) == 2 * NUM_ROWS


SELECTIONS = [
    {"where": "row % 10 = 1"},
    {"slots": ["row", "tags"]},
    {"slots": ["row", {"name": "tags", "max_len": 2}]},
    {"labels": ["click"]},
    {"labels": [{"name": "click", "null": "drop"}]},
    {"weight": "half"},
    {"extras": ["note"]},
]


@pytest.mark.parametrize("options", SELECTIONS, ids=str)
def test_loaders_with_another_selection_share_no_leases_and_take_no_state(
    table_url: str, dispatch: Dispatch, options: Any
) -> None:
    one, other = make(table_url, dispatch), make(table_url, dispatch, **options)
    assert len(rows_of(one)) == NUM_ROWS
    assert len(rows_of(other)) == (28 if "where" in options else NUM_ROWS)
    with pytest.raises(
        StateError,
        match=r"saved with another selection: slots, .*labels, .*only a hash.*"
        "compare the configs, slots in their order",
    ):
        other.load_state_dict(one.state_dict())


@pytest.mark.parametrize("run_id", ["", "none"])
def test_a_durable_store_needs_a_run_id(
    table_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: str
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id)
    store = f"sqlite://{tmp_path}/store.sqlite"
    for url in (store, "tcp://127.0.0.1:1"):
        with pytest.raises(
            ConfigError,
            match=r"expected a run_id with store .* found none: what a run has read stays in the "
            r"store",
        ):
            make(table_url, {"store": url})
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job/7")
    assert len(rows_of(make(table_url, {"store": store}))) == NUM_ROWS
