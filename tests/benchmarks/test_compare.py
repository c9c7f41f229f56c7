"""The readers that are compared: what they read, and how it is counted."""

import ast
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from compare_parts.checksum import checksum, missing_and_twice
from compare_parts.environments import PEERS, code_lines, lines_of
from compare_parts.job import Job
from compare_parts.peers.packed_rows import kinds, pack, unpack

COLUMNS = ["id", "list", "number", "click"]
ROWS = pa.table(
    {
        "id": pa.array([1, None, 3, 4, 5]),
        "unread": pa.array([1, 2, 3, 4, 5]),
        "list": pa.array([[1, 2], None, [], [3], [4, 5]]),
        "other": pa.array([[9], [8, 7], [6], [5], []], pa.list_(pa.int64())),
        "number": pa.array([0.5, None, 1.5, 2.5, 3.5], pa.float32()),
        "click": pa.array([0, 1, 0, 0, 1], pa.int8()),
    }
)
WANTED: dict[str, Any] = {
    "id": [1, 0, 3, 4, 5],
    "list": ([1, 2, 3, 4, 5], [0, 2, 2, 2, 3, 5]),
    "number": [0.5, float("nan"), 1.5, 2.5, 3.5],
    "click": [0, 1, 0, 0, 1],
}


def _job(directory: Path) -> Job:
    path = directory / "rows" / "part.parquet"
    path.parent.mkdir()
    pq.write_table(ROWS, path, row_group_size=3)
    return Job(files=[str(path)], folder="", columns=COLUMNS, batch_size=5, scratch=str(directory))


def _joined(batches: list[Mapping[str, Any]]) -> dict[str, Any]:
    """One batch of them all, as lists."""
    found: dict[str, Any] = {}
    for name in COLUMNS:
        parts = [batch[name] for batch in batches]
        if isinstance(parts[0], tuple):
            lengths = np.concatenate([np.diff(offsets) for _, offsets in parts])
            values = torch.cat([values for values, _ in parts]).tolist()
            found[name] = (values, [0, *np.cumsum(lengths).tolist()])
        else:
            found[name] = torch.cat(parts).tolist()
    return found


@pytest.mark.parametrize("peer", ["featstore", "pyarrow", "polars", "duckdb", "torchdata"])
def test_readers_of_parquet_give_the_same_tensors(peer: str, tmp_path: Path) -> None:
    module = importlib.import_module(f"compare_parts.peers.with_{peer}")
    batches = list(module.Reader(_job(tmp_path)))
    own = {
        "list": ([1, 2, 0, 3, 4, 5], [0, 2, 3, 3, 4, 6])
    }  # a list that is null is one missing id
    np.testing.assert_equal(_joined(batches), WANTED | (own if peer == "featstore" else {}))
    assert [list(batch) for batch in batches] == [COLUMNS] * len(batches)


def test_packed_rows_give_the_same_tensors() -> None:
    samples = list(pack(ROWS))
    assert kinds(ROWS.schema)["lists"] == ["list", "other"]
    np.testing.assert_equal(_joined([unpack(samples, kinds(ROWS.schema), COLUMNS)]), WANTED)


def test_checksums_are_equal_in_any_order_and_differ_where_a_value_does() -> None:
    of = kinds(ROWS.schema)
    samples = list(pack(ROWS))
    whole = checksum([unpack(samples, of, COLUMNS)])
    parts = [unpack(some, of, COLUMNS) for some in (samples[3:], samples[:3])]
    assert checksum(parts) == whole | {"batches": 2}
    samples[4]["values"][0] += 1
    assert checksum([unpack(samples, of, COLUMNS)])["ids"] == whole["ids"] + 1


def test_rows_that_are_missing_and_that_came_again_are_counted() -> None:
    assert missing_and_twice(np.array([1, 2, 2, 5, 5, 5]), 5) == (2, 3)


def test_lines_of_code_are_without_comments_docstrings_and_empty_ones() -> None:
    text = '"""A\nmodule."""\n\nimport os\n\n# A comment.\nfound = [\n    os.name,\n]\n'
    assert code_lines(ast.parse(text)) == {4, 7, 8, 9}


@pytest.mark.parametrize("peer", PEERS)
def test_a_program_is_counted_with_its_helpers(peer: str) -> None:
    counted = lines_of(peer)
    assert counted["lines"] > 15
    assert (counted["convert"] > 0) == (peer in ("streaming", "litdata", "tensorflow"))
