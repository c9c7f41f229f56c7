"""A cache of decoded columns, and a data file to decode."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featstore.base.schema import SlotSchema
from featstore.decoded.decoded_cache import DecodedCache
from featstore.reading.buffers import Ragged, Values
from featstore.reading.file_columns import Selection
from featstore.staging.options import Staging
from featstore.staging.stager import Stager
from featstore.table.snapshot import DataFile
from tests.loader.conftest import data_file, rows_table

BUDGET_BYTES = 1_000_000


@pytest.fixture
def stager(tmp_path: Path) -> Iterator[Stager]:
    options = Staging(directory=str(tmp_path / "cache"), budget_bytes=BUDGET_BYTES)
    with Stager(options) as made:
        yield made


@pytest.fixture
def cache(stager: Stager) -> DecodedCache:
    return DecodedCache(stager.cache, BUDGET_BYTES, grace_s=0.1)


@pytest.fixture
def file(tmp_path: Path) -> DataFile:
    return data_file(tmp_path / "rows.parquet", rows_table(0, 100))


def selection_of(table: pa.Table) -> Selection:
    """All columns of a table."""
    schema = SlotSchema.from_arrow(table.schema)
    return Selection(slots=schema.slots, others=schema.others)


def listed(values: Values) -> list[Any]:
    """A column as a list of rows."""
    if isinstance(values, Ragged):
        cuts = values.offsets.tolist()
        return [values.values[a:b].tolist() for a, b in pairwise(cuts)]
    found: list[Any] = values.tolist()
    return found
