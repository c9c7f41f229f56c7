"""A user's function over batches: what it may return, where it runs, and how it is told of when it
fails.
"""

import pickle
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from featstore.base.errors import BatchError, ConfigError, StateError
from featstore.loader.feature_loader import FeatureLoader
from featstore.tensors.columns import Jagged, SharedJagged
from tests.process import our_threads

NUM_ROWS = 280


def doubled(batch: Any) -> Any:
    return {
        "double": batch["row"] * 2,
        "half": batch["half"] + 1,
        "again": batch["tags"],
        "odd": batch["row"] % 2 == 1,
    }


def copied(batch: Any) -> Any:
    return batch.clone()


@pytest.mark.parametrize("batch_size", [7, 50, 1000])
@pytest.mark.parametrize("shuffle", [None, {"window_rows": 40, "interleave": 2}])
def test_what_it_returns_is_added_or_put_in_place(
    table_url: str, batch_size: int, shuffle: Any
) -> None:
    loader = FeatureLoader(
        table_url,
        slots=["row", "half", "tags"],
        labels=["click"],
        extras=["note"],
        batch_size=batch_size,
        shuffle=shuffle,
        transform=doubled,
    )
    rows = []
    for batch in loader:
        rows += batch["row"].tolist()
        assert batch.slots == ("row", "half", "tags", "double", "again", "odd")
        for copy in (batch, batch.clone(), pickle.loads(pickle.dumps(batch))):
            assert torch.equal(copy["double"], batch["row"] * 2)
            assert torch.equal(copy["half"], batch["row"] / 2 + 1)
            assert torch.equal(copy["again"].values, batch["tags"].values)
            assert torch.equal(copy["odd"].float(), copy.labels["click"])
        assert batch.extras["note"].to_pylist() == [f"n{row}" for row in batch["row"].tolist()]
    assert sorted(rows) == list(range(NUM_ROWS))
    assert loader.stats()["transform_s"] > 0


def test_it_may_return_a_batch(table_url: str) -> None:
    for batch in FeatureLoader(table_url, slots=["row"], batch_size=50, transform=copied):
        batch["row"].fill_(1)


def test_it_runs_in_another_thread_in_the_order_of_the_batches(table_url: str) -> None:
    seen = []

    def note(batch: Any) -> Any:
        seen.append((threading.current_thread().name, batch["row"][0].item()))
        return {}

    firsts = [
        batch["row"][0].item()
        for batch in FeatureLoader(table_url, slots=["row"], batch_size=50, transform=note)
    ]
    assert [first for _, first in seen] == firsts
    assert all(name.startswith("featstore") for name, _ in seen)


def test_a_state_goes_on_with_the_next_transformed_batch(table_url: str) -> None:
    arguments: dict[str, Any] = {
        "slots": ["row", "half", "tags"],
        "batch_size": 33,
        "transform": doubled,
        "shuffle": {"window_rows": 40},
    }
    whole = [batch["double"].tolist() for batch in FeatureLoader(table_url, **arguments)]
    first = FeatureLoader(table_url, **arguments)
    batches = iter(first)
    before = [next(batches)["double"].tolist() for _ in range(3)]
    first.ack()
    second = FeatureLoader(table_url, **arguments)
    second.load_state_dict(first.state_dict())
    first.close()
    assert before + [batch["double"].tolist() for batch in second] == whole


def test_workers_of_a_dataloader_apply_it(table_url: str) -> None:
    loader = FeatureLoader(
        table_url, slots=["row", "half", "tags"], batch_size=50, transform=doubled
    )
    found = Counter(
        row
        for batch in DataLoader(
            loader, batch_size=None, num_workers=2, multiprocessing_context="fork"
        )
        for row in batch["double"].tolist()
    )
    assert found == Counter(2 * row for row in range(NUM_ROWS))


def test_every_order_drops_and_counts_the_last_short_batch(table_url: str) -> None:
    arguments: dict[str, Any] = {
        "slots": ["row", "half", "tags"],
        "batch_size": 33,
        "transform": doubled,
        "drop_last": True,
    }
    loader = FeatureLoader(table_url, order="static", **arguments)
    assert {batch.num_rows for batch in loader} == {33}
    assert loader.stats()["rows_dropped_last"] == NUM_ROWS % 33


