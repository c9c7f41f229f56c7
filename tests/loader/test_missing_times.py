"""A row whose time is missing keeps the lists of its sequence aligned, in every kind of batch."""

import datetime
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from featstore.explore.table import open_table
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.spark.runners import SparkRunner
from featstore.loader.feature_loader import FeatureLoader
from featstore.samples.sample_dataset import SampleDataset
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.table.delta import open_delta
from tests.parquet_files import put_parquet

NUM_ROWS = 40
NOON = datetime.datetime(2026, 11, 1, 12)
SLOTS = ["row", "item", "age", "user_x_item", "latest_item", "latest_age"]
DOCUMENT: dict[str, Any] = {
    "spec": 1,
    "inputs": {
        "row": "long",
        "user": "string",
        "ts": "timestamp",
        "items": "list<string>",
        "times": "list<timestamp>",
    },
    "sequences": {"clicks": {"of": ["items", "times"]}},
    "slots": [
        {"slot": 1, "name": "row", "op": "identity", "of": "row"},
        {"slot": 2, "name": "item", "op": "hash", "of": "items"},
        {"slot": 3, "name": "age", "op": "time_since", "of": ["ts", "times"], "unit": "hour"},
        {"slot": 4, "name": "user_x_item", "op": "cross", "of": ["user", "items"]},
        {"slot": 5, "name": "latest_item", "op": "hash", "of": "items", "max_len": 2},
        {"slot": 6, "name": "latest_age", "op": "take", "of": "age", "n": 2},
    ],
}


def spec_of(*numbers: int) -> Spec:
    """The spec with these slots only."""
    slots = [slot for slot in DOCUMENT["slots"] if slot["slot"] in numbers]
    return load_spec(DOCUMENT | {"slots": slots})


def num_events(row: int) -> int:
    return (row * 7) % 5


def has_time(row: int) -> bool:
    return row % 3 != 0


def has_user(row: int) -> bool:
    return row % 4 != 0


def put_raw(root: Path) -> str:
    for number in range(2):
        rows = range(number * NUM_ROWS // 2, (number + 1) * NUM_ROWS // 2)
        put_parquet(
            root / f"{number}.parquet",
            {
                "row": list(rows),
                "user": [f"u{row}" if has_user(row) else None for row in rows],
                "ts": [NOON if has_time(row) else None for row in rows],
                "items": [[f"i{at}" for at in range(num_events(row))] for row in rows],
                "times": [
                    [NOON - datetime.timedelta(hours=at + 1) for at in range(num_events(row))]
                    for row in rows
                ],
            },
        )
    return str(root)


def extracted(root: Path, runner: Any = None) -> str:
    job = ExtractJob(
        spec=load_spec(DOCUMENT), input_url=put_raw(root / "raw"), table_url=str(root / "table")
    )
    extract_files(job, **({} if runner is None else {"runner": runner}))
    return job.table_url


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    return extracted(tmp_path_factory.mktemp("here"))


def assert_aligned(batch: Any) -> None:
    item, age, both = (batch[name] for name in ("item", "age", "user_x_item"))
    assert item.offsets is age.offsets is both.offsets
    assert batch["latest_item"].offsets is batch["latest_age"].offsets
    product = (item.to_nested() * age.to_nested()).values()
    assert product.isnan().equal(age.values.isnan())
    for at, row in enumerate(map(int, batch["row"].tolist())):
        ages = [at + 1.0 if has_time(row) else math.nan for at in range(num_events(row))]
        assert age[at].tolist() == pytest.approx(ages, nan_ok=True)
        assert batch["latest_age"][at].tolist() == pytest.approx(ages[:2], nan_ok=True)
        assert (item[at] != 0).tolist() == [True] * num_events(row)
        assert (both[at] != 0).tolist() == [has_user(row)] * num_events(row)


def assert_all_aligned(batches: list[Any]) -> None:
    assert sorted(row for batch in batches for row in batch["row"].tolist()) == [*range(NUM_ROWS)]
    for batch in batches:
        assert_aligned(batch)


@pytest.mark.parametrize("batch_size", [7, 100])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("where", [None, "row >= 0"])
def test_lists_of_a_row_without_its_time_combine(
    table: str, batch_size: int, shuffle: bool, where: str | None
) -> None:
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle, "where": where}
    with FeatureLoader(table, slots=SLOTS, **options) as loader:
        assert_all_aligned([batch.clone() for batch in loader])


