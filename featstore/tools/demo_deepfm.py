"""A DeepFM in plain torch over the slots of a batch.

After Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", IJCAI
2017: a linear part, the sum of all pairwise products of the fields' vectors, and a small network
over the same vectors share one embedding.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from featstore.base.schema import Slot, SlotKind
from featstore.tensors.columns import Jagged

# Standardized numbers are clipped to this many standard deviations, so that outliers do not
# dominate a step.
_MAX_SPREADS = 5.0


class SlotTensors(Protocol):
    """Tensors by slot name: a batch, or a mapping."""

    def __getitem__(self, slot: str, /) -> Any: ...


class IdEmbedding(nn.Module):
    """One vector per id slot and row, from one table for all slots: the embedding of a scalar, or
    the mean over the elements of a list.

    A missing id has a vector of its own, and an empty list gives zeros. The first number of each
    vector is its linear weight. Gradients are sparse.
    """

    def __init__(self, slots: Sequence[Slot], buckets: int, dim: int) -> None:
        super().__init__()
        self.names = tuple(slot.name for slot in slots)
        self.buckets = buckets
        self.weight = nn.Parameter(torch.randn(len(slots) * buckets, dim + 1) * 0.01)

    def forward(self, columns: SlotTensors) -> Tensor:
        """Returns float32 (num_rows, num_slots, 1 + dim)."""
        parts = [_flat(columns[name]) for name in self.names]
        # Slot i has the rows of the table from i * buckets on. A scalar is a list of one element.
        indices = torch.cat(
            [bucket(values, self.buckets) + i * self.buckets for i, (values, _) in enumerate(parts)]
        )
        lengths = torch.cat([offsets.diff() for _, offsets in parts])
        offsets = functional.pad(lengths.cumsum(0), (1, 0))
        bags = functional.embedding_bag(
            indices, self.weight, offsets, mode="mean", sparse=True, include_last_offset=True
        )
        return bags.view(len(parts), -1, bags.shape[1]).transpose(0, 1)


class FloatEmbedding(nn.Module):
    """Standardized float slots with indicators of missing values, and a vector for each input.

    A scalar has two inputs: the value and the indicator. A list has three: the mean of its values,
    its length, and the indicator. Values are standardized by the mean and the standard deviation
    (`spread`) of all values seen in training; a missing value becomes 0.
    """

    mean: Tensor
    spread: Tensor
    count: Tensor

    def __init__(self, slots: Sequence[Slot], dim: int) -> None:
        super().__init__()
        self.scalars = tuple(slot.name for slot in slots if not slot.shape)
        self.lists = tuple(slot.name for slot in slots if slot.shape)
        num_numbers = len(self.scalars) + 2 * len(self.lists)
        self.width = num_numbers + len(slots)
        self.weight = nn.Parameter(torch.randn(self.width, dim + 1) * 0.01)
        self.register_buffer("mean", torch.zeros(num_numbers))
        self.register_buffer("spread", torch.ones(num_numbers))
        self.register_buffer("count", torch.zeros(num_numbers))

    def forward(self, columns: SlotTensors) -> tuple[Tensor, Tensor]:
        """Returns inputs (num_rows, width) and vectors (num_rows, width, 1 + dim), float32."""
        scalars = [columns[name].unsqueeze(1) for name in self.scalars]
        pooled = [pool(columns[name]) for name in self.lists]
        numbers = torch.cat(
            [*scalars, *(mean for mean, _ in pooled), *(length for _, length in pooled)], dim=1
        )
        missing = torch.isnan(numbers)
        if self.training:
            self._observe(numbers, ~missing)
        scaled = torch.where(missing, 0.0, (numbers - self.mean) / self.spread)
        marks = missing[:, : len(self.scalars) + len(self.lists)].float()
        inputs = torch.cat([scaled.clamp(-_MAX_SPREADS, _MAX_SPREADS), marks], dim=1)
        return inputs, inputs.unsqueeze(2) * self.weight

    @torch.no_grad()
    def _observe(self, numbers: Tensor, present: Tensor) -> None:
        """Merges the mean and variance of a batch into the running ones (Chan, Golub and LeVeque,
        1979).
        """
        num_new = present.sum(dim=0)
        total = self.count + num_new
        mean = torch.where(present, numbers, 0.0).sum(dim=0) / num_new.clamp(min=1)
        delta = mean - self.mean
        squares = torch.where(present, (numbers - mean) ** 2, 0.0).sum(dim=0)
        squares += self.spread**2 * self.count + delta**2 * self.count * num_new / total.clamp(
            min=1
        )
        self.mean += delta * num_new / total.clamp(min=1)
        self.spread.copy_(
            torch.where(squares > 0, (squares / total.clamp(min=1)).sqrt(), self.spread)
        )
        self.count.copy_(total)


class DeepFM(nn.Module):
    """A DeepFM for one binary label.

    Args:
        slots: The slots that it uses; at least one.
        buckets: Embeddings per id slot. Signs in the same bucket share one.
        dim: Numbers per embedding.
        hidden: The sizes of the hidden layers.
        dropout: The dropout rate of the hidden layers.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        *,
        buckets: int = 1 << 14,
        dim: int = 8,
        hidden: tuple[int, ...] = (64, 32),
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        # Scalars first: the order decides over the initial weights, and so over the AUC.
        ids = sorted(
            (slot for slot in slots if slot.kind is SlotKind.ID), key=lambda slot: len(slot.shape)
        )
        floats = [slot for slot in slots if slot.kind is SlotKind.FLOAT]
        self.ids = IdEmbedding(ids, buckets, dim) if ids else None
        self.floats = FloatEmbedding(floats, dim) if floats else None
        self.bias = nn.Parameter(torch.zeros(1))
        self.network = _network(
            len(ids) * dim + (self.floats.width if self.floats else 0), hidden, dropout
        )

    def forward(self, columns: SlotTensors) -> Tensor:
        """Returns logits, float32 (num_rows,)."""
        inputs, fields = [], []
        if self.ids is not None:
            of_ids = self.ids(columns)
            fields.append(of_ids)
            inputs.append(of_ids[:, :, 1:].flatten(1))
        if self.floats is not None:
            numbers, of_numbers = self.floats(columns)
            fields.append(of_numbers)
            inputs.append(numbers)
        vectors = torch.cat(fields, dim=1)
        deep = self.network(torch.cat(inputs, dim=1)).squeeze(1)
        linear = self.bias + vectors[:, :, 0].sum(dim=1)
        return cast(Tensor, linear + pairwise(vectors[:, :, 1:]) + deep)

    @torch.no_grad()
    def start_at(self, rate: Tensor) -> None:
        """Sets the bias so that training starts from this share of positives instead of 0.5."""
        self.bias.fill_(rate.clamp(0.01, 0.99).logit())

    def optimizers(self, *, lr: float, sparse_lr: float) -> list[torch.optim.Optimizer]:
        """Adam for the dense parameters, and SparseAdam, which updates only the rows of a batch,
        for the embeddings of ids.

        Args:
            lr: The learning rate of the dense parameters.
            sparse_lr: The learning rate of the embeddings.
        """
        dense = [value for name, value in self.named_parameters() if name != "ids.weight"]
        optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(dense, lr=lr)]
        if self.ids is not None:
            optimizers.append(torch.optim.SparseAdam([self.ids.weight], lr=sparse_lr))
        return optimizers