def divides(batch: Any) -> Any:
    return {
        "x": 1 / batch["half"],
        "y": torch.tensor([1 // int(row != 75) for row in batch["row"]]),
    }


def asks_for_what_is_not_there(batch: Any) -> Any:
    return {"x": batch["hlf"]}


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (divides, r"divides failed on rows 60 to 70 of dt=2026-11-01/part\.parquet#0-, rows 0 to "
            r"20 of "
                  r"dt=2026-11-03/part\.parquet#0-, after asking for 'row': ZeroDivisionError"),
        (asks_for_what_is_not_there, r"asks_for_what_is_not_there failed on rows 0 to 30 of "
            r"dt=2026-11-01/part\.parquet#0-, .*"
                                     r"'hlf'.*did you mean 'half'"),
        (lambda _: None, "expected a Batch or a mapping of slots to tensors, found NoneType"),
        (lambda _: {"x": 3}, "slot 'x': expected a CPU tensor without gradient, or a Jagged of "
            "such, found a int"),
        (lambda _: {"x": torch.ones(30, requires_grad=True)}, "slot 'x': expected a CPU tensor "
            "without gradient"),
        (lambda _: {"x": torch.ones(30, device="meta")}, "slot 'x': .* found a meta tensor"),
        (lambda _: {"x": torch.ones(29)}, "slot 'x': expected 30 rows, found 29"),
        (lambda _: {"x": torch.tensor(1)}, "slot 'x': expected 30 rows, found None"),
        (lambda _: {"x": Jagged(torch.ones(2), torch.tensor([0, 2]))}, "slot 'x': expected 30 "
            "rows, found 1"),
        (lambda _: {"x": SharedJagged(torch.ones(2), torch.zeros(30, 2, dtype=torch.int64))},
            r"slot 'x': expected ranges of torch.int64 \(30, 3\), .*, found torch.int64 \(30, 2\)"),
        (lambda _: {"x": SharedJagged(torch.ones(2), torch.zeros(30, 3))},
            r"slot 'x': expected ranges of torch.int64 \(30, 3\), .*, found torch.float32"),
    ],
)  # fmt: skip
def test_an_exception_names_the_rows_and_is_chained(
    table_url: str, transform: Any, message: str
) -> None:
    loader = FeatureLoader(table_url, slots=["row", "half"], batch_size=30, transform=transform)
    with pytest.raises(BatchError, match=message) as caught:
        list(loader)
    assert caught.value.__cause__ is not None
    assert not our_threads()


def test_batches_before_a_failure_are_delivered(table_url: str) -> None:
    rows: list[Any] = []
    with pytest.raises(BatchError):
        rows.extend(
            row
            for batch in FeatureLoader(
                table_url, slots=["row", "half"], batch_size=30, transform=divides
            )
            for row in batch["row"].tolist()
        )
    assert rows == list(range(60))


@pytest.mark.parametrize("batch_size", [1, 50])
def test_a_break_ends_its_thread_too(table_url: str, batch_size: int) -> None:
    loader = FeatureLoader(
        table_url, slots=["*"], batch_size=batch_size, transform=doubled, memory_budget=1
    )
    for _ in range(3):
        iteration = iter(loader)
        next(iteration)
        loader.close()
        assert not our_threads()
        with pytest.raises(StateError):
            next(iteration)


def test_a_config_names_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")
    (tmp_path / "my_features.py").write_text(
        "def tripled(batch):\n    return {'t': 3 * batch['a']}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = {
        "table": str(tmp_path / "a.parquet"),
        "slots": ["a"],
        "transform": "my_features:tripled",
    }
    (batch,) = FeatureLoader.from_config(config)
    assert batch["t"].tolist() == [3, 6]
    for wrong, message in [
        ("my_features", "expected 'package.module:function', found 'my_features'"),
        ("my_feature:tripled", "No module named 'my_feature'"),
        ("my_features:triple", "has no attribute 'triple'"),
        (7, "transform: expected a function, found 7"),
    ]:
        with pytest.raises(ConfigError, match=message):
            FeatureLoader.from_config(config, transform=wrong)
