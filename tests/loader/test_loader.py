import gc
import logging
import sqlite3
import tempfile
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from featstore.api import extract
from featstore.base.errors import (
    BudgetError,
    ConfigError,
    DataFileError,
    DispatchError,
    SelectionError,
    StateError,
)
from featstore.decoded.file_sources import FileSource, staging_source
from featstore.dispatch.plan import Split
from featstore.dispatch.terms import Claim
from featstore.loader.batches.split_reader import SplitReader, Work
from featstore.loader.batches.stats import Stats
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.plan.shuffle import RowOrder
from featstore.loader.request.matching import Partition
from featstore.loader.request.request import resolve
from featstore.staging import StageItem, Stager, Staging
from featstore.table.open import open_snapshot
from featstore.table.snapshot import FileList
from tests.loader.conftest import rows_of, source_of
from tests.parquet_files import put_parquet
from tests.process import our_files, our_threads
from tests.programs import run_python
from tests.threads import beside, run_together

NUM_ROWS = 280


def divide_by_rows(loader: Any) -> None:
    for batch in loader:
        _ = 1 // int(batch["row"][0])


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    before = our_files()
    yield
    gc.collect()
    assert our_threads() == set()
    assert our_files() <= before


def test_without_shuffle_rows_come_in_the_order_of_the_files(table_url: str) -> None:
    assert rows_of(FeatureLoader(table_url, slots=["row"], batch_size=33)) == list(range(NUM_ROWS))


def test_a_loader_names_what_it_delivers(table_url: str) -> None:
    with FeatureLoader(table_url, slots=["row"], batch_size=33) as loader:
        assert repr(loader) == "FeatureLoader(slots=['row'], labels=[], batch_size=33)"


