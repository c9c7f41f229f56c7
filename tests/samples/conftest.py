"""The small table of the loader's tests, and a dataset of it."""

import pytest

from featstore.samples.sample_dataset import SampleDataset
from tests.loader.conftest import table_url

__all__ = ["dataset", "table_url"]


@pytest.fixture(scope="module")
def dataset(table_url: str, tmp_path_factory: pytest.TempPathFactory) -> SampleDataset:
    """All columns of all rows."""
    return SampleDataset(
        table_url,
        slots=["*"],
        labels=["click"],
        extras=["note", "dt"],
        id_column="note",
        staging={"directory": str(tmp_path_factory.mktemp("cache"))},
    )
