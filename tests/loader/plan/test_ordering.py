"""The orders for which nobody is asked: exact lengths, any number of workers, and an epoch once
more.
"""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake
from torch.utils.data import DataLoader

import featstore
from featstore.base.errors import ConfigError, DispatchError
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.slice_source import SliceSource
from featstore.loader.plan.ordering import Ordering
from featstore.staging.stager import Stager
from featstore.tools.cli import cli
from tests.loader.conftest import iteration_of, source_of

SHUFFLE = {"window_rows": 40, "interleave": 1}


def loader(url: Any, **options: Any) -> Any:
    return featstore.FeatureLoader(
        url, **dict[str, Any](slots=["row"], batch_size=20, seed=5, shuffle=SHUFFLE) | options
    )


def batches(of: Any) -> Any:
    return [batch["row"].tolist() for batch in of]


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this process one of a job of several, as far as a loader sees it."""

    def become(rank: Any, world: Any) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))

    return become


def of_all_ranks(as_rank: Any, url: Any, tmp_path: Path, world: Any, **options: Any) -> Any:
    """The batches of each rank, one after the other: the store only numbers the passes."""
    found = []
    for rank in range(world):
        as_rank(rank, world)
        store = {"store": f"sqlite://{tmp_path}/{world}.db", "run_id": "a"}
        with loader(url, dispatch=store, **options) as one:
            found.append(batches(one))
            assert options.get("order") != "static" or len(found[-1]) == len(one)
    return found


def stager_of(loader: featstore.FeatureLoader) -> Stager:
    found = source_of(loader)._resources_here().stager
    assert found is not None
    return found


def test_static_order_is_one_order_of_rows_however_many_workers_deal_it_out(
    table_url: str, as_rank: Callable[..., None], tmp_path: Path
) -> None:
    with loader(table_url, order="static") as one:
        whole, length = batches(one), len(one)
    assert (len(whole), length) == (14, 14)
    assert sorted(itertools.chain(*whole)) == list(range(280))
    for world in (2, 3, 4):
        shares = of_all_ranks(as_rank, table_url, tmp_path, world, order="static")
        dealt = [
            batch for step in itertools.zip_longest(*shares) for batch in step if batch is not None
        ]
        assert dealt == whole


def test_static_order_with_dataloader_workers_is_that_of_the_process_alone(table_url: str) -> None:
    with loader(table_url, order="static") as one, loader(table_url, order="static") as other:
        whole = batches(one)
        workers = DataLoader(other, batch_size=None, num_workers=2)
        assert len(workers) == 14
        assert batches(workers) == whole


@pytest.mark.parametrize("stop", range(0, 14, 3))
def test_static_order_resumes_on_another_number_of_workers(
    table_url: str, as_rank: Callable[..., None], tmp_path: Path, stop: Any
) -> None:
    with loader(table_url, order="static") as one:
        iterator = iter(one)
        for _ in range(stop):
            next(iterator)
        one.ack()
        state = json.loads(json.dumps(one.state_dict()))
        rest = batches(iterator)
    shares = []
    for rank in range(2):
        as_rank(rank, 2)
        with loader(
            table_url,
            order="static",
            dispatch={"store": f"sqlite://{tmp_path}/x.db", "run_id": "a"},
        ) as two:
            two.load_state_dict(state)
            assert len(two) == (14 - stop - rank + 1) // 2
            shares.append(batches(two))
    assert [
        batch for step in itertools.zip_longest(*shares) for batch in step if batch is not None
    ] == rest


def test_static_order_drops_the_last_batch_of_all_and_says_so_in_its_length(table_url: str) -> None:
    with loader(table_url, order="static", batch_size=27, drop_last=True, num_epochs=2) as one:
        assert len(one) == 20
        assert [len(batch) for batch in batches(one)] == [27] * 20
    with loader(table_url, order="static", batch_size=27) as one:
        assert len(one) == 11
        assert [len(batch) for batch in batches(one)] == [27] * 10 + [10]


@pytest.mark.parametrize(
    "options", [{"where": "row < 100"}, {"labels": [{"name": "ripe", "null": "drop"}]}]
)
def test_static_order_has_no_length_where_rows_are_left_out(table_url: str, options: Any) -> None:
    with loader(table_url, order="static", **options) as one:
        with pytest.raises(TypeError, match="is known only when they are read"):
            len(one)
        rows = sorted(itertools.chain(*batches(one)))
    assert rows == (
        [row for row in range(280) if row % 10] if "labels" in options else list(range(100))
    )


@pytest.mark.parametrize("mini_epochs", [1, 2, 5])
def test_in_rank_order_each_worker_has_its_own_files_and_all_have_all(
    table_url: str, as_rank: Callable[..., None], tmp_path: Path, mini_epochs: int
) -> None:
    order = {"kind": "rank", "mini_epochs": mini_epochs}
    shares = of_all_ranks(as_rank, table_url, tmp_path, 2, order=order)
    assert sorted(row for share in shares for batch in share for row in batch) == list(range(280))


def test_in_rank_order_a_worker_keeps_the_files_of_its_part_and_no_others(
    tmp_path: Path, as_rank: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real table of 400 files, in four mini-epochs of two workers: an eighth of them at a
    time.
    """
    paths = [f"dt=2026-11-{day:02}" for day in range(1, 21)]
    rows = [(path.removeprefix("dt="), number) for path in paths for number in range(20)]
    table = pa.table({"dt": [dt for dt, _ in rows], "row": pa.array(range(1, 401), pa.int64())})
    write_deltalake(str(tmp_path / "table"), table, partition_by=["dt"], target_file_size=1)
    num_files = len(featstore.open_table(tmp_path / "table").data_files())
    seen, found = list[int](), []
    slices = SliceSource.slices

    def counting(source: SliceSource, job: Job, epoch: int, claims: Any) -> Any:
        seen.append(len(job.files))
        return slices(source, job, epoch, claims)

    monkeypatch.setattr(SliceSource, "slices", counting)
    for rank in range(2):
        as_rank(rank, 2)
        store = {"store": f"sqlite://{tmp_path}/x.db", "run_id": "a"}
        with loader(
            tmp_path / "table",
            order={"kind": "rank", "mini_epochs": 4},
            dispatch=store,
            memory_budget=1,
        ) as one:
            assert (len(source_of(one).job.files), len(source_of(one).job.splits)) == (0, 0)
            for batch in one:
                found += batch["row"].tolist()
    assert sorted(found) == list(range(1, 401))
    assert max(seen) <= -(-num_files // 8)


def test_rank_order_has_no_length(table_url: str) -> None:
    with (
        loader(table_url, order="rank") as one,
        pytest.raises(TypeError, match="a loader in rank order has no len"),
    ):
        len(one)


@pytest.mark.parametrize("kind", ["static", "rank"])
@pytest.mark.parametrize("stop", [0, 1, 6, 13])
def test_a_state_in_the_middle_is_gone_on_from_in_the_same_order(
    table_url: str, kind: str, stop: int
) -> None:
    with loader(table_url, order=kind) as one:
        iterator = iter(one)
        before = [next(iterator)["row"].tolist() for _ in range(stop)]
        one.ack()
        state = json.loads(json.dumps(one.state_dict()))
        rest = batches(iterator)
    with loader(table_url, order=kind) as again:
        again.load_state_dict(state)
        found = batches(again)
    assert list(itertools.chain(*found)) == list(itertools.chain(*rest))
    assert sorted(itertools.chain(*before, *found)) == list(range(280))


def test_the_order_of_a_dynamic_epoch_is_saved_and_replayed(
    table_url: str, as_rank: Callable[..., None], tmp_path: Path
) -> None:
    """Two workers take turns as they like; replayed, each delivers the same rows in the same
    order.
    """
    url, path = f"sqlite://{tmp_path}/x.db", tmp_path / "order.json"
    as_rank(0, 2)
    dispatch = {"store": url, "run_id": "a"}
    first = loader(table_url, dispatch=dispatch, memory_budget=1)
    as_rank(1, 2)
    second = loader(table_url, dispatch=dispatch, memory_budget=1)
    rows: dict[int, list[Any]] = {0: [], 1: []}
    as_rank(0, 2)
    iterators = {0: iter(first)}
    as_rank(1, 2)
    iterators[1] = iter(second)
    for turn in [0, 1, 1, 0, 1, *([0, 1] * 20)]:
        if turn in iterators:
            batch = next(iterators[turn], None)
            if batch is None:
                del iterators[turn]
            else:
                rows[turn] += batch["row"].tolist()
    first.close()
    second.close()
    assert sorted(rows[0] + rows[1]) == list(range(280))
    assert rows[0]
    assert rows[1]
    done = CliRunner().invoke(
        cli, ["dispatch", "receipt", url, "--run-id", "a", "--save", str(path)]
    )
    assert done.exit_code == 0, done.output
    for rank in range(2):
        as_rank(rank, 2)
        store = {"store": f"sqlite://{tmp_path}/replay.db", "run_id": "a"}
        with loader(table_url, order={"kind": "replay", "recording": path}, dispatch=store) as one:
            assert list(itertools.chain(*batches(one))) == rows[rank]


def test_the_store_of_a_run_is_what_replay_replays(table_url: str, tmp_path: Path) -> None:
    """Two epochs, by name of the run alone; another loader shared the run."""
    store = {"store": f"sqlite://{tmp_path}/x.db", "run_id": "a"}
    with (
        loader(table_url, dispatch=store, num_epochs=2) as one,
        loader(table_url, dispatch=store, where="row < 99") as other,
    ):
        rows = list(itertools.chain(*batches(one)))
        batches(other)
    with loader(table_url, dispatch=store, num_epochs=2, order="replay") as again:
        assert list(itertools.chain(*batches(again))) == rows
    missing = pytest.raises(
        DispatchError,
        match="has no record of epoch 0 of run 'a' for a loader of this table version",
    )
    with loader(table_url, dispatch=store, order="replay", seed=6) as another, missing:
        batches(another)
    done = CliRunner().invoke(
        cli, ["dispatch", "receipt", store["store"], "--run-id", "a", "--epoch", "0", "--save", "x"]
    )
    assert isinstance(done.exception, DispatchError)
    assert "found 2; name one with --epoch; if several loaders shared the run" in str(
        done.exception
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_tells_the_order_of_its_epochs_where_no_store_outlives_it(
    table_url: str, num_workers: int
) -> None:
    with loader(table_url) as one:
        with pytest.raises(DispatchError, match=r"no record of epoch \(any\)"):
            one.recorded_order()
        found = [
            batches(
                DataLoader(one, batch_size=None, num_workers=num_workers) if num_workers else one
            )
            for _ in range(2)
        ]
        recording = json.loads(json.dumps(one.recorded_order(0)))
        assert (recording["epoch"], one.recorded_order()["epoch"]) == (0, 1)
    with loader(table_url, order={"kind": "replay", "recording": recording}) as again:
        replay = (
            DataLoader(again, batch_size=None, num_workers=num_workers) if num_workers else again
        )
        assert sorted(itertools.chain(*batches(replay))) == sorted(itertools.chain(*found[0]))
        if not num_workers:
            again.set_epoch(0)
            assert list(itertools.chain(*batches(again))) == list(itertools.chain(*found[0]))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_each_dataloader_worker_of_each_rank_replays_what_its_index_had(
    table_url: str, tmp_path: Path, as_rank: Callable[..., None]
) -> None:
    with loader(table_url) as one:
        batches(one)
        recorded = one.recorded_order()
    ranges = [range_ for range_ in recorded["workers"][0]["ranges"] if range_[2]][:4]
    workers = [{"name": f"w{i}", "index": i, "ranges": [one]} for i, one in enumerate(ranges)]
    given = {"store": f"sqlite://{tmp_path}/x.db", "run_id": "a"}

    def replayed(workers: Any, num_workers: int) -> list[int]:
        order = {"kind": "replay", "recording": recorded | {"workers": workers}}
        with loader(table_url, order=order, dispatch=given) as again:
            reading = DataLoader(again, batch_size=None, num_workers=num_workers)
            return sorted(itertools.chain(*batches(reading)))

    of_index = [replayed([worker | {"index": 0}], 0) for worker in workers]
    for rank in range(2):
        as_rank(rank, 2)
        mine = of_index[2 * rank : 2 * rank + 2]
        assert replayed(workers, 2) == sorted(itertools.chain(*mine))


def test_a_recorded_order_of_another_epoch_or_of_more_workers_is_refused(
    table_url: str, tmp_path: Path
) -> None:
    url = f"sqlite://{tmp_path}/x.db"
    with loader(table_url, dispatch={"store": url, "run_id": "a"}) as one:
        rows = list(itertools.chain(*batches(one)))
    done = CliRunner().invoke(
        cli, ["dispatch", "receipt", url, "--run-id", "a", "--save", str(tmp_path / "o.json")]
    )
    assert done.exit_code == 0, done.output
    recording = json.loads((tmp_path / "o.json").read_text())
    with loader(table_url, order={"kind": "replay", "recording": recording}) as again:
        assert list(itertools.chain(*batches(again))) == rows
        with pytest.raises(
            ConfigError, match=r"order.recording: of epoch 0 of plan .*, found epoch 1 of plan"
        ):
            batches(again)
    other = recording | {"window_rows": recording.get("window_rows", 0) + 1}
    with (
        loader(table_url, order={"kind": "replay", "recording": other}) as again,
        pytest.raises(ConfigError, match=r"order.recording: of windows of \d+ rows of a split"),
    ):
        list(again)
    more = recording | {"workers": [{"name": "a", "index": 1, "ranges": []}]}
    with (
        loader(table_url, order={"kind": "replay", "recording": more}) as again,
        pytest.raises(ConfigError, match=r"order.recording: of 2 workers, found 1"),
    ):
        batches(again)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"kind": "random"},
            "order: expected one of dynamic, static, rank, replay, found 'random'",
        ),
        (
            {"kind": "rank", "mini_epochs": 0},
            "order.mini_epochs: expected an integer of 1 or more, found 0",
        ),
        (
            {"kind": "static", "mini_epochs": 2},
            "order.mini_epochs: only order rank has mini-epochs, found 2 with static",
        ),
        ({"kind": "static", "recording": {}}, "and no other one does, found one with static"),
        ({"kind": "replay", "recording": {}}, "recorded order: expected format 1 or 2, found None"),
        (
            {"kind": "replay", "recording": {"format": 2}},
            "recorded order: damaged, or changed by hand",
        ),
        (
            {"kind": "replay", "recording": "/no/such/file"},
            "order.recording: /no/such/file: expected a recorded order",
        ),
    ],
)
def test_an_order_that_cannot_be_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Ordering(**options)


