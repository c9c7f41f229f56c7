"""Candidates of a pool: the same for a row whatever reads it, never the row's own item, with the
probabilities that `log_q` says.
"""

import contextlib
import json
import math
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

import featstore
from featstore.base.errors import (
    BudgetError,
    ConfigError,
    MissingValueError,
    SelectionError,
    StateError,
)
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.train_check import TrainCheck, check
from featstore.spec.parse import load_spec
from featstore.tensors.batch import Batch
from featstore.tensors.numpy_batch import JaggedArray, numpy_batch
from tests.loader.conftest import merged_state
from tests.parquet_files import put_parquet

NUM_ITEMS, ROWS_PER_FILE = 50, (70, 45, 101, 64)
NUM_ROWS = sum(ROWS_PER_FILE)
PER_ROW = 5


def items(num_items: int = NUM_ITEMS, **columns: Any) -> pa.Table:
    """Every other column follows from the item, and its popularity is its square."""
    item = np.arange(1, num_items + 1)
    found = {
        "item_id": pa.array(item, pa.int64()),
        "price": pa.array(item / 2, pa.float32()),
        "pair": pa.array([[i, -i] for i in item.tolist()], pa.list_(pa.int64(), 2)),
        "tags": pa.array([list(range(i % 4)) for i in item.tolist()], pa.list_(pa.int64())),
        "popularity": pa.array(item * item, pa.int64()),
    }
    return pa.table(found | columns)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows whose own items are those of the pool, and a few that are in no pool or missing."""
    root, first = tmp_path_factory.mktemp("rows"), 0
    for number, num_rows in enumerate(ROWS_PER_FILE):
        row = np.arange(first, first + num_rows)
        columns = {
            "row": pa.array(row, pa.int64()),
            "item_id": pa.array(row % (NUM_ITEMS + 3), pa.int64()),
            "tags": pa.array([list(range(r % 3)) for r in row.tolist()], pa.list_(pa.int64())),
            "click": pa.array(row % 2, pa.int64()),
        }
        put_parquet(root / f"{number}.parquet", columns, row_group_size=16)
        first += num_rows
    return str(root)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> str:
    """In two files."""
    root = tmp_path_factory.mktemp("pool")
    for number in range(2):
        put_parquet(root / f"{number}.parquet", items().slice(number * 20, (20, 30)[number]))
    return str(root)


def loader_of(table: str, pool: Any, **options: Any) -> FeatureLoader:
    given = {"pool": pool, "per_row": PER_ROW, **options.pop("candidates", {})}
    known: dict[str, Any] = {"slots": ["row", "item_id"], "labels": ["click"], "batch_size": 23}
    return FeatureLoader(table, candidates=given, **{"seed": 3, **known, **options})


Drawn = dict[int, tuple[list[int], list[float]]]


def drawn(batches: Iterable[Batch]) -> Drawn:
    """The items and their `log_q` of each row, with every slot checked to be the item's own."""
    found: Drawn = {}
    for batch in batches:
        assert batch.log_q is not None
        ids = batch.candidates["item_id"]
        assert torch.equal(batch.candidates["price"], ids / 2)
        assert torch.equal(batch.candidates["pair"], torch.stack([ids, -ids], 2))
        tags = batch.candidates["tags"]
        assert tags.lengths().tolist() == [i % 4 for i in ids.flatten().tolist()]
        assert [list_.tolist() for list_ in tags] == [
            list(range(i % 4)) for i in ids.flatten().tolist()
        ]
        for row, of_row, log_q in zip(
            batch["row"].tolist(), ids.tolist(), batch.log_q.tolist(), strict=True
        ):
            assert row not in found
            found[row] = of_row, log_q
    return found


@pytest.fixture(scope="module")
def expected(table: str, pool: str) -> Drawn:
    with loader_of(table, pool) as loader:
        found = drawn(loader)
    assert sorted(found) == list(range(NUM_ROWS))
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 7},
        {"shuffle": True, "batch_size": 64},
        {"shuffle": {"window_rows": 32, "interleave": 3}, "batch_size": 300},
        {"order": "static"},
        {"memory_budget": 60_000, "batch_size": 16},
        {"where": "click = 0 or click = 1"},
        {"transform": lambda batch: {"half": batch["row"] / 2}},
        {"debug": True},
    ],
    ids=" ".join,
)
def test_a_row_has_the_same_candidates_however_it_is_read(
    table: str, pool: str, expected: Drawn, options: dict[str, Any]
) -> None:
    with loader_of(table, pool, **options) as loader:
        found = drawn(loader)
    assert found == expected


