"""Batches of several tables: shares, ends, states, workers, and the methods of a loader."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import (
    BudgetError,
    ConfigError,
    DataFileError,
    DispatchError,
    SelectionError,
    StateError,
)
from featstore.loader.iteration.worker import LoaderWorker
from featstore.loader.prometheus import LoaderCollector
from tests.loader.conftest import rows_of, rows_table
from tests.loader.mix.conftest import (
    LARGE,
    SMALL,
    STOPS,
    Tables,
    drawn,
    mixed,
    round_trip,
    sources_of,
)
from tests.parquet_files import put_parquet
from tests.tiers import tiered


def table_of(rows: list[int]) -> int:
    (table,) = {int(row >= 1000) for row in rows}
    return table


def test_an_epoch_ends_with_the_first_table_that_is_exhausted(tables: Tables) -> None:
    even = [{**each, "weight": 1} for each in tables]
    with mixed(even) as loader:
        batches = drawn(loader)
    rows = [row for batch in batches for row in batch]
    assert max(Counter(rows).values()) == 1
    assert set(rows) > SMALL
    assert not set(rows) >= LARGE
    assert abs(sum(map(table_of, batches)) / len(batches) - 0.5) < 1 / len(batches)


@pytest.mark.parametrize("order", ["dynamic", "static", "rank"])
def test_a_table_without_rows_is_refused_by_name(
    tables: Tables, tmp_path: Path, order: str
) -> None:
    empty = put_parquet(tmp_path / "empty" / "0.parquet", rows_table(0, 0))
    with pytest.raises(ConfigError, match=r"tables\[2\] \(.*empty\): expected rows .*found none"):
        mixed([*tables, {"table": str(empty.parent)}], order=order)


@pytest.mark.parametrize("order", ["dynamic", "static", "rank"])
def test_files_are_staged_in_each_order(tables: Tables, tmp_path: Path, order: str) -> None:
    staging = {"directory": str(tmp_path), "mode": "whole"}
    with mixed(tables, order=order, staging=staging, stop="all_exhausted") as loader:
        assert {row for batch in drawn(loader) for row in batch} == LARGE | SMALL
        assert loader.stats()["staging_num_staged"] == 6


def test_a_table_that_gives_no_batch_is_named_where_it_ends_the_epoch(
    tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    nothing = {**tables[1], "where": "row < 0"}
    with mixed([tables[0], nothing]) as loader:
        num_batches = len(drawn(loader))
    assert num_batches <= 3
    [record] = [one for one in caplog.records if "gave this worker no batch" in one.message]
    assert record.message.startswith(
        f"{sources_of(loader).names[1]} gave this worker no batch, so its epoch "
    )
    assert f"ends after {num_batches} batches" in record.message
    caplog.clear()
    with mixed(tables) as loader:
        drawn(loader)
    assert "gave this worker no batch" not in caplog.text


def test_or_when_each_table_was_read_to_its_end(tables: Tables) -> None:
    even = [{**each, "weight": 1} for each in tables]
    with mixed(even, stop="all_exhausted") as loader:
        counts = Counter(row for batch in drawn(loader) for row in batch)
        assert {counts[row] for row in LARGE} == {1}
        assert {counts[row] for row in SMALL} <= {3, 4}  # Whole passes, and a part of one.


@pytest.mark.parametrize("stop", STOPS)
def test_epochs_differ_and_repeat(tables: Tables, stop: str) -> None:
    with mixed(tables, stop=stop) as loader:
        first, second = drawn(loader), drawn(loader)
        assert first != second
        loader.set_epoch(0)
        assert drawn(loader) == first
        loader.set_epoch(1)
        assert drawn(loader) == second


def test_a_mixture_that_comes_late_shares_the_epoch_that_it_names(
    tables: Tables, tmp_path: Path
) -> None:
    """However many passes over each table the others have begun."""
    dispatch = {"store": f"sqlite://{tmp_path}/store.sqlite", "run_id": "a"}
    options = {"stop": "all_exhausted", "dispatch": dispatch}
    even = [{**each, "weight": 1} for each in tables]
    with mixed(even, **options) as early:
        drawn(early)
        batches = iter(early)
        rows = drawn(itertools.islice(batches, 4))
        early.ack()
    with mixed(even, **options) as late:
        late.set_epoch(1)
        rows += drawn(late)
    counts = Counter(row for batch in rows for row in batch)
    assert {counts[row] for row in LARGE} == {1}


@pytest.mark.parametrize(
    "order", tiered(["dynamic", "static", "rank"], lambda order: order != "dynamic")
)
@pytest.mark.parametrize("stop", STOPS)
def test_a_loader_goes_on_after_any_batch_and_at_the_end(
    tables: Tables, stop: str, order: str
) -> None:
    options = {"stop": stop, "order": order, "batch_size": 15}
    with mixed(tables, **options) as loader:
        first, second = drawn(loader), drawn(loader)
    for num_batches in range(len(first) + 1):
        with mixed(tables, **options) as loader:
            before = drawn(itertools.islice(loader, num_batches))
            loader.ack()
            state = round_trip(loader.state_dict())
            assert (sum(state["num_batches"]), state["ended"]) == (num_batches, False)
        with mixed(tables, **options) as loader:
            loader.load_state_dict(state)
            assert round_trip(loader.state_dict()) == state
            assert before + drawn(loader) == first
            assert drawn(loader) == second


@pytest.mark.parametrize("stop", STOPS)
def test_after_the_end_of_an_epoch_the_next_one_follows(tables: Tables, stop: str) -> None:
    with mixed(tables, stop=stop) as loader:
        drawn(loader)
        state = round_trip(loader.state_dict())
        second = drawn(loader)
    assert (state["epoch"], state["ended"]) == (0, True)
    with mixed(tables, stop=stop) as loader:
        loader.load_state_dict(state)
        assert drawn(loader) == second


def test_a_batch_counts_when_the_next_one_is_asked_for_or_it_is_acknowledged(
    tables: Tables,
) -> None:
    with mixed(tables) as loader:
        assert sum(loader.state_dict()["num_batches"]) == 0
        batches = iter(loader)
        next(batches)
        assert sum(loader.state_dict()["num_batches"]) == 0
        next(batches)
        assert sum(loader.state_dict()["num_batches"]) == 1
        loader.ack()
        loader.ack()
        assert sum(loader.state_dict()["num_batches"]) == 2


def test_the_weights_may_have_changed(tables: Tables) -> None:
    with mixed(tables) as loader:
        batches = iter(loader)
        before = [next(batches)["row"].tolist() for _ in range(6)]
        loader.ack()
        state = loader.state_dict()
    even = [{**each, "weight": 1} for each in tables]
    with mixed(even, stop="first_exhausted") as loader:
        loader.load_state_dict(state)
        rest = drawn(loader)
    assert max(Counter(row for batch in before + rest for row in batch).values()) == 1
    assert abs(sum(map(table_of, rest)) / len(rest) - 0.5) < 1 / len(rest)


@pytest.mark.parametrize("stop", STOPS)
def test_a_thread_that_copies_ahead_changes_no_batch_and_no_state(
    tables: Tables, stop: str
) -> None:
    with mixed(tables, stop=stop) as loader:
        expected = drawn(loader)
    with mixed(tables, stop=stop) as loader:
        feed = iter(loader.to_device("cpu", prefetch=3))
        for num_batches, rows in enumerate(expected):
            assert next(feed)["row"].tolist() == rows
            assert sum(loader.state_dict()["num_batches"]) == num_batches
            assert sum(feed.state_dict()["num_batches"]) == num_batches + 1
        state = round_trip(feed.state_dict())
        assert next(feed, None) is None
        assert loader.state_dict()["ended"]
    with mixed(tables, stop=stop) as loader:
        loader.load_state_dict(state)
        assert drawn(loader) == []


def test_a_table_without_rows_for_a_worker_is_left_out(
    tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    filtered = [tables[0], {**tables[1], "where": "row < 0"}]
    with mixed(filtered, stop="all_exhausted") as loader:
        counts = Counter(row for batch in drawn(loader) for row in batch)
    assert set(counts) == LARGE
    with mixed(filtered) as loader:
        assert set(rows_of(loader)) < LARGE


def test_a_table_of_which_others_read_all_is_left_out_with_a_warning(
    tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    filtered = [tables[0], {**tables[1], "where": "row < 0", "weight": 100}]
    with mixed(filtered, stop="all_exhausted") as loader:
        assert set(rows_of(loader)) == LARGE
    assert "tables[1]" in caplog.text
    assert "8 passes in a row gave this worker no batch" in caplog.text


def test_an_error_names_the_table(tables: Tables) -> None:
    with pytest.raises(SelectionError, match=r"^tables\[1\] \(.*small\): .*no column 'rwo'"):
        mixed([tables[0], {**tables[1], "where": "rwo > 1"}])


def test_two_entries_of_the_same_rows_are_refused(tables: Tables) -> None:
    with pytest.raises(ConfigError, match=r"tables\[2\].*expected other rows than those of tables"):
        mixed([*tables, tables[0]])


def test_partitions_of_one_table_are_mixed(table_url: str) -> None:
    days = [{"table": table_url, "where": f"dt = '2026-11-0{day}'"} for day in (1, 4)]
    with mixed(days) as loader:
        rows = set(rows_of(loader))
    assert rows >= set(range(70)) or rows >= set(range(115, 216))
    assert rows <= set(range(70)) | set(range(115, 216))


def test_a_state_that_does_not_fit_loads_nothing(tables: Tables) -> None:
    with mixed(tables, seed=1) as other:
        state = other.state_dict()
    with mixed(tables) as loader:
        before = loader.state_dict()
        mismatch = [before["tables"][0], state["tables"][1]]
        with pytest.raises(StateError, match=r"tables\[1\].*saved with another"):
            loader.load_state_dict({**state, "tables": mismatch})
        assert loader.state_dict() == before
        with pytest.raises(StateError, match="saved with another stop"):
            loader.load_state_dict({**before, "stop": "all_exhausted"})


def test_a_damaged_file_ends_the_iteration_after_the_batches_before_it(
    tables: Tables, tmp_path: Path
) -> None:
    for name in ("0.parquet", "1.parquet"):
        (tmp_path / name).write_bytes(Path(tables[1]["table"], name).read_bytes())
    with mixed([tables[0], {"table": str(tmp_path)}], shuffle=None) as loader:
        data = bytearray((tmp_path / "1.parquet").read_bytes())
        data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
        (tmp_path / "1.parquet").write_bytes(data)
        batches, seen = iter(loader), list[int]()
        with pytest.raises(DataFileError, match=r"1\.parquet"):
            seen.extend(row for batch in batches for row in batch["row"].tolist())
        assert set(range(1000, 1021)) <= set(seen)
        with pytest.raises(StateError, match="this iteration has failed; iterate anew"):
            next(batches)


def test_a_newer_iteration_and_close_end_the_one_before(tables: Tables) -> None:
    with mixed(tables) as loader:
        first = iter(loader)
        next(first)
        iter(loader)
        next(first)
        next(iter(loader))
        with pytest.raises(StateError, match="closed before its end"):
            next(first)
        second = iter(loader)
        next(second)
        loader.close()
        with pytest.raises(StateError, match="closed before its end"):
            for _ in second:
                pass
        assert rows_of(loader)


def test_what_a_mixture_does_not_have_says_so(tables: Tables) -> None:
    with mixed(tables, order="static") as loader:
        assert loader
        with pytest.raises(TypeError, match="a mixture of tables has no len"):
            len(loader)
        with pytest.raises(DispatchError, match="a mixture, which has no order replay"):
            loader.recorded_order()
        with pytest.raises(ConfigError, match="of one table, found a mixture"):
            loader.to_tf()
        with pytest.raises(ConfigError, match="epoch"):
            loader.set_epoch(-1)


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_ranks_cannot_agree_on_a_step_where_they_read_tables_several_times(
    tables: Tables, tail: str
) -> None:
    with pytest.raises(ConfigError, match=f"tail: '{tail}' with stop all_exhausted"):
        mixed(tables, tail=tail, stop="all_exhausted")


def test_metrics_are_those_of_all_tables(tables: Tables) -> None:
    told: list[dict[str, Any]] = []
    with mixed(tables, on_stats={"call": told.append, "every_s": 0}) as loader:
        num_batches = len(drawn(loader))
        stats = loader.stats()
        assert stats["batches"] == num_batches == stats["stages"]["delivery"]["batches"]
        assert len(told) == num_batches + 1
        assert [told[-1]["tables"][i]["batches"] for i in "01"] == [
            stats["tables"][i]["batches"] for i in "01"
        ]
        assert loader.verdict().startswith("tables[")
        names = {family.name for family in LoaderCollector({"train": loader}).collect()}
        assert "featstore_loader_rows" in names


def test_memory_and_threads_are_divided(tables: Tables) -> None:
    with mixed(tables, memory_budget=1000, decode_threads=7) as loader:
        for each in sources_of(loader).sources:
            share = each.job.share_of_host(LoaderWorker.here())
            assert (share.budget_bytes, share.num_threads) == (500, 3)


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_cache_that_holds_one_file_of_each_table_is_enough(
    tables: Tables, tmp_path: Path, is_shared: bool
) -> None:
    """A loader that waited for room that an idle one pins would wait forever."""
    largest = max(path.stat().st_size for each in tables for path in Path(each["table"]).iterdir())
    staging: dict[str, Any] = {"mode": "whole", "budget_bytes": 4 * largest + 1000}
    if is_shared:
        staging["directory"] = str(tmp_path / "cache")
    with mixed(tables, staging=staging, shuffle=None, stop="all_exhausted") as loader:
        assert set(rows_of(loader)) == LARGE | SMALL
    with pytest.raises(BudgetError, match=r"tables\[0\]"):
        mixed(tables, staging={**staging, "budget_bytes": largest + 10})
