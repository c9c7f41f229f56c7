"""Data files become splits of the size that was asked for, and every row still comes once."""

import re
from typing import Any

import pytest

import featstore
from featstore.base.errors import ConfigError
from featstore.dispatch.options import Dispatch
from featstore.dispatch.plan import SplitSize
from featstore.loader.plan.splitting import make_splits, split_size
from featstore.table.open import open_snapshot


def test_files_larger_than_the_size_are_cut_at_their_row_groups(table_url: str) -> None:
    files = open_snapshot(table_url).data_files
    assert [split.num_rows for split in make_splits(files, None)] == [70, 0, 45, 101, 64]
    by_rows = list(make_splits(files, SplitSize(num_rows=40)))
    assert [split.num_rows for split in by_rows] == [32, 38, 0, 32, 13, 32, 32, 37, 32, 32]
    by_bytes = list(make_splits(files, SplitSize(size_bytes=1)))
    assert max(split.num_rows for split in by_bytes) == 16
    assert sum(split.num_rows for split in by_bytes) == 280


@pytest.mark.parametrize("size", [{"split_rows": 20}, {"split_bytes": "1KB"}])
@pytest.mark.parametrize("shuffle", [None, {"window_rows": 30, "interleave": 3}])
def test_every_row_comes_once_whatever_the_size_of_splits(
    table_url: str, size: Any, shuffle: Any
) -> None:
    with featstore.FeatureLoader(
        table_url, slots=["row"], batch_size=33, dispatch=size, shuffle=shuffle
    ) as loader:
        assert sorted(row for batch in loader for row in batch["row"].tolist()) == list(range(280))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"split_rows": 5, "split_bytes": 5},
            "dispatch: expected split_rows or split_bytes, found both",
        ),
        ({"split_rows": 0}, "dispatch.split_rows: expected an integer of 1 or more, found 0"),
        ({"split_bytes": "many"}, "dispatch.split_bytes"),
    ],
)
def test_a_size_that_is_none_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        split_size(Dispatch(**options))
