"""Jobs of Lightning that note which rows they train on."""

from pathlib import Path
from typing import Any

import lightning
import torch

from tests.loader.conftest import rows_of

# What Lightning itself, and torch below it, warn of in the jobs of tests.
QUIET = (
    "ignore:.*fork.*:DeprecationWarning",
    "ignore:'set_vital' is deprecated:UserWarning",  # torchdata calls it
    "ignore:.*does not have many workers",
    "ignore:.*LeafSpec.*:FutureWarning",
    "ignore:.*isinstance.treespec, LeafSpec.*",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:.*Consider using an end-of-epoch checkpoint",
    "ignore:Be aware that when using `ckpt_path`",
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
    "ignore:Your `IterableDataset` has `__len__` defined",
)


class Model(lightning.LightningModule):  # type: ignore[misc]
    """Keeps the rows of each epoch, by the number that the Trainer gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.epochs: dict[int, list[int]] = {}
        self.checked: dict[int, list[int]] = {}
        self.num_sanity_checks = 0

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.epochs.setdefault(self.current_epoch, []).extend(rows_of([batch]))
        loss: torch.Tensor = self.linear(batch["half"][:, None]).mean()
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        if self.trainer.sanity_checking:
            self.num_sanity_checks += 1
        else:
            self.checked.setdefault(self.current_epoch, []).extend(rows_of([batch]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def trainer(directory: Path, **options: Any) -> Any:
    """A Trainer on one CPU that writes to this directory only."""
    known: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": directory,
    }
    return lightning.Trainer(**known | options)


def checkpoints(directory: Path, every_num_steps: int) -> Any:
    """Keeps a checkpoint after each so many steps, as `step=N.ckpt`."""
    return lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=directory,
        filename="{step}",
        every_n_train_steps=every_num_steps,
        save_top_k=-1,
        enable_version_counter=False,
    )
