"""A table that grows while it is read: what is new is the next plan, and the end is where it was
said to be.
"""

import json
import re
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from torch.utils.data import DataLoader

import featstore
from featstore.base.errors import ConfigError, StateError
from tests.loader.conftest import iteration_of, rows_of
from tests.threads import beside


def append(url: Any, dt: Any, first: Any, num_rows: int = 20) -> None:
    rows = {
        "row": pa.array(range(first, first + num_rows), pa.int64()),
        "dt": pa.array([dt] * num_rows),
    }
    write_deltalake(str(url), pa.table(rows), partition_by=["dt"], mode="append")


@pytest.fixture
def url(tmp_path: Path) -> Path:
    append(tmp_path / "table", "2026-11-01", 1)
    return tmp_path / "table"


def follower(url: Any, **options: Any) -> Any:
    follow = {"every_s": 0.02, "until": "dt >= '2026-11-03'"} | options.pop("follow", {})
    return featstore.FeatureLoader(url, slots=["row"], batch_size=10, follow=follow, **options)


def test_partitions_that_come_while_it_is_read_are_read_until_the_last(url: Path) -> None:
    with follower(url) as loader:
        rows, batches = [], iter(loader)
        for batch in batches:
            rows += batch["row"].tolist()
            if len(rows) == 20:
                append(url, "2026-11-02", 21)
            if len(rows) == 40:
                append(url, "2026-11-03", 41)
                append(url, "2026-11-04", 61)
    assert rows[:40] == list(range(1, 41))
    assert sorted(rows) == [*range(1, 81)]


def test_workers_agree_on_the_plans_and_share_each(url: Path, tmp_path: Path) -> None:
    """Each looks at the table by itself, at different times."""
    dispatch = {"store": f"sqlite://{tmp_path}/x.db", "run_id": "a"}
    with (
        follower(url, dispatch=dispatch, memory_budget=1) as one,
        follower(url, dispatch=dispatch, memory_budget=1) as other,
    ):
        rows, both = [], [iter(one), iter(other)]
        append(url, "2026-11-02", 21)
        found: list[list[Any]] = [[], []]

        def read(number: Any) -> None:
            found[number] += [row for batch in both[number] for row in batch["row"].tolist()]

        with beside(*(partial(read, number) for number in range(2))):
            append(url, "2026-11-03", 41)
        rows = sorted(found[0] + found[1])
    assert rows == list(range(1, 61))


def test_closing_ends_the_wait_for_what_is_new(url: Path) -> None:
    loader = follower(url, follow={"every_s": 3600})
    batches = iter(loader)
    assert [len(next(batches)["row"]) for _ in range(2)] == [10, 10]
    ends = threading.Timer(0.2, loader.close)
    ends.start()
    with pytest.raises(StopIteration):
        next(batches)
    ends.join()


def test_closing_in_the_middle_of_a_plan_ends_the_loop_and_leaves_a_state_to_go_on_from(
    url: Path,
) -> None:
    loader = follower(url, follow={"until": None}, memory_budget=1)
    batches = iter(loader)
    before = next(batches)["row"].tolist()
    loader.ack()
    loader.close()
    assert list(batches) == []
    append(url, "2026-11-03", 21)
    with follower(url) as again:
        again.load_state_dict(loader.state_dict())
        assert sorted(before + rows_of(again)) == list(range(1, 41))


@pytest.mark.parametrize("stop", range(9))
@pytest.mark.parametrize("order", ["dynamic", "static"])
def test_a_state_of_every_step_is_gone_on_from_with_what_came_meanwhile(
    url: Path, stop: Any, order: str
) -> None:
    """Plans of two, four and two batches of 10 rows; one more day is there when the state is
    loaded.
    """
    with follower(url, order=order, memory_budget=1) as loader:
        rows, batches = [], iter(loader)
        for number in range(stop):
            if number == 2:
                append(url, "2026-11-02", 21, num_rows=30)
                append(url, "2026-11-02b", 51, num_rows=10)
            if number == 6:
                append(url, "2026-11-03", 61)
            rows += next(batches)["row"].tolist()
        loader.ack()
        state = json.loads(json.dumps(loader.state_dict()))
    if stop <= 2:
        append(url, "2026-11-02", 21, num_rows=40)
    if stop <= 6:
        append(url, "2026-11-03", 61)
    with follower(url, order=order) as again:
        again.load_state_dict(state)
        assert again.state_dict()["epoch"] == state["epoch"]
        rest = rows_of(again)
    assert Counter(rows) + Counter(rest) == Counter(range(1, 81))


