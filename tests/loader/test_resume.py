"""Resume is proved at every step: save before each batch, restore at each, and require the same
remainder.
"""

import contextlib
import itertools
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import featstore
from featstore.base.errors import DataFileError, DispatchError, StateError
from featstore.dispatch.receipt import receipts
from featstore.loader.feature_loader import FeatureLoader
from featstore.tensors.batch import Batch
from featstore.tensors.columns import Jagged
from tests.dispatch.simulated_clock import SimulatedClock
from tests.loader.conftest import iteration_of, merged_state, rows_of, rows_table
from tests.parquet_files import put_parquet
from tests.process import await_that

NUM_ROWS = 280
ORDERS = [
    {},
    {"shuffle": {"window_rows": 1}},
    {"shuffle": {"window_rows": 40, "interleave": 2}},
    {"shuffle": {"window_rows": 1000, "interleave": 3}},
    {"where": "row % 3 != 1", "labels": [{"name": "ripe", "null": "drop"}]},
    {"where": "row % 3 != 1", "shuffle": {"window_rows": 40, "interleave": 2}},
    {"num_epochs": 2, "shuffle": {"window_rows": 40}},
    {"drop_last": True},
    {"staging": {"mode": "whole"}, "shuffle": {"window_rows": 40, "interleave": 2}},
]


def make(table_url: str, **options: Any) -> FeatureLoader:
    return FeatureLoader(
        table_url, **{"slots": ["row", "tags"], "batch_size": 23, "seed": 9, **options}
    )


def content(batch: Any) -> list[tuple[torch.Tensor, ...]]:
    columns = [batch[name] for name in batch.slots] + list(batch.labels.values())
    return [(c.values, c.offsets) if isinstance(c, Jagged) else (c,) for c in columns]


