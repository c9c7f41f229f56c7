"""Blocks of rows that say where they come from."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featstore.dispatch.plan import Split
from featstore.dispatch.terms import Claim
from featstore.loader.batches import split_reader
from featstore.loader.batches.blocks import Block
from featstore.loader.batches.memory_budget import Budget
from featstore.loader.batches.progress import BlockSource
from featstore.reading.buffers import Ragged
from featstore.tensors.column_arrays import SLOT

KEY, TAGS = (SLOT, "row"), (SLOT, "tags")


@pytest.fixture(autouse=True, scope="module")
def _row_groups_alone() -> Iterator[None]:
    """No row groups of the tests' tables are read together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_reader, "MOST_ROWS", 16)
        yield


class Unlimited(Budget):
    """No limit, for tests that keep all mixtures, and with them their windows."""

    def limit_windows(self, open_bytes: int, largest_bytes: int) -> None:
        """Windows have none either."""


def claim_on(index: int, part: int = 0) -> Claim:
    """A claim on a split of this position in the plan."""
    return Claim(index=index, split=Split(path=str(index), num_rows=99), fence=1, part=part)


def block(
    split: int,
    first: int,
    num_rows: int,
    *,
    is_last: bool = True,
    places: Any = None,
    begin: int = 0,
) -> Any:
    """Rows numbered `split * 1000 + place`, each with a list of that many elements modulo 3, under
    offsets above 0.
    """
    values = np.arange(num_rows) + first + 1000 * split
    lengths = values % 3
    offsets = np.concatenate([[2], 2 + np.cumsum(lengths)]).astype(np.int32)
    tags = np.concatenate([[-1, -1], np.repeat(values, lengths)])
    end = first + (num_rows if places is None else 100)
    source = BlockSource(claim_on(split), first, end, is_last, places)
    columns: dict[tuple[str, str], Any] = {KEY: values, TAGS: Ragged(tags, offsets)}
    return Block.of(columns, (source,), num_rows=num_rows, extras=pa.table({}), begin=begin)
