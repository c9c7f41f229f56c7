"""Warns of checkpoints of Lightning that do not hold how far a loader is.

A Trainer saves the states of those loaders that have one. torch's DataLoader has none, so the
checkpoint lacks it without a word. For each Trainer Lightning makes the callbacks that packages
name in entry points (pyproject.toml). This is one, for both of Lightning's packages.
"""

import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from torch.utils.data import DataLoader

from featstore.loader.device import DeviceFeed
from featstore.loader.feature_loader import FeatureLoader


class WarnsOfLostState:
    """Warns once, when a checkpoint is saved while a Trainer reads a FeatureLoader through what has
    no state. To be mixed with Lightning's `Callback`.
    """

    _has_warned = False

    def on_save_checkpoint(self, trainer: Any, *_: Any) -> None:
        """Called by the Trainer in all ranks."""
        if self._has_warned or not trainer.is_global_zero:
            return
        for loader in _loaders(trainer.train_dataloader):
            if _loses_state(loader):
                self._has_warned = True
                warnings.warn(
                    "the checkpoint does not hold which rows were trained on, so a restart from it "
                    f"begins the epoch anew: {type(loader).__name__} over a FeatureLoader has no "
                    "state; give the Trainer LightningFeed(loader), or LightningFeed("
                    "StatefulDataLoader(loader, batch_size=None, num_workers=...)), of "
                    "featstore.loader.lightning_feed",
                    stacklevel=2,
                )


def of_lightning() -> list[Any]:
    """The callbacks of each Trainer of the package `lightning`, which calls this."""
    return [_callback("lightning.pytorch")]


def of_pytorch_lightning() -> list[Any]:
    """The callbacks of each Trainer of the package `pytorch_lightning`, which calls this."""
    return [_callback("pytorch_lightning")]


def _callback(package: str) -> Any:
    return type("WarnsOfLostState", (WarnsOfLostState, import_module(package).Callback), {})()


def _loaders(found: Any) -> Iterator[Any]:
    """The loaders in what a Trainer was given: one, or lists and dicts of them."""
    parts = found.values() if isinstance(found, Mapping) else found
    if parts is not found or isinstance(found, list | tuple):
        for part in parts:
            yield from _loaders(part)
    else:
        yield found


def _loses_state(loader: Any) -> bool:
    if isinstance(loader, DataLoader):
        is_ours = isinstance(loader.dataset, FeatureLoader)
        return is_ours and not hasattr(loader, "state_dict")
    return isinstance(loader, DeviceFeed)