def test_rows_that_pass_a_filter_keep_their_candidates(
    table: str, pool: str, expected: Drawn
) -> None:
    for shuffle in (None, True):
        with loader_of(table, pool, where="click = 1 and row > 40", shuffle=shuffle) as loader:
            found = drawn(loader)
        rows = [row for row in range(41, NUM_ROWS) if row % 2]
        assert found == {row: expected[row] for row in rows}


def test_decoded_columns_have_the_same_candidates(
    table: str, pool: str, expected: Drawn, tmp_path: Path
) -> None:
    staging = {"directory": str(tmp_path), "decoded": True}
    for shuffle in (None, True):  # The second one reads what the first has decoded.
        with loader_of(table, pool, staging=staging, shuffle=shuffle) as loader:
            assert drawn(loader) == expected


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_draw_as_one_process_does(
    table: str, pool: str, expected: Drawn, context: str
) -> None:
    with loader_of(table, pool) as loader:
        workers = DataLoader(
            loader, batch_size=None, num_workers=2, multiprocessing_context=context
        )
        assert drawn(workers) == expected


def test_a_resumed_epoch_draws_as_the_one_before(table: str, pool: str, expected: Drawn) -> None:
    loader = loader_of(table, pool, shuffle=True)
    batches = iter(loader)
    found = drawn(next(batches) for _ in range(4))
    state = merged_state([loader])
    with loader_of(table, pool, shuffle=True, batch_size=9) as resumed:
        resumed.load_state_dict(state)
        rest = drawn(resumed)
    assert not set(found) & set(rest)
    assert found | rest == expected


def test_a_state_is_of_the_same_pool_and_draws(table: str, pool: str, tmp_path: Path) -> None:
    put_parquet(tmp_path / "0.parquet", items(49))
    state = json.loads(json.dumps(loader_of(table, pool).state_dict()))
    for other in (
        loader_of(table, str(tmp_path)),
        loader_of(table, pool, candidates={"by": "popularity"}),
        loader_of(table, pool, candidates={"per_row": 4}),
        FeatureLoader(table, slots=["row", "item_id"], labels=["click"], batch_size=23, seed=3),
    ):
        with pytest.raises(StateError, match=r"another selection: .*candidates or their pool"):
            other.load_state_dict(state)


def test_a_state_continues_with_the_version_of_its_pool(table: str, tmp_path: Path) -> None:
    url = str(tmp_path / "items")
    deltalake.write_deltalake(url, items(10))
    state = loader_of(table, url).state_dict()
    deltalake.write_deltalake(url, items(60), mode="overwrite")
    with pytest.raises(StateError, match="candidates or their pool"):
        loader_of(table, url).load_state_dict(state)
    with loader_of(table, url, candidates={"version": 0}) as loader:
        loader.load_state_dict(state)
        ids = [batch.candidates["item_id"].numpy() for batch in loader]
        assert np.unique(np.concatenate(ids)).tolist() == list(range(1, 11))
    with pytest.raises(ConfigError, match="found an open table, which has a version"):
        loader_of(table, featstore.open_table(url), candidates={"version": 0})


def test_each_epoch_and_each_seed_draws_anew(table: str, pool: str, expected: Drawn) -> None:
    with loader_of(table, pool) as loader:
        first, second = drawn(loader), drawn(loader)
    assert first == expected
    assert sum(second[row][0] == of_row[0] for row, of_row in expected.items()) < 3
    with loader_of(table, pool, seed=4) as loader:
        other = drawn(loader)
    assert sum(other[row][0] == of_row[0] for row, of_row in expected.items()) < 3


def test_no_row_gets_its_own_item_and_log_q_is_the_probability_without_it(
    table: str, pool: str
) -> None:
    popularity = np.arange(NUM_ITEMS + 1.0) ** 2
    options = {"candidates": {"by": "popularity", "per_row": 40}}
    counts = np.zeros(NUM_ITEMS + 1)
    expected_counts = np.zeros(NUM_ITEMS + 1)
    with loader_of(table, pool, **options, num_epochs=4) as loader:
        for batch in loader:
            own, ids = batch["item_id"].numpy(), batch.candidates["item_id"].numpy()
            assert not (ids == own[:, None]).any()
            is_known = own <= NUM_ITEMS
            left = popularity.sum() - np.where(is_known, popularity[own * is_known], 0)
            assert batch.log_q is not None
            assert batch.log_q.dtype == torch.float32
            np.testing.assert_allclose(
                batch.log_q.numpy(), np.log(popularity[ids] / left[:, None]), atol=1e-5
            )
            np.add.at(counts, ids, 1)
            chances = popularity / left[:, None]
            chances[np.flatnonzero(is_known), own[is_known]] = 0
            expected_counts += 40 * chances.sum(axis=0)
    assert counts[0] == 0
    chi_square = ((counts - expected_counts)[1:] ** 2 / expected_counts[1:]).sum()
    # 49 degrees of freedom: above 85.4 in one of a thousand seeds, and this one is fixed.
    assert chi_square < 85.4