def assert_same(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for mine, theirs in zip(content(one), content(other), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("options", ORDERS, ids=str)
def test_a_loader_resumed_at_any_batch_goes_on_bit_for_bit(table_url: str, options: Any) -> None:
    with make(table_url, **options) as loader:
        states, batches = [loader.state_dict()], []
        for batch in loader:
            states.append(loader.state_dict())
            batches.append(batch)
        states.append(loader.state_dict())
        following = list(loader)
    for step, state in enumerate(states[1:-1]):
        with make(table_url, **options) as resumed:
            resumed.load_state_dict(json.loads(json.dumps(state)))
            assert resumed.state_dict() == state
            assert_same(list(resumed), batches[step:])
            if step == 1:
                assert_same(list(resumed), following)
    with make(table_url, **options) as resumed:
        resumed.load_state_dict(states[-1])
        assert_same(list(resumed), following)


def test_a_batch_is_delivered_when_the_next_is_asked_for_or_acknowledged(table_url: str) -> None:
    loader = make(table_url)
    batches = iter(loader)
    next(batches)
    assert loader.state_dict()["partial"] == {}
    loader.ack()
    assert loader.state_dict()["partial"] == {"0": 23}
    next(batches)
    assert loader.state_dict()["partial"] == {"0": 23}
    next(batches)
    assert loader.state_dict()["partial"] == {"0": 46}
    loader.close()
    assert loader.state_dict()["partial"] == {"0": 46}


def test_a_batch_acknowledged_after_a_break_is_delivered(table_url: str) -> None:
    loader = make(table_url)
    before = [row for batch in itertools.islice(loader, 3) for row in batch["row"].tolist()]
    loader.ack()
    state = loader.state_dict()
    loader.ack()
    assert loader.state_dict() == state
    after = [row for batch in make_resumed(table_url, state) for row in batch["row"].tolist()]
    assert before + after == list(range(NUM_ROWS))


def test_a_state_does_not_depend_on_the_batch_size(table_url: str) -> None:
    loader = make(table_url)
    list(itertools.islice(loader, 5))
    state = loader.state_dict()
    rest = [
        row
        for batch in make_resumed(table_url, state, batch_size=101)
        for row in batch["row"].tolist()
    ]
    assert rest == list(range(4 * 23, NUM_ROWS))


def test_a_state_with_everything_delivered_yields_nothing_and_then_the_next_epoch(
    table_url: str,
) -> None:
    loader = make(table_url)
    for _ in loader:
        loader.ack()
        last = loader.state_dict()
    resumed = make_resumed(table_url, last)
    assert list(resumed) == []
    assert sum(batch.num_rows for batch in resumed) == NUM_ROWS


def test_a_loader_restored_twice_begins_twice_at_the_same_place(table_url: str) -> None:
    loader = make(table_url)
    list(itertools.islice(loader, 3))
    state = loader.state_dict()
    for _ in range(2):
        loader.load_state_dict(state)
        assert next(iter(loader))["row"][0] == 46


def test_a_restored_loader_repeats_only_what_was_not_delivered_of_its_epoch(table_url: str) -> None:
    options = {"shuffle": {"window_rows": 40}}
    loader = make(table_url, **options)
    loader.set_epoch(3)
    before = [row for batch in itertools.islice(loader, 6) for row in batch["row"].tolist()]
    state = loader.state_dict()
    assert state["epoch"] == 3
    after = [
        row for batch in make_resumed(table_url, state, **options) for row in batch["row"].tolist()
    ]
    assert sorted(before[: 5 * 23] + after) == list(range(NUM_ROWS))


def make_resumed(table_url: str, state: Any, **options: Any) -> FeatureLoader:
    loader = make(table_url, **options)
    loader.load_state_dict(state)
    return loader


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, "with another seed: expected 9, as this loader has, found 1"),
        (
            {"where": "dt > '2026-11-01'"},
            "with another `where`, by which other files are read: load",
        ),
        (
            {"shuffle": {}},
            r"with another size of a split's windows .shuffle.window_rows / shuffle.interleave.: ",
        ),
        ({"dispatch": {"split_rows": 20}}, "with another division of the files .*split_rows"),
        ({"slots": ["tags", "row"]}, "with another selection: slots, .*only a hash of them"),
        ({"num_epochs": 2}, "with another num_epochs"),
    ],
)
def test_a_state_of_another_order_is_refused(table_url: str, options: Any, message: str) -> None:
    state = make(table_url, **options).state_dict()
    with pytest.raises(StateError, match=message) as caught:
        make(table_url).load_state_dict(state)
    assert not re.search("[0-9a-f]{16}", str(caught.value)), "a hash says nothing to people"


def test_a_state_of_another_end_of_a_history_is_refused(table_url: str) -> None:
    def of(**options: Any) -> FeatureLoader:
        return FeatureLoader(table_url, slots=[{"name": "tags", "max_len": 1, **options}])

    state = of().state_dict()
    of(keep="first").load_state_dict(state)
    with pytest.raises(StateError, match="slots"):
        of(keep="last").load_state_dict(state)


def test_a_state_of_another_table_is_refused(table_url: str) -> None:
    state = make(table_url).state_dict() | {"table": "0" * 64}
    with pytest.raises(
        StateError, match="saved with another table, or another version of it: load it"
    ):
        make(table_url).load_state_dict(state)


def test_a_state_of_an_earlier_version_says_what_to_open_which_then_continues(
    tmp_path: Path,
) -> None:
    spec = featstore.load_spec(
        {
            "spec": 1,
            "inputs": {"row": "long"},
            "slots": [{"slot": 1, "name": "row_id", "op": "identity", "of": "row"}],
        }
    )
    url = str(tmp_path / "table")
    for day in ("1", "2"):
        raw = put_parquet(tmp_path / f"{day}.parquet", {"row": list(range(40))})
        featstore.extract(spec, raw, url, partition={"dt": day})
        if day == "1":
            with FeatureLoader(url, slots=["row_id"], batch_size=10) as loader:
                next(iter(loader))
                loader.ack()
                state = loader.state_dict()
    with (
        FeatureLoader(url, slots=["row_id"], batch_size=10) as loader,
        pytest.raises(StateError, match=r"open the version of then.*table inspect --history"),
    ):
        loader.load_state_dict(state)
    earlier = featstore.open_table(url, version=0)
    with FeatureLoader(earlier, slots=["row_id"], batch_size=10) as loader:
        loader.load_state_dict(state)
        assert sum(batch.num_rows for batch in loader) == 30


