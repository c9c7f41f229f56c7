"""Samples are the rows that the loader gives, by any index, sampler and process."""

import io
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)

import featstore
from featstore.base.errors import (
    ConfigError,
    DataFileError,
    MissingValueError,
    SelectionError,
    StaleGroupError,
    StateError,
)
from featstore.base.schema import ROLE, Role
from featstore.loader.feature_loader import FeatureLoader
from featstore.samples.sample_dataset import SampleDataset
from featstore.tensors.batch import Batch
from featstore.tensors.columns import Jagged
from featstore.tensors.shared_batches import SharedColumns
from tests.loader.conftest import NUM_ROWS, rows_of
from tests.parquet_files import put_parquet
from tests.stale_tables import make, rewrite

OPTIONS: list[dict[str, Any]] = [
    {},
    {"labels": ["click", {"name": "ripe", "null": 0}], "extras": ["note", "dt"]},
    {"labels": [{"name": "ripe", "null": "drop"}], "weight": "half_weight"},
    {"slots": [{"name": "row", "buckets": 7}, {"name": "tags", "pad": 3}, "pair"]},
    {
        "slots": [
            {"name": "tags", "max_len": 2, "buckets": 5},
            {"name": "half", "dtype": "bfloat16"},
        ]
    },
    {"where": "row % 3 = 1 and dt > '2026-11-01'", "extras": ["note"]},
    {"where": "dt in ('2026-11-01', '2026-11-04')", "labels": ["click"]},
    {"where": "half > 20 and note <> 'n50'", "slots": ["pair"], "extras": ["dt"]},
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"directory": str(tmp_path_factory.mktemp("cache"))}


def same(found: Batch, expected: Batch) -> None:
    """Both batches have the same columns and values, and the same extras."""
    assert [key for key, _ in found.items()] == [key for key, _ in expected.items()]
    for (key, column), (_, other) in zip(found.items(), expected.items(), strict=True):
        if isinstance(other, Jagged):
            assert isinstance(column, Jagged)
            assert torch.equal(column.offsets, other.offsets), key
            column, other = column.values, other.values
        assert isinstance(column, torch.Tensor)
        assert column.dtype == other.dtype, key
        assert torch.equal(torch.nan_to_num(column, -7), torch.nan_to_num(other, -7)), key
    assert found.extras.equals(expected.extras)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_samples_in_order_are_what_the_loader_gives(
    table_url: str, cache: dict[str, str], options: dict[str, Any]
) -> None:
    options = {"slots": ["*"]} | options
    if options.get("weight"):
        options["weight"] = "cost"
        table_url = _with_weights(Path(cache["directory"]).parent / "weighed")
    dataset = SampleDataset(table_url, **options, staging=cache)
    [expected] = FeatureLoader(table_url, **options, batch_size=10_000)
    assert len(dataset) == expected.num_rows
    same(dataset[:], expected)
    for index in (0, -1, len(dataset) // 2):
        [one] = dataset[index]["row"].tolist() if "row" in dataset[:] else [None]
        assert one is None or one == expected["row"][index]


def _with_weights(root: Path) -> str:
    rows = {"row": pa.array(range(40), pa.int64()), "cost": np.arange(40, dtype=np.float32)}
    ripe = pa.array([None if row % 4 == 0 else row for row in range(40)], pa.float64())
    put_parquet(root / "a.parquet", {**rows, "ripe": ripe}, row_group_size=9)
    return str(root)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=50,
)
@given(indices=st.lists(st.integers(-NUM_ROWS, NUM_ROWS - 1), max_size=40))
def test_any_indices_give_their_rows_in_that_order(
    dataset: SampleDataset, indices: list[int]
) -> None:
    expected = [index % NUM_ROWS for index in indices]
    for given_as in (
        indices,
        np.array(indices, np.int64),
        torch.tensor(indices, dtype=torch.int64),
    ):
        batch = dataset[given_as]
        assert batch["row"].tolist() == expected
        assert batch["half"].tolist() == [row / 2 for row in expected]
        assert batch["pair"].tolist() == [[row, -row] for row in expected]
        assert [tags.tolist() for tags in batch["tags"]] == [
            [0] if row % 7 == 3 else list(range(1, row % 5 + 1)) for row in expected
        ]
        assert batch.labels["click"].tolist() == [row % 2 for row in expected]
        assert batch.extras.column("note").to_pylist() == [f"n{row}" for row in expected]
        assert batch.num_rows == len(batch.extras) == len(expected)