def test_uniform_draws_are_uniform(table: str, pool: str) -> None:
    counts = np.zeros(NUM_ITEMS + 1)
    with loader_of(table, pool, candidates={"per_row": 40}, num_epochs=4) as loader:
        for batch in loader:
            own, ids = batch["item_id"].numpy(), batch.candidates["item_id"].numpy()
            others = np.where((own > 0) & (own <= NUM_ITEMS), NUM_ITEMS - 1, NUM_ITEMS)
            assert batch.log_q is not None
            np.testing.assert_allclose(
                batch.log_q.numpy(), -np.log(np.repeat(others[:, None], 40, 1)), atol=1e-5
            )
            np.add.at(counts, ids, 1)
    found = counts[1:]
    assert ((found - found.mean()) ** 2 / found.mean()).sum() < 85.4


def test_the_second_axis_follows_the_rows(table: str, pool: str) -> None:
    with loader_of(table, pool, slots=["row", "item_id", "tags"]) as loader:
        batches = [batch.clone() for batch in loader]
    whole = drawn(batches)
    first = batches[0]
    parts = [first[:5], first[5:6], first[6:]]
    assert drawn(parts) == drawn([first])
    assert drawn([Batch.concat(batches)]) == whole
    assert drawn([Batch.concat(batches)[40:90]]) == {
        row: whole[row] for row in Batch.concat(batches)["row"].tolist()[40:90]
    }
    assert drawn([pickle.loads(pickle.dumps(first[3:9]))]) == drawn([first[3:9]])
    assert drawn([first.to("cpu")]) == drawn([first])
    assert first.candidates["pair"].shape == (23, PER_ROW, 2)
    assert first.candidates["tags"].offsets.shape == (23 * PER_ROW + 1,)
    arrays = numpy_batch(first)
    tags = arrays.candidates["tags"]
    assert isinstance(tags, JaggedArray)
    assert tags.offsets.tolist() == first.candidates["tags"].offsets.tolist()
    assert arrays.log_q is not None
    assert first.log_q is not None
    assert arrays.log_q.tolist() == first.log_q.tolist()
    assert first.slots == ("row", "item_id", "tags")
    assert set(first.candidates) == {"item_id", "price", "pair", "tags", "popularity"}


def test_without_candidates_a_batch_has_none(table: str) -> None:
    batch = next(iter(FeatureLoader(table, slots=["row"])))
    assert batch.candidates == {}
    assert batch.log_q is None


def test_slots_of_the_pool_have_the_options_of_those_of_the_rows(table: str, pool: str) -> None:
    slots = ["row", {"name": "item_id", "buckets": 11}, {"name": "tags", "pad": 2}]
    with loader_of(table, pool, slots=slots) as loader:
        batch = next(iter(loader))
    assert int(batch.candidates["item_id"].max()) < 11
    assert batch.candidates["tags"].shape == (23, PER_ROW, 2)
    chosen = {"slots": [{"name": "tags", "max_len": 1}, "item_id"], "where": "popularity > 100"}
    with loader_of(table, pool, candidates=chosen) as loader:
        batch = next(iter(loader))
    assert set(batch.candidates) == {"tags", "item_id"}
    assert int(batch.candidates["item_id"].min()) > 10
    assert int(batch.candidates["tags"].lengths().max()) == 1


def test_the_own_item_is_told_by_its_id_and_not_by_its_bucket(table: str, pool: str) -> None:
    buckets = [{"name": "item_id", "buckets": 3}, "row"]
    with (
        loader_of(table, pool) as signs,
        loader_of(table, pool, slots=buckets) as bucketed,
        loader_of(table, pool, slots=["row"]) as alone,
    ):
        for batch, of_buckets, only in zip(signs, bucketed, alone, strict=True):
            ids = batch.candidates["item_id"]
            assert torch.equal(of_buckets.candidates["item_id"], 1 + ids % 2)
            assert torch.equal(only.candidates["item_id"], ids)