def test_a_state_of_another_window_is_refused(table_url: str) -> None:
    state = make(table_url, shuffle={"window_rows": 10, "interleave": 2}).state_dict()
    with pytest.raises(
        StateError,
        match=r"saved with another size of a split's windows \(shuffle\.window_rows / "
        r"shuffle\.interleave\): expected 6, as this loader has, found 5",
    ):
        make(table_url, shuffle={"window_rows": 6, "interleave": 1}).load_state_dict(state)


def test_a_state_with_workers_missing_is_refused(table_url: str) -> None:
    state = make(table_url).state_dict() | {"num_workers": 2}
    with pytest.raises(StateError, match=r"worker \[1\] missing: merge the states"):
        make(table_url).load_state_dict(state)


def test_two_workers_of_one_store_share_an_epoch_and_their_merged_state_resumes_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So many files that one worker, which reads ahead, cannot take all before the other begins.
    num_files, file_rows, shuffle = 60, 28, {"window_rows": 30, "interleave": 2}
    table = tmp_path / "table"
    for number in range(num_files):
        rows = rows_table(number * file_rows, file_rows)
        put_parquet(table / f"{number:02}.parquet", rows, row_group_size=16)
    dispatch = {"store": f"sqlite://{tmp_path}/store.sqlite", "run_id": "a"}
    monkeypatch.setenv("WORLD_SIZE", "2")
    loaders = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        loaders.append(make(str(table), dispatch=dispatch, shuffle=shuffle))
    found, states = [], []
    with contextlib.ExitStack() as stack:
        for loader in loaders:
            stack.enter_context(loader)
        iterators = [iter_as(rank, loader, monkeypatch) for rank, loader in enumerate(loaders)]
        for step in range(6):
            found += next(iterators[step % 2])["row"].tolist()
        for loader in loaders:
            loader.ack()
            states.append(loader.state_dict())
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    merged = FeatureLoader.merge_states(states)
    with pytest.raises(StateError, match="missing"):
        make(str(table), shuffle=shuffle).load_state_dict(states[0])
    rest = rows_of(make_resumed(str(table), merged, shuffle=shuffle))
    assert sorted(found + rest) == list(range(num_files * file_rows))


