"""Which keys a pass has: what workers share, and what a later start must not find done."""

import itertools
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from featstore.loader.loader import FeatureLoader

NUM_ROWS = 280
Dispatch = dict[str, object]


@pytest.fixture(params=["memory", "sqlite"])
def dispatch(request, tmp_path) -> Dispatch:
    url = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"sqlite://{tmp_path}/store.sqlite"
    return {"store": url, "run_id": "a"}


def make(table_url: str, dispatch: Dispatch, **options) -> FeatureLoader:
    return FeatureLoader(table_url, **{"slots": ["row"], "batch_size": 23, "dispatch": dispatch, **options})


def restored(table_url: str, dispatch: Dispatch, state) -> FeatureLoader:
    loader = make(table_url, dispatch)
    loader.load_state_dict(state)
    return loader


def rows_of(batches) -> list[int]:
    return [row for batch in batches for row in batch["row"].tolist()]


@pytest.fixture
def half_way(table_url, dispatch):
    """A state after three batches, and their rows; the store stays in use."""
    with make(table_url, dispatch) as loader:
        batches = iter(loader)
        rows = rows_of(itertools.islice(batches, 3))
        loader.ack()
        yield rows, loader.state_dict()


def test_each_launch_from_one_checkpoint_reads_all_that_is_left(table_url, dispatch, half_way):
    before, state = half_way
    for num_batches in (4, 2, None):
        with restored(table_url, dispatch, state) as loader:
            rest = rows_of(itertools.islice(loader, num_batches))
    assert sorted(before + rest) == list(range(NUM_ROWS))


@pytest.mark.parametrize("absent", [(), (1,)], ids=["both", "one died before it restored"])
def test_ranks_that_restore_together_share_what_is_left_at_each_launch(table_url, tmp_path, monkeypatch, absent):
    dispatch = {"store": f"sqlite://{tmp_path}/store.sqlite", "run_id": "a"}
    monkeypatch.setenv("WORLD_SIZE", "2")
    state = make(table_url, dispatch).state_dict() | {"workers": [0, 1]}
    for number, ranks in enumerate(([0, 1], [rank for rank in (0, 1) if rank not in absent], [0, 1])):
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