@pytest.mark.parametrize("batch_size", [1, 16, 33, 1000])
def test_every_batch_is_full_but_the_last(table_url: str, batch_size: int) -> None:
    sizes = [
        batch.num_rows for batch in FeatureLoader(table_url, slots=["row"], batch_size=batch_size)
    ]
    assert sizes[:-1] == [batch_size] * (NUM_ROWS // batch_size - (NUM_ROWS % batch_size == 0))
    assert sum(sizes) == NUM_ROWS


def test_drop_last_leaves_out_the_short_batch_and_counts_its_rows(table_url: str) -> None:
    loader = FeatureLoader(table_url, slots=["row"], batch_size=33, drop_last=True)
    assert {batch.num_rows for batch in loader} == {33}
    assert loader.stats()["rows_dropped_last"] == NUM_ROWS % 33


def test_a_table_may_be_a_snapshot_or_have_one(table_url: str) -> None:
    snapshot = open_snapshot(table_url)
    with_one = type("Table", (), {"snapshot": snapshot})()
    assert rows_of(FeatureLoader(snapshot, slots=["row"])) == rows_of(
        FeatureLoader(with_one, slots=["row"])
    )
    with pytest.raises(
        ConfigError, match="table: expected a Table, a Snapshot or a URL, found int"
    ):
        FeatureLoader(7, slots=["row"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "shuffle", [{"window_rows": 1}, {"window_rows": 40}, {"window_rows": 10_000, "interleave": 3}]
)
def test_shuffled_rows_keep_together_and_come_once(table_url: str, shuffle: Any) -> None:
    seen = []
    for batch in FeatureLoader(
        table_url, slots=["*"], extras=["note"], batch_size=33, shuffle=shuffle, seed=3
    ):
        rows = batch["row"].tolist()
        seen += rows
        assert batch["half"].tolist() == [row / 2 for row in rows]
        assert batch["pair"].tolist() == [[row, -row] for row in rows]
        assert batch["tags"].lengths().tolist() == [1 if row % 7 == 3 else row % 5 for row in rows]
        assert batch.extras["note"].to_pylist() == [f"n{row}" for row in rows]
    assert sorted(seen) == list(range(NUM_ROWS))
    assert seen != sorted(seen)


def test_seed_and_epoch_decide_the_order(table_url: str) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        loader = FeatureLoader(table_url, slots=["row"], shuffle={"window_rows": 40}, seed=seed)
        loader.set_epoch(epoch)
        return rows_of(loader)

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_each_iteration_is_the_next_epochs(table_url: str) -> None:
    loader = FeatureLoader(table_url, slots=["row"], shuffle={}, num_epochs=2)
    twice = rows_of(loader)
    again = rows_of(loader)
    loader.set_epoch(1)
    from_one = rows_of(loader)
    assert twice[NUM_ROWS:] == from_one[:NUM_ROWS]
    assert from_one[NUM_ROWS:] == again[:NUM_ROWS]
    assert sorted(again[:NUM_ROWS]) == sorted(again[NUM_ROWS:]) == list(range(NUM_ROWS))


def test_where_prunes_partitions_and_filters_rows(table_url: str) -> None:
    loader = FeatureLoader(
        table_url,
        slots=["row"],
        where="dt >= '2026-11-03' and (click = 1 or row % 4 = 0)",
        batch_size=9,
    )
    expected = [row for row in range(70, NUM_ROWS) if row % 2 or row % 4 == 0]
    assert rows_of(loader) == expected
    assert loader.stats()["rows_filtered"] == NUM_ROWS - 70 - len(expected)


def test_where_may_read_partition_keys_row_by_row(table_url: str) -> None:
    rows = rows_of(FeatureLoader(table_url, slots=["row"], where="dt = '2026-11-01' or row = 100"))
    assert rows == [*range(70), 100]


def test_where_that_matches_no_partition_is_told_of(table_url: str) -> None:
    with pytest.raises(
        SelectionError, match="matches no partition of the table, which has dt=2026-11-01"
    ):
        FeatureLoader(table_url, slots=["row"], where="dt = '1999-01-01'")


def test_zero_is_a_value_in_where_if_no_spec_declared_the_column(table_url: str) -> None:
    assert rows_of(FeatureLoader(table_url, slots=["row"], where="row is null")) == []
    assert rows_of(FeatureLoader(table_url, slots=["row"], where="row = 0")) == [0]


@pytest.mark.parametrize(("null", "expected"), [("drop", None), (-1, -1.0)])
def test_a_null_label_is_dropped_or_filled_as_told(
    table_url: str, null: Any, expected: float | None
) -> None:
    loader = FeatureLoader(
        table_url, slots=["row"], labels=[{"name": "ripe", "null": null}], batch_size=33
    )
    found = {
        row: label
        for b in loader
        for row, label in zip(b["row"].tolist(), b.labels["ripe"].tolist(), strict=True)
    }
    values = {row: expected if row % 10 == 0 else float(row % 3) for row in range(NUM_ROWS)}
    assert found == {row: value for row, value in values.items() if value is not None}
    counted = "null_labels_dropped" if expected is None else "null_labels_filled"
    assert loader.stats()[counted] == 28


def test_a_null_label_raises_unless_told_otherwise(table_url: str) -> None:
    with pytest.raises(
        DataFileError, match=r"part.parquet: label 'ripe' is null in 2 of 16 rows; .*null: drop"
    ):
        rows_of(FeatureLoader(table_url, slots=["row"], labels=["ripe"]))


def test_a_null_weight_raises(table_url: str) -> None:
    with pytest.raises(DataFileError, match=r"weight 'ripe' is null in 2 of 16 rows; table "):
        rows_of(FeatureLoader(table_url, slots=["row"], weight="ripe"))


def test_buckets_hold_every_sign_and_keep_missing_at_zero(tmp_path: Path) -> None:
    signs = [0, 1, 2, 9, 10, 2**53 + 1, 2**63 - 1]
    pq.write_table(
        pa.table({"row": signs, "tags": [[sign, 0] for sign in signs]}), tmp_path / "a.parquet"
    )
    slots = [{"name": "row", "buckets": 10}, {"name": "tags", "buckets": 10, "max_len": 1}]
    (batch,) = FeatureLoader(tmp_path, slots=slots)
    expected = [0 if sign == 0 else 1 + sign % 9 for sign in signs]
    assert batch["row"].tolist() == batch["tags"].values.tolist() == expected


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_ids_arrive_bit_for_bit(ids: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        pq.write_table(pa.table({"row": [*ids, None]}), f"{directory}/a.parquet")
        assert rows_of(FeatureLoader(directory, slots=["row"])) == [*ids, 0]


def test_a_slot_that_older_files_lack_is_missing_there(tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(
        pa.table({"new": [[7], []], "row": pa.array([3, 4], pa.int32())}), tmp_path / "b.parquet"
    )
    (batch,) = FeatureLoader(tmp_path, slots=["row", "new"])
    assert batch["row"].tolist() == [1, 2, 3, 4]
    assert [values.tolist() for values in batch["new"]] == [[0], [0], [7], []]


def test_no_tensor_warns_of_memory_that_cannot_be_written(table_url: str) -> None:
    batch = next(iter(FeatureLoader(table_url, slots=["*"], labels=["click"], batch_size=8)))
    assert isinstance(batch["row"], torch.Tensor)


def test_a_file_replaced_since_it_was_listed_is_told_of(table_url: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": [1, 2]}), tmp_path / "a.parquet")
    loader = FeatureLoader(tmp_path, slots=["row"])
    pq.write_table(pa.table({"row": [1, 2, 3]}), tmp_path / "a.parquet")
    with pytest.raises(
        DataFileError, match=r"a\.parquet: expected 2 rows, as the table says, found 3"
    ):
        rows_of(loader)


@pytest.mark.parametrize(
    "staging", [{"mode": "whole"}, {"mode": "whole", "ahead_files": 1}, {"mode": "ranges"}]
)
def test_staged_rows_are_the_same_rows(table_url: str, staging: Any) -> None:
    with FeatureLoader(
        table_url, slots=["row"], staging=staging, shuffle={"interleave": 2}, seed=5
    ) as loader:
        staged = rows_of(loader)
        assert loader.stats()["staging_num_staged"] == 5
    assert staged == rows_of(
        FeatureLoader(table_url, slots=["row"], shuffle={"interleave": 2}, seed=5)
    )


@pytest.mark.parametrize("staging", [None, {"mode": "ranges"}], ids=["staged", "ranges"])
def test_a_remote_table_is_staged(table_url: str, loopback: Any, staging: Any) -> None:
    with FeatureLoader(served(table_url, loopback), slots=["row"], staging=staging) as loader:
        assert rows_of(loader) == list(range(NUM_ROWS))
        assert loader.stats()["staging_num_staged"] == 5


def served(table_url: str, loopback: Any) -> Any:
    """The table with its files on the server."""
    for path in sorted(Path(table_url).rglob("*.parquet")):
        loopback.files["/" + str(path.relative_to(table_url))] = path.read_bytes()
    local = open_snapshot(table_url)
    files = tuple(replace(file, url=f"{loopback.url}/{file.path}") for file in local.data_files)
    return replace(local, url=loopback.url, version=None, data_files=FileList.of(files))


@pytest.fixture
def wide_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table of 40 slots in files of several MB; the hole limit, which follows the latency of a
    busy machine, is fixed.
    """
    monkeypatch.setattr("featstore.staging.remote._MAX_HOLE_BYTES", 16 << 10)
    random = np.random.default_rng(1)
    for number in range(3):
        columns = {f"s{i}": pa.array(random.integers(1, 1 << 60, 20_000)) for i in range(40)}
        rows = pa.array(range(number * 20_000, (number + 1) * 20_000), pa.int64())
        put_parquet(
            tmp_path / "t" / f"m={number}" / "a.parquet",
            {"row": rows, **columns},
            row_group_size=10_000,
        )
    return str(tmp_path / "t")


def test_by_ranges_only_what_is_selected_comes_and_a_wider_selection_adds_to_it(
    wide_url: str, tmp_path: Path, loopback: Any
) -> None:
    table, local = served(wide_url, loopback), dict[str, Any](seed=3, shuffle={"interleave": 2})
    staging = {"mode": "ranges", "directory": str(tmp_path / "cache")}
    all_bytes = sum(file.size_bytes for file in table.data_files)
    fetched_bytes = []
    for slots in (["row"], ["row", "s20"], ["s20"]):
        with FeatureLoader(table, slots=slots, staging=staging, **local) as loader:
            batches = {name: torch.cat([batch[name] for batch in loader]) for name in slots[-1:]}
            fetched_bytes.append(loader.stats()["staging_fetched_bytes"])
        expected = FeatureLoader(wide_url, slots=slots, **local)
        assert all(
            torch.equal(values, torch.cat([batch[name] for batch in expected]))
            for name, values in batches.items()
        )
    assert fetched_bytes[2] == 0
    assert 0 < sum(fetched_bytes) < all_bytes


def test_a_file_staged_for_other_slots_is_refused_and_never_read_as_zeros(
    wide_url: str, tmp_path: Path
) -> None:
    """As if the plan of ranges had forgotten a slot."""
    file = open_snapshot(wide_url).data_files[0]
    request = resolve(open_snapshot(wide_url).schema, slots=["row", "s7"])
    narrow = resolve(open_snapshot(wide_url).schema, slots=["row"])
    with Stager(Staging(mode="ranges"), staging_source(narrow.selection)) as stager:
        staged = next(stager.stage([StageItem(key=0, url=file.url, size_bytes=file.size_bytes)]))
        claim = Claim(
            index=0, split=Split(path=file.path, num_rows=file.num_rows), fence=1, start_row=0
        )
        assert staged.path is not None
        work = Work(
            claim=claim,
            partition=Partition(values={}, is_decided=True),
            files=(FileSource(path=file.path, source=staged.path, held=staged.held),),
        )
        order = RowOrder(seed=0, epoch=0, shuffle=None)
        SplitReader(work, request=narrow, order=order, stats=Stats()).close()
        with pytest.raises(
            DataFileError,
            match=r"m=0/a\.parquet: slot 's7': expected its bytes .* in the staged file",
        ):
            SplitReader(work, request=request, order=order, stats=Stats())


def test_ranges_of_files_that_exceed_the_budget_as_a_whole_are_read(
    wide_url: str, loopback: Any
) -> None:
    table = served(wide_url, loopback)
    budget_bytes = min(file.size_bytes for file in table.data_files) // 2
    staging = {"mode": "ranges", "budget_bytes": budget_bytes}
    with FeatureLoader(table, slots=["row"], staging=staging) as loader:
        assert sorted(rows_of(loader)) == list(range(60_000))
    with FeatureLoader(table, slots=["row"], staging=staging | {"mode": "auto"}) as loader:
        assert sorted(rows_of(loader)) == list(range(60_000))
    with pytest.raises(BudgetError, match="but file"):
        FeatureLoader(table, slots=["row"], staging=staging | {"mode": "whole"})


def test_a_budget_below_the_largest_file_is_refused_at_once(table_url: str) -> None:
    with pytest.raises(BudgetError, match=r"part\.parquet"):
        FeatureLoader(table_url, slots=["row"], staging={"mode": "whole", "budget_bytes": 100})


def test_as_many_files_are_open_at_once_as_the_budget_holds(
    table_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    largest = max(file.size_bytes for file in open_snapshot(table_url).data_files)
    staging = {"mode": "whole", "budget_bytes": largest + 1}
    assert len(rows_of(FeatureLoader(table_url, slots=["row"], staging=staging))) == NUM_ROWS
    with FeatureLoader(table_url, slots=["row"], staging=staging, shuffle=True) as loader:
        assert sorted(rows_of(loader)) == list(range(NUM_ROWS))
    assert "1 instead of 12 splits open at once, since the files of more do not fit" in caplog.text
    with pytest.raises(BudgetError, match=r"staging.budget_bytes is .* but file .* has"):
        FeatureLoader(
            table_url, slots=["row"], staging=staging | {"budget_bytes": largest - 1}, shuffle=True
        )


def test_a_staged_file_that_is_no_parquet_is_named(table_url: str, tmp_path: Path) -> None:
    snapshot = open_snapshot(table_url)
    (tmp_path / "bad.parquet").write_bytes(b"0" * snapshot.data_files[0].size_bytes)
    bad = type(snapshot.data_files[0])(
        **{**vars(snapshot.data_files[0]), "url": str(tmp_path / "bad.parquet")}
    )
    remote = type(snapshot)(
        url=snapshot.url, version=None, schema=snapshot.schema, data_files=FileList.of((bad,))
    )
    with (
        FeatureLoader(remote, slots=["row"], staging={"mode": "whole"}) as loader,
        pytest.raises(DataFileError, match=f"{bad.path}: expected a Parquet file"),
    ):
        rows_of(loader)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"order": "random"},
            "order: expected one of dynamic, static, rank, replay, found 'random'",
        ),
        ({"batch_size": 0}, "batch_size: expected an integer of 1 or more, found 0"),
        ({"num_epochs": 0}, "num_epochs: expected an integer of 1 or more"),
        ({"drop_last": 1}, "drop_last: expected true or false, found 1"),
        ({"debug": "no"}, "debug: expected true or false, found 'no'"),
        ({"progress": None}, "progress: expected true or false, found None"),
        ({"dispatch": {"in_step": 1}}, "in_step: expected auto, true or false, found 1"),
        ({"seed": -1}, "seed: expected an integer of 0 or more, found -1"),
        ({"memory_budget": "much"}, "memory_budget: expected a number of bytes"),
        ({"shuffle": {"rows": 1}}, "shuffle: unknown key 'rows'"),
        ({"dispatch": "nope://"}, "no dispatch store 'nope://'"),
        ({"staging": 3}, "staging: expected keys of Staging"),
    ],
)
def test_options_that_cannot_be_are_refused(table_url: str, arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FeatureLoader(table_url, slots=["row"], **arguments)


def test_a_directory_to_which_nothing_is_staged_is_told(
    table_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "featstore.loader"):
        FeatureLoader(table_url, slots=["row"], staging={"directory": str(tmp_path / "cache")})
        FeatureLoader(table_url, slots=["row"], staging={"mode": "whole"})
    [told] = [each.getMessage() for each in caplog.records]
    assert told.startswith(f"staging.directory {tmp_path}/cache: not used, since files of a local")


def test_a_loader_in_dynamic_order_has_no_length(table_url: str) -> None:
    loader = FeatureLoader(table_url, slots=["row"])
    assert bool(loader)
    with pytest.raises(TypeError, match="dynamic order has no len"):
        len(loader)
    with pytest.raises(ConfigError, match="epoch: expected an integer of 0 or more"):
        loader.set_epoch(-1)


@pytest.mark.parametrize(
    "staging", [None, {"mode": "whole", "ahead_files": 1}], ids=["in place", "staged"]
)
@pytest.mark.parametrize("budget", [1, "1GB"])
def test_a_break_ends_all_threads(table_url: str, staging: Any, budget: Any) -> None:
    loader = FeatureLoader(
        table_url, slots=["*"], batch_size=1, staging=staging, memory_budget=budget
    )
    for _ in range(3):
        for _ in loader:
            break
        assert our_threads() == set()
    loader.close()


def test_an_exception_in_the_loop_ends_all_threads(table_url: str) -> None:
    with pytest.raises(ZeroDivisionError):
        divide_by_rows(FeatureLoader(table_url, slots=["row"], batch_size=1))
    assert our_threads() == set()


def test_a_loader_made_in_the_loop_lives_until_its_end(table_url: str) -> None:
    total = 0
    for batch in FeatureLoader(table_url, slots=["row"], batch_size=100, staging={"mode": "whole"}):
        gc.collect()
        total += batch.num_rows
    assert total == NUM_ROWS


def test_a_closed_iteration_says_so(table_url: str) -> None:
    loader = FeatureLoader(table_url, slots=["row"], batch_size=8)
    first = iter(loader)
    next(first)
    next(iter(loader))
    with pytest.raises(StateError, match="this iteration was closed before its end"):
        next(first)
    loader.close()
    assert len(rows_of(loader)) == NUM_ROWS


def test_an_exhausted_iteration_stays_exhausted(table_url: str) -> None:
    batches = iter(FeatureLoader(table_url, slots=["row"], batch_size=1000))
    assert len(list(batches)) == 1
    assert list(batches) == []


def test_close_from_another_thread_ends_a_waiting_consumer(table_url: str) -> None:
    loader = FeatureLoader(table_url, slots=["row"], batch_size=8)
    batches = iter(loader)
    next(batches)
    run_together(loader.close)
    with pytest.raises(StateError, match="closed"):
        next(batches)


def test_the_interpreter_exits_with_a_loader_in_the_middle(table_url: str) -> None:
    program = (
        "from featstore.loader.feature_loader import FeatureLoader\nloader = "
        f"FeatureLoader({table_url!r}, slots=['*'], batch_size=1, memory_budget='4KB', "
        "staging={'mode': 'whole'})\nbatches = iter(loader)\nprint(next(batches).num_rows)\n"
    )
    done = run_python(program, warnings="error")
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_batch_outlives_its_loader(table_url: str) -> None:
    batch = next(iter(FeatureLoader(table_url, slots=["*"], batch_size=16)))
    gc.collect()
    assert batch["row"].tolist() == list(range(16))
    assert np.array_equal(batch["half"].numpy(), np.arange(16, dtype=np.float32) / 2)


def test_a_waiting_consumer_is_told_that_the_iteration_was_closed(
    tmp_path: Path, loopback: Any
) -> None:
    """The second half of the only file is sent after closing has begun, while the consumer waits
    for its first batch.
    """
    path = put_parquet(
        tmp_path / "a.parquet", {"row": pa.array(range(100), pa.int64())}, row_group_size=10
    )
    loopback.files["/a.parquet"] = path.read_bytes()
    loader = FeatureLoader(f"{loopback.url}/a.parquet", slots=["row"], batch_size=8, drop_last=True)
    loopback.gates["/a.parquet"] = threading.Event()
    loopback.half_sent.clear()

    def close() -> None:
        assert loopback.half_sent.wait(60)
        run = source_of(loader).iteration
        assert run is not None
        with beside(loader.close):
            while not run.delivery.is_closed:
                pass
            loopback.gates["/a.parquet"].set()

    with beside(close), pytest.raises(StateError, match="closed before its end"):
        next(iter(loader))
    assert loader.state_dict()["complete"] == []


def test_a_file_without_row_groups_is_read_as_no_rows(tmp_path: Path) -> None:
    schema = pa.schema([("row", pa.int64()), ("tags", pa.list_(pa.int64()))])
    pq.ParquetWriter(tmp_path / "a.parquet", schema).close()
    pq.write_table(
        pa.table({"row": [1, 2], "tags": [[1], []]}, schema=schema), tmp_path / "b.parquet"
    )
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 0
    for shuffle in (None, {"window_rows": 10}):
        loader = FeatureLoader(str(tmp_path), slots=["*"], batch_size=8, shuffle=shuffle)
        assert sorted(row for batch in loader for row in batch["row"].tolist()) == [1, 2]


def test_a_file_replaced_by_one_of_equal_size_is_staged_anew(tmp_path: Path) -> None:
    table, cache = tmp_path / "table", str(tmp_path / "cache")
    table.mkdir()

    def delivered(values: Any) -> Any:
        pq.write_table(pa.table({"row": pa.array(values, pa.int64())}), table / "a.parquet")
        options = {"mode": "whole", "directory": cache}
        with FeatureLoader(str(table), slots=["row"], staging=options) as loader:
            return [row for batch in loader for row in batch["row"].tolist()], (
                table / "a.parquet"
            ).stat().st_size

    (first, first_bytes), (second, second_bytes) = delivered([1, 2, 3]), delivered([7, 8, 9])
    assert first_bytes == second_bytes
    assert (first, second) == ([1, 2, 3], [7, 8, 9])


def test_a_lost_store_leaves_no_thread_behind(table_url: str, tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    dispatch = {"store": f"sqlite://{store}", "run_id": "lost"}
    loader = FeatureLoader(
        table_url, slots=["row"], batch_size=8, dispatch=dispatch, memory_budget=1
    )
    batches = iter(loader)
    next(batches)
    with sqlite3.connect(store) as connection:
        connection.execute("drop table entries")
    connection.close()
    with pytest.raises(DispatchError):
        for _ in batches:
            pass
    loader.close()
    assert not our_threads()


def test_a_delivered_batch_is_all_that_is_kept_after_a_break(table_url: str) -> None:
    loader = FeatureLoader(table_url, slots=["row"], batch_size=8)
    for batch in loader:
        columns: Any = batch.columns
        block = weakref.ref(next(iter(columns.blocks[0].columns.values())))
        del columns
        break
    del batch
    gc.collect()
    assert block() is None


def test_slots_are_no_extras(tmp_path: Path) -> None:
    spec: Any = {
        "spec": 1,
        "inputs": {"tags": "list<string>"},
        "slots": [{"slot": 1, "name": "tags", "op": "hash", "of": "tags"}],
    }
    pq.write_table(pa.table({"tags": [["a"], []]}), tmp_path / "raw.parquet")
    extract(spec, tmp_path / "raw.parquet", tmp_path / "table")
    with pytest.raises(ConfigError, match="extras: 'tags' is a slot: select it under slots"):
        FeatureLoader(tmp_path / "table", slots=["tags"], extras=["tags"])


def test_the_end_of_an_epoch_says_what_it_waited_for(
    table_url: str, loopback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "featstore.loader")
    with FeatureLoader(
        served(table_url, loopback), slots=["row"], staging={"mode": "whole"}, num_epochs=2
    ) as loader:
        assert loader.verdict() == ""
        rows_of(loader)
        assert loader.verdict().startswith("epoch 1: ")
        assert loader.verdict().endswith("would help")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "epoch 0",
        "epoch 1",
    ]
