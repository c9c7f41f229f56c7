"""Trains a DeepFM on the batches of a loader, evaluates it, and measures how long training waits
for data.

    python -m featstore.tools.demo_train TRAIN.yaml --evaluate "month >= '2013-11'"
"""

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import click
import numpy as np
import torch
from torch.nn import functional

from featstore.base.errors import ConfigError, FeatstoreError
from featstore.base.schema import Slot, SlotKind
from featstore.loader.feature_loader import FeatureLoader
from featstore.tensors.batch import Batch, Jagged
from featstore.tools.demo_deepfm import DeepFM, ModelOptions
from featstore.tools.demo_metrics import auc

_SECONDS_PER_LINE = 5.0


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of a training.

    Attributes:
        model: The sizes of the model.
        lr: Adam's learning rate of dense parameters.
        sparse_lr: Adam's learning rate of the embeddings of ids.
        seed: The seed of the initial weights.
    """

    model: ModelOptions = field(default_factory=ModelOptions)
    lr: float = 2e-3
    sparse_lr: float = 5e-4
    seed: int = 1


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


class _TimedBatches:
    """Iterates over batches and adds up the time spent waiting for them."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = batches
        self._started_s = time.monotonic()
        self.wait_seconds = 0.0

    def __iter__(self) -> Iterator[Batch]:
        requested_s = time.monotonic()
        for batch in self._batches:
            self.wait_seconds += time.monotonic() - requested_s
            yield batch
            requested_s = time.monotonic()
        self.wait_seconds += time.monotonic() - requested_s

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started_s


def train(
    batches: Iterable[Batch], options: TrainOptions | None = None
) -> tuple[DeepFM, TrainReport]:
    """Trains a model of the first label in one iteration over `batches`. Prints its progress.

    Raises:
        ConfigError: The batches have no slot, no label or no row.
    """
    options = options or TrainOptions()
    # The model is made when the first batch shows its slots.
    torch.manual_seed(options.seed)
    timed = _TimedBatches(batches)
    trainer: _Trainer | None = None
    num_rows, loss_sum, printed_s = 0, 0.0, time.monotonic()
    for batch in timed:
        trainer = trainer or _Trainer(batch, options)
        loss_sum += trainer.step(batch) * batch.num_rows
        num_rows += batch.num_rows
        if time.monotonic() - printed_s > _SECONDS_PER_LINE:
            printed_s = time.monotonic()
            print(f"  {num_rows:,} rows, mean loss {loss_sum / num_rows:.4f}", flush=True)
    if trainer is None:
        raise ConfigError(
            "expected rows to train on, found none; check `where` in the training config"
        )
    report = TrainReport(
        num_rows=num_rows,
        seconds=timed.seconds,
        wait_seconds=timed.wait_seconds,
        loss=loss_sum / num_rows,
    )
    return trainer.model, report


class _Trainer:
    """A model for the slots of a first batch, and its optimizers."""

    def __init__(self, batch: Batch, options: TrainOptions) -> None:
        slots = slots_of(batch)
        if not slots or not batch.labels:
            raise ConfigError(
                f"expected slots and a label to train on, found slots {list(batch.slots)}, labels "
                f"{[*batch.labels]}"
            )
        self.model = DeepFM(slots, options.model)
        self._label = next(iter(batch.labels))
        self.model.start_at(batch.labels[self._label].mean())
        self._optimizers = self.model.optimizers(lr=options.lr, sparse_lr=options.sparse_lr)

    def step(self, batch: Batch) -> float:
        """Makes one optimizer step on the mean cross entropy, which it returns."""
        loss = functional.binary_cross_entropy_with_logits(
            self.model(batch), batch.labels[self._label]
        )
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self._optimizers:
            optimizer.step()
        return loss.item()


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
            model, trained = train(loader, TrainOptions(seed=seed))
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
