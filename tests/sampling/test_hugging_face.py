"""A dataset in the training loops of Hugging Face, which are no dependency of featstore."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from featstore.sampling.sample_dataset import SampleDataset
from featstore.tensors.batch import Batch
from tests.loader.conftest import NUM_ROWS

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
    accelerate: Any = pytest.importorskip("accelerate")
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


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_trains_on_samples(dataset: SampleDataset, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
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
        ),
        train_dataset=dataset,
        data_collator=arguments_of,
    )
    trainer.train()
    assert sorted(model.rows) == sorted([*range(NUM_ROWS), *range(NUM_ROWS)])