def test_spark_writes_what_keeps_them_aligned(spark: Any, tmp_path: Path) -> None:
    with FeatureLoader(extracted(tmp_path, SparkRunner(spark)), slots=SLOTS) as loader:
        assert_all_aligned([batch.clone() for batch in loader])


def test_dataloader_workers_deliver_the_same(table: str) -> None:
    with FeatureLoader(table, slots=SLOTS, batch_size=9) as loader:
        workers = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=1)
        assert_all_aligned([batch.clone() for batch in workers])


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_cap_counts_the_marks(table: str, shuffle: bool) -> None:
    cap = {"max_values": 9, "of": "age"}
    with FeatureLoader(table, slots=SLOTS, batch=cap, shuffle=shuffle) as loader:
        batches = [batch.clone() for batch in loader]
    assert_all_aligned(batches)
    assert max(len(batch["age"].values) for batch in batches) <= 9
    assert sum(len(batch["age"].values) for batch in batches) == sum(map(num_events, range(40)))


def test_samples_are_aligned_and_tell_their_lengths(table: str) -> None:
    samples = SampleDataset(table, slots=SLOTS)
    picks: list[Callable[[], Any]] = [lambda: samples[3:30], lambda: samples[[39, 0, 6, 20, 3]]]
    for pick in picks:
        assert_aligned(pick())
    rows = map(int, samples[:]["row"].tolist())
    assert samples.lengths("age").tolist() == list(map(num_events, rows))
    cut = SampleDataset(table, slots=["item", {"name": "age", "max_len": 1}])
    assert set(cut.lengths("age").tolist()) == {0, 1}
    assert cut.lengths("age").tolist() == cut[:]["age"].lengths().tolist()


def test_options_apply_to_the_aligned_lists(table: str) -> None:
    slots: list[Any] = ["row", {"name": "item", "max_len": 3}, {"name": "age", "max_len": 3}]
    (batch,) = FeatureLoader(table, slots=slots)
    assert batch["item"].offsets is batch["age"].offsets
    assert len(batch["item"].values) < sum(map(num_events, range(NUM_ROWS)))


def test_a_list_alone_is_as_stored(table: str) -> None:
    """And so are the files: a missing list is one mark, and null to those who read the table."""
    (batch,) = FeatureLoader(table, slots=["row", "age"])
    rows = list(map(int, batch["row"].tolist()))
    assert batch["age"].lengths().tolist() == [num_events(r) if has_time(r) else 1 for r in rows]
    stored = pq.read_table(open_delta(table).data_files[0].url).column("age")
    assert pytest.approx([math.nan], nan_ok=True) == stored[0].as_py()
    found = open_table(table).to_arrow().select(["row", "age"]).to_pylist()
    assert all((row["age"] is None) == (not has_time(int(row["row"]))) for row in found)


def test_rows_of_files_before_a_slot_was_added_are_aligned(tmp_path: Path) -> None:
    """There the whole column is missing."""
    raw = put_raw(tmp_path / "raw")
    for day, spec in (("1", spec_of(1, 2, 4)), ("2", spec_of(1, 2, 3, 4))):
        job = ExtractJob(
            spec=spec, input_url=raw, table_url=str(tmp_path / "table"), partition={"day": day}
        )
        extract_files(job)
    with FeatureLoader(job.table_url, slots=["item", "age"], where="day = '1'") as loader:
        for batch in loader:
            assert batch["item"].offsets is batch["age"].offsets
            assert batch["age"].values.isnan().all()
            assert len(batch["age"].values) == sum(map(num_events, range(NUM_ROWS)))
