"""Two small tables whose rows have numbers of their own, and configs that mix them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.mixed_source import MixedSource
from tests.loader.conftest import rows_table
from tests.parquet_files import put_parquet

# The rows of the larger table in 4 files, and of the smaller one, whose numbers begin at 1,000, in 2.
LARGE, SMALL = set(range(200)), set(range(1000, 1060))
Tables = list[dict[str, Any]]  # the entries of a config
STOPS = ("first_exhausted", "all_exhausted")


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """The entries of a config: weights 3 and 1."""
    root = tmp_path_factory.mktemp("mixed")
    for name, first, num_rows, num_files in (("large", 0, 50, 4), ("small", 1000, 30, 2)):
        for i in range(num_files):
            rows = rows_table(first + i * num_rows, num_rows)
            put_parquet(root / name / f"{i}.parquet", rows, row_group_size=10)
    return [
        {"table": str(Path(root, "large")), "weight": 3},
        {"table": str(Path(root, "small")), "weight": 1},
    ]


def mixed(tables: Tables, **options: Any) -> FeatureLoader:
    known = {"slots": ["row"], "labels": ["click"], "batch_size": 7, "shuffle": True}
    return FeatureLoader.from_config({**known, "tables": tables, **options})


def sources_of(loader: FeatureLoader) -> MixedSource:
    assert isinstance(loader._source, MixedSource)
    return loader._source


def drawn(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["row"].tolist() for batch in batches]


def round_trip(state: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(state))
    return loaded
