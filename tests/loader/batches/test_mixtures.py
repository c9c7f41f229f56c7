"""Windows of small splits that are handed on together, in order."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featstore.base.errors import DataFileError
from featstore.loader.batches.memory_budget import Budget
from featstore.loader.batches.mixtures import Splits, read_in_order
from featstore.loader.batches.split_reader import SplitReader, Work
from featstore.loader.batches.stats import Stats
from featstore.loader.plan.shuffle import RowOrder
from tests.loader.conftest import data_file, request_of, work_on

OPEN = partial(
    SplitReader,
    request=request_of(pa.schema([("row", pa.int64())]), "row"),
    order=RowOrder(seed=0, epoch=0, shuffle=None),
    stats=Stats(),
)


def works(root: Path, num_files: int, num_rows: int) -> list[Work]:
    rows = pa.table({"row": pa.array(range(num_rows), pa.int64())})
    return [
        work_on(data_file(root / f"{index}.parquet", rows), index) for index in range(num_files)
    ]


def together(work: Iterator[Work], batch_rows: int, **how: Any) -> list[list[int]]:
    """The splits of the windows of each mixture."""
    found = list[list[int]]()
    for mixture in read_in_order(Splits(work=work, open_split=OPEN, **how), batch_rows):
        assert mixture.draws is None
        found.append([share.window.work.claim.index for share in mixture.shares])
    return found


def test_windows_that_do_not_fill_a_batch_come_together(tmp_path: Path) -> None:
    assert together(iter(works(tmp_path, 7, 4)), 10) == [[0, 1, 2], [3, 4, 5], [6]]


def test_no_more_come_together_than_are_quickly_read(tmp_path: Path) -> None:
    found = together(iter(works(tmp_path, 20, 1)), 1_000)
    assert [len(splits) for splits in found] == [16, 4]


def test_windows_do_not_wait_for_the_files_of_another_split(tmp_path: Path) -> None:
    are_ready = iter([True, False, True, True])
    found = together(iter(works(tmp_path, 4, 1)), 10, is_ready=lambda: next(are_ready))
    assert found == [[0, 1], [2, 3]]


def test_rows_before_a_file_that_cannot_be_read_are_handed_on(tmp_path: Path) -> None:
    work = works(tmp_path, 3, 1)
    Path(str(work[2].files[0].source)).write_bytes(b"no Parquet")
    mixtures = read_in_order(Splits(work=iter(work), open_split=OPEN), 10)
    assert [share.window.work.claim.index for share in next(mixtures).shares] == [0, 1]
    with pytest.raises(DataFileError, match=r"2\.parquet: "):
        next(mixtures)


@pytest.mark.parametrize("most_bytes", [100, 1_000, 4_000, 10_000, 100_000])
def test_windows_that_come_together_hold_an_eighth_of_the_budget_and_none_waits_for_them(
    tmp_path: Path, most_bytes: int
) -> None:
    """Nobody but the reader of mixtures gives anything back."""
    budget, sizes = Budget(most_bytes), list[int]()
    splits = Splits(work=iter(works(tmp_path, 12, 16)), open_split=partial(OPEN, budget=budget))
    for mixture in read_in_order(splits, 1_000, budget):
        held_bytes = budget.held_bytes
        assert len(mixture.shares) == 1 or held_bytes <= most_bytes // 8
        sizes.append(len(mixture.shares))
        budget.exchange(held_bytes, 0)
    assert sum(sizes) == 12
    assert max(sizes) == {100: 1, 1_000: 1, 4_000: 1, 10_000: 6, 100_000: 12}[most_bytes]