def test_a_rank_in_step_goes_epochs_ahead_of_one_that_still_holds_a_batch_of_the_first(
    table_url: str, tmp_path: Path
) -> None:
    """No barrier: the slow one's rows are its own, and all others of three epochs are read
    meanwhile.
    """
    store = {"store": f"sqlite://{tmp_path}/x.db", "run_id": "a", "in_step": True}
    with (
        loader(table_url, dispatch=store, num_epochs=3, batch_size=10, memory_budget=1) as slow,
        loader(table_url, dispatch=store, num_epochs=3, batch_size=10, memory_budget=1) as fast,
    ):
        held = iter(slow)
        rows = next(held)["row"].tolist()
        others = list(itertools.chain(*batches(fast)))
        assert fast.stats()["epochs"] == 3
        assert len(others) >= 2 * 280
        rows += list(itertools.chain(*batches(held)))
    assert sorted(rows + others) == sorted([*range(280)] * 3)


def test_a_host_prefers_files_that_it_has_staged(table_url: str, tmp_path: Path) -> None:
    """A later pass claims what is in the cache first, where positions allow."""
    staging = {"directory": str(tmp_path / "cache"), "mode": "whole", "budget_bytes": "1GB"}
    asked = []
    with loader(table_url, staging=staging) as one:
        assert sorted(itertools.chain(*batches(one))) == list(range(280))
        staged = {
            path: stager_of(one).has(file.url, file.size_bytes, file.version)
            for path, (file, _) in source_of(one).job.files.items()
        }
        assert all(
            iteration_of(one)._source.is_staged(source_of(one).job.files[path][0]) is is_there
            for path, is_there in staged.items()
        )
        asked = list(staged.values())
        assert not stager_of(one).has("file:///nowhere", 1)
    assert all(asked)