@given(cut=st.slices(NUM_ROWS))
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=30,
)
def test_slices_are_those_of_a_list(dataset: SampleDataset, cut: slice) -> None:
    assert dataset[cut]["row"].tolist() == list(range(NUM_ROWS))[cut]


def test_a_batch_outlives_the_batches_after_it(dataset: SampleDataset) -> None:
    kept = [dataset[first : first + 20] for first in range(0, 200, 20)]
    assert rows_of(kept) == list(range(200))


@pytest.mark.parametrize("index", [NUM_ROWS, -NUM_ROWS - 1, [0, NUM_ROWS]])
def test_an_index_beyond_the_samples_is_an_index_error(dataset: SampleDataset, index: Any) -> None:
    with pytest.raises(IndexError, match=f"out of range: expected -{NUM_ROWS} to {NUM_ROWS - 1}"):
        dataset[index]


@pytest.mark.parametrize("index", ["a", 1.5, [True, False], None, [[1, 2]], {"row": 1}])
def test_what_is_no_index_is_an_error(dataset: SampleDataset, index: Any) -> None:
    with pytest.raises(IndexError, match="expected an integer, a slice or a list of integers"):
        dataset[index]


def test_samples_are_found_by_their_ids(dataset: SampleDataset) -> None:
    assert dataset.ids.to_pylist() == [f"n{row}" for row in range(NUM_ROWS)]
    assert dataset.by_id(["n17", "n0", "n279", "n17"])["row"].tolist() == [17, 0, 279, 17]
    assert dataset.by_id([]).num_rows == 0


def test_ids_of_filtered_samples_are_those_of_rows_that_pass(
    table_url: str, cache: dict[str, str]
) -> None:
    dataset = SampleDataset(
        table_url, slots=["row"], where="row % 50 = 3", id_column="note", staging=cache
    )
    assert dataset.ids.to_pylist() == ["n3", "n53", "n103", "n153", "n203", "n253"]
    assert dataset.by_id(["n253", "n53"])["row"].tolist() == [253, 53]
    with pytest.raises(KeyError, match="id_column 'note': no sample has 'n4', 'x', 'y', nor 1 oth"):
        dataset.by_id(["n3", "n4", "x", "y", None])


def test_ids_of_another_type_are_a_type_error(dataset: SampleDataset) -> None:
    with pytest.raises(TypeError, match="expected ids of type string"):
        dataset.by_id([17])


def test_ids_are_integers_or_large_texts_and_never_rounded(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("row", pa.int64()),
            pa.field("number", pa.uint64(), metadata={ROLE: Role.KEPT.encode()}),
            ("key", pa.large_string()),
        ]
    )
    rows = {"row": [1, 2, 3], "number": [7, 8, 2**64 - 1], "key": ["a", "b", "c"]}
    put_parquet(tmp_path / "t" / "a.parquet", pa.table(rows, schema))
    options: dict[str, Any] = {"slots": ["row"], "staging": {"directory": str(tmp_path / "cache")}}
    with SampleDataset(str(tmp_path / "t"), id_column="key", **options) as dataset:
        assert dataset.by_id(["c", "a"])["row"].tolist() == [3, 1]
    with SampleDataset(str(tmp_path / "t"), id_column="number", **options) as dataset:
        assert dataset.by_id([2**64 - 1, 7])["row"].tolist() == [3, 1]
        for wrong in (7.9, 2**70):
            with pytest.raises(TypeError, match="expected ids of type uint64"):
                dataset.by_id([wrong])


def test_nanoseconds_are_no_ids(tmp_path: Path) -> None:
    when = pa.array([1_001, 1_002], pa.timestamp("ns"))
    put_parquet(tmp_path / "t" / "a.parquet", {"row": [1, 2], "when": when})
    with pytest.raises(ConfigError, match=r"'when': .* timestamps without nanoseconds .*\[ns\]"):
        SampleDataset(str(tmp_path / "t"), slots=["row"], id_column="when")


def test_an_id_that_two_rows_have_is_an_error(tmp_path: Path) -> None:
    put_parquet(tmp_path / "t" / "a.parquet", {"row": [1, 2, 3], "key": ["a", "b", "a"]})
    dataset = SampleDataset(str(tmp_path / "t"), slots=["row"], id_column="key")
    with pytest.raises(DataFileError, match="expected each id once, found 'a' in samples 0 and 2"):
        dataset.by_id(["a"])


