"""How a loader ends an epoch while another worker holds rows: one that is dead, one that lives, one
that dies afterwards.
"""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from featstore.base.errors import ConfigError, DispatchError
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.options import Dispatch
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import bind
from featstore.dispatch.terms import SYSTEM_CLOCK, Clock, WaitFor
from featstore.dispatch.unfinished import open_leases
from featstore.dispatch.waiting import Waiter
from featstore.loader.feature_loader import FeatureLoader
from tests.dispatch.simulated_clock import SimulatedClock
from tests.loader.conftest import iteration_of, source_of
from tests.parquet_files import put_row_files
from tests.process import await_that

NUM_FILES, FILE_ROWS, LEASE_S = 4, 40, 1.0
NUM_ROWS = NUM_FILES * FILE_ROWS


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(put_row_files(tmp_path / "table", [FILE_ROWS] * NUM_FILES, row_group_size=10))


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/store.sqlite"


@pytest.fixture
def clock() -> SimulatedClock:
    """Time for tests of workers in one process. The test's own thread takes no part in it."""
    simulated = SimulatedClock()
    simulated.leave()
    return simulated


def make(url: str, store: str, *, clock: Clock = SYSTEM_CLOCK, **dispatch: Any) -> FeatureLoader:
    options = {"store": store, "run_id": "a", "lease_s": LEASE_S, **dispatch}
    more: dict[str, Any] = {
        name: options.pop(name) for name in ("tail", "memory_budget") if name in options
    }
    timed = type("TimedLoader", (FeatureLoader,), {"_clock": clock})
    return cast(
        FeatureLoader,
        timed(url, slots=["row"], batch_size=10, dispatch=options, **({"tail": "join"} | more)),
    )


class Other:
    """A worker elsewhere that holds one split, delivers nothing, and renews its lease only while it
    is told to.
    """

    def __init__(self, loader: FeatureLoader, store: str) -> None:
        prefix = f"featstore/a/0/{source_of(loader).job.key}-0/"
        self.keys, self.store = EpochKeys(prefix, 0), bind(store).open()
        self.coordinator = Coordinator(
            store,
            plan=source_of(loader).job.plan(0),
            prefix=prefix,
            worker="pod-7",
            index=7,
            clock=loader._clock,
        )
        self._clock = loader._clock
        self.claim = next(self.coordinator.claims())
        assert self.coordinator.reserve(self.claim, FILE_ROWS) == FILE_ROWS
        self.coordinator._renewer._closed.set()
        self.coordinator._renewer.join()

    def renew_until(self, is_over: Any) -> None:
        """Shows that it lives, and dies once `is_over()` says so."""
        deadline = time.monotonic() + 120
        while not is_over() and time.monotonic() < deadline:
            self.coordinator._held.renew_all(self.store)
            self._clock.wait(threading.Event(), 0.05)


def rows_of(batches: Any) -> list[int]:
    return [row for batch in batches if not batch.is_padding for row in batch["row"].tolist()]


def without(claim: Any) -> list[int]:
    first = int(claim.split.path.removesuffix(".parquet")) * FILE_ROWS
    return [row for row in range(NUM_ROWS) if not first <= row < first + FILE_ROWS]


def test_a_worker_that_comes_and_goes_reads_what_one_that_died_at_the_end_had_claimed_after_it_came(
    url: str, store: str, clock: SimulatedClock
) -> None:
    loader = make(url, store, clock=clock)
    batches = iter(loader)
    rows = next(batches)["row"].tolist()
    Other(loader, store)
    assert sorted(rows + rows_of(batches)) == list(range(NUM_ROWS))


def test_a_worker_that_comes_and_goes_waits_for_a_living_holder_and_not_longer(
    url: str, store: str, clock: SimulatedClock
) -> None:
    loader = make(url, store, clock=clock)
    other, ended = Other(loader, store), threading.Event()

    def read_all() -> list[int]:
        rows = rows_of(loader)
        ended.set()
        return rows

    with ThreadPoolExecutor(2) as threads:
        rows = threads.submit(read_all)
        beats = threads.submit(other.renew_until, lambda: ended.is_set() or clock.now_s() > 2.5)
        beats.result()
        assert not ended.is_set(), "it ended while a living worker held rows"
        assert other.coordinator.complete(other.claim)
        assert sorted(rows.result(timeout=60)) == without(other.claim)


