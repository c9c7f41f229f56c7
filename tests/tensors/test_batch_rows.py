"""`Batch[i:j]` and `Batch.concat`."""

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from featstore.loader.feature_loader import FeatureLoader
from featstore.tensors.batch import Batch
from featstore.tensors.columns import Jagged, each_tensor
from featstore.tensors.packed import TensorColumns


def make(lengths: list[int]) -> Batch:
    """Lists of these lengths, with a label, a weight and an extra column."""
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    num_rows, num_values = len(lengths), sum(lengths)
    columns: dict[tuple[str, str], Any] = {
        ("slot", "item"): Jagged(torch.arange(num_values), offsets),
        ("slot", "age"): Jagged(torch.arange(num_values).bfloat16(), offsets.clone()),
        ("slot", "pair"): torch.arange(2.0 * num_rows).view(-1, 2),
        ("label", "click"): torch.arange(float(num_rows)),
        ("weight", "w"): torch.arange(float(num_rows)) / 2,
    }
    extras = pa.table({"row": pa.array(range(num_rows), pa.int64())})
    return Batch(TensorColumns(columns), num_rows=num_rows, extras=extras)


def rows_of(batch: Batch) -> list[Any]:
    weight = batch.weight
    assert weight is not None
    columns = [*batch.values(), batch.labels["click"], weight]
    rows = zip(*[[row.tolist() for row in column] for column in columns], strict=True)
    return list(zip(rows, batch.extras["row"].to_pylist(), strict=True))


@given(st.lists(st.integers(0, 3), max_size=6), st.integers(-8, 8), st.integers(-8, 8))
def test_a_slice_has_the_rows_of_a_list(lengths: list[int], begin: int, end: int) -> None:
    batch = make(lengths)
    found = batch[begin:end]
    assert rows_of(found) == rows_of(batch)[begin:end]
    assert len(found) == found.num_rows == len(lengths[begin:end])
    assert found["item"].offsets is found["age"].offsets
    assert found["item"].offsets[0] == 0
    assert found["item"].offsets[-1] == len(found["item"].values)


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=4))
def test_concatenated_batches_have_the_rows_of_all(lengths: list[list[int]]) -> None:
    batches = [make(of) for of in lengths]
    found = Batch.concat(batches)
    assert rows_of(found) == [row for batch in batches for row in rows_of(batch)]
    assert found.num_rows == sum(map(len, batches))
    assert found["item"].offsets is found["age"].offsets


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 6), max_size=3))
def test_slices_of_a_batch_make_it_again(lengths: list[int], cuts: list[int]) -> None:
    batch, ends = make(lengths), sorted([0, *cuts, 6])
    parts = [batch[begin:end] for begin, end in pairwise(ends)]
    assert rows_of(Batch.concat(parts)) == rows_of(batch)


def test_a_slice_is_a_view_that_can_be_moved_and_sliced_again() -> None:
    batch = make([2, 0, 1, 3])
    found = batch[1:][1:]
    assert found["pair"].data_ptr() == batch["pair"][2:].data_ptr()
    assert found["item"].values.data_ptr() == batch["item"].values[2:].data_ptr()
    assert rows_of(found.clone()) == rows_of(batch)[2:]
    moved = batch.to("meta")
    assert moved["item"].offsets is moved["age"].offsets


def _form(column: Any) -> list[Any]:
    tensors = [column.values, column.offsets] if isinstance(column, Jagged) else [column]
    return [(of.shape, of.dtype, of.device) for of in tensors]


