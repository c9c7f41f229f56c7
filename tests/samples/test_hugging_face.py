"""A dataset in the training loops of Hugging Face, which are no dependency of featstore."""

import json
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
import transformers
from torch.utils.data import DataLoader

from featstore.samples.sample_dataset import SampleDataset
from featstore.tensors.batch import Batch
from tests.loader.conftest import NUM_ROWS
from tests.programs import torchrun

pytestmark = pytest.mark.slow


class Model(torch.nn.Module):
    """Learns nothing, and notes the rows that it got."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.rows: list[int] = []

    def forward(self, half: torch.Tensor, row: torch.Tensor, labels: torch.Tensor) -> Any:
        self.rows += row.tolist()
        logits = self.linear(half[:, None])
        return {"loss": (logits - labels[:, None]).square().mean(), "logits": logits}


def arguments_of(batches: list[Batch]) -> dict[str, torch.Tensor]:
    """The `collate_fn` of a Trainer, whose models take keywords."""
    [batch] = batches
    return {"half": batch["half"], "row": batch["row"], "labels": batch.labels["click"]}


def test_accelerate_prepares_a_loader_of_samples(dataset: SampleDataset) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loader: Any = DataLoader(dataset, batch_size=32, shuffle=True)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        found = prepared(batch["half"], batch["row"], batch.labels["click"])
        accelerator.backward(found["loss"])
        optimizer.step()
        optimizer.zero_grad()
    assert sorted(model.rows) == list(range(NUM_ROWS))


RANKS = """
import json, sys
import accelerate
from torch.utils.data import DataLoader
import featstore

table, out, num_workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
accelerator = accelerate.Accelerator(cpu=True)
samples = featstore.SampleDataset(table, slots=["row"], staging={"directory": out + "/cache"})
order = featstore.RandomOrder(len(samples), seed=3)
how = {"batch_size": 35, "num_workers": num_workers}
loaders = [
    DataLoader(samples, shuffle=True, **how),
    DataLoader(samples, sampler=order.rows(rank=0, world_size=1), **how),
]
found = [[batch["row"].tolist() for batch in accelerator.prepare(each)] for each in loaders]
with open(f"{out}/{accelerator.process_index}.json", "w") as file:
    json.dump(found, file)
accelerator.end_training()
"""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_of_accelerate_share_every_row_of_a_shuffled_and_of_a_random_order(
    table_url: str, tmp_path: Path, num_workers: int
) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    done = torchrun(tmp_path / "ranks.py", table_url, tmp_path, num_workers)
    assert done.returncode == 0, done.stderr[-5000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for batches in zip(*ranks, strict=True):
        assert [len(of_rank) for of_rank in batches] == [4, 4]
        rows = [row for of_rank in batches for batch in of_rank for row in batch]
        assert sorted(rows) == list(range(NUM_ROWS))
        assert rows != sorted(rows)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_trainer_trains_on_samples(
    dataset: SampleDataset, tmp_path: Path, num_workers: int
) -> None:
    model = Model()
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=32,
            num_train_epochs=2,
            learning_rate=1e-9,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            remove_unused_columns=False,
            dataloader_num_workers=num_workers,
            dataloader_persistent_workers=num_workers > 0,
        ),
        train_dataset=dataset,
        data_collator=arguments_of,
    )
    trainer.train()
    assert sorted(model.rows) == sorted([*range(NUM_ROWS), *range(NUM_ROWS)])