def iter_as(rank: int, loader: FeatureLoader, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("RANK", str(rank))
    return iter(loader)


def test_a_run_that_is_taken_up_again_in_its_store_goes_on_where_it_was(
    table_url: str, tmp_path: Path
) -> None:
    dispatch = {"store": f"sqlite://{tmp_path}/store.sqlite", "run_id": "a"}
    with make(table_url, dispatch=dispatch) as first:
        before = [row for batch in itertools.islice(first, 5) for row in batch["row"].tolist()]
    with make(table_url, dispatch=dispatch) as again:
        after = [row for batch in again for row in batch["row"].tolist()]
    assert sorted(before[: 4 * 23] + after) == list(range(NUM_ROWS))


def test_workers_with_another_plan_are_refused_by_a_shared_store(
    table_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(DispatchError, match="WORLD_SIZE"):
        make(table_url)


def test_two_workers_with_half_a_batch_each_do_not_wait_for_each_other(
    table_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatch = {"store": "memory://half-a-batch", "run_id": "a"}
    loaders = [make(table_url, batch_size=200, dispatch=dispatch) for _ in range(2)]
    iterators = [iter_as(rank, loader, monkeypatch) for rank, loader in enumerate(loaders)]
    with ThreadPoolExecutor(2) as threads:
        shares: list[list[Batch]] = list(threads.map(list, iterators))
    rows = [row for share in shares for batch in share for row in batch["row"].tolist()]
    assert sorted(rows) == list(range(NUM_ROWS))


def test_ranks_that_train_in_step_end_though_one_runs_out_first(
    table_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step ends when both have done it; a rank that has ended takes part no more, as with
    torch's Join.
    """
    dispatch = {"store": "memory://in-step", "run_id": "a", "lease_s": 30.0, "in_step": True}
    loaders = [make(table_url, batch_size=30, dispatch=dispatch) for _ in range(2)]
    shares = [iter_as(rank, loader, monkeypatch) for rank, loader in enumerate(loaders)]
    rows: list[list[int]] = [[], []]
    step, in_step = threading.Condition(), {0: 0, 1: 0}

    def train(rank: int) -> bool:
        for batch in shares[rank]:
            rows[rank] += batch["row"].tolist()
            with step:
                in_step[rank] += 1
                step.notify_all()
                if not step.wait_for(
                    lambda: in_step.get(1 - rank, in_step[rank]) >= in_step[rank], timeout=60
                ):
                    return False
        with step:
            in_step.pop(rank)
            step.notify_all()
        return True

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(train, range(2))) == [True, True]
    assert sorted(rows[0] + rows[1]) == list(range(NUM_ROWS))


def pause(loader: FeatureLoader) -> None:
    """What a stopped process looks like to others, once it has told the store all: its leases are
    no longer renewed.
    """
    reports = iteration_of(loader)._reports
    reports.settle()
    assert reports.coordinator is not None
    reports.coordinator._renewer._renew = lambda store: None


def one_large_file(directory: Any, row_group_size: int = 2000) -> str:
    """Of one row group, unless told otherwise."""
    pq.write_table(
        pa.table({"row": range(2000)}), directory / "a.parquet", row_group_size=row_group_size
    )
    return str(directory)


def paused_beside_another(
    store: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[FeatureLoader, FeatureLoader, Iterator[Batch], list[int]]:
    """Two loaders over one large file, of which the first has reserved all rows, delivered three
    batches, and renews its lease no more; its further batches, and the rows that it delivered.
    """
    monkeypatch.setattr(FeatureLoader, "_clock", SimulatedClock())
    dispatch = {"store": store, "run_id": "a", "lease_s": 0.3, "in_step": True}
    one, other = (
        make(one_large_file(directory), slots=["row"], batch_size=10, dispatch=dispatch)
        for _ in range(2)
    )
    batches = iter(one)
    rows = rows_of(itertools.islice(batches, 3))
    one.ack()
    iteration = iteration_of(one)
    [claim] = iteration.delivery._claims.open.values()
    coordinator = iteration._reports.coordinator
    assert coordinator is not None
    assert coordinator.reserve(claim, 2000) == 2000  # So that nothing can be cut off.
    pause(one)
    return one, other, batches, rows


def next_before_it_hears_of_its_loss(one: FeatureLoader, batches: Iterator[Batch]) -> list[int]:
    """The rows of the next batch, which the loader does not ask the store for. With its delivery
    the store is asked.
    """
    rows: list[int] = next(batches)["row"].tolist()
    one.ack()
    await_that(lambda: bool(one.stats().get("leases_lost")))
    return rows


def test_a_worker_that_lost_its_split_leaves_the_rest_to_the_one_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, batches, before = paused_beside_another("memory://lost", tmp_path, monkeypatch)
    theirs = iter(other)
    taken = next(theirs)["row"].tolist()
    assert taken == list(range(30, 40))
    # After its pause it asks before it goes on. Of the other's claim, what that has not reserved.
    mine = rows_of(batches)
    stats = one.stats()
    assert (stats["leases_lost"], stats["rows_left_to_others"]) == (1, 1970)
    assert sorted(before + taken + mine + rows_of(theirs)) == list(range(2000))


def test_a_worker_may_take_up_again_a_split_that_it_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = "memory://lost-and-found"
    one, other, batches, rows = paused_beside_another(store, tmp_path, monkeypatch)
    rows += next(iter(other))["row"].tolist()
    other.ack()
    other.close()
    unasked = next_before_it_hears_of_its_loss(one, batches)
    assert unasked == list(range(30, 40))
    rows += [row for batch in batches for row in batch["row"].tolist()]
    assert sorted(set(rows)) == list(range(2000))
    assert len(rows) <= 2010
    assert one.stats()["leases_lost"] == 1


def cut_in_two(directory: Any, name: Any, **options: Any) -> Any:
    """Two loaders of one file, the first in its middle when the second comes and cuts the rest in
    two; rows so far.
    """
    url = one_large_file(directory, row_group_size=50)
    dispatch = {
        "store": f"memory://{name}",
        "run_id": "a",
        "in_step": True,
    }  # One thread asks both.
    loaders = [
        make(url, slots=["row"], batch_size=50, dispatch=dispatch, **options) for _ in range(2)
    ]
    batches = [iter(loader) for loader in loaders]
    rows = [
        [row for batch in itertools.islice(of, num) for row in batch["row"].tolist()]
        for of, num in zip(batches, (3, 1), strict=True)
    ]
    return url, loaders, batches, rows


@pytest.mark.parametrize("shuffle", [None, {"window_rows": 100}])
def test_a_worker_with_nothing_to_do_reads_half_of_what_the_other_has_left(
    tmp_path: Path, shuffle: Any
) -> None:
    _, loaders, batches, rows = cut_in_two(tmp_path, f"cut-{shuffle}", shuffle=shuffle)
    for mine, rest in zip(rows, reversed(batches), strict=True):
        mine += [row for batch in rest for row in batch["row"].tolist()]
    assert sorted(rows[0] + rows[1]) == list(range(2000))
    assert [loader.stats().get("leases_lost", 0) for loader in loaders] == [0, 0]
    assert loaders[1].stats()["rows"] > 500


@pytest.mark.parametrize("num_resumed", [1, 2, 3])
@pytest.mark.parametrize("shuffle", [None, {"window_rows": 100}])
def test_a_split_that_was_cut_goes_on_on_any_number_of_workers(
    tmp_path: Path, shuffle: Any, num_resumed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatch = {"store": f"memory://cut-state-{shuffle is None}-{num_resumed}", "run_id": "a"}
    url = one_large_file(tmp_path, row_group_size=50)
    loaders = [
        make(url, slots=["row"], batch_size=50, dispatch=dispatch, shuffle=shuffle)
        for _ in range(2)
    ]
    batches = [iter_as(rank, loader, monkeypatch) for rank, loader in enumerate(loaders)]
    some = itertools.chain(itertools.islice(batches[0], 3), itertools.islice(batches[1], 4))
    rows = [row for batch in some for row in batch["row"].tolist()]
    state = merged_state(loaders)
    (first, cut), rows_before = state["partial"]["0"], 150 + 200
    assert (
        (first[0], sum(end - begin for begin, end in (first, cut)))
        == (0, rows_before)
        == (0, len(rows))
    )
    more = {"store": f"memory://cut-resumed-{shuffle is None}-{num_resumed}", "run_id": "b"}
    resumed = [
        make(url, slots=["row"], batch_size=50, dispatch=more, shuffle=shuffle)
        for _ in range(num_resumed)
    ]
    shares = []
    for rank, loader in enumerate(resumed):
        monkeypatch.setenv("RANK", str(rank))
        loader.load_state_dict(state)
        shares.append(iter(loader))
    with ThreadPoolExecutor(num_resumed) as threads:
        read: list[list[Batch]] = list(threads.map(list, shares))
        for share in read:
            rows += [row for batch in share for row in batch["row"].tolist()]
    assert sorted(rows) == list(range(2000))


QUARANTINED = r"some rows could not be read by any worker: .* epoch 0: a\.parquet#0- from row 0"


def test_a_file_that_cannot_be_read_is_left_out_at_last_and_named_when_all_else_was_delivered(
    tmp_path: Path,
) -> None:
    for name in "ab":
        pq.write_table(pa.table({"row": range(100)}), tmp_path / f"{name}.parquet")
    dispatch: dict[str, Any] = {
        "store": f"sqlite://{tmp_path}/x.db",
        "run_id": "r",
        "max_failures": 2,
    }
    snapshot: Any = featstore.open_table(str(tmp_path)).snapshot
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no longer Parquet PAR1")
    rows: list[Any] = []
    for error, match in [(DataFileError, r"a\.parquet")] * 2 + [(DispatchError, QUARANTINED)]:
        with (
            make(snapshot, slots=["row"], dispatch=dispatch) as loader,
            pytest.raises(error, match=match),
        ):
            rows.extend(row for batch in loader for row in batch["row"].tolist())
    assert rows == list(range(100))
    assert [
        line.split for line in next(iter(receipts(dispatch["store"], "r").values())).quarantined
    ] == ["a.parquet#0-"]


def test_splits_of_a_worker_that_gives_up_are_read_by_the_other(table_url: str) -> None:
    dispatch = {"store": "memory://gives-up", "run_id": "a"}
    one, other = (make(table_url, dispatch=dispatch) for _ in range(2))
    batches = iter(one)
    rows = next(batches)["row"].tolist() + next(batches)["row"].tolist()
    one.ack()
    one.close()
    rows += [row for batch in other for row in batch["row"].tolist()]
    assert sorted(rows) == list(range(NUM_ROWS))


@pytest.mark.parametrize("shuffle", [None, {"window_rows": 40}])
def test_a_loop_that_sets_each_epoch_goes_on_in_the_restored_one_and_reads_each_once(
    table_url: str, shuffle: Any
) -> None:
    loader = make(table_url, shuffle=shuffle)
    loader.set_epoch(1)
    batches = iter(loader)
    before = [row for batch in itertools.islice(batches, 5) for row in batch["row"].tolist()]
    loader.ack()
    state = loader.state_dict()
    resumed = make_resumed(table_url, state, shuffle=shuffle)
    epochs = []
    for epoch in range(1, 4):
        resumed.set_epoch(epoch)
        assert resumed.state_dict()["epoch"] == epoch
        epochs.append([row for batch in resumed for row in batch["row"].tolist()])
    epochs[0] += before
    assert [sorted(rows) for rows in epochs] == [list(range(NUM_ROWS))] * 3


def test_a_loop_that_begins_anew_reads_each_epoch_whole_also_the_restored_one(
    table_url: str,
) -> None:
    loader = make(table_url)
    loader.set_epoch(1)
    list(itertools.islice(loader, 5))
    resumed = make_resumed(table_url, loader.state_dict())
    numbers = []
    for epoch in range(3):
        resumed.set_epoch(epoch)
        assert (resumed.state_dict()["epoch"], resumed.state_dict()["partial"]) == (epoch, {})
        numbers.append(sum(batch.num_rows for batch in resumed))
    assert numbers == [NUM_ROWS] * 3


@pytest.mark.parametrize("num_batches", [1, 3, 4, 17, 33])
def test_a_resume_decodes_less_than_a_row_group_again(tmp_path: Path, num_batches: int) -> None:
    ids = pa.array(range(1, 1001), pa.int64())
    pq.write_table(pa.table({"row": ids}), tmp_path / "a.parquet", row_group_size=100)
    before = make(str(tmp_path), slots=["row"], batch_size=30)
    batches = iter(before)
    for _ in range(num_batches):
        next(batches)
    before.ack()
    state = before.state_dict()
    before.close()
    after = make(str(tmp_path), slots=["row"], batch_size=30)
    after.load_state_dict(state)
    assert [row for batch in after for row in batch["row"].tolist()] == list(
        range(30 * num_batches + 1, 1001)
    )
    assert after.stats()["rows_decoded"] - (1000 - 30 * num_batches) < 100
