"""The sides of the benchmark of training are given the same rows, in the same batches."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from size_parts.tfrecord import parse_rows, read_records
from staging_parts.table import Remote, served
from training_parts.columns import ArrowReader, FeatstoreReader
from training_parts.dlrm import Dlrm, Inputs, train
from training_parts.rows import LABEL, AdsRows

ROWS = AdsRows(num_files=2, file_rows=64, num_slots=40, num_selected=20)
BATCH_SIZE = 32


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return ROWS.write(tmp_path_factory.mktemp("rows"))


def all_tensors(inputs: Inputs) -> list[torch.Tensor]:
    lists = [tensor for pair in inputs.lists for tensor in pair]
    return [*inputs.ids, *lists, inputs.floats.nan_to_num(), inputs.label]


def test_pyarrow_and_featstore_give_the_same_batches_from_a_store_and_from_the_disk(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = folders["parquet"]
    with served(folder.parent, Remote(name="store", latency_s=0.0, bytes_per_s=0)) as url:
        urls = [f"{url}/{folder.name}/{path.name}" for path in sorted(folder.iterdir())]
        readers: list[ArrowReader | FeatstoreReader] = [
            ArrowReader(ROWS, urls, BATCH_SIZE),
            FeatstoreReader(ROWS, str(folder), urls, BATCH_SIZE, tmp_path),
            FeatstoreReader(ROWS, str(folder), [], BATCH_SIZE, tmp_path),
        ]
        batches = [[all_tensors(inputs) for inputs in reader()] for reader in readers]
    assert [len(found) for found in batches] == [4, 4, 4]
    for same in zip(*batches, strict=True):
        for tensors in zip(*same, strict=True):
            assert all(torch.equal(tensors[0], other) for other in tensors[1:])


def test_records_hold_the_rows_of_the_parquet_files(folders: dict[str, Path]) -> None:
    rows = pq.read_table(folders["parquet"] / "part-00.parquet")
    with (folders["tfrecord"] / "part-00.tfrecord").open("rb") as source:
        [batch] = parse_rows(read_records(source), rows.schema)
    for name in (*ROWS.selected("i"), *ROWS.selected("l"), LABEL):
        assert batch.column(name).to_pylist() == rows.column(name).to_pylist()
    for name in ROWS.selected("f"):
        np.testing.assert_array_equal(batch.column(name), rows.column(name))


def test_an_epoch_counts_its_rows_and_lowers_the_loss(folders: dict[str, Path]) -> None:
    torch.manual_seed(0)
    ids, lists, floats = (len(ROWS.selected(kind)) for kind in "ilf")
    model = Dlrm(num_ids=ids, num_lists=lists, num_floats=floats)
    reader = FeatstoreReader(ROWS, str(folders["parquet"]), [], BATCH_SIZE, Path("unused"))
    epochs = [train(model, reader, ROWS.num_rows) for _ in range(3)]
    assert all((epoch.num_rows, epoch.num_batches) == (128, 4) for epoch in epochs)
    assert all(0 <= epoch.waited_s <= epoch.epoch_s for epoch in epochs)
    assert epochs[-1].loss < epochs[0].loss
