import io
import multiprocessing
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch.utils.data import default_convert

from featstore.loader.feature_loader import FeatureLoader
from featstore.tensors.batch import Batch
from featstore.tensors.columns import Jagged
from tests.parquet_files import put_parquet


def make(table_url: str, batch_size: int = 50) -> Batch:
    """A batch that straddles row groups."""
    with FeatureLoader(
        table_url,
        slots=["row", "half", "tags", "pair"],
        labels=["click"],
        weight="half",
        extras=["note", "dt"],
        batch_size=batch_size,
    ) as loader:
        return next(iter(loader))


def assert_equal(one: Batch, other: Batch) -> None:
    assert (one.slots, one.num_rows, list(one.labels)) == (
        other.slots,
        other.num_rows,
        list(other.labels),
    )
    for name in one.slots:
        for mine, theirs in zip(parts(one[name]), parts(other[name]), strict=True):
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs)
    assert torch.equal(one.labels["click"], other.labels["click"])
    assert one.weight is not None
    assert other.weight is not None
    assert torch.equal(one.weight, other.weight)
    assert one.extras.equals(other.extras)


def parts(column: torch.Tensor | Jagged) -> tuple[torch.Tensor, ...]:
    return (column.values, column.offsets) if isinstance(column, Jagged) else (column,)


def test_a_batch_has_each_column_in_its_shape(table_url: str) -> None:
    batch = make(table_url)
    assert batch["row"].tolist() == list(range(50))
    assert (batch["half"].dtype, tuple(batch["pair"].shape)) == (torch.float32, (50, 2))
    assert batch["tags"][4].tolist() == [1, 2, 3, 4]
    assert batch["tags"][3].tolist() == [0]
    assert batch["tags"][-50].tolist() == []
    assert batch.labels["click"][:3].tolist() == [0.0, 1.0, 0.0]
    assert batch.weight is not None
    assert batch.weight.tolist() == batch["half"].tolist()
    assert batch.extras.slice(0, 1).to_pylist() == [{"note": "n0", "dt": "2026-11-01"}]
    assert (len(batch), "row" in batch, "click" in batch) == (50, True, False)
    assert (
        repr(batch) == "Batch(num_rows=50, slots=['row', 'half', 'tags', 'pair'], labels=['click'])"
    )


def test_a_slot_that_was_not_selected_answers_with_the_nearest(table_url: str) -> None:
    batch = make(table_url)
    with pytest.raises(
        KeyError, match=r"no slot 'tag' in the batch; did you mean 'tags'\?; there are"
    ):
        batch["tag"]
    for name, where in (("click", "labels"), ("note", "extras")):
        with pytest.raises(KeyError, match=rf"in the batch: it is in batch\.{where}\['{name}'\]; "):
            batch[name]
    with pytest.raises(
        KeyError, match=r"no label 'clicked' in the batch; .* there are \['click'\]"
    ):
        batch.labels["clicked"]
    with pytest.raises(KeyError, match="no slot of candidates 'x' in the batch; there are"):
        batch.candidates["x"]
    assert batch.labels.get("clicked") is None


def test_a_batch_has_the_methods_of_a_mapping_of_its_slots(table_url: str) -> None:
    batch = make(table_url)
    names = ["row", "half", "tags", "pair"]
    assert list(batch) == list(batch.keys()) == list(batch.slots) == names
    assert [name for name, _ in batch.items()] == names
    assert batch.keys() & {"row", "click"} == {"row"}
    assert all(column is batch[name] for name, column in batch.items())
    assert all(
        mine is theirs for mine, theirs in zip(batch.values(), dict(batch).values(), strict=True)
    )
    assert [name in batch for name in (*names, "click")] == [True] * 4 + [False]
    assert batch.get("row") is batch["row"]
    assert (batch.get("click"), batch.get("click", 7)) == (None, 7)
    assert len(batch) == batch.num_rows == 50


def test_a_model_takes_a_batch_as_keywords(table_url: str) -> None:
    def model(*, row: torch.Tensor, **others: Any) -> tuple[list[int], list[str]]:
        return row.tolist(), list(others)

    assert model(**make(table_url)) == (list(range(50)), ["half", "tags", "pair"])


def test_a_dataloader_passes_a_batch_on_as_it_is(table_url: str) -> None:
    """Of a `collections.abc.Mapping` it would make a dict, without labels."""
    batch = make(table_url)
    assert not isinstance(batch, Mapping)
    assert default_convert(batch) is batch  # type: ignore[no-untyped-call]


def test_rows_of_a_padding_batch_do_not_count_but_are_there(table_url: str) -> None:
    batch = make(table_url)
    padding = Batch(batch.columns, num_rows=50, extras=batch.extras, is_padding=True)
    copies = (
        padding,
        padding.clone(),
        padding.to("cpu"),
        pickle.loads(pickle.dumps(padding)),
    )
    for found in copies:
        assert (found.num_rows, len(found), found.is_padding) == (0, 50, True)
        assert found["row"].tolist() == list(range(50))
        assert found.dense(["half"]).shape == (50, 1)
        assert found.extras.num_rows == 50