def test_a_mixture_draws_for_each_of_its_tables(table: str, pool: str, expected: Drawn) -> None:
    config = {
        "tables": [{"table": table, "where": "row < 100"}, {"table": table, "where": "row >= 100"}],
        "slots": ["row", "item_id"],
        "seed": 3,
        "batch_size": 16,
        "candidates": {"pool": pool, "per_row": PER_ROW},
    }
    found = drawn(FeatureLoader.from_config(config))
    assert len(found) > 100
    assert found == {row: expected[row] for row in found}


@pytest.mark.parametrize(
    ("rows", "candidates", "error", "match"),
    [
        (items(0), {}, ConfigError, "at least two items, so that .* found 0"),
        (items(1), {}, ConfigError, "at least two items, so that .* found 1"),
        (
            items(2, popularity=[0, 7]),
            {"by": "popularity"},
            ConfigError,
            "at least two items with a 'popularity' above 0, so that .* found 1",
        ),
        (
            items(2, popularity=[1e30, 1e-30]),
            {"by": "popularity"},
            ConfigError,
            "'popularity': expected at least two items with a chance",
        ),
        (
            items(3, popularity=[1.0, math.inf, 2.0]),
            {"by": "popularity"},
            ConfigError,
            r"candidates.pool .*'popularity'\[1\]: expected a finite number of at least 0, found inf",
        ),
        (
            items(3, popularity=[1.0, math.nan, 2.0]),
            {"by": "popularity"},
            MissingValueError,
            "'popularity' is null in 1 of 3 rows",
        ),
        (
            items(3, popularity=[1, 2, -1]),
            {"by": "popularity"},
            ConfigError,
            r"'popularity'\[2\]: expected a finite number of at least 0, found -1",
        ),
        (
            items(2, popularity=pa.array([1, None], pa.int64())),
            {"by": "popularity"},
            MissingValueError,
            "candidates.pool .*'popularity' is null in 1 of 2 rows",
        ),
        (
            items(3, item_id=[1, 2, 2]),
            {},
            ConfigError,
            "one row of each item, found 1 of 3 rows with the id of another: .*candidates.where",
        ),
        (
            items(3, item_id=[1, 0, 2]),
            {},
            ConfigError,
            "an id other than 0 of each item, found 0 or none in 1 of 3 rows",
        ),
        (
            items(3),
            {"by": "popularty"},
            SelectionError,
            "candidates: by: no column 'popularty' .*'popularity'\\?; there",
        ),
        (
            items(3),
            {"by": "tags"},
            ConfigError,
            "candidates: by: 'tags': expected a scalar numeric",
        ),
        (
            items(3),
            {"id": "row"},
            SelectionError,
            "candidates.id: .* of the pool that .*, found 'row'",
        ),
        (items(3), {"id": "price"}, SelectionError, "'price'"),
        (items(3), {"id": "tags"}, ConfigError, "candidates.id: 'tags' of the table: expected a"),
        (items(3), {"per_row": 0}, ConfigError, "candidates.per_row: expected an integer of 1"),
        (items(3), {"id": 3}, ConfigError, "candidates.id"),
        (items(3), {"perrow": 1}, ConfigError, "candidates: unknown key 'perrow'.*per_row"),
        (items(3), {"slots": ["pice"]}, SelectionError, "candidates: no slot matches 'pice'"),
        (items(3), {"where": "item_id = 7 and"}, SelectionError, "candidates: where"),
        (items(3), {"version": 1}, Exception, "expected a Delta table to open version 1"),
    ],
)
def test_a_pool_that_cannot_be_drawn_of_is_told(
    table: str, tmp_path: Path, rows: pa.Table, candidates: Any, error: Any, match: str
) -> None:
    put_parquet(tmp_path / "0.parquet", rows)
    with pytest.raises(error, match=match):
        loader_of(table, str(tmp_path), candidates=candidates)


def test_a_pool_beyond_the_memory_budget_is_told(table: str, tmp_path: Path) -> None:
    put_parquet(tmp_path / "0.parquet", items(20_000))
    with pytest.raises(BudgetError, match="a pool of at most 300,000 bytes, as much as memory_bud"):
        loader_of(table, str(tmp_path), memory_budget=300_000)


def test_no_feed_of_tensorflow(table: str, pool: str) -> None:
    with pytest.raises(ConfigError, match="and without candidates"):
        loader_of(table, pool).to_tf()


