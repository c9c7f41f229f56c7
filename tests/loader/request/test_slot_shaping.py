"""What a slot's options make of its values, and that ids stay whole integers on the way."""

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.request.decode import cut, padded
from featstore.loader.request.options import KEPT_ENDS, PAD_SIDES
from featstore.reading.buffers import Ragged

# Around 2^53, where float64 begins to lose integers, and 2^63, where int64 ends.
EDGES = st.one_of(
    st.integers(2**53 - 3, 2**53 + 3),
    st.integers(2**63 - 4, 2**63 - 1),
    st.integers(-(2**63), -(2**63) + 3),
    st.just(0),
)
LISTS = st.lists(
    st.one_of(st.none(), st.lists(st.one_of(st.none(), EDGES), max_size=4)), min_size=1, max_size=12
)


def batch_of(directory: Any, slots: Any, **arguments: Any) -> Any:
    (batch,) = FeatureLoader(directory, slots=slots, **arguments)
    return batch


@given(
    rows=LISTS,
    buckets=st.one_of(st.none(), st.integers(2, 2**40)),
    pad=st.one_of(st.none(), st.integers(1, 5)),
)
def test_ids_of_lists_never_pass_through_floats(rows: Any, buckets: Any, pad: Any) -> None:
    with tempfile.TemporaryDirectory() as directory:
        pq.write_table(
            pa.table({"ids": pa.array(rows, pa.list_(pa.int64()))}), f"{directory}/a.parquet"
        )
        options = {
            key: value for key, value in (("buckets", buckets), ("pad", pad)) if value is not None
        }
        column = batch_of(directory, [{"name": "ids", **options}])["ids"]
    expected = [[0] if row is None else [id_ for id_ in row if id_ is not None] for row in rows]
    if buckets is not None:
        expected = [[0 if id_ == 0 else 1 + id_ % (buckets - 1) for id_ in row] for row in expected]
    if pad is not None:
        assert column.tolist() == [(row + [0] * pad)[:pad] for row in expected]
    else:
        assert [row.tolist() for row in column] == expected


@given(ids=st.lists(st.one_of(st.none(), EDGES), min_size=1, max_size=20))
def test_ids_of_scalars_and_fixed_widths_never_pass_through_floats(ids: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        pair = pa.array([[id_, id_] for id_ in ids], pa.list_(pa.int64(), 2))
        pq.write_table(
            pa.table({"id": pa.array(ids, pa.int64()), "pair": pair}), f"{directory}/a.parquet"
        )
        batch = batch_of(directory, ["*"])
    expected = [id_ or 0 for id_ in ids]
    assert batch["id"].tolist() == expected
    assert batch["pair"].tolist() == [[id_, id_] for id_ in expected]


def test_padding_cuts_and_fills_views_that_begin_in_the_middle() -> None:
    ragged = Ragged(np.array([9, 1, 2, 3, 4], np.int64), np.array([1, 4, 4, 5], np.int32))
    assert padded(ragged, 2, 0).tolist() == [[1, 2], [0, 0], [4, 0]]
    assert np.isnan(padded(Ragged(np.empty(0, np.float32), np.zeros(2, np.int64)), 3, np.nan)).all()


@given(
    rows=st.lists(st.lists(st.integers(1, 99), max_size=5), max_size=6),
    first=st.integers(0, 3),
    width=st.integers(1, 6),
    keep=st.sampled_from(KEPT_ENDS),
    side=st.sampled_from(PAD_SIDES),
)
def test_either_end_is_kept_and_either_side_padded(
    rows: list[list[int]], first: int, width: int, keep: str, side: str
) -> None:
    values = np.array([0] * first + [value for row in rows for value in row], np.int64)
    offsets = first + np.cumsum([0, *map(len, rows)])
    ragged = Ragged(values, offsets.astype(np.int32))
    kept = [row[:width] if keep == "first" else row[-width:] for row in rows]
    filled = [[0] * (width - len(row)) for row in kept]
    pairs = list(zip(kept, filled, strict=True))
    expected = [row + pad if side == "right" else pad + row for row, pad in pairs]
    assert padded(ragged, width, 0, keep, side).tolist() == expected
    shorter = cut(ragged, width, keep)
    assert [shorter.values[a:b].tolist() for a, b in itertools.pairwise(shorter.offsets)] == kept


@pytest.mark.parametrize("keep", KEPT_ENDS)
def test_a_history_is_cut_and_padded_as_asked_in_batches(table_url: str, keep: str) -> None:
    asked: Any = [{"name": "tags", "pad": 2, "keep": keep, "pad_side": "left"}]
    [plain], [padded_left], [short] = (
        FeatureLoader(table_url, slots=slots, batch_size=1000)
        for slots in (["tags"], asked, [{"name": "tags", "max_len": 2, "keep": keep}])
    )
    rows = [
        row[:2] if keep == "first" else row[-2:] for row in map(torch.Tensor.tolist, plain["tags"])
    ]
    assert [row.tolist() for row in short["tags"]] == rows
    assert padded_left["tags"].tolist() == [[0] * (2 - len(row)) + row for row in rows]


@pytest.mark.parametrize(
    ("batch_size", "shuffle"), [(50, None), (7, {"window_rows": 40}), (280, {"interleave": 2})]
)
def test_padded_and_converted_slots_are_those_of_the_plain_ones(
    table_url: str, batch_size: int, shuffle: Any
) -> None:
    plain = ["row", "half", "tags"]
    asked = [
        {"name": "row", "buckets": 2**31, "dtype": "int32"},
        {"name": "half", "dtype": torch.bfloat16},
        {"name": "tags", "pad": 3, "buckets": 9, "dtype": "int32"},
    ]
    how = {"batch_size": batch_size, "shuffle": shuffle}
    pairs = zip(
        FeatureLoader(table_url, slots=plain, **how),
        FeatureLoader(table_url, slots=asked, **how),
        strict=True,
    )
    for one, other in pairs:
        assert (other["row"].dtype, other["tags"].dtype) == (torch.int32, torch.int32)
        assert torch.equal(other["half"], one["half"].to(torch.bfloat16))
        rows = [
            ([0 if tag == 0 else 1 + tag % 8 for tag in tags] + [0] * 3)[:3]
            for tags in map(torch.Tensor.tolist, one["tags"])
        ]
        assert other["tags"].tolist() == rows
        for copy in (other.clone(), other.to("cpu")):
            assert all(torch.equal(copy[name], other[name]) for name in plain)


def test_float16_keeps_missing_values_and_shows_what_is_too_large(tmp_path: Path) -> None:
    values = pa.array([1.5, None, 1e6], pa.float32())
    pq.write_table(
        pa.table({"a": values, "b": pa.array([[1.0], [], None], pa.list_(pa.float32()))}),
        tmp_path / "a.parquet",
    )
    batch = batch_of(
        tmp_path, [{"name": "a", "dtype": "float16"}, {"name": "b", "pad": 2, "dtype": "float16"}]
    )
    assert batch["a"].dtype == batch["b"].dtype == torch.float16
    assert batch["a"].nan_to_num(-1, posinf=9).tolist() == [1.5, -1.0, 9.0]
    assert batch["b"].nan_to_num(-1).tolist() == [[1.0, -1.0], [-1.0, -1.0], [-1.0, -1.0]]