@pytest.mark.parametrize("batch_size", [7, 16, 50, 1000])
@pytest.mark.parametrize(
    "copy",
    [Batch.clone, lambda batch: batch.to("cpu"), lambda batch: pickle.loads(pickle.dumps(batch))],
)
def test_a_packed_batch_equals_its_views(table_url: str, batch_size: int, copy: Any) -> None:
    batch = make(table_url, batch_size)
    assert_equal(copy(batch), batch)
    assert_equal(copy(copy(batch)), batch)


def test_a_packed_batch_is_one_buffer(table_url: str) -> None:
    packed = make(table_url).clone()
    storages = {packed[name].untyped_storage().data_ptr() for name in ("row", "pair")}
    storages |= {
        packed["tags"].values.untyped_storage().data_ptr(),
        packed["tags"].offsets.untyped_storage().data_ptr(),
    }
    assert len(storages) == 1
    assert packed.weight is not None
    assert packed["half"].untyped_storage().data_ptr() == packed.weight.untyped_storage().data_ptr()


def test_a_clone_is_yours_to_write(table_url: str) -> None:
    batch = make(table_url)
    clone = batch.clone()
    clone["row"].fill_(-1)
    assert batch["row"].tolist() == list(range(50))


def test_a_batch_moves_to_a_device_by_its_buffers(table_url: str) -> None:
    moved = make(table_url).to("meta", non_blocking=True)
    assert moved["tags"].values.device.type == moved.labels["click"].device.type == "meta"
    assert moved["pair"].shape == (50, 2)


def test_a_batch_travels_between_processes_as_shared_memory(table_url: str) -> None:
    batch = make(table_url, 280)
    sink = io.BytesIO()
    multiprocessing.reduction.ForkingPickler(sink, pickle.HIGHEST_PROTOCOL).dump(batch)
    assert_equal(pickle.loads(sink.getvalue()), batch)
    assert len(sink.getvalue()) < 280 * 6 * 8


def test_extras_travel_without_the_memory_around_them() -> None:
    big = pa.table({"text": pa.array(["x" * 100] * 10_000)}).slice(5, 2)
    batch = Batch(_NoColumns(), num_rows=2, extras=big)  # type: ignore[arg-type]
    assert len(pickle.dumps(batch)) < 2000


class _NoColumns:
    keys = ()

    def packed(self) -> "_NoColumns":
        return self


def test_jagged_rows_and_lengths() -> None:
    jagged = Jagged(torch.tensor([1, 2, 3]), torch.tensor([0, 2, 2, 3]))
    assert jagged.lengths().tolist() == [2, 0, 1]
    assert [row.tolist() for row in jagged] == [[1, 2], [], [3]]
    assert jagged.to("meta").values.device.type == "meta"
    clone = jagged.clone()
    clone.values.zero_()
    assert jagged.values.tolist() == [1, 2, 3]
    with pytest.raises(IndexError, match="row 3 of 3"):
        jagged[3]
    assert [row.tolist() for row in jagged.to_nested().unbind()] == [[1, 2], [], [3]]


def test_dense_puts_float_slots_side_by_side(tmp_path: Path) -> None:
    lists = pa.array([[1.0, 2.0], None], pa.list_(pa.float32()))
    put_parquet(
        tmp_path / "a.parquet",
        {
            "a": pa.array([1.0, None], pa.float32()),
            "b": lists.cast(pa.list_(pa.float32(), 2)),
            "c": lists,
            "id": [1, 2],
        },
    )
    slots: list[Any] = ["id", {"name": "a", "dtype": "bfloat16"}, "b", {"name": "c", "pad": 3}]
    (batch,) = FeatureLoader(tmp_path, slots=slots)
    dense = batch.dense(["c", "a", "b"])
    assert (dense.dtype, tuple(dense.shape)) == (torch.float32, (2, 6))
    assert dense.nan_to_num(-1).tolist() == [[1.0, 2.0, -1.0, 1.0, 1.0, 2.0], [-1.0] * 6]
    assert batch.to("meta").dense(["a"]).device.type == "meta"


@pytest.mark.parametrize(
    ("slots", "error", "message"),
    [
        (["row"], TypeError, "slot 'row' holds ids"),
        (["tags"], TypeError, "slot 'tags' is a list: select it with {name: tags, pad: 8}"),
        ("half", TypeError, "expected a list of slots, found 'half'"),
        ([], ValueError, "expected at least one slot"),
        (["halve"], KeyError, "did you mean 'half'"),
    ],
)
def test_what_cannot_be_dense_is_refused(
    table_url: str, slots: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        make(table_url).dense(slots)
