"""Which thread makes the tensors of batches in the file's order."""

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from featstore.loader.batches.blocks import Slices
from featstore.loader.feature_loader import FeatureLoader
from featstore.tensors.packed import PackedColumns

ASSEMBLING = "featstore-assemble"


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that made tensors, in their order."""
    names: list[str] = []
    make, made = Slices._make, PackedColumns.made

    def noted_make(slices: Slices) -> list[Mapping[Any, Any]]:
        names.append(threading.current_thread().name)
        return make(slices)

    def noted_made(packed: PackedColumns) -> dict[Any, Any]:
        names.append(threading.current_thread().name)
        return made(packed)

    monkeypatch.setattr(Slices, "_make", noted_make)
    monkeypatch.setattr(PackedColumns, "made", noted_made)
    return names


def rows_of(loader: FeatureLoader) -> list[int]:
    return [row for batch in loader for row in batch["row"].tolist()]


def test_once_columns_are_asked_for_no_batch_is_made_by_the_training_thread(
    table_url: str, makers: list[str]
) -> None:
    with FeatureLoader(table_url, slots=["*"], batch_size=9) as loader:
        first = rows_of(loader)
        assert len(first) == 280
        assert ASSEMBLING in makers
        makers.clear()
        assert rows_of(loader) == first
    assert set(makers) == {ASSEMBLING}  # Also not the last one, of one row.


def test_no_tensors_are_made_for_a_loop_that_asks_for_none(
    table_url: str, makers: list[str]
) -> None:
    with FeatureLoader(table_url, slots=["*"], batch_size=9) as loader:
        assert sum(batch.num_rows for _ in range(2) for batch in loader) == 560
    assert makers == []