def test_ids_need_a_column_of_ids(table_url: str, cache: dict[str, str]) -> None:
    dataset = SampleDataset(table_url, slots=["row"], staging=cache)
    with pytest.raises(ConfigError, match="id_column: expected the column of ids"):
        _ = dataset.ids
    with pytest.raises(SelectionError, match=r"no column 'nite' .* did you mean 'note'"):
        SampleDataset(table_url, slots=["row"], id_column="nite", staging=cache)
    with pytest.raises(ConfigError, match="that is not a slot, found a slot"):
        SampleDataset(table_url, slots=["row"], id_column="row", staging=cache)


def test_a_null_label_is_an_error_before_the_first_sample(
    table_url: str, cache: dict[str, str]
) -> None:
    with pytest.raises(MissingValueError, match="label 'ripe' is null in 7 of 70 rows"):
        SampleDataset(table_url, slots=["row"], labels=["ripe"], staging=cache)
    kept = SampleDataset(
        table_url, slots=["row"], labels=["ripe"], where="row % 10 <> 0", staging=cache
    )
    assert len(kept) == NUM_ROWS * 9 // 10


def test_a_table_without_rows_has_no_samples(tmp_path: Path) -> None:
    put_parquet(tmp_path / "t" / "a.parquet", {"row": pa.array([], pa.int64())})
    with SampleDataset(str(tmp_path / "t"), slots=["row"]) as dataset:
        assert len(dataset) == 0
        assert dataset[:]["row"].tolist() == []


def samplers(dataset: SampleDataset) -> Iterator[tuple[Sampler[int], set[int]]]:
    everything = set(range(NUM_ROWS))
    yield RandomSampler(dataset), everything
    yield SequentialSampler(dataset), everything
    yield (
        WeightedRandomSampler([1.0] * 100 + [0.0] * 180, 50, replacement=False),
        set(range(100)),
    )
    yield DistributedSampler(dataset, num_replicas=2, rank=1, shuffle=False), set(range(1, 280, 2))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samplers_of_torch_choose_the_rows(dataset: SampleDataset, num_workers: int) -> None:
    for sampler, possible in samplers(dataset):
        loader = DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=num_workers)
        batches = list(loader)
        rows = rows_of(batches)
        assert len(rows) == len(set(rows)) == len(sampler)  # type: ignore[arg-type]
        assert set(rows) <= possible
        assert {batch.num_rows for batch in batches[:-1]} <= {32}
        for batch in batches:
            assert batch["half"].tolist() == [row / 2 for row in batch["row"].tolist()]


def test_a_batch_sampler_gives_whole_batches_with_and_without_collation(
    dataset: SampleDataset,
) -> None:
    whole = BatchSampler(RandomSampler(dataset), 64, drop_last=False)
    batched: Any = DataLoader(dataset, sampler=whole, batch_size=None)
    assert sorted(rows_of(batched)) == list(range(NUM_ROWS))
    assert sorted(rows_of(DataLoader(dataset, batch_sampler=whole))) == list(range(NUM_ROWS))