def test_columns_on_a_device_are_copied_and_moved_there_with_shared_offsets() -> None:
    columns = TensorColumns(make([2, 0, 1]).to("meta").made())
    batch = Batch(columns, num_rows=3, extras=pa.table({}))
    for found in (batch.clone(), batch.to("meta"), batch.clone().to("meta")):
        assert found["item"].offsets is found["age"].offsets
        assert [_form(of) for of in found.made().values()] == [
            _form(of) for of in columns.made().values()
        ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_slice_of_a_batch_on_a_gpu_is_copied_and_moved() -> None:
    batch = make([2, 0, 1, 3])
    rows, found = rows_of(batch)[1:3], batch.to("cuda")[1:3]
    assert rows_of(found) == rows_of(found.clone()) == rows_of(found.to("cpu")) == rows
    arriving = found.to("cpu", non_blocking=True)
    torch.cuda.synchronize()
    assert rows_of(arriving) == rows
    assert arriving["item"].offsets is arriving["age"].offsets


def test_offsets_that_have_not_arrived_are_not_compared() -> None:
    """Copies from a device hold zeros here until they arrive."""
    sent: list[tuple[torch.Tensor, torch.Tensor]] = []

    def send(tensor: torch.Tensor) -> torch.Tensor:
        sent.append((torch.zeros_like(tensor), tensor))
        return sent[-1][0]

    class OnDevice(TensorColumns):
        def moved(self, **how: Any) -> TensorColumns:
            return TensorColumns(each_tensor(self.columns, send))

    lists = [Jagged(torch.arange(3), torch.tensor(of)) for of in ([0, 1, 3], [0, 2, 3])]
    columns = OnDevice({("slot", str(at)): of for at, of in enumerate(lists)})
    moved = Batch(columns, num_rows=2, extras=pa.table({})).to("cpu", non_blocking=True)
    found = [moved["0"], moved["1"]]
    for copy, tensor in sent:
        copy.copy_(tensor)
    assert [[row.tolist() for row in of] for of in found] == [[[0], [1, 2]], [[0, 1], [2]]]


def test_a_packed_batch_that_stays_in_inference_mode_can_be_trained_on() -> None:
    columns = TensorColumns({("slot", "a"): torch.tensor([1.0, 2.0])})
    packed = Batch(columns, num_rows=2, extras=pa.table({})).clone()
    with torch.inference_mode():
        moved = packed.to("cpu")
    weight = torch.ones(2, requires_grad=True)
    (moved["a"] * weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1.0, 2.0]


def test_slices_of_a_loader_s_batches(table_url: str) -> None:
    with FeatureLoader(
        table_url, slots=["row", "tags"], labels=["click"], extras=["note"], batch_size=50
    ) as loader:
        first, second = (batch for batch, _ in zip(loader, range(2), strict=False))
        found = Batch.concat([first[40:], second[:7]])
        assert found["row"].tolist() == list(range(40, 57))
        assert [row.tolist() for row in found["tags"]] == [
            row.tolist() for row in (*first["tags"], *second["tags"])
        ][40:57]
        assert found.extras["note"].to_pylist() == [f"n{row}" for row in range(40, 57)]


def test_lists_of_which_rows_were_cut_off_are_concatenated_without_their_values() -> None:
    lists = Jagged(torch.arange(10), torch.tensor([3, 5, 8]))
    columns = TensorColumns({("slot", "a"): lists, ("slot", "pad"): torch.ones(2, 4)})
    extras = [pa.table({"x": [1, 2], "y": [3, 4]}), pa.table({"y": [5, 6], "x": [7, 8]})]
    batches = [Batch(columns, num_rows=2, extras=table) for table in extras]
    found = Batch.concat(batches)
    assert found["a"].values.tolist() == [3, 4, 5, 6, 7, 3, 4, 5, 6, 7]
    assert found["a"].offsets.tolist() == [0, 2, 5, 7, 10]
    assert found.extras.to_pydict() == {"x": [1, 2, 7, 8], "y": [3, 4, 5, 6]}
    assert found[:0].dense(["pad"]).shape == (0, 4)


def test_padding_stays_padding() -> None:
    batch = make([1, 2])
    padding = Batch(batch.columns, num_rows=2, extras=batch.extras, is_padding=True)
    assert [(of.is_padding, len(of), of.num_rows) for of in (padding[:1], padding[:0])] == [
        (True, 1, 0),
        (True, 0, 0),
    ]
    found = Batch.concat([padding, padding])
    assert (found.is_padding, len(found), found.num_rows) == (True, 4, 0)


def test_a_slice_with_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match=r"batch\[None:None:2\]: expected a slice without a step"):
        make([1])[::2]


def _with(**changes: Any) -> Batch:
    """A batch of one row with other columns. None: without the column."""
    batch = make([1])
    columns = dict(batch.made()) | {("slot", name): column for name, column in changes.items()}
    kept = {key: column for key, column in columns.items() if column is not None}
    return batch.with_columns(TensorColumns(kept))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (_with(pair=None), r"slot 'pair': expected rows of shape \(2,\), .* found none in batch 1"),
        (_with(more=torch.ones(1)), r"slot 'more': expected none in each batch.* found rows of"),
        (_with(pair=torch.ones(1, 3)), r"slot 'pair': .* found rows of shape \(3,\)"),
        (_with(item=torch.ones(1)), "slot 'item': expected lists, torch.int64"),
        (_with(pair=torch.ones(1, 2).half()), "slot 'pair': .* found .* torch.float16"),
        (Batch(make([1]).columns, num_rows=1, extras=pa.table({})), "extra 'row': expected int64"),
        (
            Batch(make([1]).columns, num_rows=1, extras=make([1]).extras, is_padding=True),
            "padding: expected rows that count .* found rows of a padding batch in batch 1",
        ),
    ],
)
def test_batches_that_differ_are_not_concatenated(other: Batch, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batch.concat([make([1]), other])


def test_no_batches_and_batches_on_a_device_are_refused() -> None:
    with pytest.raises(ValueError, match="expected at least one batch, found none"):
        Batch.concat([])
    with pytest.raises(ValueError, match="expected batches on the CPU, found one on meta"):
        Batch.concat([make([1]).to("meta")] * 2)