def test_the_check_of_a_config_tells_the_memory_of_the_pool(
    table: str, pool: str, tmp_path: Path
) -> None:
    config = {
        "table": table,
        "slots": ["row"],
        "candidates": {"pool": pool, "per_row": 7, "by": "popularity"},
    }
    (tmp_path / "train.yaml").write_text(json.dumps(config))
    found = check(str(tmp_path / "train.yaml"), head=2)
    assert isinstance(found, TrainCheck)
    # `item_id`, `price`, `pair`, `popularity`, 75 tags and their offsets. To draw by: the sums of
    # weights, where to begin in them, logarithms, ids and rows.
    slots = NUM_ITEMS * (8 + 4 + 16 + 8) + 8 * (75 + NUM_ITEMS + 1)
    assert found.candidates == {
        "per_row": 7,
        "num_items": NUM_ITEMS,
        "pool_bytes": slots + 8 * (NUM_ITEMS + 5) + NUM_ITEMS * (4 + 8 + 8),
    }
    drawn = {each.name: each for each in found.columns if each.role == "candidate"}
    assert (drawn["item_id"].batch, drawn["log_q"].batch) == ("[B, 7]", "[B, 7]")
    assert (drawn["pair"].batch, drawn["tags"].batch) == ("[B, 7, 2]", "jagged")
    with FeatureLoader.from_config(tmp_path / "train.yaml") as loader:
        batch = next(iter(loader))
    assert set(drawn) == {*batch.candidates, "log_q"}
    for name, tensor in [*batch.candidates.items(), ("log_q", batch.log_q)]:
        if not isinstance(tensor, torch.Tensor):
            continue
        assert drawn[name].batch_bytes_per_row == tensor.nbytes / len(batch)
        assert drawn[name].dtype == str(tensor.dtype).removeprefix("torch.")
    assert "candidates: 7 of 50 items for each row; the pool takes 4.248 kB" in found.text()
    assert found.head is not None
    for name in ("item_id", "tags"):
        assert [len(of_row) for of_row in found.head[f"candidates {name}"]] == [7, 7]


def test_loaders_that_name_items_by_other_slots_share_no_pool(tmp_path: Path) -> None:
    other_ids = pa.array(range(NUM_ITEMS, 0, -1), pa.int64())
    put_parquet(tmp_path / "pool/0.parquet", items(alt_id=other_ids))
    row = np.arange(300)
    columns = {"row": row, "item_id": row % NUM_ITEMS + 1, "alt_id": row % 7 + 1, "click": row % 2}
    rows = {name: pa.array(values, pa.int64()) for name, values in columns.items()}
    put_parquet(tmp_path / "rows/0.parquet", rows)
    with contextlib.ExitStack() as alive:
        for name in ("item_id", "alt_id"):
            loader = alive.enter_context(
                loader_of(
                    str(tmp_path / "rows"),
                    str(tmp_path / "pool"),
                    candidates={"id": name},
                    slots=["row", "item_id", "alt_id"],
                )
            )
            for batch in loader:
                assert not (batch.candidates[name] == batch[name][:, None]).any()


def test_a_slot_may_be_a_popularity_a_weight_and_a_label(tmp_path: Path) -> None:
    raw = {"item": pa.array(["a", "b", "c"]), "price": pa.array([1.0, 2.0, None])}
    put_parquet(tmp_path / "raw.parquet", raw)
    slots = [
        {"slot": 1, "name": "item_id", "op": "hash", "of": "item"},
        {"slot": 2, "name": "cost", "op": "identity", "of": "price", "default": 4.0},
    ]
    spec: Any = {"spec": 1, "inputs": {"item": "string", "price": "double"}, "slots": slots}
    featstore.extract(
        load_spec(spec), tmp_path / "raw.parquet", tmp_path / "table", no_partition=True
    )
    table = str(tmp_path / "table")
    options: dict[str, Any] = {"slots": ["item_id"], "labels": ["cost"], "weight": "cost"}
    with loader_of(table, table, candidates={"by": "cost"}, **options) as loader:
        (batch,) = loader
    assert batch.weight is not None
    assert batch.log_q is not None
    assert batch.labels["cost"].tolist() == batch.weight.tolist() == [1, 2, 4]
    drawn_costs = batch.candidates["cost"]
    expected = torch.log(drawn_costs / (7 - batch.labels["cost"][:, None]))
    assert torch.allclose(batch.log_q, expected)