def test_a_state_that_was_saved_while_waiting_reads_nothing_again(url: Path) -> None:
    loader = follower(url, follow={"until": "dt >= '2026-11-02'", "every_s": 3600})
    batches = iter(loader)
    rows = next(batches)["row"].tolist() + next(batches)["row"].tolist()
    ends = threading.Timer(0.2, loader.close)
    ends.start()
    assert next(batches, None) is None
    ends.join()
    state = loader.state_dict()
    assert state["followed"] == [0, None]
    append(url, "2026-11-02", 21)
    with follower(url, follow={"until": "dt >= '2026-11-02'"}) as again:
        again.load_state_dict(state)
        assert sorted(rows + rows_of(again)) == list(range(1, 41))


def test_states_of_one_that_waits_and_one_that_has_begun_are_united(url: Path) -> None:
    append(url, "2026-11-02", 21)
    with follower(url) as loader:
        fresh = loader.state_dict()
    waits = fresh | {
        "num_workers": 2,
        "epoch": 1,
        "followed": [0, None],
        "plan": "0" * 32,
        "table": "1" * 64,
    }
    begun = fresh | {
        "num_workers": 2,
        "epoch": 1,
        "followed": [0, 1],
        "workers": [1],
        "partial": {"0": 10},
    }
    for states in ([waits, begun], [begun, waits]):
        merged = featstore.FeatureLoader.merge_states(states)
        assert merged == begun | {"workers": [0, 1]}
    with pytest.raises(StateError, match=r"the states differ in (table|followed)"):
        featstore.FeatureLoader.merge_states([waits | {"followed": [1, None]}, begun])


def test_a_state_of_a_followed_table_is_of_no_loader_that_does_not_follow(url: Path) -> None:
    with follower(url) as one, featstore.FeatureLoader(url, slots=["row"], batch_size=10) as other:
        with pytest.raises(
            StateError, match="saved for a followed table, and this loader is of the other kind"
        ):
            other.load_state_dict(one.state_dict())
        with pytest.raises(StateError, match="saved for one that is not followed"):
            one.load_state_dict(other.state_dict())


def test_new_partitions_are_split_as_the_first_ones_are(url: Path) -> None:
    with follower(url, dispatch={"split_rows": 10}) as loader:
        batches = iter(loader)
        rows = [row for _ in range(2) for row in next(batches)["row"].tolist()]
        append(url, "2026-11-03", 21, num_rows=40)
        for path in (url / "dt=2026-11-03").iterdir():
            pq.write_table(pq.read_table(path), path, row_group_size=10)
        rows += next(batches)["row"].tolist()
        assert [
            (split.num_rows, split.id.partition("#")[2])
            for split in iteration_of(loader)._job.splits
        ] == [(10, f"{number}-{number}") for number in range(4)]
        assert sorted(rows + rows_of(batches)) == list(range(1, 61))


def test_a_worker_that_comes_with_a_newer_version_joins_the_plans_of_the_others(
    url: Path, tmp_path: Path
) -> None:
    """It opens the table when two plans were there already, and reads what is left of the
    second.
    """
    dispatch = {
        "store": f"sqlite://{tmp_path}/x.db",
        "run_id": "a",
        "in_step": True,
    }  # One thread asks both.
    options = {"dispatch": dispatch, "memory_budget": 1}
    with follower(url, **options) as early:
        batches = iter(early)
        rows = [row for _ in range(2) for row in next(batches)["row"].tolist()]
        append(url, "2026-11-02", 21)
        rows += next(batches)["row"].tolist()
        append(url, "2026-11-03", 41)
        with follower(url, **options) as late:
            rows += rows_of(late)
        rows += rows_of(batches)
    assert Counter(rows) == Counter(range(1, 61))


def test_a_loader_that_follows_is_no_dataset_of_a_dataloader(url: Path) -> None:
    with follower(url) as loader:
        with pytest.raises(TypeError, match="has no len"):
            len(follower(url, order="static"))
        with pytest.raises(ConfigError, match="follow: expected a process that reads by itself"):
            next(iter(DataLoader(loader, batch_size=None, num_workers=1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_epochs": 2},
            "follow: each partition is read once: expected num_epochs 1, found num_epochs 2",
        ),
        ({"order": "rank"}, "follow: expected order dynamic or static, found rank"),
        ({"follow": {"every_s": 0}}, "follow.every_s: expected seconds above 0, found 0"),
        ({"follow": {"every": 1}}, "follow: unknown key 'every'"),
    ],
)
def test_what_cannot_be_followed_is_refused(url: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        follower(url, **options)


def test_plain_files_cannot_be_followed(table_url: str) -> None:
    with pytest.raises(ConfigError, match="found plain Parquet files"):
        follower(table_url)