def test_one_call_gathers_a_batch(dataset: SampleDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()
    original = SampleDataset.__getitem__

    def noted(self: SampleDataset, index: Any) -> Batch:
        asked.append(index)
        return original(self, index)

    monkeypatch.setattr(SampleDataset, "__getitem__", noted)
    for _ in DataLoader(dataset, batch_size=100):
        pass
    assert [len(index) for index in asked] == [100, 100, 80]


def test_subsets_and_concatenated_datasets_work(dataset: SampleDataset) -> None:
    part = Subset(dataset, range(10, 30))
    assert rows_of(DataLoader(part, batch_size=8)) == list(range(10, 30))
    both: Any = ConcatDataset([dataset, dataset])
    # Samples of these are asked for one by one, and joined by the default collate function.
    [batch] = DataLoader(both, sampler=[3, 283, 279], batch_size=3)
    assert batch["row"].tolist() == [3, 3, 279]
    assert [tags.tolist() for tags in batch["tags"]] == [[0], [0], [1, 2, 3, 4]]
    assert batch.extras.column("note").to_pylist() == ["n3", "n3", "n279"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_start_method_give_all_rows(dataset: SampleDataset, method: str) -> None:
    loader = DataLoader(
        dataset,
        batch_size=32,
        shuffle=True,
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    for _ in range(2):
        batches = list(loader)
        assert sorted(rows_of(batches)) == list(range(NUM_ROWS))
        assert {type(batch.columns) for batch in batches} == {SharedColumns}


@pytest.mark.parametrize("index", [slice(10, 270), [5, 3, 200] * 100], ids=["viewed", "gathered"])
def test_samples_are_sent_in_shared_memory_and_not_in_the_message(
    dataset: SampleDataset, index: Any
) -> None:
    batch = dataset[index]
    message = ForkingPickler.dumps(batch)
    assert len(message) < 3000 < len(pickle.dumps(batch))
    found = pickle.loads(message)
    assert isinstance(found.columns, SharedColumns)
    same(found, batch)
    assert torch.equal(found.labels["click"], batch.labels["click"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("num_workers", [1, 4, 8])
def test_any_number_of_workers_gives_all_rows(dataset: SampleDataset, num_workers: int) -> None:
    loader = DataLoader(dataset, batch_size=7, shuffle=True, num_workers=num_workers)
    assert sorted(rows_of(loader)) == list(range(NUM_ROWS))


# A warning of torch, which finds no accelerator to pin memory for, where there is none.
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_pass_through_the_pinning_of_a_data_loader(
    dataset: SampleDataset, num_workers: int
) -> None:
    how: dict[str, Any] = {"batch_size": 64, "num_workers": num_workers, "pin_memory": True}
    batches = list(DataLoader(dataset, shuffle=True, **how))
    assert sorted(rows_of(batches)) == list(range(NUM_ROWS))
    assert all(b["half"].tolist() == [row / 2 for row in b["row"].tolist()] for b in batches)
    assert {b["row"].is_pinned() for b in batches} == {torch.cuda.is_available()}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("progress", [True, False])
def test_decoding_shows_its_progress_on_a_terminal_to_those_who_ask(
    table_url: str, monkeypatch: pytest.MonkeyPatch, progress: bool
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with SampleDataset(table_url, slots=["row"], progress=progress) as made:
        assert len(made) == NUM_ROWS
    last = terminal.getvalue().rpartition("\r")[2]
    assert last.startswith("decoding: 100%") is progress
    assert ("280/280" in last) is progress


def test_a_pickled_dataset_is_as_small_as_the_place_of_its_samples(dataset: SampleDataset) -> None:
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 10_000
    copied = pickle.loads(pickled)
    assert len(copied) == NUM_ROWS
    same(copied[[5, 200]], dataset[[5, 200]])


def test_a_dataset_without_a_directory_leaves_nothing_behind(
    table_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with SampleDataset(table_url, slots=["row"]) as dataset:
        assert len(list(tmp_path.glob("featstore-private-*"))) == 1
        assert dataset[3]["row"].tolist() == [3]
        assert rows_of(
            DataLoader(dataset, batch_size=100, num_workers=1, multiprocessing_context="spawn")
        ) == list(range(NUM_ROWS))
    assert not list(tmp_path.glob("featstore-private-*"))
    with pytest.raises(StateError, match="this SampleDataset is closed"):
        dataset[3]


def test_the_public_name_is_there(table_url: str, cache: dict[str, str]) -> None:
    table = featstore.open_table(table_url)
    dataset = featstore.SampleDataset(table, slots=["row"], staging=cache)
    assert repr(dataset) == f"SampleDataset(num_samples={NUM_ROWS}, slots=['row'])"
    made: Callable[..., Any] = featstore.SampleDataset
    with pytest.raises(ConfigError, match="table: expected a Table, a Snapshot or a URL"):
        made(17, slots=["row"])
    with pytest.raises(ConfigError, match="decode_threads: expected an integer"):
        made(table, slots=["row"], decode_threads=0)


def test_a_random_order_gives_every_row_once_in_an_order_of_its_own(dataset: SampleDataset) -> None:
    order = featstore.RandomOrder(len(dataset), seed=3)
    batches: Any = order.batches(64)
    rows = rows_of(DataLoader(dataset, batch_sampler=batches, num_workers=1))
    assert sorted(rows) == list(range(NUM_ROWS))
    assert rows == [int(row) for indices in order.batches(64) for row in indices]
    assert rows_of(dataset[indices] for indices in order.batches(64)) == rows


def test_a_stale_slot_group_is_refused_or_read_as_missing(tmp_path: Path) -> None:
    url = make(tmp_path)
    rewrite(url, "delete")
    with pytest.raises(StaleGroupError, match="so x would be missing there"):
        SampleDataset(url, slots=["x"])
    with SampleDataset(url, slots=["x"], stale_groups="missing") as samples:
        assert len(samples) == 99
        assert int(samples[:]["x"].isnan().sum()) == 19
