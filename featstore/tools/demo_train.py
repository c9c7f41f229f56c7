"""Trains a DeepFM on the batches of a loader, evaluates it, and measures how long training waits
for data.

    python -m featstore.tools.demo_train TRAIN.yaml --evaluate "month >= '2013-11'"
"""

import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

import click
import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from featstore.base.errors import ConfigError, FeatstoreError
from featstore.base.schema import Slot, SlotKind
from featstore.loader.feature_loader import FeatureLoader
from featstore.statistics import measures
from featstore.tensors.batch import Batch
from featstore.tensors.columns import Jagged
from featstore.tools.demo_deepfm import DeepFM

_SECONDS_PER_LINE = 5.0
_LR, _SPARSE_LR = 2e-3, 5e-4  # of Adam: dense parameters, and embeddings of ids


@dataclass(frozen=True, kw_only=True)
class TrainReport:
    """The result of a training.

    Attributes:
        num_rows: The rows trained on.
        seconds: The wall time.
        wait_seconds: The part of it spent waiting for the next batch.
        loss: The mean loss.
    """

    num_rows: int
    seconds: float
    wait_seconds: float
    loss: float

    @property
    def rows_per_s(self) -> float:
        return self.num_rows / self.seconds if self.seconds else 0.0

    @property
    def wait_share(self) -> float:
        return self.wait_seconds / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class EvaluateReport:
    """A model's AUC over the rows of a loader."""

    num_rows: int
    seconds: float
    auc: float


def train(batches: Iterable[Batch], *, seed: int = 1) -> tuple[DeepFM, TrainReport]:
    """Trains a model of the first label in one iteration over `batches`. Prints its progress.

    Args:
        batches: At least one.
        seed: The seed of the initial weights.

    Raises:
        ConfigError: The batches have no slot, no label or no row.
    """
    # The model is made when the first batch shows its slots.
    torch.manual_seed(seed)
    model: DeepFM | None = None
    optimizers: list[torch.optim.Optimizer] = []
    num_rows, loss_sum, wait_s = 0, 0.0, 0.0
    started_s = printed_s = asked_s = time.monotonic()
    for batch in batches:
        wait_s += time.monotonic() - asked_s
        if model is None:
            model = _model_of(batch)
            optimizers = model.optimizers(lr=_LR, sparse_lr=_SPARSE_LR)
        label = next(iter(batch.labels.values()))
        loss = functional.binary_cross_entropy_with_logits(model(batch), label)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        loss_sum += loss.item() * batch.num_rows
        num_rows += batch.num_rows
        if time.monotonic() - printed_s > _SECONDS_PER_LINE:
            printed_s = time.monotonic()
            print(f"  {num_rows:,} rows, mean loss {loss_sum / num_rows:.4f}", flush=True)
        asked_s = time.monotonic()
    if model is None:
        raise ConfigError(
            "expected rows to train on, found none; check `where` in the training config"
        )
    ended_s = time.monotonic()
    report = TrainReport(
        num_rows=num_rows,
        seconds=ended_s - started_s,
        wait_seconds=wait_s + ended_s - asked_s,
        loss=loss_sum / num_rows,
    )
    return model, report


def _model_of(batch: Batch) -> DeepFM:
    """A model for the slots of a batch, which starts at its share of positives."""
    slots = slots_of(batch)
    if not slots or not batch.labels:
        raise ConfigError(
            f"expected slots and a label to train on, found slots {list(batch.slots)}, labels "
            f"{[*batch.labels]}"
        )
    model = DeepFM(slots)
    model.start_at(next(iter(batch.labels.values())).mean())
    return model


def slots_of(batch: Batch) -> tuple[Slot, ...]:
    """The slots of a batch, inferred from their tensors: kind from the dtype, shape from the
    shape.
    """
    return tuple(_slot(name, batch[name]) for name in batch.slots)


def _slot(name: str, column: torch.Tensor | Jagged) -> Slot:
    values = column.values if isinstance(column, Jagged) else column
    shape = (None,) if isinstance(column, Jagged) else tuple(column.shape[1:])
    return Slot(
        name=name, kind=SlotKind.FLOAT if values.is_floating_point() else SlotKind.ID, shape=shape
    )


@torch.no_grad()
def evaluate(model: DeepFM, batches: Iterable[Batch]) -> EvaluateReport:
    """Computes the model's AUC for the first label of `batches`."""
    started_s = time.monotonic()
    labels, scores = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)]
    model.eval()
    for batch in batches:
        labels.append(next(iter(batch.labels.values())).numpy().copy())
        scores.append(model(batch).numpy())
    return EvaluateReport(
        num_rows=sum(map(len, labels)),
        seconds=time.monotonic() - started_s,
        auc=auc(np.concatenate(labels), np.concatenate(scores)),
    )


def auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """The area under the ROC curve: the chance that a positive row scores above a negative one,
    ties counting half.

    Args:
        labels: (num_rows,), 0 or 1.
        scores: (num_rows,), any numbers but NaN.

    Returns:
        The area, or NaN if one of the classes is empty.
    """
    values, cells = np.unique(np.asarray(scores), return_inverse=True)
    positive = np.asarray(labels) > 0
    by_cell = (np.bincount(cells[rows], minlength=len(values)) for rows in (positive, ~positive))
    area = measures.auc(*by_cell)
    return math.nan if area is None else area


@click.command()
@click.argument("config", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--evaluate",
    "where",
    metavar="WHERE",
    help="Rows to evaluate on, such as \"month >= '2013-11'\".",
)
@click.option("--seed", default=1, show_default=True, help="The seed of the initial weights.")
def main(config: str, where: str | None, seed: int) -> None:
    """Trains a DeepFM on the rows and slots of CONFIG, and prints its AUC on others."""
    try:
        if where is not None:
            # Raises errors of `where` before the training.
            FeatureLoader.from_config(config, where=where, shuffle=None).close()
        with FeatureLoader.from_config(config) as loader:
            model, trained = train(loader, seed=seed)
        waited = f"{trained.wait_share:.0%} of the time waiting for data"
        print(
            f"trained on {trained.num_rows:,} rows at {trained.rows_per_s:,.0f} rows/s, {waited}, "
            f"mean loss {trained.loss:.4f}"
        )
        if where is not None:
            with FeatureLoader.from_config(config, where=where, shuffle=None) as loader:
                evaluated = evaluate(model, loader)
            print(f"AUC {evaluated.auc:.4f} on {evaluated.num_rows:,} rows where {where}")
    except FeatstoreError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