def pairwise(vectors: Tensor) -> Tensor:
    """The sum of the dot products of all pairs of `vectors` (num_rows, num_fields, dim): float32
    (num_rows,).

    It is computed in linear time, as half the square of the sum less the sum of the squares.
    """
    total = vectors.sum(dim=1)
    return 0.5 * (total**2 - (vectors**2).sum(dim=1)).sum(dim=1)


def bucket(signs: Tensor, buckets: int) -> Tensor:
    """`1 + sign % (buckets - 1)`, and 0 for missing: int64 in [0, buckets). Ids that are bucketed
    already stay distinct.
    """
    return torch.where(signs == 0, 0, 1 + signs % (buckets - 1))


def pool(column: Tensor | Jagged) -> tuple[Tensor, Tensor]:
    """The mean of each float list, NaN if it has no values, and log(1 + number of values): float32
    (num_rows, 1) each.
    """
    values, offsets = _flat(column)
    present = ~torch.isnan(values)
    rows = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())
    count = torch.zeros(len(offsets) - 1).index_add_(0, rows, present.float())
    total = torch.zeros(len(offsets) - 1).index_add_(0, rows, torch.where(present, values, 0.0))
    mean = torch.where(count > 0, total / count.clamp(min=1), math.nan)
    return mean.unsqueeze(1), torch.log1p(count).unsqueeze(1)


def _network(width: int, hidden: Sequence[int], dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU(), nn.Dropout(dropout)]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, 1))


def _flat(column: Tensor | Jagged) -> tuple[Tensor, Tensor]:
    """Values and offsets of a list, of a fixed-width column (num_rows, width) or of a scalar."""
    if isinstance(column, Jagged):
        return column.values, column.offsets
    return column.flatten(), torch.arange(column.shape[0] + 1) * math.prod(column.shape[1:])
