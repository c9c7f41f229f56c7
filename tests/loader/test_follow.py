"""A table that grows while it is read: what is new is the next plan, and the end is where it was said to be."""

import re
import threading

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from torch.utils.data import DataLoader

import featstore
from featstore.errors import ConfigError, StateError


def append(url, dt, first, num_rows=20):
    rows = {"row": pa.array(range(first, first + num_rows), pa.int64()), "dt": pa.array([dt] * num_rows)}
    write_deltalake(str(url), pa.table(rows), partition_by=["dt"], mode="append")


@pytest.fixture
def url(tmp_path):
    append(tmp_path / "table", "2026-11-01", 1)
    return tmp_path / "table"


def follower(url, **options):
    follow = {"every_s": 0.02, "until": "dt >= '2026-11-03'"} | options.pop("follow", {})
    return featstore.FeatureLoader(url, slots=["row"], batch_size=10, follow=follow, **options)


def test_partitions_that_come_while_it_is_read_are_read_until_the_last(url):
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


def test_workers_agree_on_the_plans_and_share_each(url, tmp_path):
    """Each looks at the table by itself, at different times."""
    dispatch = {"store": f"sqlite://{tmp_path}/x.db", "run_id": "a"}
    with follower(url, dispatch=dispatch, memory_budget=1) as one, follower(url, dispatch=dispatch, memory_budget=1) as other:
        rows, both = [], [iter(one), iter(other)]
        append(url, "2026-11-02", 21)
        found = [[], []]

        def read(number):
            found[number] += [row for batch in both[number] for row in batch["row"].tolist()]

        threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        append(url, "2026-11-03", 41)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        rows = sorted(found[0] + found[1])
    assert rows == list(range(1, 61))


def test_closing_ends_the_wait_for_what_is_new(url):
    loader = follower(url, follow={"every_s": 3600})
    batches = iter(loader)
    assert [len(next(batches)["row"]) for _ in range(2)] == [10, 10]
    ends = threading.Timer(0.2, loader.close)
    ends.start()
    with pytest.raises((StateError, StopIteration)):
        next(batches)
    ends.join()


def test_a_loader_that_follows_has_no_state_and_is_no_dataset_of_a_dataloader(url):
    with follower(url) as loader:
        next(iter(loader))
        with pytest.raises(StateError, match="a loader that follows a table has no state"):
            loader.state_dict()
        with pytest.raises(ConfigError, match="follow: expected a process that reads by itself"):
            next(iter(DataLoader(loader, batch_size=None, num_workers=1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_epochs": 2}, "follow: expected a Delta table, each partition of which is read once, found num_epochs 2"),
        ({"follow": {"every_s": 0}}, "follow.every_s: expected seconds above 0, found 0"),
        ({"follow": {"every": 1}}, "follow: unknown key 'every'"),
    ],
)
def test_what_cannot_be_followed_is_refused(url, options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        follower(url, **options)


def test_plain_files_cannot_be_followed(table_url):
    with pytest.raises(ConfigError, match="found plain Parquet files"):
        follower(table_url)
