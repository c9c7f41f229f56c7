"""Lightning makes our callback for each Trainer, which warns of a checkpoint without a state."""

import warnings
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.lightning_callback import WarnsOfLostState
from featstore.loader.lightning_feed import LightningFeed
from tests.loader import lightning_jobs

pytestmark = [pytest.mark.filterwarnings(line) for line in lightning_jobs.QUIET]
LOST = "the checkpoint does not hold which rows were trained on.*DataLoader over a FeatureLoader"


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_each_trainer_has_the_callback(package: str) -> None:
    library = import_module(package)
    found = [one.load() for one in entry_points(group=f"{package}.callbacks_factory")]
    (callback,) = [one for make in found for one in make() if isinstance(one, WarnsOfLostState)]
    assert isinstance(callback, library.Callback)


def test_a_checkpoint_beside_a_plain_dataloader_is_warned_of_once(
    table_url: str, tmp_path: Path
) -> None:
    with FeatureLoader(table_url, slots=["row", "half"], batch_size=40) as loader:
        saving = lightning_jobs.checkpoints(tmp_path, 2)
        trainer = lightning_jobs.trainer(
            tmp_path, max_epochs=1, enable_checkpointing=True, callbacks=[saving]
        )
        with pytest.warns(UserWarning, match=LOST) as found:
            trainer.fit(lightning_jobs.Model(), DataLoader(loader, batch_size=None))
    assert len([one for one in found if "does not hold" in str(one.message)]) == 1
    assert len(list(tmp_path.glob("*.ckpt"))) == 3


def warned(loaders: Any, *, is_global_zero: bool = True) -> int:
    """How often a callback warns in two checkpoints of a Trainer that reads these."""
    trainer = SimpleNamespace(train_dataloader=loaders, is_global_zero=is_global_zero)
    callback = WarnsOfLostState()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            callback.on_save_checkpoint(trainer, None, {})
    return len(found)


def test_only_what_reads_a_loader_and_has_no_state_is_warned_of(table_url: str) -> None:
    with FeatureLoader(table_url, slots=["row"]) as loader:
        lost = DataLoader(loader, batch_size=None)
        other: DataLoader[Any] = DataLoader([1, 2, 3])  # type: ignore[arg-type]
        kept = [loader, LightningFeed(loader), StatefulDataLoader(loader, batch_size=None), other]
        assert [warned(one) for one in (*kept, kept, None)] == [0] * 6
        held = [lost, [other, lost], {"a": other, "b": {"c": lost}}, loader.to_device("cpu")]
        assert [warned(one) for one in held] == [1] * 4
        assert warned(lost, is_global_zero=False) == 0