def test_what_it_waited_for_such_a_holder_is_not_told_as_the_models_time(
    url: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make(url, store, lease_s=8.0)
    other, waits_since_s = Other(loader, store), list[float]()
    rests = Waiter.rest

    def rest(waiter: Waiter, *looks: Any, **how: Any) -> None:
        waits_since_s.append(time.monotonic())
        rests(waiter, *looks, **how)

    monkeypatch.setattr(Waiter, "rest", rest)
    with ThreadPoolExecutor(1) as threads:
        rows = threads.submit(rows_of, loader)
        other.renew_until(lambda: waits_since_s and time.monotonic() > waits_since_s[0] + 1.1)
        assert other.coordinator.complete(other.claim)
        assert len(rows.result(timeout=60)) == NUM_ROWS - FILE_ROWS
    delivery = loader.stats()["stages"]["delivery"]
    assert 1.0 < delivery["wait_for_others_s"] <= delivery["wait_s"]
    waited = r"nothing was left to claim, and other workers had rows to deliver \(at last \S+ 40\)"
    assert re.search(waited, loader.verdict())


@pytest.mark.parametrize("num_workers", [1, 2])
def test_of_a_dataloaders_workers_the_last_to_end_reads_what_a_dead_worker_elsewhere_held(
    url: str, store: str, num_workers: int
) -> None:
    loader = make(url, store, lease_s=2.0)  # The workers are alive, however slow they are.
    Other(loader, store)
    rows = rows_of(DataLoader(loader, batch_size=None, num_workers=num_workers))
    assert sorted(rows) == list(range(NUM_ROWS))


def test_a_rank_in_step_ends_at_once_while_a_living_rank_holds_its_last_batch(
    url: str, store: str
) -> None:
    loader = make(url, store, in_step=True, lease_s=300.0)
    other, ended = Other(loader, store), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        beats = threads.submit(other.renew_until, ended.is_set)
        started = time.monotonic()
        rows = rows_of(loader)
        took_s = time.monotonic() - started
        ended.set()
        beats.result()
    assert sorted(rows) == without(other.claim)
    assert took_s < 100, "it waited for a third of the lease"


def test_a_rank_in_step_takes_over_what_a_rank_that_is_dead_held(
    url: str, store: str, clock: SimulatedClock
) -> None:
    loader = make(url, store, clock=clock, in_step=True)
    Other(loader, store)
    assert sorted(rows_of(loader)) == list(range(NUM_ROWS))


@pytest.mark.parametrize("when", ["at the next epoch", "after set_epoch", "at close"])
def test_what_a_rank_held_that_died_after_it_was_seen_to_live_is_named(
    url: str, store: str, clock: SimulatedClock, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    loader = make(url, store, clock=clock, in_step=True)
    other, ended = Other(loader, store), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        beats = threads.submit(other.renew_until, ended.is_set)
        assert sorted(rows_of(loader)) == without(other.claim)
        ended.set()
        clock.leave()
        beats.result()
    assert "rows are unread" not in caplog.text
    if when == "after set_epoch":
        loader.set_epoch(1)
    next(iter(loader)) if when != "at close" else loader.close()
    assert re.search(
        rf"rows are unread: epoch 0, rows 0 to 40 of split {other.claim.split.id}, held by worker "
        rf"pod-7 \(index 7\)",
        caplog.text,
    )
    loader.close()


@pytest.mark.parametrize("is_fed", [False, True])
@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_after_the_stop_of_all_ranks_rows_of_a_silent_holder_are_an_error_in_every_rank(
    url: str, store: str, tail: str, is_fed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder was seen to live when the ranks ran out of rows, and dies before they stop."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    loaders, batches, other = [], list[Any](), None
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        loaders.append(make(url, store, tail=tail, lease_s=2.0))
        other = other or Other(loaders[0], store)  # Before a feeder claims all that there is.
        batches.append(iter(loaders[-1].to_device("cpu") if is_fed else loaders[-1]))
        batches[-1].state_dict()  # It begins, as this rank.
    assert other is not None
    assert other.keys.prefix == iteration_of(loaders[0]).meeting.prefix
    words = [f"{other.keys.prefix}0/tail/{rank}" for rank in range(2)]

    def has_ended() -> bool:
        """One rank without rows ends all of them where the rest is dropped, and none before the
        last where it is padded.
        """
        found = [(word or "").startswith("ended") for word in other.store.get_many(words)]
        return all(found) if tail == "pad" else any(found)

    barrier = threading.Barrier(2)

    def train(rank: Any) -> str:
        try:
            for _ in batches[rank]:
                barrier.wait(timeout=60)
        except DispatchError as error:
            return str(error)
        except BaseException:
            loaders[rank].close()  # Nobody waits for a rank whose test failed.
            raise
        return ""

    with ThreadPoolExecutor(3) as threads:
        assert other is not None
        beats = threads.submit(other.renew_until, has_ended)
        errors = list(threads.map(train, range(2)))
        beats.result()
    for error in errors:
        assert f"tail {tail}: all ranks have agreed to stop, and rows are unread" in error
        assert other is not None
        assert (
            f"epoch 0, rows 0 to 40 of split {other.claim.split.id}, held by worker pod-7 (index 7)"
            in error
        )
    monkeypatch.delenv("WORLD_SIZE")
    resumed = FeatureLoader(url, slots=["row"], batch_size=10, tail=tail)
    resumed.load_state_dict(FeatureLoader.merge_states([loader.state_dict() for loader in loaders]))
    rows = rows_of(resumed)
    assert resumed.state_dict()["epoch"] == 1
    assert other is not None
    assert set(rows) >= set(range(NUM_ROWS)) - set(without(other.claim)), (
        "a state said that unread rows were read"
    )


def test_what_a_dataloader_of_a_rank_left_unread_is_named_by_the_next_one(
    url: str, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    loader = make(url, store, in_step=True, lease_s=30.0)
    other, ended = Other(loader, store), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        beats = threads.submit(other.renew_until, ended.is_set)
        assert sorted(rows_of(DataLoader(loader, batch_size=None, num_workers=2))) == without(
            other.claim
        )
        ended.set()
        beats.result()
    assert "rows are unread" not in caplog.text
    loader.close()
    assert (
        f"rows 0 to 40 of split {other.claim.split.id}, held by worker pod-7 (index 7), which is silent"
        in caplog.text
    )


def test_a_dataloader_that_is_left_early_names_no_rows(
    url: str, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    loader = make(url, store, in_step=True)
    batches = iter(DataLoader(loader, batch_size=None, num_workers=2))
    next(batches)
    del batches
    loader.close()
    assert "unread" not in caplog.text


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_that_come_and_go_name_no_rows_of_their_own_siblings(
    url: str,
    store: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    num_workers: int,
) -> None:
    loader = FeatureLoader(
        url,
        slots=["row"],
        batch_size=10,
        num_epochs=2,
        dispatch={"store": store, "run_id": "a", "lease_s": 30.0},
    )
    batches = (
        loader if not num_workers else DataLoader(loader, batch_size=None, num_workers=num_workers)
    )
    assert sorted(rows_of(batches)) == sorted([*range(NUM_ROWS)] * 2)
    loader.close()
    assert "unread" not in caplog.text + capfd.readouterr().err


def test_a_worker_that_comes_during_the_epoch_and_gets_no_rows_ends_without_an_error(
    url: str, store: str
) -> None:
    iter(make(url, store))  # The first worker of this run.
    loader = make(url, store, lease_s=4.0)
    other = Other(loader, store)
    with Coordinator(
        store,
        plan=source_of(loader).job.plan(0),
        prefix=other.keys.prefix,
        worker="pod-8",
        index=8,
    ) as ready:
        for claim in ready.claims(WaitFor.NOTHING):
            assert ready.reserve(claim, FILE_ROWS) == FILE_ROWS
            assert ready.complete(claim)
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(rows_of, loader)
        await_that(lambda: _has_looked(loader))
        assert not late.done()
        assert other.coordinator.complete(other.claim)
        assert late.result(timeout=60) == []


def _has_looked(loader: FeatureLoader) -> bool:
    """Whether a loader that iterates elsewhere has looked for rows to claim."""
    iteration = source_of(loader).iteration
    coordinator = None if iteration is None else iteration._reports.coordinator
    return coordinator is not None and coordinator.found_all_done is not None


def test_rows_that_others_cut_off_are_not_counted_as_dropped(
    url: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks share one file, which one of them has claimed whole before the other cuts it;
    neither reads far ahead.
    """
    for path in Path(url).glob("[1-9].parquet"):
        path.unlink()
    row = pa.array(range(6000), pa.int64())
    pq.write_table(pa.table({"row": row}), Path(url) / "0.parquet", row_group_size=60)
    monkeypatch.setenv("WORLD_SIZE", "2")
    loaders, batches = [], []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        loaders.append(make(url, store, tail="drop", lease_s=6.0, memory_budget=1))
        batches.append(iter(loaders[-1]))
    rows: list[list[int]] = [[], []]
    barrier = threading.Barrier(2)

    def train(rank: Any) -> None:
        for batch in batches[rank]:
            rows[rank] += batch["row"].tolist()
            time.sleep(0.004 * rank)
            barrier.wait(timeout=60)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(train, range(2)))
    for loader in loaders:
        loader.close()
    assert all(rows), "one rank got nothing"
    dropped = sum(loader.stats().get("rows_dropped_tail", 0) for loader in loaders)
    assert len(rows[0]) + len(rows[1]) + dropped == 6000


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_ranks_cannot_make_the_same_steps_and_be_independent(
    url: str, store: str, tail: str
) -> None:
    with pytest.raises(
        ConfigError, match=f"tail {tail} and dispatch.in_step false contradict each other"
    ):
        make(url, store, tail=tail, in_step=False)


def test_rows_that_are_dropped_on_purpose_are_not_named_as_unread(
    url: str, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One rank has reserved all rows, of one batch, when the other looks for some, and lives: no
    step is left to anybody.
    """
    for path in Path(url).glob("[1-9].parquet"):
        path.unlink()
    pq.write_table(pa.table({"row": pa.array(range(10), pa.int64())}), Path(url) / "0.parquet")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loaders, batches = [], []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        loaders.append(make(url, store, tail="drop", lease_s=30.0))
        batches.append(iter(loaders[-1]))
        batches[-1].state_dict()  # It begins, as this rank.
    late, early = batches
    keys = EpochKeys(iteration_of(loaders[0]).meeting.prefix, 0)
    with closing(bind(store).open()) as opened, ThreadPoolExecutor(1) as threads:
        rows = threads.submit(rows_of, early)
        await_that(lambda: _are_reserved(open_leases(opened, keys)))
        assert rows_of(late) == rows.result(timeout=60) == []
        assert open_leases(opened, keys), "no rows were dropped"
    for loader in loaders:
        loader.close()
    assert loaders[1].stats()["rows_dropped_tail"] == 10
    assert "rows are unread" not in caplog.text


def _are_reserved(leases: Any) -> bool:
    """Whether nothing can be claimed or cut off."""
    return bool(leases) and all(lease.record and not lease.record.num_left for lease in leases)


@pytest.mark.parametrize("num_epochs", [1, 2])
def test_a_worker_that_starts_after_the_last_epoch_ends_empty_with_a_warning_if_it_is_told_to(
    url: str, store: str, caplog: pytest.LogCaptureFixture, num_epochs: int
) -> None:
    options: dict[str, Any] = {"slots": ["row"], "batch_size": 10, "num_epochs": num_epochs}
    dispatch = {"store": store, "run_id": "a"}
    assert len(rows_of(FeatureLoader(url, dispatch=dispatch, **options))) == num_epochs * NUM_ROWS
    with pytest.raises(
        DispatchError, match=r"nothing is left to read: .* run_id.* dispatch\.finished: end"
    ):
        rows_of(FeatureLoader(url, dispatch=dispatch, **options))
    assert rows_of(FeatureLoader(url, dispatch=dispatch | {"finished": "end"}, **options)) == []
    assert "nothing is left to read" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_step": "yes"}, "dispatch.in_step: expected auto, true or false, found 'yes'"),
        ({"finished": "skip"}, "dispatch.finished: expected error or end, found 'skip'"),
    ],
)
def test_other_answers_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Dispatch(**options)
