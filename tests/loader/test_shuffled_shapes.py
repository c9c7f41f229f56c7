"""A slot's options give a row the same values wherever the row is gathered to."""

from typing import Any

import numpy as np
import pytest
import torch

from featstore.loader.feature_loader import FeatureLoader

SLOTS = [
    {"name": "row", "buckets": 1_000, "dtype": "int32"},
    {"name": "half", "dtype": "bfloat16"},
    {"name": "tags", "pad": 3},
    "pair",
]
OTHERS = [
    "row",
    {"name": "half", "dtype": "float16"},
    {"name": "tags", "buckets": 50, "dtype": "int32"},
    "pair",
]


def rows_of(loader: Any, tag: Any) -> Any:
    """By the row's number all that the batches say of it, slots last."""
    found = {}
    for batch in loader:
        numbers = batch.extras[tag].to_pylist()
        columns = [batch[name] for name in batch.slots]
        for at, number in enumerate(numbers):
            found[number] = [column[at].to(torch.float64).tolist() for column in columns]
    return found


@pytest.mark.parametrize("slots", [SLOTS, OTHERS])
@pytest.mark.parametrize("mode", ["view", "clone"])
def test_shuffled_rows_have_the_values_of_rows_in_order(
    table_url: str, slots: Any, mode: str
) -> None:
    ordered = rows_of(
        FeatureLoader(table_url, slots=slots, labels=["click"], extras=["note"], batch_size=32),
        "note",
    )
    shuffled = FeatureLoader(
        table_url,
        slots=slots,
        labels=["click"],
        extras=["note"],
        batch_size=32,
        seed=3,
        shuffle={"window_rows": 40},
    )
    batches = shuffled if mode == "view" else (batch.clone() for batch in shuffled)
    found = rows_of(batches, "note")
    assert list(found) != list(ordered)
    assert len(found) == 280
    assert found == ordered


def test_shuffled_rows_drawn_by_a_filter_are_those_in_order(table_url: str) -> None:
    options: dict[str, Any] = {
        "slots": SLOTS,
        "where": "row % 3 = 1 and ripe is not null",
        "extras": ["note"],
        "batch_size": 16,
    }
    ordered = rows_of(FeatureLoader(table_url, **options), "note")
    assert (
        rows_of(
            FeatureLoader(table_url, **options, shuffle={"window_rows": 50, "interleave": 2}),
            "note",
        )
        == ordered
    )
    assert 0 < len(ordered) < 280


def test_a_transform_sees_shuffled_batches_whole(table_url: str) -> None:
    def doubled(batch: Any) -> Any:
        return {"twice": batch["half"] * 2}

    loader = FeatureLoader(
        table_url,
        slots=["row", "half"],
        batch_size=32,
        shuffle={"window_rows": 40},
        transform=doubled,
    )
    for batch in loader:
        assert np.array_equal(batch["twice"].numpy(), batch["row"].numpy().astype(np.float32))
